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
    """The state with which a checkpointed forward searched, and what tells which forward that was.

    Its recomputation searches with the same codes and learns nothing: neither state nor ranks hear of it twice.
    """

    def __init__(self, key: tuple[torch.Size, int]) -> None:
        self.key = key
        self.buffers: dict[str, Tensor | None] = {}
        self.embed: Tensor | None = None
        self.totals: list[Tensor] = []

    def capture(self, codebook: "Codebook") -> None:
        """Keeps the state as it is when the search begins."""
        self.buffers = {
            name: None if b is None else b.clone() for name, b in codebook._buffers.items()
        }
        if isinstance(codebook.embed, nn.Parameter):
            self.embed = codebook.embed.detach().clone()

    @contextmanager
    def installed(self, codebook: "Codebook") -> Iterator[None]:
        """Makes a codebook work on this record."""
        present = codebook._buffers
        codebook._buffers, codebook._replay = self.buffers, self
        try:
            yield
        finally:
            codebook._buffers, codebook._replay = present, None


def fingerprint(x: Tensor) -> tuple[torch.Size, int]:
    """What tells one input from another: a hash of each row, weighted by its place."""
    if not x.numel():
        return x.shape, 0
    rows = torch.hash_tensor(x.detach().flatten(0, -2), dim=-1).view(torch.int64)
    places = torch.arange(rows.numel(), device=rows.device).mul_(2).add_(1)
    return x.shape, int(rows.mul(places).sum())
