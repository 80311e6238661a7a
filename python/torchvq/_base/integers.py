"""Conversion of integer indices to int64, the dtype that operators take."""

import torch
from torch import Tensor

from torchvq._base.arguments import expect_dense, expect_tensor


def as_int64(owner: str, indices: Tensor) -> Tensor:
    """Indices of any integer dtype as int64, those from 2^63 on as the largest, which no codebook has; TypeError for
    other dtypes, bool among them, and for sparse or nested tensors.
    """
    expect_tensor(owner, "indices", indices)
    expect_dense(owner, "indices", indices)
    if indices.dtype == torch.int64:
        return indices
    if indices.dtype == torch.bool or indices.is_floating_point() or indices.is_complex():
        raise TypeError(f"{owner}: expected indices to be integers, but got {indices.dtype}")
    whole = indices.long()
    if indices.dtype == torch.uint64:
        # The cast wraps them to negative numbers, among them -1, which would mean a token without a code.
        return whole.masked_fill(whole.lt(0), torch.iinfo(torch.int64).max)
    return whole
