"""Conversion of integer indices to int64, the dtype that operators take."""

import torch
from torch import Tensor

from torchvq._base.arguments import expect_tensor


def to_int64(indices: Tensor) -> Tensor:
    """Indices as int64; uint64 values from 2^63 on become the largest int64, out of range for every codebook."""
    whole = indices.long()
    if indices.dtype == torch.uint64:
        # The cast wraps them to negative numbers, among them -1, which would mean a token without a code.
        return whole.masked_fill(whole.lt(0), torch.iinfo(torch.int64).max)
    return whole


def as_int64(owner: str, indices: Tensor) -> Tensor:
    """`to_int64` for integer dtypes, bool excluded; TypeError for others."""
    expect_tensor(owner, "indices", indices)
    if indices.dtype == torch.int64:
        return indices
    if indices.dtype == torch.bool or indices.is_floating_point() or indices.is_complex():
        raise TypeError(f"{owner}: expected indices to be integers, but got {indices.dtype}")
    return to_int64(indices)
