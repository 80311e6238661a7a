"""Runs the `torchvq` program and the C++ test helper, and makes the files they read."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
#: The build tree; `make TORCH=2.15.0` uses another one.
BUILD = ROOT / os.environ.get("TORCHVQ_BUILD", "build")

Array = npt.NDArray[Any]


def find_program(variable: str, *places: Path) -> Path:
    """The program that the environment variable names, or the first that exists."""
    named = os.environ.get(variable)
    candidates = [Path(named)] if named else list(places)
    for candidate in candidates:
        if candidate.exists():
            return candidate
    raise FileNotFoundError(
        f"set {variable}, or build the program: none of {[str(c) for c in candidates]} exists"
    )


def cli_path() -> Path:
    return find_program(
        "TORCHVQ_CLI", BUILD / "cli/torchvq", Path(sys.executable).parent / "torchvq"
    )


def cpp_program() -> Path:
    """The C++ side of comparisons (tests/cpp/run.cpp)."""
    return find_program("TORCHVQ_RUN", BUILD / "tests/cpp/torchvq_run")


@functools.cache
def _server() -> subprocess.Popen[str]:
    """One process for all runs, because starting it takes longer than most of them."""
    return subprocess.Popen(
        [str(cpp_program()), "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def run_cpp_module(
    name: str, given: dict[str, Tensor], words: list[str], folder: Path
) -> dict[str, Tensor]:
    """Runs the C++ module of that name on the tensors and returns its results; standard error is in the file `said`."""
    contiguous = {key: value.detach().clone().contiguous() for key, value in given.items()}
    safetensors.torch.save_file(contiguous, folder / "in.safetensors")
    said, files = folder / "said", [folder / "in.safetensors", folder / "out.safetensors"]
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write("\t".join(map(str, (said, name, *files, *words))) + "\n")
    server.stdin.flush()
    status = server.stdout.readline()
    assert status == "0\n", f"torchvq_run {name}: status {status}{said.read_text()}"
    return safetensors.torch.load_file(folder / "out.safetensors")


def run(
    *arguments: str | Path,
    cwd: Path | None = None,
    limit: Callable[[], None] | None = None,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """Runs `torchvq arguments`; `limit` runs in the child before it (for resource limits)."""
    command = [str(cli_path()), *map(str, arguments)]
    return subprocess.run(
        command,
        cwd=cwd,
        preexec_fn=limit,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        **options,
    )


def run_json(*arguments: str | Path, **options: Any) -> dict[str, Any]:
    """Runs with --json, expects success, and returns the one object on standard output."""
    result = run(*arguments, "--json", **options)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert isinstance(report, dict)
    return report


def expect_bad_input(fragment: str, *arguments: str | Path, cwd: Path, **options: Any) -> None:
    """Expects exit code 2, one line on standard error with `fragment`, no output, and no new or changed file."""
    before = snapshot(cwd)
    result = run(*arguments, cwd=cwd, **options)
    assert result.returncode == 2, (result.returncode, result.stderr)
    assert result.stdout == ""
    assert result.stderr.startswith("torchvq: ") and result.stderr.count("\n") == 1, result.stderr
    assert fragment in result.stderr, result.stderr
    assert snapshot(cwd) == before


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    # Only files: the modification time of a folder changes when a temporary file comes and goes.
    files = (path for path in folder.rglob("*") if not path.is_dir())
    return {str(path): (path.lstat().st_size, path.lstat().st_mtime_ns) for path in files}


def clusters(rows: int, dim: int, seed: int = 0, centres: int = 50) -> Array:
    """Gaussian clusters, float32."""
    rng = np.random.default_rng(seed)
    middle = rng.normal(size=(centres, dim))
    return (middle[rng.integers(0, centres, rows)] + 0.3 * rng.normal(size=(rows, dim))).astype(
        np.float32
    )


def nearest(x: Array, codebook: Array) -> Array:
    """Brute force in float64; the lowest index wins a tie."""
    wide, codes = x.astype(np.float64), codebook.astype(np.float64)
    return ((wide[:, None, :] - codes[None, :, :]) ** 2).sum(-1).argmin(-1)
