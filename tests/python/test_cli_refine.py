"""`torchvq fit --refine`: against `eval`, and the refinement in Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from cli_support import Array, cli_path, clusters, expect_bad_input, run_json
from safetensors.torch import load_file

import torchvq

CODEC = "codec.safetensors"
STACK = ("--levels", "3", "--iterations", "5")


def fit(folder: Path, *options: str, name: str = CODEC) -> dict[str, object]:
    return run_json("fit", "x.npy", "-k", "16", *options, "-o", name, cwd=folder)


@pytest.fixture
def vectors(tmp_path: Path) -> Array:
    x = clusters(3000, 8)
    np.save(tmp_path / "x.npy", x)
    return x


@pytest.mark.parametrize("options", [STACK, (*STACK, "--groups", "2"), (*STACK, "--beam", "8")])
def test_the_error_falls_as_reported(
    tmp_path: Path, vectors: Array, options: tuple[str, ...]
) -> None:
    beam = "8" if "--beam" in options else "5"
    plain = fit(tmp_path, *options, name="plain.safetensors")
    report = fit(tmp_path, *options, "--refine", "6")
    assert "mse_before_refits" not in plain
    assert 0 < report["refits"] <= 6  # type: ignore[operator]
    assert report["mse_after_refits"] < 0.95 * report["mse_before_refits"]  # type: ignore[operator]
    for name, key in (("plain.safetensors", "before"), (CODEC, "after")):
        measured = run_json("eval", name, "x.npy", "--beam", beam, cwd=tmp_path)
        assert report[f"mse_{key}_refits"] == pytest.approx(measured["mse"], rel=1e-12)


def test_the_codec_is_what_python_refines(tmp_path: Path, vectors: Array) -> None:
    fit(tmp_path, *STACK, name="plain.safetensors")
    report = fit(tmp_path, *STACK, "--refine", "4")
    stack = torchvq.ResidualVQ(dim=8, num_quantizers=3, codebook_size=16)
    stack.load_state_dict(load_file(tmp_path / "plain.safetensors"))
    refined = torchvq.refine(stack, torch.from_numpy(vectors)[None], iterations=4)
    assert refined.error_after == pytest.approx(report["mse_after_refits"], rel=1e-12)
    state = load_file(tmp_path / CODEC)
    indices = stack.eval()(torch.from_numpy(vectors)[None], beam_size=5)[1][0]
    for level, layer in enumerate(stack.levels):
        assert torch.equal(layer._codebook.embed, state[f"layers.{level}._codebook.embed"])
        counts = state[f"layers.{level}._codebook.cluster_size"][0]
        assert torch.equal(counts.long(), indices[:, level].bincount(minlength=16))


def test_neither_memory_nor_threads_nor_processes_change_a_byte(
    tmp_path: Path, vectors: Array
) -> None:
    options = (*STACK, "--groups", "2", "--refine", "4", "--refine-noise", "0.2")
    fit(tmp_path, *options)
    wanted = (tmp_path / CODEC).read_bytes()
    for other in (("--threads", "1"), ("--threads", "3"), ("--memory", "1M")):
        fit(tmp_path, *options, *other)
        assert (tmp_path / CODEC).read_bytes() == wanted
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    program = ["--no-python", str(cli_path()), "fit", "x.npy", "-k", "16", *options, "--json"]
    ranks = subprocess.run(
        [*command, *program, "-o", "two.safetensors"],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ranks.returncode == 0, ranks.stderr
    assert json.loads(ranks.stdout)["processes"] == 2
    assert (tmp_path / "two.safetensors").read_bytes() == wanted


def test_one_codebook_can_be_refined(tmp_path: Path, vectors: Array) -> None:
    report = fit(tmp_path, "--iterations", "1", "--refine", "8")
    assert report["mse_after_refits"] < report["mse_before_refits"]  # type: ignore[operator]


def test_bad_options(tmp_path: Path, vectors: Array) -> None:
    common = ("fit", "x.npy", "-k", "16", "-o", CODEC)
    cosine = "--metric: expected euclidean with --refine, but got cosine"
    expect_bad_input(cosine, *common, "--refine", "2", "--metric", "cosine", cwd=tmp_path)
    expect_bad_input("--refine", *common, "--refine", "-1", cwd=tmp_path)
    noise = "--refine-noise: expected 0 without --refine, but got 0.3"
    expect_bad_input(noise, *common, "--refine-noise", "0.3", cwd=tmp_path)
    scalar = "--refine: expected 0 with --method lfq, but got 2"
    expect_bad_input(scalar, *common, "--method", "lfq", "--refine", "2", cwd=tmp_path)
