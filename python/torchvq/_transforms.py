"""Tensors under torch.vmap, whose numbers Python cannot read."""

import torch
from torch import Tensor


def is_mapped(tensor: Tensor) -> bool:
    """Whether the tensor stands for slices that may differ."""
    return torch._C._functorch.is_batchedtensor(tensor)


def shared_flag(flag: Tensor) -> bool:
    """A flag that all slices of a mapped tensor have in common."""
    while is_mapped(flag):
        flag = torch._C._functorch.get_unwrapped(flag)
    if bool(flag.any()) != bool(flag.all()):
        raise RuntimeError(
            "VectorQuantize: expected either all codebooks under torch.vmap to be initialised or none, but got some"
        )
    return bool(flag.all())
