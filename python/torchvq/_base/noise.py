"""Modules that draw noise for each token."""

import torch
from torch import Tensor

from torchvq._base.random_state import RandomState
from torchvq._base.ranks import Ranks, noise_rng

_ops = torch.ops.torchvq


class NoisyModule(RandomState):
    """A module that draws numbers for each token from its generator ``rng``."""

    def __init__(self) -> None:
        super().__init__()
        self.keep_rng()

    def take_rng(self, x: Tensor, mask: Tensor | None, ranks: Ranks) -> Tensor:
        """The generator of this forward; advances the module's own unless there are no tokens.

        The recomputation of a checkpointed forward gets the same generator again and advances nothing.
        """
        rng = self.rng.clone()
        step = self._step_for(rng)
        if step is not None and step.replayed:
            assert step.rng is not None
            return noise_rng(step.rng, ranks)
        if x.numel() > 0:
            _ops.advance_rng_(self.rng, mask)
        return noise_rng(rng, ranks)
