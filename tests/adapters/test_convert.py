"""Quantizers of the packages as codecs: the command line gives the same tokens and latents as the packages."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_models
import torch
from quantizers import CASES, FACTORISED, Case
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.utils import parametrize

import torchvq
from torchvq import adapters
from torchvq.convert import ConversionError, convert
from torchvq.convert.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("TORCHVQ_BUILD", "build")
PROGRAM = os.environ.get("TORCHVQ_CLI", str(BUILD / "cli/torchvq"))
DECODE = os.environ.get("TORCHVQ_DECODE_CODEC", str(BUILD / "examples/cpp/decode_codec"))
NAMES = [name for name in CASES if name != "snac_package"]


def run(folder: Path, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [PROGRAM, *arguments, "--json"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def wide(module: nn.Module) -> nn.Module:
    """A float64 copy with the weights that the float32 module computes; a weight norm in float64 would give others."""
    module = copy.deepcopy(module)
    for part in module.modules():
        if hasattr(part, "weight_g"):
            torch.nn.utils.remove_weight_norm(part)
        if parametrize.is_parametrized(part):
            parametrize.remove_parametrizations(part, "weight")
        for cache in ("_embed", "_embedding"):
            if isinstance(getattr(part, cache, None), Tensor):
                setattr(part, cache, None)
    return module.double().eval()


def contents(path: Path) -> tuple[dict[str, str], dict[str, list[float]]]:
    """Metadata and tensors, parsed, because the order of the metadata in the file is arbitrary."""
    with safe_open(path, "pt") as file:
        return file.metadata(), {name: file.get_tensor(name).tolist() for name in file.keys()}  # noqa: SIM118


def last(x: Tensor) -> Tensor:
    """Features last, as in files of vectors."""
    return x.movedim(1, -1).contiguous()


def decoded(case: Case, module: Any, x: Tensor, tokens: list[Tensor]) -> Tensor:
    """The package's output for its tokens, features last."""
    if case.decode is not None:
        return last(case.decode(module, tokens))
    if type(module).__name__.startswith("Emu3"):
        return module.embedding(tokens[0]).reshape(last(x).shape)
    return last(module(x)[0])


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_the_command_line_agrees_with_the_package(name: str, tmp_path: Path) -> None:
    case = CASES[name]()
    torch.manual_seed(7)
    module: Any = case.build()
    x = case.latents(50)
    convert(module, tmp_path / "codec.safetensors")
    np.save(tmp_path / "x.npy", last(x).numpy())
    run(tmp_path, "encode", "codec.safetensors", "x.npy", "-o", "codes.npy")
    codes = torch.from_numpy(np.load(tmp_path / "codes.npy").astype(np.int64))
    original = wide(module)
    theirs = [t.reshape(last(x).shape[:-1]) for t in case.encode(original, x.double())]
    assert torch.equal(codes, torch.stack(theirs, -1) if len(theirs) > 1 else theirs[0])

    run(tmp_path, "decode", "codec.safetensors", "codes.npy", "-o", "decoded.npy")
    ours = torch.from_numpy(np.load(tmp_path / "decoded.npy"))
    expected = decoded(case, original, x.double(), case.encode(original, x.double()))
    assert torch.allclose(ours.double(), expected, rtol=1e-6, atol=1e-6)

    said = run(tmp_path, "eval", "codec.safetensors", "x.npy")
    reference = last(x).double()
    if said.get("metric") == "cosine" and name not in FACTORISED:
        reference = torch.nn.functional.normalize(reference, dim=-1)
    assert said["mse"] == pytest.approx(float((reference - expected).square().mean()), rel=1e-5)
    assert run(tmp_path, "inspect", "codec.safetensors")["dim"] == case.channels


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_the_cpp_example_decodes(name: str, tmp_path: Path) -> None:
    case = CASES[name]()
    module: Any = case.build()
    x = case.latents(20)
    convert(module, tmp_path / "codec.safetensors")
    original = wide(module)
    tokens = case.encode(original, x.double())
    expected = decoded(case, original, x.double(), tokens)
    levels = [t.reshape(expected.shape[:-1]) for t in tokens]
    # As the command line writes them: of one codebook without an axis of levels.
    shaped = torch.stack(levels, -1) if len(levels) > 1 else levels[0]
    np.save(tmp_path / "codes.npy", shaped.numpy())
    subprocess.run(
        [DECODE, "codec.safetensors", "codes.npy", "latents.npy"], cwd=tmp_path, check=True
    )
    ours = torch.from_numpy(np.load(tmp_path / "latents.npy")).double()
    assert ours.shape == expected.shape
    assert torch.allclose(ours, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["encodec", "encodec_package", "xcodec"])
