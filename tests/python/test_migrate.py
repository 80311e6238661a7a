"""``python -m torchvq.migrate`` on real configurations: a tokenizer in a file, checkpoints, and refused inputs.

Oracle: the reference with the same weights on the same tokens.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import vector_quantize_pytorch as reference
from safetensors.torch import load_file

import torchvq
from torchvq.migrate.__main__ import main
from torchvq.migrate.differences import lines_of

CODEC = """
import torch
from torch import nn
from vector_quantize_pytorch import FSQ, ResidualVQ


class Codec(nn.Module):
    def __init__(self, codes=32):
        super().__init__()
        self.encoder = nn.Conv1d(1, 16, 4, 4)
        self.quantizer = ResidualVQ(
            dim=16, num_quantizers=3, codebook_size=codes, codebook_dim=8, quantize_dropout=True, decay=0.9
        )
        self.coarse = FSQ([8, 5, 5], dim=16)


def model():
    torch.manual_seed(3)
    return Codec()
"""


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    status = main([str(argument) for argument in arguments])
    return status, *capsys.readouterr()


def test_a_model_in_a_file(tmp_path: Path, capsys) -> None:
    """A neural codec: residual codebooks with projections and dropout, and a scalar quantizer."""
    (tmp_path / "model.py").write_text(CODEC)
    written = tmp_path / "model.safetensors"
    status, said, _ = run(capsys, tmp_path / "model.py", "--output", written)
    assert status == 0
    assert (
        "quantizer: ResidualVQ(dim=16, num_quantizers=3, codebook_size=32, codebook_dim=8" in said
    )
    assert "stack-gradient:" in said and "stack-depth:" in said and "fsq-int32:" in said
    assert "shared-codebook:" not in said and "beam-score:" not in said
    assert "768 of 768 tokens equal" in said or "1536 of 1536 tokens equal" in said
    ours = torchvq.ResidualVQ(
        dim=16, num_quantizers=3, codebook_size=32, codebook_dim=8, quantize_dropout=True, decay=0.9
    )
    state = load_file(written)
    assert "encoder.weight" in state and "coarse.project_in.weight" in state
    prefix = "quantizer."
    ours.load_state_dict(
        {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}, strict=True
    )
    scope: dict = {}
    exec(CODEC, scope)
    theirs = scope["model"]().quantizer.eval()
    x = torch.randn(2, 50, 16, generator=torch.Generator().manual_seed(1))
    assert torch.equal(ours.eval()(x)[1], theirs(x)[1])


COPIES = """
import copy
from torch import nn
from vector_quantize_pytorch import VectorQuantize
from beside import OPTIONS

vq = VectorQuantize(dim=8, codebook_size=16, **OPTIONS)
model = nn.ModuleList([vq, copy.deepcopy(vq)])
"""
DERIVED = """
from torch import nn
from vector_quantize_pytorch import FSQ, VectorQuantize

class Mine(VectorQuantize):
    pass

model = nn.ModuleList([FSQ([8, 5, 5]), Mine(dim=8, codebook_size=16)])
"""
REUSED = """
import gc
from vector_quantize_pytorch import VectorQuantize

gone, kept = set(), []
for _ in range(50):
    one = VectorQuantize(dim=8, codebook_size=16, use_cosine_sim=True)
    gone.add(id(one))
    kept.append(one)
kept, one = [], None
gc.collect()
for _ in range(400):  # until one gets the address of one that is gone
    model = VectorQuantize(dim=8, codebook_size=16)
    kept.append(model)
    if id(model) in gone:
        break
