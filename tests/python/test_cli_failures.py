"""Errors of the `torchvq` program: one line, exit code 2, no partial or temporary file."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from cli_support import Array, cli_path, clusters, expect_bad_input, run, snapshot
from safetensors.numpy import save_file
from safetensors.torch import save_model

import torchvq

FIT = ["fit", "x.npy", "-k", "8", "-o", "out.safetensors"]
ENCODE = ["encode", "codec.safetensors", "x.npy", "-o", "codes.npy"]
DECODE = ["decode", "codec.safetensors", "codes.npy", "-o", "decoded.npy"]
EVAL = ["eval", "codec.safetensors", "x.npy"]
USERS_OF_VECTORS = [FIT, ENCODE, EVAL]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """x.npy, a codec fitted to it, and codes.npy, which must survive every failure."""
    place = tmp_path_factory.mktemp("made")
    np.save(place / "x.npy", clusters(100, 4))
    assert run("fit", "x.npy", "-k", "8", "-o", "codec.safetensors", cwd=place).returncode == 0
    np.save(place / "codes.npy", np.arange(8))
    return place


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """The test's own copy of `made`."""
    return Path(shutil.copytree(made, tmp_path, dirs_exist_ok=True))


@pytest.mark.parametrize(
    ("fragment", "arguments"),
    [
        ("subcommand is required", []),
        (
            "torchvq: expected a command (fit, encode, decode, eval, inspect), but got encod (see torchvq --help)",
            ["encod", "x.npy"],
        ),
        ("--unknown", [*EVAL, "--unknown"]),
        ("vectors is required", ["fit"]),
        ("--codebook-size is required", ["fit", "x.npy", "-o", "out.safetensors"]),
        ("--output is required", ["encode", "codec.safetensors", "x.npy"]),
        ("--codebook-size", ["fit", "x.npy", "-k", "0", "-o", "out.safetensors"]),
        ("--codebook-size", ["fit", "x.npy", "-k", "many", "-o", "out.safetensors"]),
        ("--iterations", [*FIT, "--iterations", "-1"]),
        ("--metric", [*FIT, "--metric", "dot"]),
        ("--threads", [*FIT, "--threads", "0"]),
        ("--memory", [*FIT, "--memory", "plenty"]),
        ("--memory", [*FIT, "--memory", "1X"]),
        ("--memory", [*FIT, "--memory", "-1G"]),
        ("--seed", [*FIT, "--seed", "x"]),
        ("--seed: expected a whole number", [*FIT, "--seed", str(2**63)]),
        ("--seed: expected a whole number", [*FIT, "--seed", "0x10"]),
        ("--codebook-size: expected", ["fit", "x.npy", "-k", " 7", "-o", "out.safetensors"]),
        (
            "--refine-noise: expected 0 with --method lfq",
            [*FIT, "--method", "lfq", "--refine-noise", "3"],
        ),
        ("nan is not a number", [*FIT, "--levels", "2", "--refine", "1", "--refine-noise", "nan"]),
        ("expected a name that ends in .safetensors", ["fit", "x.npy", "-k", "8", "-o", "out.npy"]),
        (
            "expected a name that ends in .npy",
            ["encode", "codec.safetensors", "x.npy", "-o", "codes.safetensors"],
        ),
        (
            "expected another file than the input",
            ["encode", "codec.safetensors", "x.npy", "-o", "./x.npy"],
        ),
        ("metric cosine, but got euclidean", [*EVAL, "--metric", "cosine"]),
    ],
)
def test_bad_usage(folder: Path, fragment: str, arguments: list[str]) -> None:
    expect_bad_input(fragment, *arguments, cwd=folder)


