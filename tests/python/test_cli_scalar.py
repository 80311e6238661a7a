"""`torchvq --method fsq` and `lfq`: against numpy's linear algebra, the reference's modules and ours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from cli_support import Array, clusters, expect_bad_input, run, run_json
from safetensors import safe_open
from safetensors.numpy import load_file
from safetensors.numpy import save_file as save_numpy
from safetensors.torch import load_file as load_torch
from vector_quantize_pytorch import FSQ, LFQ

CODEC = "codec.safetensors"
FSQ_OPTIONS = ("--method", "fsq", "--quantizer-levels", "8,5,5")
LFQ_OPTIONS = ("--method", "lfq", "-k", "64")
DIM = 12


@pytest.fixture
def x(tmp_path: Path) -> Array:
    """Correlated features far from the origin."""
    rng = np.random.default_rng(0)
    vectors = clusters(3000, DIM) @ (rng.normal(size=(DIM, DIM)) * np.linspace(1, 0.1, DIM)) + 3
    np.save(tmp_path / "x.npy", vectors.astype(np.float32))
    loaded: Array = np.load(tmp_path / "x.npy")
    return loaded


def fit(folder: Path, *options: str) -> dict[str, object]:
    return run_json("fit", "x.npy", *options, "-o", CODEC, cwd=folder)


def encode(folder: Path, vectors: str = "x.npy") -> Array:
    run_json("encode", CODEC, vectors, "-o", "codes.npy", cwd=folder)
    codes: Array = np.load(folder / "codes.npy")
    return codes


def decode(folder: Path, codes: str = "codes.npy") -> Array:
    run_json("decode", CODEC, codes, "-o", "decoded.npy", cwd=folder)
    decoded: Array = np.load(folder / "decoded.npy")
    return decoded


def digits(codes: Array, levels: list[int]) -> Array:
    """The level of each feature, the first counting fastest, as FSQ's codes."""
    strides = np.cumprod([1, *levels[:-1]])
    numbers = codes[..., None].astype(np.int64) // strides % levels
    halves = np.array(levels) // 2
    return (numbers - halves) / halves


def signs(codes: Array, bits: int) -> Array:
    """The signs of each feature, the first counting slowest, as LFQ's codes."""
    return (codes[..., None].astype(np.int64) >> np.arange(bits)[::-1] & 1) * 2.0 - 1


def least_squares_error(features: Array, x: Array) -> float:
    """The smallest mean squared error of a linear map with offset from features to vectors."""
    design = np.concatenate([features, np.ones((len(features), 1))], 1)
    solution, *_ = np.linalg.lstsq(design, x.astype(np.float64), rcond=None)
    return float(((design @ solution - x) ** 2).mean())


def principal(x: Array, count: int) -> Array:
    """The directions of largest variance, as columns."""
    _, _, rows = np.linalg.svd(x.astype(np.float64) - x.mean(0, dtype=np.float64))
    directions: Array = rows[:count].T
    return directions


def same_span(a: Array, b: Array) -> bool:
    qa, qb = np.linalg.qr(a)[0], np.linalg.qr(b)[0]
    return bool(np.abs(np.linalg.svd(qa.T @ qb)[1] - 1).max() < 1e-4)


@pytest.mark.parametrize("groups", [1, 2])
def test_fsq_is_the_best_map_around_the_codes(tmp_path: Path, x: Array, groups: int) -> None:
    report = fit(tmp_path, *FSQ_OPTIONS, "--groups", str(groups))
    state = load_file(tmp_path / CODEC)
    assert same_span(state["project_in.weight"].T, principal(x, 3 * groups))
    codes = encode(tmp_path).reshape(len(x), groups)
    best = least_squares_error(digits(codes, [8, 5, 5]).reshape(len(x), -1), x)
    error = float(((decode(tmp_path).astype(np.float64) - x) ** 2).mean())
    assert error == pytest.approx(best, rel=1e-5)
    assert report["mse"] == pytest.approx(best, rel=1e-5)
    # Lower error than with the same directions at a fixed width instead of the fitted one.
    z = (x - x.mean(0)) @ principal(x, 3 * groups)
    narrow = torch.from_numpy(z / z.std(0) * 0.4).view(len(x), groups, 3)
    fixed = FSQ([8, 5, 5])(narrow.float())[0].view(len(x), -1).numpy()
    assert best < least_squares_error(fixed.astype(np.float64), x)


def test_lfq_is_the_best_map_around_the_signs(tmp_path: Path, x: Array) -> None:
    report = fit(tmp_path, *LFQ_OPTIONS)
    state = load_file(tmp_path / CODEC)
    weight = state["project_in.weight"].astype(np.float64)
    assert same_span(weight.T, principal(x, 6))
    np.testing.assert_allclose(weight @ weight.T, np.eye(6), atol=1e-5)
    codes = encode(tmp_path)
    best = least_squares_error(signs(codes, 6), x)
    error = float(((decode(tmp_path).astype(np.float64) - x) ** 2).mean())
    assert error == pytest.approx(best, rel=1e-5) and report["mse"] == pytest.approx(best, rel=1e-5)
    # The rotation lowers the error: signs of unrotated principal components are worse.
    plain = np.sign((x - x.mean(0)) @ principal(x, 6))
    assert best < least_squares_error(plain, x)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("method", ["fsq", "lfq"])