"""


def test_copies_are_converted_and_files_run_with_their_folder(tmp_path: Path, capsys) -> None:
    (tmp_path / "beside.py").write_text("OPTIONS = dict(decay=0.9)\n")
    (tmp_path / "model.py").write_text(COPIES)
    status, said, _ = run(capsys, tmp_path / "model.py")
    assert status == 0 and said.count("512 of 512 tokens equal") == 2
    assert said.count("decay=0.9") >= 2


def test_a_derived_class_is_refused(tmp_path: Path, capsys) -> None:
    (tmp_path / "model.py").write_text(DERIVED)
    status, _, complaint = run(capsys, tmp_path / "model.py")
    assert status == 2 and "1 is a Mine, which is derived" in complaint


def test_no_quantizer_has_the_options_of_one_that_is_gone(tmp_path: Path, capsys) -> None:
    (tmp_path / "model.py").write_text(REUSED)
    status, said, _ = run(capsys, tmp_path / "model.py")
    assert status == 0 and "use_cosine_sim" not in said.split("differences")[0]
    assert "512 of 512 tokens equal" in said


def test_codes_before_k_means_are_not_compared(tmp_path: Path, capsys) -> None:
    """They are all zero, so every token has the same distance to each."""
    call = "VectorQuantize(dim=8, codebook_size=16, kmeans_init=True)"
    text = f"from vector_quantize_pytorch import VectorQuantize\nmodel = {call}\n"
    (tmp_path / "model.py").write_text(text)
    status, said, _ = run(capsys, tmp_path / "model.py")
    assert status == 0
    assert "not compared: k-means has not set the codes yet" in said and "tokens equal" not in said


REFERENCE_FAILS = {
    "ResidualVQ": dict(dim=8, num_quantizers=2, codebook_size=16, accept_image_fmap=True),
    "GroupedResidualFSQ": dict(levels=[5, 5], dim=8, num_quantizers=2, groups=2, accept_image_fmap=True),
}  # fmt: skip


@pytest.mark.parametrize("name", REFERENCE_FAILS)
def test_what_the_reference_cannot_run_is_converted(name: str, tmp_path: Path, capsys) -> None:
    """The tables of the page say "fails -> works" of these."""
    options = ", ".join(f"{key}={value!r}" for key, value in REFERENCE_FAILS[name].items())
    call, written = f"{name}({options})", tmp_path / "ours.pt"
    torch.save(getattr(reference, name)(**REFERENCE_FAILS[name]).state_dict(), tmp_path / "s.pt")
    status, said, _ = run(capsys, tmp_path / "s.pt", "--build", call, "--output", written)
    assert status == 0 and "not compared: the reference's forward raised " in said
    ours = getattr(torchvq, name)(**REFERENCE_FAILS[name])
    ours.load_state_dict(torch.load(written, weights_only=True), strict=True)


DOUBLE = """
import torch
from vector_quantize_pytorch import VectorQuantize

