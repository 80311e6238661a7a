"""``ema_update_weight``: scales, per code, the share of a step in the moving averages."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torchvq._base.options import expect
from torchvq._base.readable import is_readable

_ops = torch.ops.torchvq

EmaWeight = Tensor | float | Callable[[Tensor, Tensor], Tensor]
Statistics = tuple[Tensor, Tensor, Tensor]  # counts, sums, exponents; see ops.code_statistics


def check_weight(weight: EmaWeight, cluster_size: Tensor, functions: bool) -> None:
    """Raises unless a weight fits averages (H, K) and is finite; a function is called later, where allowed."""
    if callable(weight):
        condition = "a tensor or a number with sync_every above 1"
        expect("VectorQuantize", functions, "ema_update_weight", condition, "a function")
        return
    given = weight_of(weight, (), cluster_size)
    sizes = zip(reversed(given.shape), reversed(cluster_size.shape), strict=False)
    fits = given.dim() <= 2 and all(own in (1, size) for own, size in sizes)
    condition = f"of a shape that broadcasts to {list(cluster_size.shape)} (H, K)"
    got = f"shape {list(given.shape)}"
    expect("VectorQuantize", fits, "ema_update_weight", condition, got)
    if is_readable(given):
        finite = bool(given.isfinite().all())
        expect("VectorQuantize", finite, "ema_update_weight", "finite", "NaN or infinity")


def weight_of(weight: EmaWeight, statistics: Sequence[Tensor], cluster_size: Tensor) -> Tensor:
    """The weight as operators take it; a callable is called with the sums and counts of the step."""
    if callable(weight):
        counts, sums, exponents = statistics
        dtype = cluster_size.dtype
        weight = weight(_ops.decode_sums(sums, exponents, dtype=dtype), counts.to(dtype))
    return torch.as_tensor(weight, dtype=cluster_size.dtype, device=cluster_size.device)