def test_codec_is_the_state_of_the_modules(
    tmp_path: Path, x: Array, method: str, groups: int
) -> None:
    options = FSQ_OPTIONS if method == "fsq" else LFQ_OPTIONS
    fit(tmp_path, *options, "--groups", str(groups))
    codes = encode(tmp_path)
    module: torch.nn.Module
    if method == "fsq":
        module = FSQ([8, 5, 5], dim=DIM, num_codebooks=groups)
    else:
        module = LFQ(dim=DIM, codebook_size=64, num_codebooks=groups, has_projections=True)
    module.load_state_dict(load_torch(tmp_path / CODEC), strict=True)
    with torch.no_grad():
        quantized, indices = module.eval()(torch.from_numpy(x)[None])[:2]
    # The module projects in float32, so a feature at the border of two levels may round either way.
    differ = (indices[0].numpy().reshape(codes.shape) != codes).reshape(len(x), -1).any(1)
    assert differ.mean() < 1e-3
    np.testing.assert_allclose(decode(tmp_path)[~differ], quantized[0].numpy()[~differ], atol=2e-4)


def test_vectors_of_as_many_features_as_levels_are_taken_as_they_are(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(500, 3)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    fit(tmp_path, *FSQ_OPTIONS)
    assert load_file(tmp_path / CODEC) == {}
    quantized, indices = FSQ([8, 5, 5])(torch.from_numpy(x)[None])
    np.testing.assert_array_equal(encode(tmp_path), indices[0].numpy())
    np.testing.assert_allclose(decode(tmp_path), quantized[0].numpy(), atol=1e-6)


@pytest.mark.parametrize("options", [FSQ_OPTIONS, LFQ_OPTIONS], ids=["fsq", "lfq"])
def test_streaming_and_threads_change_nothing(tmp_path: Path, options: tuple[str, ...]) -> None:
    np.save(tmp_path / "x.npy", clusters(70000, DIM))  # more vectors than are sampled
    fit(tmp_path, *options)
    whole = (tmp_path / CODEC).read_bytes()
    report = fit(tmp_path, *options, "--memory", "1M", "--threads", "1")
    assert report["streamed"] and (tmp_path / CODEC).read_bytes() == whole


def test_more_codes_than_can_be_counted(tmp_path: Path, x: Array) -> None:
    """2^36 codes: int64 indices, and no table of codes anywhere."""
    report = fit(tmp_path, "--method", "fsq", "--quantizer-levels", ",".join(["16"] * 9))
    assert report["codebook_size"] == 2**36 and report["bits_per_vector"] == 36
    codes = encode(tmp_path)
    assert codes.dtype == np.int64 and codes.max() > 2**32
    evaluated = run_json("eval", CODEC, "x.npy", cwd=tmp_path)
    counted = {"used_codes", "usage", "perplexity", "entropy_bits"}
    assert not counted & (report.keys() | evaluated.keys())
    error = float(((decode(tmp_path).astype(np.float64) - x) ** 2).mean())
    assert evaluated["mse"] == pytest.approx(error, rel=1e-6)
    assert report["mse"] == pytest.approx(error, rel=1e-6)


def test_eval_counts_each_group(tmp_path: Path, x: Array) -> None:
    fit(tmp_path, *FSQ_OPTIONS, "--groups", "2")
    codes = encode(tmp_path)
    report = run_json("eval", CODEC, "x.npy", cwd=tmp_path)
    assert [entry["used_codes"] for entry in report["codes"]] == [
        len(np.unique(codes[:, group])) for group in range(2)
    ]
    text = run("eval", CODEC, "x.npy", cwd=tmp_path).stdout
    assert "quantizer levels  [8,5,5]" in text and "group 1" in text


def test_masked_codes_decode_to_zeros(tmp_path: Path, x: Array) -> None:
    fit(tmp_path, *LFQ_OPTIONS)
    codes = encode(tmp_path).astype(np.int16)
    codes[::2] = -1
    np.save(tmp_path / "masked.npy", codes)
    decoded = decode(tmp_path, "masked.npy")
    assert (decoded[::2] == 0).all() and (np.abs(decoded[1::2]).sum(1) > 0).all()


def test_shapes_and_inspect(tmp_path: Path, x: Array) -> None:
    fit(tmp_path, *FSQ_OPTIONS, "--groups", "2")
    np.save(tmp_path / "maps.npy", x[:24].reshape(2, 3, 4, DIM))
    assert encode(tmp_path, "maps.npy").shape == (2, 3, 4, 2)
    assert decode(tmp_path).shape == (2, 3, 4, DIM)
    report = run_json("inspect", CODEC, cwd=tmp_path)
    assert report["kind"] == "codec" and report["method"] == "fsq" and report["groups"] == 2
    assert report["quantizer_levels"] == [8, 5, 5] and report["dim"] == DIM


def test_flat_features_do_not_matter(tmp_path: Path) -> None:
    """More levels than directions with any variance still give a finite codec."""
    x = np.zeros((300, DIM), np.float32)
    x[:, 0] = np.random.default_rng(0).normal(size=300)
    np.save(tmp_path / "x.npy", x)
    report = fit(tmp_path, *FSQ_OPTIONS)
    assert all(np.isfinite(tensor).all() for tensor in load_file(tmp_path / CODEC).values())
    assert report["relative_error"] < 0.05


BAD = {
    "no levels": (["--method", "fsq"], "--quantizer-levels is required"),
    "a codebook size": ([*FSQ_OPTIONS, "-k", "16"], "--codebook-size: expected none"),
    "levels of 1": (["--method", "fsq", "--quantizer-levels", "8,1"], "expected levels of 3"),
    "levels that are words": (["--method", "fsq", "--quantizer-levels", "8,x"], "8,x"),
    "levels with a gap": (["--method", "fsq", "--quantizer-levels", "5,,5"], "but got 5,,5"),
    "levels with an end": (["--method", "fsq", "--quantizer-levels", "5,5,"], "but got 5,5,"),
    "levels with a start": (["--method", "fsq", "--quantizer-levels", ",5"], "but got ,5"),
    "levels with a space": (["--method", "fsq", "--quantizer-levels", "5, 5"], "but got 5, 5"),
    "no level": (["--method", "fsq", "--quantizer-levels", ""], "--quantizer-levels"),
    "too many codes": (
        ["--method", "fsq", "--quantizer-levels", ",".join(["65536"] * 4)],
        "at most 2^62",
    ),
    "more levels than features": (
        ["--method", "fsq", "--quantizer-levels", ",".join(["3"] * 13)],
        "expected at most 12 levels",
    ),
    "not a power of two": (["--method", "lfq", "-k", "100"], "power of two"),
    "more bits than features": (["--method", "lfq", "-k", "8192"], "expected at most 12 bits"),
    "levels of a stack": ([*LFQ_OPTIONS, "--levels", "2"], "--levels: expected 1"),
    "a beam": ([*LFQ_OPTIONS, "--beam", "2"], "--beam: expected 1"),
    "a metric": ([*LFQ_OPTIONS, "--metric", "cosine"], "--metric: expected none"),
    "iterations": ([*LFQ_OPTIONS, "--iterations", "2"], "--iterations: expected none"),
    "levels for vq": (
        ["-k", "4", "--quantizer-levels", "8"],
        "--quantizer-levels: expected none with --method vq",
    ),
    "no codes for vq": ([], "--codebook-size is required"),
    "another method": (["--method", "pq"], "pq"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_options(tmp_path: Path, x: Array, name: str) -> None:
    options, fragment = BAD[name]
    expect_bad_input(fragment, "fit", "x.npy", *options, "-o", CODEC, cwd=tmp_path)


def test_no_vectors(tmp_path: Path) -> None:
    np.save(tmp_path / "none.npy", np.zeros((0, 12), np.float32))
    fragment = "none.npy: expected at least one vector, but it holds 0"
    expect_bad_input(fragment, "fit", "none.npy", *LFQ_OPTIONS, "-o", CODEC, cwd=tmp_path)


DAMAGES: dict[str, tuple[dict[str, str], str]] = {
    "no dim": ({"dim": ""}, "expected dim"),
    "levels": ({"levels": "8,,5"}, "expected levels"),
    "levels of 1": ({"levels": "8,1,5"}, "levels of 2"),
    "other levels": ({"levels": "8,5"}, "shape"),
    "version": ({"format_version": "7"}, "format version"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_codecs(tmp_path: Path, x: Array, name: str) -> None:
    fit(tmp_path, *FSQ_OPTIONS)
    with safe_open(tmp_path / CODEC, "np") as file:
        metadata = file.metadata()
    changes, fragment = DAMAGES[name]
    save_numpy(load_file(tmp_path / CODEC), tmp_path / "bad.safetensors", metadata | changes)
    expect_bad_input(
        fragment, "encode", "bad.safetensors", "x.npy", "-o", "codes.npy", cwd=tmp_path
    )


def test_what_a_codec_without_codebooks_cannot_do(tmp_path: Path, x: Array) -> None:
    fit(tmp_path, *FSQ_OPTIONS)
    for option, value in (("--beam", "2"), ("--metric", "cosine")):
        expect_bad_input(
            option, "encode", CODEC, "x.npy", option, value, "-o", "codes.npy", cwd=tmp_path
        )
    np.save(tmp_path / "codes.npy", np.array([0, 200]))
    expect_bad_input("[-1, 200)", "decode", CODEC, "codes.npy", "-o", "d.npy", cwd=tmp_path)
    np.save(tmp_path / "narrow.npy", np.zeros((4, 3), np.float32))
    expect_bad_input("dimension 12", "encode", CODEC, "narrow.npy", "-o", "codes.npy", cwd=tmp_path)
