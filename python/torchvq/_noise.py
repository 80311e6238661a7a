"""State of modules that draw noise: a seed and a step of the counter-based generator, part of the checkpoint."""

from collections import deque
from typing import Any

import torch
from torch import Tensor, nn

from torchvq import _checkpointing
from torchvq._ranks import Ranks, noise_rng
from torchvq._replay import MAX_REPLAYS, fingerprint

_ops = torch.ops.torchvq


class NoisyModule(nn.Module):
    """A module with the buffer ``rng`` (2,), int64: seed and step.

    The seed is drawn at construction from torch's generator. A checkpoint without ``rng``, as the reference writes,
    loads all the same: the seed stays, steps count from 0.
    """

    rng: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rng", fresh_rng())
        self._drawn: deque[tuple[tuple[torch.Size, int], Tensor]] = deque(maxlen=MAX_REPLAYS)

    def take_rng(self, x: Tensor, mask: Tensor | None, ranks: Ranks) -> Tensor:
        """What this forward draws from; counts a step unless there are no tokens.

        The recomputation of a checkpointed forward gets what the forward got, and counts nothing.
        """
        compiling = torch.compiler.is_compiling()
        if not compiling and _checkpointing.recomputing():
            recorded = self._recorded(x)
            if recorded is not None:
                return noise_rng(recorded, ranks)
        rng = self.rng.clone()
        if not compiling and _checkpointing.will_recompute():
            self._drawn.append((fingerprint(x), rng))
        if x.numel() > 0:
            _ops.advance_rng_(self.rng, mask)
        return noise_rng(rng, ranks)

    def _recorded(self, x: Tensor) -> Tensor | None:
        # Backward meets the regions last to first, which decides between equal inputs.
        key = fingerprint(x)
        for place in range(len(self._drawn) - 1, -1, -1):
            if self._drawn[place][0] == key:
                rng = self._drawn[place][1]
                del self._drawn[place]
                return rng
        return None

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

    def __getstate__(self) -> dict[str, Any]:
        # A recorded step belongs to a backward pass of this very object.
        return {**self.__dict__, "_drawn": deque(maxlen=MAX_REPLAYS)}


def fresh_rng() -> Tensor:
    """A seed from torch's generator, and step 0."""
    seed = torch.randint(2**62, (), device="cpu")
    return torch.stack([seed, torch.zeros((), dtype=torch.long, device="cpu")])
