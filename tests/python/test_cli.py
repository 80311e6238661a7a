"""The `torchvq` program: results of its commands, against numpy, faiss and the reference package."""

from __future__ import annotations

import math
import os
import re
import resource
import shutil
import subprocess
from pathlib import Path

import faiss
import numpy as np
import pytest
import safetensors.torch
import torch
import vector_quantize_pytorch
from cli_support import Array, cli_path, clusters, nearest, run, run_json
from safetensors.numpy import load_file, save_file

COMMANDS = ["fit", "encode", "decode", "eval", "inspect"]


@pytest.fixture
def vectors(tmp_path: Path) -> Array:
    x = clusters(3000, 8)
    np.save(tmp_path / "x.npy", x)
    return x


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A codec fitted to the vectors."""
    place = tmp_path_factory.mktemp("fitted")
    np.save(place / "x.npy", clusters(3000, 8))
    run_json("fit", "x.npy", "-k", "32", "-o", "codec.safetensors", cwd=place)
    return place / "codec.safetensors"


@pytest.fixture
def codec(tmp_path: Path, vectors: Array, fitted: Path) -> Array:
    """Writes codec.safetensors and the vectors to the test's folder; returns the codebook."""
    return codebook_of(Path(shutil.copy(fitted, tmp_path / "codec.safetensors")))


def codebook_of(path: Path) -> Array:
    return load_file(path)["_codebook.embed"][0]


def test_fit_writes_the_state_of_vector_quantize(
    tmp_path: Path, vectors: Array, codec: Array
) -> None:
    state = safetensors.torch.load_file(tmp_path / "codec.safetensors")
    module = vector_quantize_pytorch.VectorQuantize(dim=8, codebook_size=32)
    assert {key: (value.shape, value.dtype) for key, value in module.state_dict().items()} == {
        key: (value.shape, value.dtype) for key, value in state.items()
    }
    module.load_state_dict(state, strict=True)
    module.eval()
    quantized, indices, _ = module(torch.from_numpy(vectors)[None])
    expected = nearest(vectors, codec)
    assert (
        indices[0].numpy() == expected
    ).mean() > 0.999  # the reference computes distances in float32
    np.testing.assert_array_equal(
        quantized[0].numpy()[indices[0].numpy() == expected],
        codec[expected][indices[0].numpy() == expected],
    )
    counts = np.bincount(expected, minlength=32)
    np.testing.assert_array_equal(state["_codebook.cluster_size"][0].numpy(), counts)
    np.testing.assert_allclose(
        state["_codebook.embed_avg"][0].numpy(), codec * counts[:, None], rtol=1e-6
    )


def test_fit_metadata_says_what_it_is(tmp_path: Path, codec: Array) -> None:
    with safetensors.safe_open(tmp_path / "codec.safetensors", "np") as file:
        metadata = file.metadata()
    version = metadata.pop("torchvq_version")
    assert version in run("--version").stdout
    assert metadata == {
        "format": "pt", "format_version": "1", "class": "VectorQuantize", "codebook_size": "32", "dim": "8",
        "metric": "euclidean",
    }  # fmt: skip


@pytest.mark.parametrize(("rows", "dim", "size"), [(4000, 16, 64), (6000, 4, 300)])
def test_fit_reaches_the_error_of_faiss(tmp_path: Path, rows: int, dim: int, size: int) -> None:
    x = clusters(rows, dim, centres=200)
    np.save(tmp_path / "x.npy", x)
    report = run_json("fit", "x.npy", "-k", str(size), "-o", "c.safetensors", cwd=tmp_path)
    errors = []
    for seed in range(3):
        kmeans = faiss.Kmeans(
            dim, size, niter=25, seed=seed, max_points_per_centroid=10**9, verbose=False
        )
        kmeans.train(x)
        errors.append(kmeans.index.search(x, 1)[0].mean() / dim)
    assert report["mse"] <= 1.02 * min(errors)
    codebook = codebook_of(tmp_path / "c.safetensors")
    mse = ((x - codebook[nearest(x, codebook)]).astype(np.float64) ** 2).mean()
    assert math.isclose(report["mse"], mse, rel_tol=1e-6)