@pytest.mark.parametrize("command", USERS_OF_VECTORS, ids=lambda command: command[0])
@pytest.mark.parametrize(
    ("array", "fragment"),
    [
        (np.ones(5, np.float32), "shape (N, dim) or (..., N, dim), but got shape (5,)"),
        (np.float32(1), "shape (N, dim) or (..., N, dim), but got shape ()"),
        (np.ones((100, 0), np.float32), "at least 1 dimension"),
        (np.ones((100, 4), np.int64), "floating point vectors, but got int64"),
        (np.ones((100, 4), np.complex64), "but got dtype '<c8'"),
        (np.asfortranarray(np.ones((10, 10, 4), np.float32)), "numpy.ascontiguousarray"),
        (np.full((100, 4), 1e300), "finite float32 values, but row 0"),
        (np.full((100, 4), "a b"), "but got dtype '<U3'"),
        (np.full((100, 4), 1, "<M8[s]"), "but got dtype '<M8[s]'"),
        (np.ones((100, 4), np.longdouble), "but got dtype '<f16'"),
        (np.ones(100, [("a", "<f4"), ("b\u00e9", ">i2", 3)]), "dtype [('a', '<f4'), ('b"),
        (np.ones(100, [(f"field {i}", "<f4") for i in range(99)]), "dtype [('field 0', '<f4'), "),
    ],
    ids=[
        "1d",
        "0d",
        "no-dim",
        "int",
        "complex",
        "fortran-3d",
        "overflow",
        "text",
        "times",
        "long-double",
        "structure",
        "long-structure",
    ],
)
def test_arrays_that_are_no_vectors(
    folder: Path, command: list[str], array: Array, fragment: str
) -> None:
    np.save(folder / "x.npy", array)
    expect_bad_input(fragment, *command, cwd=folder)


@pytest.mark.parametrize("command", USERS_OF_VECTORS, ids=lambda command: command[0])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("memory", ["1G", "1M"])
def test_rows_that_are_not_finite_are_named(
    folder: Path, command: list[str], value: float, memory: str
) -> None:
    x = clusters(30000, 4)
    x[23456, 2] = value
    np.save(folder / "x.npy", x)
    expect_bad_input("row 23456 holds NaN or infinity", *command, "--memory", memory, cwd=folder)


@pytest.mark.parametrize("command", USERS_OF_VECTORS, ids=lambda command: command[0])
def test_truncated_files(folder: Path, command: list[str]) -> None:
    whole = (folder / "x.npy").read_bytes()
    for length in [0, 1, 5, 7, 9, 40, 127, 128, 129, len(whole) - 1]:
        (folder / "x.npy").write_bytes(whole[:length])
        expect_bad_input("x.npy: expected", *command, cwd=folder)


def test_truncated_codecs(folder: Path) -> None:
    whole = (folder / "codec.safetensors").read_bytes()
    for length in [0, 7, 8, 9, 100, len(whole) - 1]:
        (folder / "codec.safetensors").write_bytes(whole[:length])
        for command in [ENCODE, DECODE, EVAL, ["inspect", "codec.safetensors"]]:
            expect_bad_input("codec.safetensors: expected", *command, cwd=folder)


def test_files_of_another_kind(folder: Path) -> None:
    (folder / "x.npy").write_text("1.0, 2.0, 3.0\n")
    for command in [*USERS_OF_VECTORS, ["inspect", "x.npy"]]:
        expect_bad_input("first bytes are neither's", *command, cwd=folder)
    np.save(folder / "x.npy", clusters(100, 4))
    expect_bad_input(
        "expected a safetensors file", "encode", "x.npy", "x.npy", "-o", "out.npy", cwd=folder
    )
    save_file(
        {"a": np.ones((3, 4), np.float32), "b": np.ones((3, 4), np.float32)},
        folder / "two.safetensors",
    )
    expect_bad_input("tensor named _codebook.embed", "eval", "two.safetensors", "x.npy", cwd=folder)
    expect_bad_input("holds 2 tensors", "eval", "codec.safetensors", "two.safetensors", cwd=folder)
    expect_bad_input(
        "but it holds a, b",
        "eval",
        "codec.safetensors",
        "two.safetensors",
        "--key",
        "c",
        cwd=folder,
    )
    expect_bad_input("holds one array", *EVAL, "--key", "a", cwd=folder)


def test_places_that_cannot_be_read_or_written(folder: Path) -> None:
    expect_bad_input(
        "absent.npy: cannot open: No such file or directory",
        "eval",
        "codec.safetensors",
        "absent.npy",
        cwd=folder,
    )
    expect_bad_input("Is a directory", "eval", "codec.safetensors", ".", cwd=folder)
    expect_bad_input("a device or a pipe", "eval", "codec.safetensors", "/dev/zero", cwd=folder)
    expect_bad_input(
        "absent/c.npy: cannot write: No such file", *ENCODE[:3], "-o", "absent/c.npy", cwd=folder
    )
    long = 256 * "a"
    expect_bad_input(
        "cannot write: File name too long", *FIT[:-1], f"{long}.safetensors", cwd=folder
    )
    (folder / "folder.npy").mkdir()
    expect_bad_input("Is a directory", *ENCODE[:3], "-o", "folder.npy", cwd=folder)