def test_a_stack_alone_is_the_state_of_the_module(name: str, tmp_path: Path) -> None:
    case = CASES[name]()
    module = case.build()
    codec = convert(adapters.adapt(module), tmp_path / "codec.safetensors")
    assert codec.plain
    rvq = torchvq.ResidualVQ(
        dim=case.channels, num_quantizers=len(codec.levels), codebook_size=32
    ).eval()
    rvq.load_state_dict(load_file(tmp_path / "codec.safetensors"))
    x = case.latents(30)
    found = rvq.double()(last(x).double())[1]
    assert torch.equal(found, torch.stack(case.encode(wide(module), x.double()), -1))


WHOLE: dict[str, Callable[[], tuple[nn.Module, Tensor, Any]]] = {
    "encodec": test_models.encodec,
    "mimi": test_models.mimi,
    "dac": test_models.dac,
    "xcodec": test_models.xcodec,
    "higgs": test_models.higgs,
    "chameleon": test_models.chameleon,
    "diffusers_package": test_models.diffusers_package,
    "encodec_package": test_models.encodec_package,
    "dac_package": test_models.dac_package,
    "moshi_package": test_models.moshi_package,
}


@pytest.mark.parametrize("name", WHOLE)
def test_checkpoints_of_whole_models(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model: Any = WHOLE[name]()[0]
    torch.save({"state_dict": model.state_dict()}, tmp_path / "model.pt")
    sources = ["model.pt"]
    if hasattr(model, "save_pretrained"):
        model.save_pretrained(tmp_path / "model")
        sources.append("model")
    written = []
    for source in sources:
        path = tmp_path / "codec.safetensors"
        assert main([str(tmp_path / source), "-o", str(path)]) == 0
        assert f"wrote {path}: " in capsys.readouterr().out
        written.append(contents(path))
    convert(model, tmp_path / "from_model.safetensors")
    assert written == [contents(tmp_path / "from_model.safetensors")] * len(sources)


def test_angles_are_told_by_the_config(tmp_path: Path) -> None:
    module = CASES["glm_image"]().build()
    torch.save(module.state_dict(), tmp_path / "weights.pt")
    (tmp_path / "config.json").write_text('{"model_type": "glm_image_vqmodel"}')
    assert convert(tmp_path / "weights.pt", tmp_path / "a.safetensors").metric == "cosine"
    (tmp_path / "config.json").unlink()
    assert convert(tmp_path / "weights.pt", tmp_path / "b.safetensors").metric == "euclidean"
    convert(tmp_path / "weights.pt", tmp_path / "c.safetensors", metric="cosine")
    assert contents(tmp_path / "c.safetensors") == contents(tmp_path / "a.safetensors")


def test_what_a_codec_cannot_say_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "codec.safetensors"
    snac = CASES["snac_package"]().build()
    with pytest.raises(ConversionError, match=r"has no time axis, but got strides \[4, 2, 1\]"):
        convert(snac, path)
    torch.save(snac.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ConversionError, match=r"expected config.json with vq_strides"):
        convert(tmp_path / "pytorch_model.bin", path)
    (tmp_path / "config.json").write_text('{"vq_strides": [4, 2, 1]}')
    with pytest.raises(ConversionError, match="no time axis"):
        convert(tmp_path, path)
    with pytest.raises(ConversionError, match=r"expected a quantizer .*found none"):
        convert(nn.Linear(2, 2), path)
    two = nn.ModuleList([CASES["encodec"]().build(), CASES["encodec"]().build()])
    with pytest.raises(
        ConversionError, match=r"expected one quantizer, but found several: 0\., 1\."
    ):
        convert(two, path)
    assert not path.exists()
    assert convert(two, path, prefix="1.").dim == 16
    wide_kernel = {**CASES["dac"]().build().state_dict()}
    wide_kernel["quantizers.0.in_proj.weight"] = torch.randn(8, 24, 3)
    with pytest.raises(ConversionError, match="linear map of single vectors"):
        convert(wide_kernel, path)


def test_errors_are_one_line_and_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(nn.Linear(2, 2), tmp_path / "module.pt")
    (tmp_path / "broken.safetensors").write_bytes(b"no")
    for name, said in {
        "nowhere": "it does not exist",
        "module.pt": "expected .* to hold tensors alone",
        "broken.safetensors": "to be a safetensors file",
    }.items():
        assert main([str(tmp_path / name), "-o", str(tmp_path / "codec.safetensors")]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and error.startswith("torchvq.convert: ")
        assert re.search(said, error), error


def test_it_runs_as_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "torchvq.convert", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "codec.safetensors" in done.stdout