def test_fit_streams_to_the_same_bytes(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", clusters(40000, 16))
    for metric in ["euclidean", "cosine"]:
        options = ["-k", "100", "--metric", metric, "--iterations", "4"]
        memory = run_json(
            "fit", "x.npy", *options, "-o", "memory.safetensors", "--threads", "1", cwd=tmp_path
        )
        stream = run_json(
            "fit",
            "x.npy",
            *options,
            "-o",
            "stream.safetensors",
            "--memory",
            "1M",
            "--threads",
            "2",
            cwd=tmp_path,
        )
        assert (memory["streamed"], stream["streamed"]) == (False, True)
        assert (tmp_path / "memory.safetensors").read_bytes() == (
            tmp_path / "stream.safetensors"
        ).read_bytes()
        assert {**memory, "output": 0, "streamed": 0, "seconds": 0} == {
            **stream,
            "output": 0,
            "streamed": 0,
            "seconds": 0,
        }


def test_fit_depends_on_the_seed_alone(tmp_path: Path, vectors: Array) -> None:
    for name, seed in [("a", 1), ("b", 1), ("c", 2)]:
        run_json(
            "fit",
            "x.npy",
            "-k",
            "32",
            "--seed",
            str(seed),
            "-o",
            f"{name}.safetensors",
            cwd=tmp_path,
        )
    a, b, c = ((tmp_path / f"{name}.safetensors").read_bytes() for name in "abc")
    assert a == b and a != c


def test_fit_with_cosine_gives_unit_codes(tmp_path: Path, vectors: Array) -> None:
    report = run_json(
        "fit", "x.npy", "-k", "32", "--metric", "cosine", "-o", "c.safetensors", cwd=tmp_path
    )
    codebook = codebook_of(tmp_path / "c.safetensors")
    np.testing.assert_allclose(np.linalg.norm(codebook, axis=1), 1, rtol=1e-6)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    run_json("encode", "c.safetensors", "x.npy", "-o", "codes.npy", cwd=tmp_path)
    codes = np.load(tmp_path / "codes.npy")
    np.testing.assert_array_equal(codes, nearest(unit, codebook))
    assert math.isclose(report["mse"], ((unit - codebook[codes]) ** 2).mean(), rel_tol=1e-5)


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", ">f4"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_encode_finds_the_nearest_codes(
    tmp_path: Path, codec: Array, dtype: str, order: str
) -> None:
    x = clusters(500, 8, seed=3).astype(dtype).copy(order=order)  # type: ignore[call-overload]
    np.save(tmp_path / "new.npy", x)
    for memory in ["1G", "1M"]:
        run_json(
            "encode",
            "codec.safetensors",
            "new.npy",
            "-o",
            "codes.npy",
            "--memory",
            memory,
            cwd=tmp_path,
        )
        codes = np.load(tmp_path / "codes.npy")
        assert codes.dtype == np.uint8
        np.testing.assert_array_equal(codes, nearest(x.astype(np.float32), codec))


def test_encode_reads_safetensors_by_key(tmp_path: Path, codec: Array, vectors: Array) -> None:
    half = vectors[:100].astype(np.float16)
    save_file({"half": half, "other": vectors}, tmp_path / "two.safetensors")
    run_json(
        "encode",
        "codec.safetensors",
        "two.safetensors",
        "--key",
        "half",
        "-o",
        "codes.npy",
        cwd=tmp_path,
    )
    np.testing.assert_array_equal(np.load(tmp_path / "codes.npy"), nearest(half, codec))
    for dtype in (torch.bfloat16, torch.float8_e4m3fn):
        rounded = torch.from_numpy(vectors).to(dtype)
        safetensors.torch.save_file({"only": rounded}, tmp_path / "one.safetensors")
        run_json("encode", "codec.safetensors", "one.safetensors", "-o", "codes.npy", cwd=tmp_path)
        expected = nearest(rounded.float().numpy(), codec)
        np.testing.assert_array_equal(np.load(tmp_path / "codes.npy"), expected)


