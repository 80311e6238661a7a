"""Packages of examples/python/export_tokenizer.py, run by the C++ program examples/cpp/serve.cpp without Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from cli_support import BUILD, ROOT
from safetensors.torch import save_file
from torch import Tensor, nn

SERVE = BUILD / "examples" / "cpp" / "serve"
sys.path.insert(0, str(ROOT / "examples" / "python"))

from export_tokenizer import QUANTIZERS, package, signals, train  # noqa: E402

# Only one kind in `make test`: compiling a package takes long.
OTHERS = [
    pytest.param(kind, marks=pytest.mark.exhaustive) for kind in QUANTIZERS if kind != "residual_vq"
]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    if not SERVE.is_file():
        pytest.fail(f"{SERVE} is missing; `make build` builds it", pytrace=False)
    return subprocess.run(
        [str(part) for part in (SERVE, *arguments)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def served(model: nn.Module, example: Tensor, inputs: list[Tensor], folder: Path) -> list[Tensor]:
    """The program's output for each input; inputs alternate between .npy and .safetensors."""
    path = folder / "model.pt2"
    package(model, example, path)
    outputs = []
    for number, x in enumerate(inputs):
        file = folder / ("input.safetensors" if number % 2 else "input.npy")
        save_file({"x": x.contiguous()}, file) if number % 2 else np.save(file, x.numpy())
        done = run(path, file, folder / "output.npy")
        assert done.returncode == 0, done.stderr
        outputs.append(torch.from_numpy(np.load(folder / "output.npy")))
    return outputs


@pytest.mark.parametrize("kind", ["residual_vq", *OTHERS])
def test_tokens_of_the_program_are_those_of_python(kind: str, tmp_path: Path) -> None:
    """Bit for bit, for other batches and lengths than the exported ones; sizes exported as fixed are checked."""
    encode, _ = train(kind, steps=3)
    inputs = [signals(7, seed=8), signals(1, seed=9)[:, :1]]
    inputs.append(inputs[0].permute(2, 1, 0).contiguous().permute(2, 1, 0))  # Fortran order
    for x, tokens in zip(inputs, served(encode, signals(4, 7), inputs, tmp_path), strict=True):
        expected = encode(x.contiguous())
        assert expected.unique().numel() > 3 or x.numel() == 32
        assert tokens.dtype == torch.int64 and torch.equal(tokens, expected)
    for wrong, words in ((inputs[0][..., :31], "expected: 32"), (inputs[0].double(), "dtype")):
        np.save(tmp_path / "wrong.npy", wrong.numpy())
        done = run(tmp_path / "model.pt2", tmp_path / "wrong.npy", tmp_path / "none.npy")
        # With torch 2.11, the message is printed before the program's own line.
        assert done.returncode == 1 and "serve: " in done.stderr and words in done.stderr


@pytest.mark.exhaustive
def test_frames_of_the_program_are_those_of_python(tmp_path: Path) -> None:
    encode, decode = train("residual_vq", steps=3)
    inputs = [encode(signals(5, seed=8)), torch.full((1, 2, 3), -1)]
    outputs = served(decode, encode(signals(4, seed=7)), inputs, tmp_path)
    for x, frames in zip(inputs, outputs, strict=True):
        torch.testing.assert_close(frames, decode(x).detach())
    np.save(tmp_path / "wrong.npy", torch.full((1, 2, 3), 64).numpy())
    done = run(tmp_path / "model.pt2", tmp_path / "wrong.npy", tmp_path / "none.npy")
    assert done.returncode == 1
    # Torch prints a line of its own before.
    assert "serve: residual_decode: expected indices to be in [-1, 64), but got 64\n" in done.stderr
    assert "frame #" not in done.stderr


def test_failures_are_said_in_one_line(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(3, np.float32))
    assert run().returncode == 2
    done = run(tmp_path / "none.pt2", tmp_path / "x.npy", tmp_path / "y.npy")
    assert done.returncode == 1 and done.stderr.startswith("serve: ") and "none.pt2" in done.stderr
    assert not (tmp_path / "y.npy").exists()
