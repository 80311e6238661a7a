"""Modules that draw noise for each token, and what their checkpointed forwards keep for a recomputation."""

from collections import deque
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from torchvq import _checkpointing
from torchvq._random_state import RandomState
from torchvq._ranks import Ranks, noise_rng
from torchvq._replay import MAX_REPLAYS, fingerprint

_ops = torch.ops.torchvq


_T = TypeVar("_T")


class StepRecords(Generic[_T]):
    """What forwards of checkpointed regions have worked with, for their recomputation in backward."""

    def __init__(self) -> None:
        self._kept: deque[tuple[tuple[torch.Size, int], _T]] = deque(maxlen=MAX_REPLAYS)

    def keep(self, x: Tensor, item: _T) -> None:
        """Keeps an item where the running forward on x will be recomputed."""
        if not torch.compiler.is_compiling() and _checkpointing.will_recompute():
            self._kept.append((fingerprint(x), item))

    def take(self, x: Tensor) -> _T | None:
        """What was kept, where the running forward on x is a recomputation; else None."""
        if torch.compiler.is_compiling() or not _checkpointing.recomputing():
            return None
        # Backward meets the regions last to first, which decides between equal inputs.
        key = fingerprint(x)
        for place in range(len(self._kept) - 1, -1, -1):
            if self._kept[place][0] == key:
                item = self._kept[place][1]
                del self._kept[place]
                return item
        return None

    def __deepcopy__(self, memo: object) -> "StepRecords[_T]":
        # A recorded step belongs to a backward pass of one object.
        return StepRecords()

    def __getstate__(self) -> dict[str, Any]:
        return {"_kept": deque(maxlen=MAX_REPLAYS)}


class NoisyModule(RandomState):
    """A module that draws numbers for each token from its generator ``rng``."""

    def __init__(self) -> None:
        super().__init__()
        self.keep_rng()
        self._drawn: StepRecords[Tensor] = StepRecords()

    def take_rng(self, x: Tensor, mask: Tensor | None, ranks: Ranks) -> Tensor:
        """What this forward draws from; counts a step unless there are no tokens.

        The recomputation of a checkpointed forward gets what the forward got, and counts nothing.
        """
        recorded = self._drawn.take(x)
        if recorded is not None:
            return noise_rng(recorded, ranks)
        rng = self.rng.clone()
        self._drawn.keep(x, rng)
        if x.numel() > 0:
            _ops.advance_rng_(self.rng, mask)
        return noise_rng(rng, ranks)
