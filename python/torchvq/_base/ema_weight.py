"""``ema_update_weight``: scales, per code, the share of a step in the moving averages."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_ops = torch.ops.torchvq

EmaWeight = Tensor | float | Callable[[Tensor, Tensor], Tensor]
Statistics = tuple[Tensor, Tensor, Tensor]  # counts, sums, exponents; see ops.code_statistics


def weight_of(weight: EmaWeight, statistics: Sequence[Tensor], cluster_size: Tensor) -> Tensor:
    """The weight as operators take it; a callable is called with the sums and counts of the step."""
    if callable(weight):
        counts, sums, exponents = statistics
        dtype = cluster_size.dtype
        weight = weight(_ops.decode_sums(sums, exponents, dtype=dtype), counts.to(dtype))
    return torch.as_tensor(weight, dtype=cluster_size.dtype, device=cluster_size.device)