def test_codes_and_vectors_keep_their_leading_axes(tmp_path: Path, codec: Array) -> None:
    x = clusters(60, 8).reshape(3, 5, 4, 8)
    np.save(tmp_path / "new.npy", x)
    run_json("encode", "codec.safetensors", "new.npy", "-o", "codes.npy", cwd=tmp_path)
    assert np.load(tmp_path / "codes.npy").shape == (3, 5, 4)
    run_json("decode", "codec.safetensors", "codes.npy", "-o", "decoded.npy", cwd=tmp_path)
    decoded = np.load(tmp_path / "decoded.npy")
    assert decoded.dtype == np.float32
    np.testing.assert_array_equal(decoded, codec[nearest(x.reshape(-1, 8), codec)].reshape(x.shape))


def test_nothing_in_gives_nothing_out(tmp_path: Path, codec: Array) -> None:
    np.save(tmp_path / "none.npy", np.empty((0, 8), np.float32))
    run_json("encode", "codec.safetensors", "none.npy", "-o", "codes.npy", cwd=tmp_path)
    assert np.load(tmp_path / "codes.npy").shape == (0,)
    run_json("decode", "codec.safetensors", "codes.npy", "-o", "decoded.npy", cwd=tmp_path)
    assert np.load(tmp_path / "decoded.npy").shape == (0, 8)


@pytest.mark.parametrize("dtype", ["i1", "u1", "<u2", ">i4", "<i8", "<u8"])
def test_decode_reads_every_integer(tmp_path: Path, codec: Array, dtype: str) -> None:
    codes = np.arange(32).astype(dtype)
    np.save(tmp_path / "codes.npy", codes)
    run_json("decode", "codec.safetensors", "codes.npy", "-o", "decoded.npy", cwd=tmp_path)
    np.testing.assert_array_equal(np.load(tmp_path / "decoded.npy"), codec)


def test_decode_gives_zeros_for_masked_tokens(tmp_path: Path, codec: Array) -> None:
    np.save(tmp_path / "codes.npy", np.array([3, -1, 0]))
    run_json("decode", "codec.safetensors", "codes.npy", "-o", "decoded.npy", cwd=tmp_path)
    np.testing.assert_array_equal(
        np.load(tmp_path / "decoded.npy"), np.stack([codec[3], 0 * codec[0], codec[0]])
    )


def test_eval_measures_what_its_help_says(tmp_path: Path, codec: Array) -> None:
    x = clusters(700, 8, seed=5)
    np.save(tmp_path / "new.npy", x)
    report = run_json("eval", "codec.safetensors", "new.npy", cwd=tmp_path)
    codes = nearest(x, codec)
    squares = (x.astype(np.float64) - codec[codes]) ** 2
    p = np.bincount(codes, minlength=32) / len(x)
    entropy = -sum(q * math.log2(q) for q in p if q > 0)
    expected = {
        "mse": squares.mean(), "relative_error": squares.sum() / (x.astype(np.float64) ** 2).sum(),
        "used_codes": (p > 0).sum(), "usage": (p > 0).mean(), "perplexity": 2**entropy, "bits_per_vector": 5.0,
        "entropy_bits": entropy,
    }  # fmt: skip
    assert {key: report[key] for key in expected} == pytest.approx(expected, rel=1e-9)
    assert (report["command"], report["vectors"], report["dim"], report["codebook_size"]) == (
        "eval",
        700,
        8,
        32,
    )


def test_codecs_saved_from_python_work(tmp_path: Path, vectors: Array) -> None:
    module = vector_quantize_pytorch.VectorQuantize(dim=8, codebook_size=16, use_cosine_sim=True)
    safetensors.torch.save_file(module.state_dict(), tmp_path / "python.safetensors")
    codebook = codebook_of(tmp_path / "python.safetensors")
    run_json(
        "encode",
        "python.safetensors",
        "x.npy",
        "--metric",
        "cosine",
        "-o",
        "codes.npy",
        cwd=tmp_path,
    )
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_array_equal(np.load(tmp_path / "codes.npy"), nearest(unit, codebook))
    assert run_json("inspect", "python.safetensors", cwd=tmp_path)["metric"] == "unknown"


