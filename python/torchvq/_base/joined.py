"""``torch.cat`` and ``torch.stack`` outside autocast, which refuses a half precision other than its own."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from torchvq._base.projection import autocast_is_on


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """``torch.cat`` in the tensors' own dtype."""
    with _without_casts(tensors):
        return torch.cat(list(tensors), dim)


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """``torch.stack`` in the tensors' own dtype."""
    with _without_casts(tensors):
        return torch.stack(list(tensors), dim)


def _without_casts(tensors: Sequence[Tensor]) -> AbstractContextManager[object]:
    # Autocast joins float32 as it is, and an exported program should have no region without autocast:
    # torch fails where nothing uses its result, as in programs that return only tokens.
    if all(tensor.dtype == torch.float32 for tensor in tensors):
        return nullcontext()
    return without_autocast(tensors[0])


def without_autocast(like: Tensor) -> AbstractContextManager[object]:
    """Disables autocast on the device of a tensor, if it is on there."""
    device = like.device.type
    return torch.autocast(device, enabled=False) if autocast_is_on(device) else nullcontext()
