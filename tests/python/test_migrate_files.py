"""``python -m torchvq.migrate``: the files that it reads and writes, and what its comparison takes for equal."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import vector_quantize_pytorch as reference
from safetensors import safe_open
from safetensors.torch import load_file, save_model
from torch import Tensor, nn

from torchvq.migrate import _convert
from torchvq.migrate.__main__ import main

SMALL = "VectorQuantize(dim=8, codebook_size=16)"
MODEL = f"from vector_quantize_pytorch import VectorQuantize\nmodel = {SMALL}\n"


def run(capsys, *arguments: Any) -> tuple[int, str, str]:
    status = main([str(argument) for argument in arguments])
    return status, *capsys.readouterr()


def test_levels_that_a_file_holds_once_are_all_read(tmp_path: Path, capsys) -> None:
    """As save_model writes tensors that levels share: under one name, and the others in the metadata."""
    options = dict(dim=8, codebook_size=16, num_quantizers=3, shared_codebook=True)
    path, written = tmp_path / "model.safetensors", tmp_path / "ours.safetensors"
    stack = reference.ResidualVQ(**options)
    save_model(stack, str(path))
    assert len(load_file(path)) < len(stack.state_dict())
    build = f"ResidualVQ({', '.join(f'{key}={value}' for key, value in options.items())})"
    status, said, complaint = run(capsys, path, "--build", build, "--output", written)
    assert status == 0 and "tokens equal" in said, complaint
    assert load_file(written).keys() >= stack.state_dict().keys()
    with safe_open(written, "pt") as file:
        assert file.metadata() == {"format": "pt"}


class Changed(nn.Module):
    """A quantizer with another output, and another index of the first token."""

    def __init__(self, inner: nn.Module, shift: float) -> None:
        super().__init__()
        self.inner, self.shift = inner, shift

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        output, indices, loss = self.inner(x)
        output = output.clone(memory_format=torch.contiguous_format)
        indices = indices.clone(memory_format=torch.contiguous_format)
        output.view(-1)[0] += 5
        indices.view(-1)[0] += 1
        return output + self.shift, indices, loss


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("VectorQuantize", dict()),
        ("VectorQuantize", dict(accept_image_fmap=True)),
        ("VectorQuantize", dict(channel_last=False)),
        ("VectorQuantize", dict(heads=2, separate_codebook_per_head=True)),
        ("ResidualVQ", dict(num_quantizers=2)),
        ("GroupedResidualVQ", dict(num_quantizers=2, groups=2)),
    ],
)
def test_outputs_of_equal_tokens_are_compared(name: str, options: dict[str, Any]) -> None:
    """A tie leaves out the output of its own position alone, whatever differs there or elsewhere."""
    with _convert.recorded_options():
        theirs = getattr(reference, name)(dim=8, codebook_size=16, **options)
    found = _convert.quantizers_of(theirs)[0]
    ours = _convert.converted(found)
    tie = _convert.agreement(found, Changed(ours, 0.0))
    assert tie.equal == tie.tokens - 1 and tie.difference is not None
    assert tie.difference < 1e-4 and tie.holds
    wrong = _convert.agreement(found, Changed(ours, 1.0))
    assert wrong.equal == wrong.tokens - 1 and wrong.difference == pytest.approx(1, rel=1e-3)
    assert not wrong.holds


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_a_default_dtype_of_the_file_does_not_matter(dtype: str, tmp_path: Path, capsys) -> None:
    """The file sets it for the process."""
    call = "VectorQuantize(dim=8, codebook_size=16, codebook_dim=4)"
    text = f"import torch\ntorch.set_default_dtype(torch.{dtype})\n" + MODEL.replace(SMALL, call)
    (tmp_path / "model.py").write_text(text)
    try:
        status, said, _ = run(capsys, tmp_path / "model.py")
    finally:
        torch.set_default_dtype(torch.float32)
    assert status == 0 and "512 of 512 tokens equal" in said


def test_a_model_without_data_is_refused(tmp_path: Path, capsys) -> None:
    (tmp_path / "model.py").write_text("import torch\ntorch.set_default_device('meta')\n" + MODEL)
    try:
        status, _, said = run(capsys, tmp_path / "model.py")
    finally:
        torch.set_default_device(None)
    assert status == 2 and said.count("\n") == 1
    assert "expected a state with data, but got one on the meta device" in said


def test_the_folder_and_the_report_are_the_callers(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("else").mkdir()
    start = "import os, sys\nos.chdir('else')\nsys.stdout = open(os.devnull, 'w')\n"
    Path("model.py").write_text(start + MODEL)
    before = sys.stdout
    status, said, _ = run(capsys, "model.py", "--output", "ours.pt")
    assert status == 0 and said.endswith("written: ours.pt\n") and sys.stdout is before
    assert os.getcwd() == str(tmp_path) and Path("ours.pt").exists()


STATE = """
import torch
from vector_quantize_pytorch import VectorQuantize

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.vq = VectorQuantize(dim=8, codebook_size=16)

    def get_extra_state(self):
        return {"step": 3}

    def set_extra_state(self, state):
        pass