def test_inspect_tells_what_a_file_holds(tmp_path: Path, vectors: Array, codec: Array) -> None:
    report = run_json("inspect", "codec.safetensors", cwd=tmp_path)
    assert (report["kind"], report["codebook_size"], report["dim"], report["metric"]) == (
        "codec",
        32,
        8,
        "euclidean",
    )
    assert report["used_codes"] == 32 and 1 < report["perplexity"] <= 32
    norms = np.linalg.norm(codec, axis=1)
    assert report["largest_norm"] == pytest.approx(norms.max(), rel=1e-6)
    np.save(tmp_path / "f.npy", np.asfortranarray(vectors))
    array = run_json("inspect", "f.npy", cwd=tmp_path)
    assert (array["kind"], array["shape"], array["dtype"], array["fortran_order"]) == (
        "array",
        [3000, 8],
        "float32",
        True,
    )
    np.save(tmp_path / "f3.npy", np.asfortranarray(vectors.reshape(30, 100, 8)))
    array = run_json("inspect", "f3.npy", cwd=tmp_path)
    assert (array["shape"], array["fortran_order"]) == ([30, 100, 8], True)
    save_file({"a": vectors, "b": np.arange(3)}, tmp_path / "t.safetensors", {"who": "me"})
    tensors = run_json("inspect", "t.safetensors", cwd=tmp_path)
    assert tensors["kind"] == "tensors" and tensors["metadata"] == {"who": "me"}
    assert tensors["tensors"] == {
        "a": {"dtype": "float32", "shape": [3000, 8]},
        "b": {"dtype": "int64", "shape": [3]},
    }


@pytest.mark.parametrize("count", [-1.0, np.nan])
def test_inspect_shows_a_codec_whose_counts_are_none(
    count: float, tmp_path: Path, vectors: Array, codec: Array
) -> None:
    """The other commands read the codes alone."""
    state = load_file(tmp_path / "codec.safetensors")
    state["_codebook.cluster_size"][0, 3] = count
    save_file(state, tmp_path / "odd.safetensors")
    report = run_json("inspect", "odd.safetensors", cwd=tmp_path)
    assert (report["kind"], report["codebook_size"]) == ("codec", 32) and "usage" not in report
    said = run("inspect", "odd.safetensors", cwd=tmp_path).stdout
    assert "usage" in said and "unknown (a count in the file is negative or not finite)" in said
    run("eval", "odd.safetensors", "x.npy", cwd=tmp_path)


def test_numbers_are_decimal(tmp_path: Path, vectors: Array) -> None:
    options = ("-k", "010", "--seed", "-010", "--iterations", "1", "--threads", "01")
    report = run_json("fit", "x.npy", *options, "-o", ".safetensors", cwd=tmp_path)
    assert (report["codebook_size"], report["seed"]) == (10, -10)


def test_the_relative_error_of_zeros_is_no_number(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((10, 4), np.float32))
    result = run("fit", "x.npy", "-k", "2", "-o", "codec.safetensors", cwd=tmp_path)
    assert "\nrelative error   nan\n" in result.stdout
    assert run_json("eval", "codec.safetensors", "x.npy", cwd=tmp_path)["relative_error"] is None


def test_names_in_a_file_do_not_command_the_terminal(tmp_path: Path) -> None:
    save_file({"a\n\x1b[2Jb\x9b2Jé": np.arange(3)}, tmp_path / "t.safetensors")
    lines = run("inspect", "t.safetensors", cwd=tmp_path).stdout.splitlines()
    assert len(lines) == 3 and lines[2].startswith("a  [2Jb 2Jé ")


