"""Conversion of state dicts that no package wrote: what they may hold beside a quantizer, and what is refused."""

from __future__ import annotations

import argparse
import errno
import json
import os
import signal
import stat
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, load_file, save_file, save_model
from torch import Tensor, nn

from torchvq.convert import ConversionError, convert
from torchvq.convert.__main__ import main

CODES = "quantizer.layers.{}.codebook.embed"
COUNTS = "quantizer.layers.{}.codebook.cluster_size"


OUT = "quantizer.layers.{}.out_proj"


def beyond(*shape: int) -> Tensor:
    """Numbers that are finite in float64 alone."""
    return torch.full(shape, 1e300, dtype=torch.float64)


def stack(**more: Any) -> dict[Any, Any]:
    """Two levels of 8 codes of 4 features."""
    generator = torch.Generator().manual_seed(0)
    return {CODES.format(q): torch.randn(8, 4, generator=generator) for q in range(2)} | more


def written(state: dict[Any, Any], folder: Path) -> list[Tensor]:
    convert(state, folder / "codec.safetensors")
    tensors = load_file(folder / "codec.safetensors")
    return [tensors[f"layers.{q}._codebook.embed"][0] for q in range(2)]


def test_other_keys_and_values_are_left_out(tmp_path: Path) -> None:
    plain, more = stack(), {**stack(), 3: torch.zeros(2), "step": 7}
    for found in (written(more, tmp_path), written(plain, tmp_path)):
        assert all(found[q].equal(plain[CODES.format(q)]) for q in range(2))
    torch.save(more, tmp_path / "checkpoint.pt")
    convert(tmp_path / "checkpoint.pt", tmp_path / "codec.safetensors")


def test_levels_may_share_their_codes(tmp_path: Path) -> None:
    tied = stack()
    tied[CODES.format(1)] = tied[CODES.format(0)]
    first, second = written(tied, tmp_path)
    assert first.equal(tied[CODES.format(0)]) and second.equal(first)


def test_levels_that_a_file_holds_once_are_all_read(tmp_path: Path) -> None:
    """As save_model writes tensors that modules share: under one name, and the others in the metadata."""
    book = nn.Module()
    book.register_buffer("embed", torch.randn(8, 4))
    book.register_buffer("cluster_size", torch.ones(8))
    model = nn.Module()
    model.layers = nn.ModuleList(nn.Module() for _ in range(3))
    for level in model.layers:
        level._codebook = book
    save_model(model, str(tmp_path / "model.safetensors"))
    assert len(load_file(tmp_path / "model.safetensors")) == 2
    codec = convert(tmp_path / "model.safetensors", tmp_path / "codec.safetensors")
    assert len(codec.levels) == 3
    assert all(level.codebook.equal(book.embed) for level in codec.levels)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (COUNTS.format(1), torch.full((8,), -1.0), "level 1 to have counts of at least 0, but got"),
        (COUNTS.format(1), torch.ones(7), r"level 1 to have 8 counts, but got shape \(7,\)"),
        (COUNTS.format(0), torch.full((8,), torch.inf), "level 0 to have finite counts"),
        (CODES.format(1), torch.full((8, 4), torch.nan), "level 1 to have finite codes"),
        (CODES.format(1), beyond(8, 4), "level 1 to have finite codes in float32"),
        (COUNTS.format(0), beyond(8), "level 0 to have finite counts in float32"),
        (COUNTS.format(1), torch.full((8,), 3e38), r"layers\.1\._codebook\.embed_avg to be finite"),
        (OUT.format(1) + ".weight", beyond(4, 4), r"layers\.1\.project_out\.weight to be finite"),
        (
            OUT.format(0) + ".bias",
            torch.full((4,), torch.nan),
            r"layers\.0\.project_out\.bias to be",
        ),
        (CODES.format(0), torch.zeros(0, 4), r"level 0 to have codes \(K, D\)"),
        (CODES.format(0), torch.zeros(8), r"level 0 to have codes \(K, D\), but got shape \(8,\)"),
    ],
)
def test_codes_that_cannot_be_used_are_refused(
    key: str, value: Tensor, said: str, tmp_path: Path
) -> None:
    weights = {OUT.format(q) + ".weight": torch.eye(4) for q in range(2)}
    state = stack() | (weights if "out_proj" in key else {}) | {key: value}
    with pytest.raises(ConversionError, match=said):
        convert(state, tmp_path / "codec.safetensors")
    assert not list(tmp_path.iterdir())


