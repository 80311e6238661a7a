"""The option ``vqp_compat`` of every class: the numbers of ``vector_quantize_pytorch``."""

import torch
from torch import Tensor

_ops = torch.ops.torchvq
_NARROW = (torch.uint8, torch.int8, torch.int16, torch.int32)


def vqp_compat_of(given: bool | None) -> bool:
    """The option as given; for None the environment variable ``TORCHVQ_COMPAT``: 1 is True, 0 or unset False."""
    return bool(_ops.vqp_compat_by_default() if given is None else given)


def as_returned(indices: Tensor, compat: bool, codebook_size: int) -> Tensor:
    """Indices in the dtype of the result: int64, or under ``vqp_compat`` int32 if the codebook size allows it."""
    return _ops.vqp_indices(indices, codebook_size) if compat else indices


def levels_as_returned(levels: Tensor, indices: Tensor, compat: bool) -> Tensor:
    """Levels of features: int64, or under ``vqp_compat`` int32 for indices whose dtype fits into it."""
    return levels.int() if compat and indices.dtype in _NARROW else levels
