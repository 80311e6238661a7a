"""Rows of the learning table: settings of a quantizer, and the same start for torchvq and the reference."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import torch
import vector_quantize_pytorch
from torch import Tensor, nn

import torchvq

OURS, REFERENCE, YARDSTICK = "ours", "reference", "faiss"
# Threshold of unused codes, as a fraction of an even share of the tokens.
FRACTION = 0.1
RECOMMENDED: dict[str, Any] = torchvq.recommended("vq")
del RECOMMENDED["codebook_size"]

Options = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """Settings of a quantizer in a task. Options that only one library has are None for the other."""

    task: str
    name: str
    class_name: str
    ours: Options | None
    reference: Options | None
    # Rows of a family quantize the same data with codebooks of equal sizes, so their errors compare.
    family: str = ""
    recommended: bool = False
    # The row whose reference runs are compared with this one, if it has none itself.
    against: str = ""
    setting: dict[str, Any] = field(default_factory=dict)

    def has(self, who: str) -> bool:
        return (self.ours if who == OURS else self.reference) is not None

    def options(self, who: str) -> Options:
        found = self.ours if who == OURS else self.reference
        assert found is not None, f"{self.name}: expected a row that {who} has"
        return found


def recommended(tokens: int, codes: int, moving: bool = False) -> Options:
    """The recommended settings for one codebook and so many tokens per step, without its size."""
    bits = codes.bit_length() - 1
    settings = torchvq.recommended("vq", bits=bits, tokens=tokens, moving=moving)
    del settings["codebook_size"]
    return settings


def both(options: Options, tokens: int, codes: int) -> tuple[Options, Options]:
    """The options for each library: the reference takes the fraction of an even share as an absolute number."""
    theirs = dict(options)
    fraction = theirs.pop("dead_code_threshold_fraction", None)
    if fraction is not None:
        theirs["threshold_ema_dead_code"] = fraction * tokens / codes
    return options, theirs


def seeded(seed: int) -> None:
    """Seeds torch, and Python's generator, from which the reference draws the levels to drop."""
    random.seed(seed)
    torch.manual_seed(seed)


def make(row: Row, who: str, seed: int) -> nn.Module:
    """The quantizer of a row. The reference starts from the same codes and projections as ours."""
    if who == OURS:
        return _made(torchvq, row, OURS, seed)
    quantizer = _made(vector_quantize_pytorch, row, REFERENCE, seed)
    if row.has(OURS):
        _copy(_made(torchvq, row, OURS, seed).state_dict(), quantizer)
    return quantizer


def _made(package: Any, row: Row, who: str, seed: int) -> nn.Module:
    seeded(seed)
    quantizer: nn.Module = getattr(package, row.class_name)(**row.options(who))
    return quantizer


def _copy(state: dict[str, Tensor], quantizer: nn.Module) -> None:
    """Copies the tensors that have the same name and shape in both."""
    own = quantizer.state_dict()
    shared = {k: v for k, v in state.items() if k in own and own[k].shape == v.shape}
    quantizer.load_state_dict(shared, strict=False)


def levels_of(row: Row, indices: Tensor) -> tuple[Tensor, Tensor | None]:
    """Indices of the first and of the last level (or head) of a stack; None for the last of a single codebook."""
    if row.class_name.startswith("Grouped"):
        # Groups have separate codebooks; the first represents all.
        indices = indices[0]
    if row.class_name.startswith(("Grouped", "Residual")) or "heads" in row.options(OURS):
        return indices[..., 0], indices[..., -1]
    return indices, None


def codes_in(row: Row) -> int:
    """The number of codes of a level."""
    options = row.options(OURS)
    if "levels" in options:
        return int(torch.tensor(options["levels"]).prod())
    return int(options["codebook_size"])