IN = "quantizers.0.in_proj."


def factorised() -> dict[str, Tensor]:
    """A level of 8 codes of 4 features between maps from and to 6, as DAC stores it."""
    shapes = {
        "codebook.weight": (8, 4),
        "in_proj.weight_g": (4, 1, 1),
        "in_proj.weight_v": (4, 6, 1),
        "in_proj.bias": (4,),
        "out_proj.weight_g": (6, 1, 1),
        "out_proj.weight_v": (6, 4, 1),
        "out_proj.bias": (6,),
    }
    generator = torch.Generator().manual_seed(0)
    return {
        f"quantizers.0.{name}": torch.rand(shape, generator=generator)
        for name, shape in shapes.items()
    }


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (IN + "weight_g", torch.ones(5, 1, 1), r"weight_g to have shape \(4, 1, 1\)"),
        (IN + "weight_g", torch.ones(()), r"weight_g to have shape \(4, 1, 1\)"),
        (IN + "weight_v", torch.ones(()), "weight_v to be floating point with an axis of outputs"),
        (IN + "weight_v", torch.ones(4, 6, 1).long(), "weight_v to be floating point"),
        (IN + "weight_v", torch.ones(4), r"weight_g to have shape \(4,\)"),
        (IN + "weight_v", torch.ones(4, 6, 1) + 1j, "weight_v to hold real numbers"),
        (IN + "weight_g", torch.ones(4, 1, 1) + 1j, "weight_g to hold real numbers"),
        (IN + "weight", torch.ones(4, 6, device="meta"), "weight to hold real numbers"),
        (IN + "bias", torch.ones(4) + 1j, "bias to hold real numbers"),
        ("quantizers.0.codebook.cluster_size", torch.ones(8) + 1j, "cluster_size to hold real"),
    ],
)
def test_damaged_maps_are_refused(
    key: str, value: Tensor, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "codec.safetensors"
    assert len(convert(factorised(), output).levels) == 1
    output.unlink()
    with pytest.raises(ConversionError, match=said):
        convert(factorised() | {key: value}, output)
    torch.save(factorised() | {key: value}, tmp_path / "weights.pt")
    assert main([str(tmp_path / "weights.pt"), "-o", str(output)]) == 2
    assert capsys.readouterr().err.count("\n") == 1 and not output.exists()


@pytest.mark.parametrize("key", [CODES.format(0), "quantize.embedding.weight"])
@pytest.mark.parametrize(
    "change",
    [
        lambda codes: codes.to("meta"),
        lambda codes: codes.to_sparse(),
        lambda codes: codes.to_sparse_csr(),
        lambda codes: torch.quantize_per_tensor(codes, 0.1, 0, torch.qint8),
        lambda codes: codes + 1j,
        lambda codes: codes > 0,
    ],
)
def test_codes_are_real_numbers(
    key: str, change: Callable[[Tensor], Tensor], tmp_path: Path
) -> None:
    with pytest.raises(ConversionError, match=f"expected {key} to hold real numbers, but got a te"):
        convert({key: change(torch.ones(8, 4))}, tmp_path / "codec.safetensors")


@pytest.mark.parametrize("strides", [4, "1", {}])
def test_strides_are_a_list(
    strides: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_file(stack(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"vq_strides": strides}))
    assert main([str(tmp_path), "-o", str(tmp_path / "codec.safetensors")]) == 2
    said = f"expected vq_strides of config.json to be a list, but got {strides!r}\n"
    assert capsys.readouterr().err == f"torchvq.convert: {said}"


def test_sums_and_counts_fit_each_other(tmp_path: Path) -> None:
    sums = {"layers.0.codebook.embed_sum": torch.ones(8, 4)}
    counts = {"layers.0.codebook.cluster_usage": torch.ones(7)}
    with pytest.raises(ConversionError, match=r"shapes \(K, D\) and \(K,\)"):
        convert(sums | counts, tmp_path / "codec.safetensors")


def test_image_codes_have_two_dimensions(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=r"level 0 to have codes \(K, D\)"):
        convert({"quantize.embedding.weight": torch.zeros(8)}, tmp_path / "codec.safetensors")


def test_files_of_other_kinds_are_refused(tmp_path: Path) -> None:
    for content in (b"", b"hello", b"\x80\x02}q\x00.", bytes(range(256))):
        (tmp_path / "weights.pt").write_bytes(content)
        with pytest.raises(ConversionError):
            convert(tmp_path / "weights.pt", tmp_path / "codec.safetensors")


def test_what_trainers_save_beside_the_weights_is_left_out(tmp_path: Path) -> None:
    torch.save(stack(), tmp_path / "pytorch_model.bin")
    for name in ("training_args", "optimizer", "scheduler_1"):
        torch.save(argparse.Namespace(rate=1), tmp_path / f"{name}.bin")
    assert len(convert(tmp_path, tmp_path / "codec.safetensors").levels) == 2


def test_a_folder_holds_one_checkpoint(tmp_path: Path) -> None:
    """Shards repeat no name."""
    for epoch in (1, 2):
        torch.save(
            {CODES.format(q): torch.ones(8, 4) for q in range(4 - epoch)}, tmp_path / f"{epoch}.pt"
        )
    said = rf"expected one checkpoint in {tmp_path}, but got {CODES.format(0)} in 1\.pt and 2\.pt"
    with pytest.raises(ConversionError, match=said):
        convert(tmp_path, tmp_path / "codec.safetensors")
    assert len(convert(tmp_path / "1.pt", tmp_path / "codec.safetensors").levels) == 3


def test_sources_are_files_and_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pipe would be waited for; a folder may be called like a file."""
    os.mkfifo(tmp_path / "pipe.pt")
    for source in (tmp_path / "pipe.pt", tmp_path):
        assert main([str(source), "-o", str(tmp_path / "codec.safetensors")]) == 2
        said = f"torchvq.convert: expected {tmp_path / 'pipe.pt'} to be a file, but it is none\n"
        assert capsys.readouterr().err == said
    (tmp_path / "pipe.pt").unlink()
    (tmp_path / "folder.safetensors").mkdir()
    torch.save(stack(), tmp_path / "pytorch_model.bin")
    assert len(convert(tmp_path, tmp_path / "codec.safetensors").levels) == 2


def test_numbers_that_torch_cannot_read_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = {"dtype": "F4", "shape": [4, 4], "data_offsets": [0, 8]}
    header = json.dumps({CODES.format(0): entry}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    output = tmp_path / "codec.safetensors"
    assert main([str(tmp_path / "model.safetensors"), "-o", str(output)]) == 2
    said = f"torchvq.convert: expected {CODES.format(0)} to hold real numbers, but got a tensor of"
    assert capsys.readouterr().err.startswith(said) and not output.exists()


def test_links_are_followed_and_modes_kept(tmp_path: Path) -> None:
    link, place, plain = (tmp_path / f"{name}.safetensors" for name in ("link", "place", "plain"))
    link.symlink_to(place.name)
    before = os.umask(0o027)
    try:
        convert(stack(), link)
    finally:
        os.umask(before)
    assert link.is_symlink() and stat.S_IMODE(place.stat().st_mode) == 0o640
    place.chmod(0o604)
    convert(stack(), link)
    assert link.is_symlink() and stat.S_IMODE(place.stat().st_mode) == 0o604
    convert(stack(), plain)
    assert load_file(plain).keys() == load_file(place).keys()
    assert {path.name for path in tmp_path.iterdir()} == {link.name, place.name, plain.name}


@pytest.mark.parametrize("linked", [False, True])
def test_pipes_are_written_directly(
    linked: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(stack(), tmp_path / "weights.pt")
    pipe, path = tmp_path / "pipe", tmp_path / ("link.safetensors" if linked else "pipe")
    os.mkfifo(pipe)
    if linked:
        path.symlink_to(pipe)
    # Opened before, so that writing does not wait for a reader; a pipe holds more than this codec.
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert main([str(tmp_path / "weights.pt"), "-o", str(path)]) == 0
        content = os.read(reader, 1 << 16)
    finally:
        os.close(reader)
    assert load(content)["layers.1._codebook.embed"][0].equal(stack()[CODES.format(1)])
    assert pipe.is_fifo() and path.is_symlink() == linked
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith(f"wrote {path}: ")


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "codec.safetensors"
    path.write_bytes(b"old")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match=rf"^cannot write {path}: No space left on device$"):
        convert(stack(), path)
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_a_file_that_may_not_be_written_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "codec.safetensors"
    path.write_bytes(b"old")
    # Root may write every file.
    monkeypatch.setattr(
        os, "access", lambda place, mode: (os.fspath(place), mode) != (str(path), os.W_OK)
    )
    with pytest.raises(OSError, match=rf"^cannot write {path}: Permission denied$"):
        convert(stack(), path)
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


ENDS = """
import os, signal, sys, torch
from torchvq.convert import convert

number = getattr(signal, sys.argv[2])
signal.signal(number, signal.SIG_DFL)  # nohup, under which tests may run, leaves SIGHUP ignored
os.fsync = lambda _: os.kill(os.getpid(), number)
convert({"layers.0._codebook.embed": torch.ones(8, 4)}, sys.argv[1])
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_leaves_nothing_behind(name: str, tmp_path: Path) -> None:
    """It comes while the temporary file waits for the disk."""
    path = tmp_path / "codec.safetensors"
    path.write_bytes(b"old")
    done = subprocess.run([sys.executable, "-c", ENDS, str(path), name], check=False)
    assert done.returncode == -getattr(signal, name)
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("source", ["model/model.safetensors", "model"])
@pytest.mark.parametrize("output", ["model/model.safetensors", "link.safetensors"])
def test_the_source_is_not_overwritten(
    source: str, output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = tmp_path / "model" / "model.safetensors"
    weights.parent.mkdir()
    save_file(stack(), weights)
    (tmp_path / "link.safetensors").symlink_to(weights)
    before = weights.read_bytes()
    assert main([str(tmp_path / source), "-o", str(tmp_path / output)]) == 2
    said = capsys.readouterr().err
    assert (
        said
        == f"torchvq.convert: expected path to be another file than the source's, but got {weights}\n"
    )
    assert weights.read_bytes() == before


def test_codecs_end_in_safetensors(tmp_path: Path) -> None:
    with pytest.raises(
        ConversionError, match=r"expected path to end in \.safetensors, but got .*codec\.pt$"
    ):
        convert(stack(), tmp_path / "codec.pt")
    assert not list(tmp_path.iterdir())


def test_without_safetensors_is_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save(stack(), tmp_path / "weights.pt")
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    assert main([str(tmp_path / "weights.pt"), "-o", str(tmp_path / "codec.safetensors")]) == 2
    assert capsys.readouterr().err == (
        "torchvq.convert: expected safetensors to be installed (pip install safetensors), but it is not\n"
    )
    assert not (tmp_path / "codec.safetensors").exists()


def test_a_folder_that_is_not_there_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cannot write"):
        convert(stack(), tmp_path / "nowhere" / "codec.safetensors")
