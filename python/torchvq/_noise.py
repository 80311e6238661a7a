"""State of modules that draw noise: a seed and a step of the counter-based generator, part of the checkpoint."""

from collections import deque
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from torchvq import _checkpointing
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


class NoisyModule(nn.Module):
    """A module with the buffer ``rng`` (2,), int64: seed and step.

    The seed is drawn at construction from torch's generator. A checkpoint without ``rng``, as the reference writes,
    loads all the same: the seed stays, steps count from 0.
    """

    rng: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rng", fresh_rng())
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

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *args: Any
    ) -> None:
        missing: list[str] = args[1]
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)
        if prefix + "rng" in missing:
            missing.remove(prefix + "rng")
            # What construction on the meta device could not hold is drawn now.
            fresh = fresh_rng() if self.rng.is_meta else self.rng
            fresh[1] = 0
            self.rng = fresh


def fresh_rng() -> Tensor:
    """A seed from torch's generator, and step 0."""
    seed = torch.randint(2**62, (), device="cpu")
    return torch.stack([seed, torch.zeros((), dtype=torch.long, device="cpu")])