def test_a_file_larger_than_the_address_space_streams(tmp_path: Path) -> None:
    """The process may map 320 MB more than at start, and reads a file of 512 MB, in both orders."""
    rows, dim = 1 << 20, 128
    block = clusters(1 << 14, dim)
    codebook = block[:4]
    save_file(
        {"_codebook.embed": codebook[None], "_codebook.cluster_size": np.ones((1, 4), np.float32),
         "_codebook.embed_avg": codebook[None], "_codebook.initted": np.array(True)},
        tmp_path / "codec.safetensors",
    )  # fmt: skip
    big = np.lib.format.open_memmap(tmp_path / "big.npy", "w+", np.float32, (rows, dim))
    for first in range(0, rows, len(block)):
        big[first : first + len(block)] = block
    del big
    limit = address_space_to_start() + (320 << 20)

    def restrict() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    options = {"cwd": tmp_path, "limit": restrict}
    run_json(
        "encode",
        "codec.safetensors",
        "big.npy",
        "-o",
        "codes.npy",
        "--memory",
        "64M",
        "--threads",
        "1",
        **options,
    )
    np.testing.assert_array_equal(
        np.load(tmp_path / "codes.npy"), np.tile(nearest(block, codebook), rows // len(block))
    )
    report = run_json(
        "fit", "big.npy", "-k", "4", "--iterations", "1", "-o", "fitted.safetensors",
        "--memory", "64M", "--threads", "1",
        **options,
    )  # fmt: skip
    assert report["streamed"] and report["vectors"] == rows


def test_codes_of_one_long_clip_are_decoded_in_blocks(tmp_path: Path, codec: Array) -> None:
    """Of shape (1, N): one row, which may be larger than the budget."""
    codes = np.random.default_rng(0).integers(0, 32, 3_000_000).astype(np.uint8)
    peaks = []
    for name, array in (("flat", codes), ("row", codes[None])):
        np.save(tmp_path / f"{name}.npy", array)
        options = ["--memory", "16M", "--threads", "1", "--quiet", "-o", f"{name}_vectors.npy"]
        command = [cli_path(), "decode", "codec.safetensors", f"{name}.npy", *options]
        _, status, usage = os.wait4(subprocess.Popen(command, cwd=tmp_path).pid, 0)
        assert status == 0
        peaks.append(usage.ru_maxrss)
    assert peaks[1] < 1.3 * peaks[0]
    flat, row = (
        np.load(tmp_path / f"{name}_vectors.npy", mmap_mode="r") for name in ("flat", "row")
    )
    assert row.shape == (1, *flat.shape)
    np.testing.assert_array_equal(row[0], codec[codes])


def address_space_to_start() -> int:
    """The smallest limit of the address space, to 16 MB, under which the program still answers --version."""
    low, high = 0, 1 << 36
    while high - low > 16 << 20:
        middle = (low + high) // 2
        limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (middle, middle))  # noqa: B023, E731
        low, high = (
            (low, middle) if run("--version", limit=limit).returncode == 0 else (middle, high)
        )
    return high


def test_help_explains_every_command(tmp_path: Path) -> None:
    program = run("--help").stdout
    assert all(f"torchvq {command}" in program for command in COMMANDS) and "Exit codes" in program
    for command in COMMANDS:
        result = run(command, "--help")
        assert result.returncode == 0 and result.stderr == ""
        assert f"Usage: torchvq {command}" in result.stdout and "Examples:" in result.stdout
        assert all(len(line) <= 120 for line in result.stdout.splitlines())


def test_the_examples_of_the_help_run(tmp_path: Path) -> None:
    np.save(tmp_path / "vectors.npy", clusters(2000, 4))
    np.save(tmp_path / "held_out.npy", clusters(300, 4, seed=1))
    examples = re.findall(r"^  torchvq (.*)$", run("--help").stdout, re.MULTILINE)
    assert len(examples) == 5
    for example in examples:
        result = run(*example.split(), cwd=tmp_path)
        assert result.returncode == 0, (example, result.stderr)


def test_people_get_lines_and_quiet_gives_none(tmp_path: Path, codec: Array) -> None:
    shown = run("eval", "codec.safetensors", "x.npy", cwd=tmp_path)
    assert "relative error" in shown.stdout and "%" in shown.stdout
    quiet = run("eval", "codec.safetensors", "x.npy", "--quiet", cwd=tmp_path)
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")


def test_a_terminal_shows_a_bar_with_rate_and_time_left(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", clusters(200000, 16))
    command = f"{cli_path()} fit x.npy -k 256 --iterations 5 --memory 4M -o c.safetensors"
    result = subprocess.run(
        ["script", "-qec", command, "/dev/null"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert re.search(
        r"fit pass \d/5 \[#+\.+\] +\d+%, [\d.]+[kM]? vectors/s, \d+:\d\d left", result.stdout
    )
    assert re.search(r"\] 100%, [\d.]+[kM]? vectors/s, \d+:\d\d in all", result.stdout)
