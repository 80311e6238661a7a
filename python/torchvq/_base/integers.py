"""Indices of any integer dtype as operators take them."""

import torch
from torch import Tensor


def to_int64(indices: Tensor) -> Tensor:
    """Indices as int64; those of uint64 from 2^63 on become the largest, which no codebook has."""
    whole = indices.long()
    if indices.dtype == torch.uint64:
        # They have wrapped to negative numbers, of which -1 means a token without a code.
        return whole.masked_fill(whole.lt(0), torch.iinfo(torch.int64).max)
    return whole


def as_int64(owner: str, indices: Tensor) -> Tensor:
    """The same; TypeError where they are no integers."""
    if indices.dtype == torch.bool or indices.is_floating_point() or indices.is_complex():
        raise TypeError(f"{owner}: expected indices to be integers, but got {indices.dtype}")
    return to_int64(indices)