def test_more_codes_than_vectors(folder: Path) -> None:
    expect_bad_input(
        "at least as many vectors as codes (101), but it holds 100",
        *FIT[:2],
        "-k",
        "101",
        *FIT[4:],
        cwd=folder,
    )
    np.save(folder / "x.npy", np.empty((0, 4), np.float32))
    expect_bad_input("but it holds 0", *FIT, cwd=folder)
    expect_bad_input("at least 1 vector", *EVAL, cwd=folder)


def test_vectors_of_another_dimension(folder: Path) -> None:
    np.save(folder / "x.npy", clusters(100, 5))
    for command in [ENCODE, EVAL]:
        expect_bad_input(
            "vectors of dimension 4, as in codec.safetensors, but got 5", *command, cwd=folder
        )


@pytest.mark.parametrize(
    ("codes", "fragment"),
    [
        (np.array([0, 1, 8]), "to be in [-1, 8), but got 8 at position 2"),
        (np.array([[0, 1], [-2, 1]]), "but got -2 at position 2"),
        (np.array([2**63 - 1]), "but got 9223372036854775807 at position 0"),
        (
            np.array([0, 2**64 - 1], np.uint64),
            "indices below 2^63, but got 18446744073709551615 at position 1",
        ),
        (np.array([0.0, 1.0]), "whole-number indices, but got Double"),
        (np.array([True]), "whole-number indices, but got Bool"),
        (np.array(3), "got shape ()"),
    ],
    ids=["large", "negative", "huge", "wraps", "float", "bool", "0d"],
)
def test_codes_that_are_none(folder: Path, codes: Array, fragment: str) -> None:
    np.save(folder / "codes.npy", codes)
    expect_bad_input(fragment, *DECODE, cwd=folder)


