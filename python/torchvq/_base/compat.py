"""The option ``vqp_compat`` of every class: the numbers of ``vector_quantize_pytorch``."""

import torch
from torch import Tensor

_ops = torch.ops.torchvq


def vqp_compat_of(given: bool | None) -> bool:
    """The option as given; None is what ``TORCHVQ_COMPAT`` in the environment says: 1, or nothing (or 0) for False."""
    return bool(_ops.vqp_compat_by_default() if given is None else given)


def as_returned(indices: Tensor, compat: bool, codebook_size: int) -> Tensor:
    """Indices in the dtype in which they are returned: int64; under the switch int32 where that is enough."""
    return _ops.vqp_indices(indices, codebook_size) if compat else indices


def wide_indices(indices: Tensor) -> Tensor:
    """The way back: int32 as int64, others as they are."""
    return indices.long() if indices.dtype == torch.int32 else indices