model = VectorQuantize(dim=8, codebook_size=16).double()
model.codebook = torch.randn(16, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
"""


def test_float64_is_kept(tmp_path: Path, capsys) -> None:
    (tmp_path / "model.py").write_text(DOUBLE)
    status, said, _ = run(capsys, tmp_path / "model.py", "--output", tmp_path / "ours.pt")
    assert status == 0 and "512 of 512 tokens equal" in said
    found = torch.load(tmp_path / "ours.pt", weights_only=True)["_codebook.embed"]
    generator = torch.Generator().manual_seed(5)
    assert torch.equal(found[0], torch.randn(16, 8, dtype=torch.float64, generator=generator))


UNPICKLED = """
import torch
from torch import nn
from vector_quantize_pytorch import FSQ

model = nn.Sequential(FSQ([8, 5]), torch.load("whole.pt", weights_only=False))
"""


def test_a_quantizer_that_was_unpickled_is_refused(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(reference.VectorQuantize(dim=8, codebook_size=16), "whole.pt")
    Path("model.py").write_text(UNPICKLED)
    status, _, said = run(capsys, "model.py", "--output", "ours.pt")
    assert status == 2 and said.startswith(
        "torchvq.migrate: 1: expected a quantizer that the file builds"
    )
    assert said.count("\n") == 1 and not Path("ours.pt").exists()


def test_a_checkpoint_that_cannot_be_replaced_stays(tmp_path: Path, capsys, monkeypatch) -> None:
    """The output may be the checkpoint itself."""
    path, build = tmp_path / "state.pt", "VectorQuantize(dim=8, codebook_size=16)"
    torch.save(reference.VectorQuantize(dim=8, codebook_size=16).state_dict(), path)
    before = path.read_bytes()

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patches:
        patches.setattr(os, "replace", full)
        status, _, said = run(capsys, path, "--build", build, "--output", path)
    assert status == 2 and "No space left on device" in said
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
    assert run(capsys, path, "--build", build, "--output", path)[0] == 0
    assert "_codebook.embed" in torch.load(path, weights_only=True)


def test_without_safetensors_is_one_message(tmp_path: Path, capsys, monkeypatch) -> None:
    (tmp_path / "state.safetensors").touch()
    (tmp_path / "model.py").write_text(DOUBLE)
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    message = "expected safetensors to be installed (pip install safetensors), but it is not"
    assert run(capsys, tmp_path / "state.safetensors")[::2] == (2, f"torchvq.migrate: {message}\n")
    written = tmp_path / "model.safetensors"
    status, _, said = run(capsys, tmp_path / "model.py", "--output", written)
    assert status == 2 and said.endswith(f"{written} was not written: {message}\n")


def test_links_in_place_of_the_output_are_followed(tmp_path: Path, capsys) -> None:
    (tmp_path / "model.py").write_text(DOUBLE)
    (tmp_path / "link.safetensors").symlink_to("place.safetensors")
    assert run(capsys, tmp_path / "model.py", "--output", tmp_path / "link.safetensors")[0] == 0
    assert (tmp_path / "link.safetensors").is_symlink()
    assert "_codebook.embed" in load_file(tmp_path / "place.safetensors")


def test_a_trained_checkpoint(tmp_path: Path, capsys) -> None:
    """Image tokens with a cosine codebook, as a training framework saves them."""
    options = dict(
        dim=16, codebook_size=64, codebook_dim=8, use_cosine_sim=True, accept_image_fmap=True
    )
    torch.manual_seed(0)
    theirs = reference.VectorQuantize(**options)
    for step in range(3):
        theirs(torch.randn(2, 16, 8, 8, generator=torch.Generator().manual_seed(step)))
    state = {f"net.vq.{name}": value for name, value in theirs.state_dict().items()}
    torch.save({"state_dict": {**state, "net.head.weight": torch.ones(2)}}, tmp_path / "last.ckpt")
    call = f"VectorQuantize({', '.join(f'{k}={v!r}' for k, v in options.items())})"
    written = tmp_path / "ours.pt"
    status, said, _ = run(
        capsys, tmp_path / "last.ckpt", "--build", call, "--prefix", "net.vq.", "--output", written
    )
    assert status == 0 and "512 of 512 tokens equal" in said and "unused-codes:" in said
    found = torch.load(written, weights_only=True)
    assert torch.equal(found["net.head.weight"], torch.ones(2))
    ours = torchvq.VectorQuantize(**options)
    ours.load_state_dict(
        {k.removeprefix("net.vq."): v for k, v in found.items() if k.startswith("net.vq.")},
        strict=True,
    )
    x = torch.randn(2, 16, 8, 8, generator=torch.Generator().manual_seed(9))
    torch.testing.assert_close(ours.eval()(x)[0], theirs.eval()(x)[0], rtol=1e-5, atol=1e-5)


def test_a_state_dict_that_a_checkpoint_holds(tmp_path: Path, capsys, monkeypatch) -> None:
    """As trainers save it: beside an optimizer, whose own tensors are numbered, and with other numbers."""
    monkeypatch.chdir(tmp_path)
    vq = reference.VectorQuantize(
        dim=8, codebook_size=16, learnable_codebook=True, ema_update=False
    )
    optimizer = torch.optim.Adam(vq.parameters())
    vq(torch.randn(2, 9, 8))[2].backward()
    optimizer.step()
    model = {f"module.vq.{name}": value for name, value in vq.state_dict().items()}
    others = dict(step=3, scaler={"scale": 2.0, "growth": 3})
    wrapped = dict(model=model, optimizer=optimizer.state_dict(), **others)
    build = "VectorQuantize(dim=8, codebook_size=16, learnable_codebook=True, ema_update=False)"
    options = ("--build", build, "--prefix", "module.vq.", "--output", "ours.pt")
    for checkpoint in (
        wrapped,
        wrapped | dict(discriminator={"weight": torch.ones(2)}),
        wrapped | dict(rate=torch.tensor(0.1)),
        dict(state_dict=model, ema=model, rate=torch.tensor(0.1)),
        model,
        model | {"module.head._extra_state": {"scale": torch.ones(2)}},
    ):
        torch.save(checkpoint, "last.pt")
        status, said, complaint = run(capsys, "last.pt", *options)
        assert status == 0 and "512 of 512 tokens equal" in said, complaint
        found = torch.load("ours.pt", weights_only=True)
        assert found.keys() > model.keys() and all(key.startswith("module.") for key in found)
    for checkpoint, names in (
        (wrapped | dict(ema_model=model), "'model' and 'ema_model'"),
        (dict(a={"w": torch.ones(2)}, b={"w": torch.ones(2)}), "'a' and 'b'"),
    ):
        torch.save(checkpoint, "last.pt")
        status, _, said = run(capsys, "last.pt", *options)
        assert status == 2 and f"last.pt: expected one state dict, but got {names}; save " in said


def test_a_wrong_prefix_is_told_the_right_ones(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    stack = reference.ResidualVQ(dim=8, codebook_size=16, num_quantizers=2, codebook_dim=4)
    signs = reference.LFQ(dim=4, codebook_size=16)
    state = {
        f"{prefix}{name}": value
        for prefix, own in (("net.vq.", stack), ("ema.vq.", stack), ("net.signs.", signs))
        for name, value in own.state_dict().items()
    }
    torch.save(state, "state.pt")
    build = "ResidualVQ(dim=8, codebook_size=16, num_quantizers=2, codebook_dim=4)"
    for call, fragment in {
        build: "They are with --prefix 'net.vq.' or --prefix 'ema.vq.'",
        "LFQ(dim=4, codebook_size=16)": "They are with --prefix 'net.signs.'",
        build.replace("=2", "=3"): "Its codebooks: {'net.vq.layers.0._codebook.embed': [1, 16, 4],",
    }.items():
        status, _, said = run(capsys, "state.pt", "--build", call, "--prefix", "vq.")
        assert status == 2 and "state.pt: the keys after 'vq.' are not those of" in said
        assert said.splitlines()[-1].startswith(fragment), said
    size = "LFQ(dim=5, codebook_size=32)"  # of the given prefix, but another module
    status, _, said = run(capsys, "state.pt", "--build", size, "--prefix", "net.signs.")
    assert status == 2 and said.splitlines()[-1].startswith("Its codebooks: {'net.vq.")
    torch.save({"a.w": torch.ones(2), "a.b": torch.ones(2), "c.w": torch.ones(2)}, "state.pt")
    for call in (build, "FSQ([8, 5])"):
        status, _, said = run(capsys, "state.pt", "--build", call)
        assert status == 2 and said.endswith("_codebook.embed; they begin with 'a', 'c'\n")


def test_a_lookup_free_module_with_the_switch(tmp_path: Path, capsys) -> None:
    """Video tokens by signs; the module itself is in the file."""
    (tmp_path / "signs.py").write_text(
        "from vector_quantize_pytorch import LFQ\n"
        "tokenizer = LFQ(codebook_size=2**10, dim=16, entropy_loss_weight=0.02, commitment_loss_weight=0.25)\n"
    )
    status, said, _ = run(capsys, tmp_path / "signs.py", "--name", "tokenizer", "--compat")
    assert status == 0 and "512 of 512 tokens equal" in said
    assert "lfq-clamp:" in said and "vqp_compat=True restores it" in said


@pytest.mark.parametrize(
    ("call", "options"),
    [
        ("FSP", dict(levels=[8, 5, 4])),
        ("BinaryMapper", dict(bits=4)),
        ("LatentQuantize", dict(levels=[5, 5, 8], dim=6)),
        ("SimVQ", dict(dim=8, codebook_size=32)),
        ("ResidualSimVQ", dict(dim=8, codebook_size=32, num_quantizers=2)),
        ("ResidualFSQ", dict(levels=[5, 5], num_quantizers=2)),
        ("ResidualFSQ", dict(levels=[5, 5], num_quantizers=3, is_channel_first=True)),
        ("ResidualLFQ", dict(dim=6, codebook_size=16, num_quantizers=2)),
        ("GroupedResidualVQ", dict(dim=8, groups=2, codebook_size=16, num_quantizers=2)),
        (
            "RandomProjectionQuantizer",
            dict(dim=8, codebook_size=16, codebook_dim=4, num_codebooks=2),
        ),
    ],
)
def test_every_other_class(call: str, options: dict, tmp_path: Path, capsys) -> None:
    torch.save(getattr(reference, call)(**options).state_dict(), tmp_path / "state.pt")
    text = f"{call}({', '.join(f'{name}={value!r}' for name, value in options.items())})"
    status, said, _ = run(capsys, tmp_path / "state.pt", "--build", text)
    equal, _, total = said.split("on random input: ")[1].partition(" tokens")[0].split()[0:3]
    assert status == 0 and int(equal) >= 0.99 * int(total) > 100


@pytest.mark.parametrize(
    ("call", "options", "lines"),
    [
        ("LFQ", dict(dim=6, codebook_size=16), set()),
        ("ResidualLFQ", dict(dim=4, codebook_size=16), {"lfq-stack-gradient", "lfq-stack-losses"}),
        (
            "GroupedResidualLFQ",
            dict(dim=12, groups=2, codebook_size=16),
            {"lfq-stack-gradient", "lfq-stack-losses", "lfq-stack-padding"},
        ),
        ("SimVQ", dict(dim=8, codebook_size=16), set()),
        (
            "ResidualSimVQ",
            dict(dim=8, codebook_size=16),
            {"sim-stack-gradient", "sim-stack-losses", "sim-all-codes"},
        ),
    ],
)
def test_lines_of_stacks_are_named_for_stacks_alone(
    call: str, options: dict, lines: set[str], tmp_path: Path, capsys
) -> None:
    options = options | ({"num_quantizers": 2} if "Residual" in call else {})
    torch.save(getattr(reference, call)(**options).state_dict(), tmp_path / "state.pt")
    text = f"{call}({', '.join(f'{name}={value!r}' for name, value in options.items())})"
    _, said, _ = run(capsys, tmp_path / "state.pt", "--build", text)
    stacks = {line.key for line in lines_of(call) if line.situation.startswith("stacks: ")}
    assert {key for key in stacks if key in said} == lines


def test_tokens_that_differ_are_reported(tmp_path: Path, capsys, monkeypatch) -> None:
    torch.save(reference.FSQ([8, 5]).state_dict(), tmp_path / "state.pt")
    monkeypatch.setattr(torchvq.FSQ, "bound_name", "symmetric_tanh")
    status, said, _ = run(capsys, tmp_path / "state.pt", "--build", "FSQ([8, 5])")
    assert status == 1 and "512 of 512" not in said


BAD = [
    ([], "expected a Python file or a state dict"),
    (["nothing.pt"], "to be a file, but there is none"),
    (["state.pt"], r"say it with --build.*_codebook.embed': \[1, 16, 8\]"),
    (["state.pt", "--build", "VectorQuantize(8"], "expected a call like"),
    (
        ["state.pt", "--build", "Quantizer(dim=8)"],
        "expected one of VectorQuantize, .* but got Quantizer",
    ),
    (["state.pt", "--build", "VectorQuantize(dim=4, codebook_size=16)"], "are not those of"),
    (["model.py"], "expected a module or a function named model"),
    (["model.py", "--name", "number"], "expected number to be a module, but got int"),
    (["model.py", "--name", "plain"], "expected quantizers of vector_quantize_pytorch"),
    (["text.pt"], "weights_only=True"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=range(len(BAD)))
def test_errors_say_what_to_do(
    arguments: list[str], message: str, tmp_path: Path, capsys, monkeypatch
) -> None:
    import re

    monkeypatch.chdir(tmp_path)
    torch.save(reference.VectorQuantize(dim=8, codebook_size=16).state_dict(), "state.pt")
    Path("model.py").write_text("from torch import nn\nnumber = 3\nplain = nn.Linear(2, 2)\n")
    Path("text.pt").write_text("no checkpoint")
    status, _, said = run(capsys, *arguments)
    assert status == 2 and re.search(message, said.replace("\n", " ")), said


OF_A_FILE = {
    "raises": ("x = 1\nx / 0\n", "file.py:2: it raised ZeroDivisionError: division by zero"),
    "ends": ("raise SystemExit('enough')\n", "file.py:1: it raised SystemExit: enough"),
    "imports": (
        "import nosuch\n",
        "file.py:1: it raised ModuleNotFoundError: No module named 'nosuch'",
    ),
    "unparsed": ("x = 1\ndef model(:\n", "file.py:2: it raised SyntaxError: invalid syntax"),
    "function": ("def model():\n    assert False\n", "file.py:2: it raised AssertionError"),
    "arguments": ("def model(x):\n    pass\n", "file.py: it raised TypeError: model() missing 1 "),
    "helper": ("import aid\n\naid.f()\n", "file.py:3: it raised KeyError: 4 (in {}/aid.py:2)"),
    "options": (
        "from vector_quantize_pytorch import FSQ\nmodel = FSQ([8, 5], nosuch=1)\n",
        "file.py:2: it raised TypeError: got an unexpected keyword argument 'nosuch'",
    ),
}


@pytest.mark.parametrize("case", OF_A_FILE)
def test_what_a_file_raises_is_one_message(case: str, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    text, message = OF_A_FILE[case]
    Path("file.py").write_text(text)
    Path("aid.py").write_text("def f():\n    return {}[4]\n")
    status, _, said = run(capsys, "file.py")
    assert status == 2 and said.startswith("torchvq.migrate: " + message.format(tmp_path)), said
    assert said.count("\n") == 1


def test_what_torchvq_refuses_is_one_message(tmp_path: Path, capsys, monkeypatch) -> None:
    """Options that only the reference takes, files of other formats, and a place that cannot be written."""
    monkeypatch.chdir(tmp_path)
    model = "from vector_quantize_pytorch import VectorQuantize\nmodel = VectorQuantize(8, 4, decay={})\n"
    Path("refused.py").write_text(model.format(2))
    Path("taken.py").write_text(model.format(0.9))
    Path("text.safetensors").write_text("no checkpoint")
    for arguments, message in {
        ("refused.py",): "decay=2): VectorQuantize: expected decay to be ",
        ("text.safetensors",): "expected text.safetensors to be a safetensors file, but ",
        (
            "taken.py",
            "--output",
            "nowhere/state.pt",
        ): "--output: nowhere/state.pt was not written: ",
        ("taken.py", "--output", "nowhere/state.safetensors"): "was not written: ",
    }.items():
        status, _, said = run(capsys, *arguments)
        assert status == 2 and said.startswith("torchvq.migrate: ") and message in said, said
    torch.save({}, "state.pt")
    status, _, said = run(capsys, "state.pt", "--build", "FSQ([8, 5], nosuch=1)")
    assert status == 2 and "--build: FSQ([8, 5], nosuch=1) raised TypeError: " in said


def test_the_tables_of_the_page(capsys) -> None:
    status, said, _ = run(capsys, "--differences")
    assert status == 0 and said.startswith("## ResidualVQ and GroupedResidualVQ")