model = Model()
"""


def test_what_is_no_tensor_is_not_lost(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(STATE)
    status, _, said = run(capsys, "model.py", "--output", "ours.safetensors")
    assert status == 2 and not Path("ours.safetensors").exists()
    assert "expected tensors alone for .safetensors, but got _extra_state of type dict" in said
    assert run(capsys, "model.py", "--output", "ours.pt")[0] == 0
    assert torch.load("ours.pt", weights_only=True)["_extra_state"] == {"step": 3}


def test_a_program_is_not_overwritten(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    Path("link.pt").symlink_to("model.py")
    for output in ("model.py", "link.pt"):
        status, _, said = run(capsys, "model.py", "--output", output)
        assert status == 2 and Path("model.py").read_text() == MODEL
        assert (
            said
            == f"torchvq.migrate: --output: expected another file than model.py, but got {output}\n"
        )


def test_errors_are_one_sentence(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.pt").touch()
    torch.save(reference.VectorQuantize(dim=8, codebook_size=16).state_dict(), "state.pt")
    for arguments, message in {
        ("empty.pt", "--build", SMALL): "torch.load cannot read it: ",
        ("state.pt", "--build", "VectorQuantize(dim={[1]: 2})"): "expected a call like",
    }.items():
        status, _, said = run(capsys, *arguments)
        assert status == 2 and said.count("\n") == 1 and message in said, said
        assert not said.rstrip("\n").endswith(":")


@pytest.mark.parametrize("name", ["ResidualFSQ", "GroupedResidualFSQ"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_constants_that_a_cast_rounds_are_whole_again(
    name: str, dtype: str, tmp_path: Path, capsys
) -> None:
    """The comparison is one in float32, and the scale of a level is none of the state."""
    call = f"{name}(dim=16, levels=[8, 5, 5, 5], num_quantizers=4)"
    text = f"import torch\nfrom vector_quantize_pytorch import {name}\ntorch.manual_seed(0)\n"
    default = f"torch.set_default_dtype(torch.{dtype})\n" if dtype == "bfloat16" else ""
    for start in {"", default}:
        (tmp_path / "model.py").write_text(f"{text}{start}model = {call}.to(torch.{dtype})\n")
        try:
            status, said, _ = run(capsys, tmp_path / "model.py")
        finally:
            torch.set_default_dtype(torch.float32)
        assert status == 0 and "2048 of 2048 tokens equal" in said
    with _convert.recorded_options():
        theirs = getattr(reference, name)(dim=16, levels=[8, 5], num_quantizers=2).half()
    before = {key: buffer.clone() for key, buffer in theirs.named_buffers()}
    found = _convert.quantizers_of(theirs)[0]
    _convert.agreement(found, _convert.converted(found))
    assert all(torch.equal(before[key], buffer) for key, buffer in theirs.named_buffers())


@pytest.mark.parametrize("call", [SMALL, "ResidualVQ(dim=8, codebook_size=16, num_quantizers=2)"])
def test_affine_statistics_stay_during_the_comparison(call: str, tmp_path: Path, capsys) -> None:
    """The reference's move in evaluation, and are uninitialised memory until it has trained."""
    name, call = call.partition("(")[0], call.replace(")", ", affine_param=True)")
    text = f"import torch\nfrom vector_quantize_pytorch import {name}\nmodel = {call}\n"
    (tmp_path / "model.py").write_text(text)
    status, said, _ = run(capsys, tmp_path / "model.py")
    assert status == 0 and "not compared: no step has set the statistics of affine_param" in said
    (tmp_path / "model.py").write_text(text + "model(torch.randn(2, 50, 8) + 1)\n")
    status, said, _ = run(capsys, tmp_path / "model.py")
    number = 512 if name == "VectorQuantize" else 1024
    assert status == 0
    assert f"{number} of {number} tokens equal, outputs differ by at most 0\n" in said


def test_tokens_of_scales_are_compared(tmp_path: Path, capsys) -> None:
    call = "HierarchicalVQ(dim=8, codebook_size=16, scales=(1, 2, 4), kmeans_init=False)"
    (tmp_path / "model.py").write_text(
        f"from vector_quantize_pytorch import HierarchicalVQ\nmodel = {call}\n"
    )
    status, said, _ = run(capsys, tmp_path / "model.py")
    number = re.search(r"([0-9]+) of ([0-9]+) tokens equal", said)
    assert status == 0 and number and int(number[1]) == int(number[2]) > 0, said


def test_levels_below_the_precision_of_the_output_may_differ(tmp_path: Path, capsys) -> None:
    (tmp_path / "model.py").write_text(
        "import torch\nfrom vector_quantize_pytorch import ResidualFSQ\ntorch.manual_seed(0)\n"
        "model = ResidualFSQ(dim=32, levels=[8, 5, 5, 5], num_quantizers=8)\n"
    )
    status, said, _ = run(capsys, tmp_path / "model.py")
    assert status == 0 and "of 4096 tokens equal" in said, said
    assert _convert.Agreement(4, 4, 0.0).holds and not _convert.Agreement(4, 3, 0.0).holds
    assert not _convert.Agreement(4, 3, 1.0, alike=True).holds
