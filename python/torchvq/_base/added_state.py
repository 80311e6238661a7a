"""State that this package adds to the reference's: a checkpoint without it loads with the defaults."""

import torch
from torch import Tensor

from torchvq._base.affine_map import AFFINE_FLAGS, AFFINE_STATE
from torchvq._base.random_state import fresh_rng

ADDED_STATE = ("rng", "cooldown", *AFFINE_STATE, *AFFINE_FLAGS)


def default_of(name: str, buffer: Tensor, device: torch.device) -> Tensor:
    """The default value of a buffer that a checkpoint lacks."""
    if name == "rng":
        # Keep a seed that was drawn at construction; on the meta device none could be, so draw it now.
        fresh = fresh_rng() if buffer.is_meta else buffer
        fresh[1] = 0
        return fresh.to(device)
    if name in AFFINE_FLAGS:
        return torch.tensor(True, device=device)
    fill = 1 if name.endswith("variance") else 0
    return torch.full(buffer.shape, fill, dtype=buffer.dtype, device=device)
