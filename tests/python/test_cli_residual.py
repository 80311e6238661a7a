"""`torchvq` with levels, groups and beams: against numpy, the Python modules, and faiss."""

from __future__ import annotations

import json
import math
from pathlib import Path

import faiss
import numpy as np
import pytest
import safetensors.torch
import torch
from cli_support import Array, clusters, expect_bad_input, nearest, run, run_json
from safetensors.numpy import load_file, save_file

import torchvq

CODEC = "codec.safetensors"


def fit(folder: Path, *options: str, size: int = 16, name: str = CODEC) -> dict[str, object]:
    return run_json("fit", "x.npy", "-k", str(size), *options, "-o", name, cwd=folder)


def codebooks_of(path: Path) -> list[list[Array]]:
    """The codebooks (K, D) of each level of each group."""
    state = {k: v[0] for k, v in load_file(path).items() if k.endswith("._codebook.embed")}
    groups: list[list[Array]] = []
    for group in range(64):
        stem = "" if "layers.0._codebook.embed" in state else f"rvqs.{group}."
        names = [f"{stem}layers.{level}._codebook.embed" for level in range(64)]
        levels = [state[name] for name in names if name in state]
        if not levels or (groups and not stem):
            break
        groups.append(levels)
    return groups


def decoded(codes: Array, groups: list[list[Array]]) -> Array:
    """The vectors that codes of shape (N, groups * levels) decode to, in float64."""
    levels = len(groups[0])
    parts = []
    for g, group in enumerate(groups):
        columns = codes[:, g * levels : (g + 1) * levels]
        parts.append(
            sum(c.astype(np.float64)[columns[:, q]] for q, c in enumerate(group))  # type: ignore[misc]
        )
    return np.concatenate(parts, 1)


def greedy(x: Array, levels: list[Array]) -> Array:
    """The nearest code of each level, by brute force."""
    remaining, codes = x, []
    for codebook in levels:
        codes.append(nearest(remaining, codebook))
        remaining = remaining - codebook[codes[-1]]
    return np.stack(codes, 1)


@pytest.fixture
def vectors(tmp_path: Path) -> Array:
    x = clusters(3000, 8)
    np.save(tmp_path / "x.npy", x)
    return x


def test_a_level_is_fitted_to_what_the_levels_before_have_left(
    tmp_path: Path, vectors: Array
) -> None:
    report = fit(tmp_path, "--levels", "3")
    ((first, second, third),) = codebooks_of(tmp_path / CODEC)
    remaining = vectors
    for level, codebook in enumerate([first, second, third]):
        assert codebook.shape == (16, 8)
        codes = nearest(remaining, codebook)
        state = load_file(tmp_path / CODEC)
        counts = state[f"layers.{level}._codebook.cluster_size"][0]
        np.testing.assert_array_equal(counts, np.bincount(codes, minlength=16))
        remaining = remaining - codebook[codes]
    mse = (remaining.astype(np.float64) ** 2).mean()
    assert report["mse"] == pytest.approx(mse, rel=1e-6)
    assert report["bits_per_vector"] == 12.0


@pytest.mark.parametrize(("levels", "groups"), [(3, 1), (1, 2), (3, 2), (2, 4)])
def test_codes_come_back_as_eval_measures(
    tmp_path: Path, vectors: Array, levels: int, groups: int
) -> None:
    fit(tmp_path, "--levels", str(levels), "--groups", str(groups))
    codebooks = codebooks_of(tmp_path / CODEC)
    assert len(codebooks) == groups and len(codebooks[0]) == levels
    for beam in [1, 4]:
        options = ["--beam", str(beam)]
        run_json("encode", CODEC, "x.npy", *options, "-o", "codes.npy", cwd=tmp_path)
        codes = np.load(tmp_path / "codes.npy")
        assert codes.shape == (3000, levels * groups) and codes.dtype == np.uint8
        run_json("decode", CODEC, "codes.npy", "-o", "decoded.npy", cwd=tmp_path)
        y = np.load(tmp_path / "decoded.npy")
        np.testing.assert_allclose(y, decoded(codes, codebooks), rtol=1e-5, atol=1e-5)
        report = run_json("eval", CODEC, "x.npy", *options, cwd=tmp_path)
        squares = (vectors.astype(np.float64) - y) ** 2
        assert report["mse"] == pytest.approx(squares.mean(), rel=1e-12)
        x2 = (vectors.astype(np.float64) ** 2).sum()
        assert report["relative_error"] == pytest.approx(squares.sum() / x2, rel=1e-12)
        for column, measured in enumerate(report["codes"]):
            p = np.bincount(codes[:, column], minlength=16) / len(codes)
            entropy = -sum(q * math.log2(q) for q in p if q > 0)
            assert (measured["group"], measured["level"]) == divmod(column, levels)
            assert measured["used_codes"] == (p > 0).sum()
            assert measured["perplexity"] == pytest.approx(2**entropy, rel=1e-9)
        assert report["bits_per_vector"] == 4 * levels * groups
        if beam == 1:
            part = 8 // groups
            wanted = [
                greedy(vectors[:, g * part : (g + 1) * part], codebooks[g]) for g in range(groups)
            ]
            np.testing.assert_array_equal(codes, np.concatenate(wanted, 1))


