"""What a codebook keeps of a checkpointed step, so that its recomputation in backward finds the state it began with."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from torchvq.codebook import Codebook

# Replays wait for a backward pass that may never come, so their number is bounded.
MAX_REPLAYS = 32


class Replay:
    """The state from which a checkpointed forward started, and what tells which forward that was."""

    def __init__(self, codebook: "Codebook", x: Tensor) -> None:
        self.key = fingerprint(x)
        self.buffers = {
            name: None if b is None else b.clone() for name, b in codebook._buffers.items()
        }
        self.embed = (
            codebook.embed.detach().clone() if isinstance(codebook.embed, nn.Parameter) else None
        )
        self.initialised = codebook._initialised
        self.pending = codebook._pending

    @contextmanager
    def installed(self, codebook: "Codebook") -> Iterator[None]:
        present = codebook._buffers, codebook._initialised, codebook._pending
        codebook._buffers, codebook._initialised, codebook._pending = (
            self.buffers,
            self.initialised,
            self.pending,
        )
        codebook._replayed_embed = self.embed
        try:
            yield
        finally:
            codebook._buffers, codebook._initialised, codebook._pending = present
            codebook._replayed_embed = None


def fingerprint(x: Tensor) -> tuple[torch.Size, int]:
    """What tells one input from another: a hash of each row, weighted by its place."""
    if not x.numel():
        return x.shape, 0
    rows = torch.hash_tensor(x.detach().flatten(0, -2), dim=-1).view(torch.int64)
    places = torch.arange(rows.numel(), device=rows.device).mul_(2).add_(1)
    return x.shape, int(rows.mul(places).sum())
