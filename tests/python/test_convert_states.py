"""Conversion of state dicts that no package wrote: what they may hold beside a quantizer, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from torchvq.convert import ConversionError, convert

CODES = "quantizer.layers.{}.codebook.embed"
COUNTS = "quantizer.layers.{}.codebook.cluster_size"


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


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (COUNTS.format(1), torch.ones(7), r"level 1 to have 8 counts, but got shape \(7,\)"),
        (COUNTS.format(0), torch.full((8,), torch.inf), "level 0 to have finite counts"),
        (CODES.format(1), torch.full((8, 4), torch.nan), "level 1 to have finite codes"),
        (CODES.format(0), torch.zeros(0, 4), r"level 0 to have codes \(K, D\)"),
        (CODES.format(0), torch.zeros(8), r"level 0 to have codes \(K, D\), but got shape \(8,\)"),
    ],
)
def test_codes_that_cannot_be_used_are_refused(
    key: str, value: Tensor, said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConversionError, match=said):
        convert(stack() | {key: value}, tmp_path / "codec.safetensors")
    assert not list(tmp_path.iterdir())


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


def test_a_folder_that_is_not_there_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cannot write"):
        convert(stack(), tmp_path / "nowhere" / "codec.safetensors")