def test_a_beam_of_all_paths_is_exhaustive(tmp_path: Path) -> None:
    x = clusters(200, 4)
    np.save(tmp_path / "x.npy", x)
    fit(tmp_path, "--levels", "2", size=5)
    ((first, second),) = codebooks_of(tmp_path / CODEC)
    sums = (first.astype(np.float64)[:, None] + second.astype(np.float64)[None]).reshape(25, 4)
    best = ((x.astype(np.float64)[:, None] - sums) ** 2).sum(-1).min(1).mean() / 4
    report = run_json("eval", CODEC, "x.npy", "--beam", "5", cwd=tmp_path)
    assert report["mse"] == pytest.approx(best, rel=1e-6)


def test_memory_and_threads_do_not_change_a_bit(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", clusters(40000, 12))
    options = ["--levels", "3", "--groups", "2", "--beam", "3", "--iterations", "4"]
    reports = []
    for name, more in [
        ("a", ["--threads", "1"]),
        ("b", ["--memory", "1M", "--threads", "2"]),
        ("c", ["--memory", "1.1M"]),  # the residuals of one group fit, all vectors do not
    ]:
        report = fit(tmp_path, *options, *more, size=64, name=f"{name}.safetensors")
        reports.append({**report, "output": 0, "streamed": 0, "seconds": 0})
    a, b, c = ((tmp_path / f"{name}.safetensors").read_bytes() for name in "abc")
    assert a == b == c
    assert reports[0] == reports[1] == reports[2]


@pytest.mark.parametrize("groups", [1, 2])
def test_python_modules_load_a_codec_and_agree(tmp_path: Path, vectors: Array, groups: int) -> None:
    fit(tmp_path, "--levels", "3", "--groups", str(groups))
    options = {"dim": 8, "num_quantizers": 3, "codebook_size": 16}
    module = (
        torchvq.ResidualVQ(**options)  # type: ignore[arg-type]
        if groups == 1
        else torchvq.GroupedResidualVQ(groups=groups, **options)  # type: ignore[arg-type]
    )
    module.load_state_dict(safetensors.torch.load_file(tmp_path / CODEC))
    module.eval()
    quantized, indices, _ = module(torch.from_numpy(vectors)[None])
    run_json("encode", CODEC, "x.npy", "-o", "codes.npy", cwd=tmp_path)
    codes = np.load(tmp_path / "codes.npy")
    of_groups = indices.reshape(groups, 3000, 3).movedim(0, 1).reshape(3000, groups * 3)
    np.testing.assert_array_equal(codes, of_groups.numpy())
    run_json("decode", CODEC, "codes.npy", "-o", "decoded.npy", cwd=tmp_path)
    y = np.load(tmp_path / "decoded.npy")
    np.testing.assert_allclose(y, quantized[0].numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("prefix", "cosine"), [("", False), ("model.encoder.", False), ("", True)])
def test_a_module_saved_from_python_is_a_codec(
    tmp_path: Path, vectors: Array, groups: int, prefix: str, cosine: bool
) -> None:
    torch.manual_seed(0)
    options = {"dim": 8, "num_quantizers": 2, "codebook_size": (16, 300), "use_cosine_sim": cosine}
    module = (
        torchvq.ResidualVQ(**options)  # type: ignore[arg-type]
        if groups == 1
        else torchvq.GroupedResidualVQ(groups=groups, **options)  # type: ignore[arg-type]
    )
    state = {prefix + key: value for key, value in module.state_dict().items()}
    safetensors.torch.save_file(state, tmp_path / CODEC)
    run_json("encode", CODEC, "x.npy", "-o", "codes.npy", cwd=tmp_path)
    codes = np.load(tmp_path / "codes.npy")
    assert codes.dtype == np.uint16
    indices = module.eval()(torch.from_numpy(vectors)[None])[1]
    of_groups = indices.reshape(groups, 3000, 2).movedim(0, 1).reshape(3000, groups * 2)
    np.testing.assert_array_equal(codes, of_groups.numpy())
    report = run_json("inspect", CODEC, cwd=tmp_path)
    assert (report["kind"], report["levels"], report["groups"]) == ("codec", 2, groups)


def test_codes_keep_the_leading_axes_and_may_drop_levels(tmp_path: Path, vectors: Array) -> None:
    fit(tmp_path, "--levels", "3")
    np.save(tmp_path / "new.npy", vectors[:60].reshape(3, 5, 4, 8))
    run_json("encode", CODEC, "new.npy", "-o", "codes.npy", cwd=tmp_path)
    codes = np.load(tmp_path / "codes.npy").astype(np.int16)
    assert codes.shape == (3, 5, 4, 3)
    codes[..., 2] = -1
    np.save(tmp_path / "codes.npy", codes)
    run_json("decode", CODEC, "codes.npy", "-o", "decoded.npy", cwd=tmp_path)
    ((first, second, _),) = codebooks_of(tmp_path / CODEC)
    y = np.load(tmp_path / "decoded.npy")
    np.testing.assert_array_equal(y, first[codes[..., 0]] + second[codes[..., 1]])
    np.save(tmp_path / "none.npy", np.empty((0, 8), np.float32))
    run_json("encode", CODEC, "none.npy", "-o", "codes.npy", cwd=tmp_path)
    assert np.load(tmp_path / "codes.npy").shape == (0, 3)


def test_metadata_says_levels_and_groups(tmp_path: Path, vectors: Array) -> None:
    fit(tmp_path, "--levels", "2", "--groups", "4")
    with safetensors.safe_open(tmp_path / CODEC, "np") as file:
        metadata = file.metadata()
    metadata.pop("torchvq_version")
    assert metadata == {
        "format": "pt", "format_version": "1", "class": "GroupedResidualVQ", "codebook_size": "16",
        "num_quantizers": "2", "groups": "4", "dim": "8", "metric": "euclidean",
    }  # fmt: skip


@pytest.mark.parametrize("beam", [1, 5])
def test_the_error_is_no_worse_than_that_of_faiss(tmp_path: Path, beam: int) -> None:
    x, held_out = clusters(6000, 16, centres=400), clusters(1000, 16, centres=400)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "held_out.npy", held_out)
    fit(tmp_path, "--levels", "4", size=64)
    ours = run_json("eval", CODEC, "held_out.npy", "--beam", str(beam), cwd=tmp_path)["mse"]
    theirs = faiss.ResidualQuantizer(16, 4, 6)
    theirs.max_beam_size = 5
    theirs.train(x)
    theirs.max_beam_size = beam
    y = theirs.decode(theirs.compute_codes(held_out))
    assert ours <= {1: 1.10, 5: 1.02}[beam] * ((held_out - y).astype(np.float64) ** 2).mean()


