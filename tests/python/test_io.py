"""The C++ readers and writers against numpy and the safetensors package, in both directions."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from cli_support import Array, cpp_program

NUMPY_DTYPES = [
    "?",
    "i1",
    "u1",
    "<i2",
    "<u2",
    "<i4",
    "<u4",
    "<i8",
    "<u8",
    "<f2",
    "<f4",
    "<f8",
    ">i4",
    ">f2",
    ">f4",
    ">f8",
]
SHAPES = [(), (0,), (5,), (3, 4), (0, 4), (4, 0), (2, 3, 4), (1, 5, 1)]
TORCH_DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
]  # fmt: skip


def convert(*paths: Path) -> list[str]:
    """Runs the C++ helper on pairs (from, to)."""
    command = [cpp_program(), "convert", *paths]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=True
    ).stdout.splitlines()


def sample(dtype: str, shape: tuple[int, ...], order: str) -> Array:
    values = np.random.default_rng(0).integers(0, 100, shape)
    return np.asarray(values).astype(dtype).copy(order=order)  # type: ignore[call-overload,no-any-return]


def test_npy_goes_through_unchanged_for_every_dtype_shape_and_order(tmp_path: Path) -> None:
    arrays, pairs = [], []
    for dtype in NUMPY_DTYPES:
        for shape in SHAPES:
            for order in "CF":
                arrays.append(sample(dtype, shape, order))
                pairs += [tmp_path / f"{len(arrays)}.npy", tmp_path / f"{len(arrays)}.out.npy"]
                np.save(pairs[-2], arrays[-1])
    assert convert(*pairs) == ["ok"] * len(arrays)
    for array, path in zip(arrays, pairs[1::2], strict=True):
        copy = np.load(path)
        assert copy.dtype == array.dtype.newbyteorder("=") and copy.flags.c_contiguous
        np.testing.assert_array_equal(copy, array)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_versions_of_numpy_are_read(tmp_path: Path, version: tuple[int, int]) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    with open(tmp_path / "x.npy", "wb") as file:
        np.lib.format.write_array(file, array, version=version)
    assert convert(tmp_path / "x.npy", tmp_path / "y.npy") == ["ok"]
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), array)


def test_npy_bytes_are_those_of_numpy(tmp_path: Path) -> None:
    for shape in [(7,), (3, 4), (123456, 1)]:
        np.save(tmp_path / "x.npy", np.ones(shape, np.float32))
        assert convert(tmp_path / "x.npy", tmp_path / "y.npy") == ["ok"]
        assert (tmp_path / "x.npy").read_bytes() == (tmp_path / "y.npy").read_bytes()


def test_npy_dtypes_without_numbers_are_refused(tmp_path: Path) -> None:
    arrays = [
        np.ones(3, complex),
        np.array(["a"]),
        np.array([{}], dtype=object),
        np.zeros(2, [("a", "f4")]),
    ]
    pairs = []
    for i, array in enumerate(arrays):
        pairs += [tmp_path / f"{i}.npy", tmp_path / f"{i}.out.npy"]
        np.save(pairs[-2], array, allow_pickle=True)
    answers = convert(*pairs)
    assert all("expected an array of" in answer for answer in answers) and len(answers) == len(
        arrays
    )


def test_safetensors_goes_through_unchanged(tmp_path: Path) -> None:
    tensors = {
        f"{dtype}".replace("torch.", ""): (torch.rand(3, 4) * 50).to(dtype)
        for dtype in TORCH_DTYPES
    }
    tensors |= {
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
        'é \n "name"': torch.arange(3),
    }
    metadata = {"format": "pt", "note": "any \u00fcnicode"}
    safetensors.torch.save_file(tensors, tmp_path / "x.safetensors", metadata)
    assert convert(tmp_path / "x.safetensors", tmp_path / "y.safetensors") == ["ok"]
    copy = safetensors.torch.load_file(tmp_path / "y.safetensors")
    assert copy.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert copy[name].dtype == tensor.dtype
        assert torch.equal(copy[name], tensor)
    with safetensors.safe_open(tmp_path / "y.safetensors", "pt") as file:
        assert file.metadata() == metadata


def test_safetensors_accept_and_refuse_what_the_package_does(tmp_path: Path) -> None:
    """Mutated headers: files that the package refuses are refused here, and files that both accept are equal."""
    source = {"a": torch.arange(6, dtype=torch.float32).view(2, 3), "b": torch.arange(3)}
    valid = safetensors.torch.save(source)
    rng = np.random.default_rng(0)
    pairs, theirs = [], []
    for i in range(300):
        mutated = bytearray(valid)
        for _ in range(rng.integers(1, 3)):
            mutated[rng.integers(0, len(valid) - 48)] = rng.choice(
                list(b'{}[]",:0123456789 aF\x00\xff')
            )
        pairs += [tmp_path / f"{i}.safetensors", tmp_path / f"{i}.out.safetensors"]
        pairs[-2].write_bytes(mutated)
        try:
            theirs.append(safetensors.torch.load(bytes(mutated)))
        except Exception:
            theirs.append(None)
    ours = convert(*pairs)
    assert len(ours) == len(theirs)
    for answer, their, path in zip(ours, theirs, pairs[1::2], strict=True):
        assert (answer == "ok") <= (their is not None), answer
        if answer == "ok" and their is not None:
            copy = safetensors.torch.load_file(path)
            assert copy.keys() == their.keys()
            assert all(torch.equal(copy[name], their[name]) for name in copy)
    assert sum(their is not None for their in theirs) > 0
