"""The `torchvq` program on numbers at the ends of float32, and on files of very many tensors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cli_support import Array, expect_bad_input, run_json
from safetensors.numpy import load_file

LARGE, SMALL = 3e38, 1e-41


def write_signs(folder: Path, magnitude: float, rows: int = 64) -> Array:
    """x.npy: vectors in all corners of a box."""
    rng = np.random.default_rng(0)
    x = rng.choice([-1.0, 1.0], size=(rows, 4)) * magnitude * rng.uniform(0.9, 1, size=(rows, 4))
    np.save(folder / "x.npy", x.astype(np.float32))
    loaded: Array = np.load(folder / "x.npy")
    return loaded


def test_vectors_at_the_end_of_float32_keep_their_bits(tmp_path: Path) -> None:
    x = write_signs(tmp_path, LARGE)
    report = run_json("fit", "x.npy", "-k", "64", "-o", "codec.safetensors", cwd=tmp_path)
    assert report["mse"] == 0
    assert all(np.isfinite(t).all() for t in load_file(tmp_path / "codec.safetensors").values())
    run_json("encode", "codec.safetensors", "x.npy", "-o", "codes.npy", cwd=tmp_path)
    run_json("decode", "codec.safetensors", "codes.npy", "-o", "decoded.npy", cwd=tmp_path)
    np.testing.assert_array_equal(np.load(tmp_path / "decoded.npy"), x)
    inspected = run_json("inspect", "codec.safetensors", cwd=tmp_path)
    norms = np.linalg.norm(x.astype(np.float64), axis=1)
    assert inspected["largest_norm"] == pytest.approx(norms.max(), rel=1e-12)
    assert inspected["smallest_norm"] == pytest.approx(norms.min(), rel=1e-12)


@pytest.mark.parametrize(
    ("magnitude", "options", "fragment"),
    [
        (LARGE, ["-k", "4"], "code 0 of level 0 of group 0 stands for"),
        (LARGE, ["-k", "4", "--levels", "2"], "what the levels before leave of them, to fit in"),
        (LARGE, ["--method", "fsq", "--quantizer-levels", "3,3"], "magnitudes of up to 2.99"),
        (SMALL, ["--method", "fsq", "--quantizer-levels", "3,3"], "magnitudes of up to 9.99"),
    ],
    ids=["sums", "residual", "fsq large", "fsq small"],
)
def test_a_codec_that_float32_cannot_hold_is_not_written(
    tmp_path: Path, magnitude: float, options: list[str], fragment: str
) -> None:
    write_signs(tmp_path, magnitude)
    expect_bad_input(
        fragment, "fit", "x.npy", *options, "--quiet", "-o", "out.safetensors", cwd=tmp_path
    )


def test_a_file_of_many_tensors_opens(tmp_path: Path) -> None:
    """In time that is quadratic in their number this takes an hour, beyond the time limit of a run."""
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header = json.dumps({f"tensor.{i}": entry for i in range(300_000)}).encode()
    (tmp_path / "many.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    report = run_json("inspect", "many.safetensors", cwd=tmp_path)
    assert len(report["tensors"]) == 300_000
    assert report["tensors"]["tensor.299999"] == {"dtype": "float32", "shape": [0]}