def test_people_see_a_line_for_each_level(tmp_path: Path, vectors: Array) -> None:
    fit(tmp_path, "--levels", "2", "--groups", "2")
    shown = run("eval", CODEC, "x.npy", "--beam", "2", cwd=tmp_path).stdout
    for line in ["group 0 level 0", "group 1 level 1", "bits per vector", "beam"]:
        assert line in shown
    assert json.loads(run("inspect", CODEC, "--json", cwd=tmp_path).stdout)["levels"] == 2


FIT = ["fit", "x.npy", "-k", "16", "-o", "out.safetensors"]


@pytest.mark.parametrize(
    ("fragment", "arguments"),
    [
        ("--levels", [*FIT, "--levels", "0"]),
        ("--levels", [*FIT, "--levels", "many"]),
        ("--groups", [*FIT, "--groups", "0"]),
        ("--groups: expected a divisor of the dimension 8", [*FIT, "--groups", "3"]),
        ("--beam", [*FIT, "--levels", "2", "--beam", "0"]),
        ("--beam: expected at most 256", [*FIT, "--levels", "2", "--beam", "257"]),
        ("expected euclidean", [*FIT, "--levels", "2", "--metric", "cosine"]),
        ("expected euclidean", [*FIT, "--groups", "2", "--metric", "cosine"]),
        ("--timeout", [*FIT, "--timeout", "0"]),
        ("--beam: expected at most 256", ["eval", CODEC, "x.npy", "--beam", "257"]),
        ("--beam", ["encode", CODEC, "x.npy", "--beam", "-1", "-o", "codes.npy"]),
        ("expected euclidean, but got", ["eval", CODEC, "x.npy", "--metric", "cosine"]),
        ("got shape [5]", ["decode", CODEC, "flat.npy", "-o", "y.npy"]),
        ("got shape [5,3]", ["decode", CODEC, "wide.npy", "-o", "y.npy"]),
        ("[-1, 16), but got 16 at position 3", ["decode", CODEC, "high.npy", "-o", "y.npy"]),
    ],
)
def test_bad_usage(tmp_path: Path, vectors: Array, fragment: str, arguments: list[str]) -> None:
    fit(tmp_path, "--levels", "2")
    np.save(tmp_path / "flat.npy", np.zeros(5, np.uint8))
    np.save(tmp_path / "wide.npy", np.zeros((5, 3), np.uint8))
    np.save(tmp_path / "high.npy", np.array([[0, 1], [2, 16]]))
    fragment = fragment.replace("expected euclidean, but got", "metric cosine, but got euclidean")
    expect_bad_input(fragment, *arguments, cwd=tmp_path)


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        ("hole", "level 1 of group 0 is missing"),
        ("projection", "without projections"),
        ("implicit", "implicit codebooks"),
        ("two", "it holds 2"),
        ("dims", "codebooks of dimension 8"),
    ],
)
def test_files_that_are_no_stack(
    tmp_path: Path, vectors: Array, change: str, fragment: str
) -> None:
    fit(tmp_path, "--levels", "3")
    state = load_file(tmp_path / CODEC)
    if change == "hole":
        state = {k: v for k, v in state.items() if not k.startswith("layers.1.")}
        fragment = "every level"
    if change == "projection":
        state["project_in.weight"] = np.ones((8, 8), np.float32)
    if change == "implicit":
        state["mlps.0.weight"] = np.ones((8, 8), np.float32)
    if change == "two":
        state["other._codebook.embed"] = np.ones((1, 4, 8), np.float32)
    if change == "dims":
        for key in ["embed", "embed_avg"]:
            state[f"layers.2._codebook.{key}"] = np.ones((1, 16, 4), np.float32)
    save_file(state, tmp_path / "bad.safetensors")
    expect_bad_input(fragment, "eval", "bad.safetensors", "x.npy", cwd=tmp_path)


@pytest.mark.parametrize("groups", [1, 2])
def test_a_shared_codebook_that_save_model_wrote_once_is_every_level(
    groups, tmp_path: Path
) -> None:
    options = dict(dim=8, num_quantizers=3, codebook_size=16, shared_codebook=True)
    module = (
        torchvq.GroupedResidualVQ(groups=groups, **options)
        if groups > 1
        else torchvq.ResidualVQ(**options)
    )
    x = torch.from_numpy(clusters(60, 8))
    module(x.unsqueeze(0))
    module.eval()
    safetensors.torch.save_model(module, str(tmp_path / "codec.safetensors"))
    np.save(tmp_path / "x.npy", x.numpy())
    done = run("encode", "codec.safetensors", "x.npy", "-o", "codes.npy", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    indices = module(x.unsqueeze(0))[1]
    expected = indices[0] if groups == 1 else torch.cat(list(indices[:, 0]), -1)
    assert np.array_equal(np.load(tmp_path / "codes.npy"), expected.numpy())