@pytest.mark.parametrize(
    "arguments",
    [
        ["fit", "x.npy", "-k", "8", "-o", "/dev/full"],
        [*ENCODE[:3], "-o", "/dev/full"],
        [*DECODE[:3], "-o", "/dev/full"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_full_device(folder: Path, arguments: list[str]) -> None:
    expect_bad_input("/dev/full: cannot write: No space left on device", *arguments, cwd=folder)


def test_standard_output_that_is_full(folder: Path) -> None:
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [cli_path(), *EVAL, "--json"],
            cwd=folder,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert result.returncode == 2
    assert result.stderr == "torchvq: standard output: cannot write: No space left on device\n"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KB, in its own mount namespace if that is allowed."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small tmpfs needs root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_keeps_the_old_file(folder: Path, small_disk: Path) -> None:
    (small_disk / "decoded.npy").write_text("old")
    np.save(folder / "codes.npy", np.zeros(100000, np.int64))
    before = snapshot(small_disk)
    expect_bad_input(
        "No space left on device", *DECODE[:3], "-o", str(small_disk / "decoded.npy"), cwd=folder
    )
    assert snapshot(small_disk) == before
    assert (small_disk / "decoded.npy").read_text() == "old"


def test_a_file_size_limit_is_an_error_of_one_line(folder: Path) -> None:
    np.save(folder / "codes.npy", np.zeros(100000, np.int64))

    def restrict() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10000, 10000))

    expect_bad_input("File too large", *DECODE, cwd=folder, limit=restrict)


@pytest.mark.parametrize(
    "name", ["INT", "TERM", "HUP", "QUIT", "XCPU", "ALRM", "VTALRM", "PROF", "USR1", "USR2"]
)
def test_a_signal_leaves_no_file_behind(folder: Path, name: str) -> None:
    number = signal.Signals[f"SIG{name}"]
    np.save(folder / "x.npy", clusters(100000, 32))
    before = set(os.listdir(folder))
    process = subprocess.Popen(
        [cli_path(), "fit", "x.npy", "-k", "4096", "-o", "out.safetensors"],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
        # Processes that a shell starts in the background ignore SIGINT, and their children inherit that.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    wait_for(lambda: set(os.listdir(folder)) != before)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -number
    assert "Traceback" not in errors and "terminate" not in errors
    assert set(os.listdir(folder)) == before


def test_a_file_that_is_cut_while_it_is_read(folder: Path) -> None:
    np.save(folder / "x.npy", clusters(100000, 32))
    size = (folder / "x.npy").stat().st_size
    before = set(os.listdir(folder))
    process = subprocess.Popen(
        [cli_path(), *FIT[:3], "512", *FIT[4:], "--iterations", "100000", "--memory", "1M"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: set(os.listdir(folder)) != before)
    os.truncate(folder / "x.npy", size // 2)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, ""), errors
    assert errors.splitlines()[-1].endswith(f"it was cut to {size // 2} bytes"), errors
    assert set(os.listdir(folder)) == before


def wait_for(condition: object, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "the program never began to write"
        time.sleep(0.01)


def test_a_success_replaces_the_old_file_and_leaves_nothing_else(folder: Path) -> None:
    before = set(os.listdir(folder))
    assert run(*ENCODE, cwd=folder).returncode == 0
    assert set(os.listdir(folder)) == before
    assert np.load(folder / "codes.npy").shape == (100,)


def test_names_with_control_characters_stay_on_one_line(folder: Path) -> None:
    expect_bad_input(
        "two lines.npy: cannot open", "eval", "codec.safetensors", "two\nlines.npy", cwd=folder
    )


@pytest.mark.parametrize("count", [4, pytest.param(25, marks=pytest.mark.exhaustive)])
def test_damaged_headers_never_crash(folder: Path, count: int) -> None:
    """Damaged headers as a user meets them; `make fuzz` tries millions on the readers."""
    rng = np.random.default_rng(0)
    for name, header in [("x.npy", 80), ("codec.safetensors", 600)]:
        valid = (folder / name).read_bytes()
        for _ in range(count):
            damaged = bytearray(valid)
            damaged[rng.integers(0, header)] = rng.integers(0, 256)
            (folder / name).write_bytes(damaged)
            result = run("eval", "codec.safetensors", "x.npy", "--json", cwd=folder)
            assert result.returncode in (0, 2), (result.returncode, result.stderr)
            assert result.stderr.count("\n") == (1 if result.returncode == 2 else 0)
        (folder / name).write_bytes(valid)


def header(shape: str, dtype: str) -> bytes:
    """A .npy file without data."""
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize("arguments", USERS_OF_VECTORS, ids=lambda a: a[0])
def test_sizes_whose_product_overflows_beside_an_empty_axis(arguments, folder: Path) -> None:
    (folder / "x.npy").write_bytes(header(f"(0, {2**62})", "<f4"))
    expect_bad_input("x.npy", *arguments, cwd=folder)


@pytest.mark.parametrize("shape", [(0, 2**61), (2**62, 0)], ids=str)
def test_codes_whose_sizes_overflow_beside_an_empty_axis(shape, folder: Path) -> None:
    (folder / "codes.npy").write_bytes(header(str(shape), "<i8"))
    expect_bad_input("codes.npy", *DECODE, cwd=folder)


def test_many_rows_without_codes_end_at_once(folder: Path) -> None:
    (folder / "codes.npy").write_bytes(header(f"({2**40}, 0)", "<i8"))
    assert run(*DECODE, cwd=folder).returncode == 0
    assert np.load(folder / "decoded.npy").shape == (2**40, 0, 4)


MODULES_THAT_NEED_MORE = {
    "affine": lambda: torchvq.VectorQuantize(4, 8, affine_param=True),
    "affine levels": lambda: torchvq.ResidualVQ(
        dim=4, codebook_size=8, num_quantizers=2, affine_param=True
    ),
    "bridge": lambda: torchvq.VectorQuantize(4, 8, vq_bridge=torch.nn.Linear(4, 4)),
    "scales": lambda: torchvq.HierarchicalVQ(dim=4, codebook_size=8, scales=(1, 2)),
    "random projection": lambda: torchvq.RandomProjectionQuantizer(
        dim=4, codebook_size=8, codebook_dim=4
    ),
}


@pytest.mark.parametrize("make", MODULES_THAT_NEED_MORE.values(), ids=MODULES_THAT_NEED_MORE.keys())
def test_modules_that_compute_more_than_codes_are_no_codecs(make, folder: Path) -> None:
    save_model(make(), str(folder / "codec.safetensors"))
    expect_bad_input("need the module around it", *ENCODE, cwd=folder)
