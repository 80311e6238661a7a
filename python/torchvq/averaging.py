"""Averages of models with buffers that have no mean: flags, counters and seeds."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from torchvq._base.arguments import number


def ema_multi_avg_fn(
    decay: float = 0.999,
) -> Callable[[list[Tensor], list[Tensor], Tensor | int], None]:
    """For ``torch.optim.swa_utils.AveragedModel``: averages floating-point tensors, and copies all others.

    PyTorch's own ``get_ema_multi_avg_fn`` averages integers too, which gives the average a seed that the model never
    had, and its mean fails for flags.

    Args:
        decay: decay of the moving average, in [0, 1]; larger is slower. Default: 0.999.

    Raises:
        ValueError: a decay out of range. TypeError: a decay that is no number.

    Example:
        >>> average = AveragedModel(model, multi_avg_fn=ema_multi_avg_fn(0.999), use_buffers=True)
        >>> average.update_parameters(model)
    """
    decay = number("ema_multi_avg_fn", "decay", decay)
    if not 0 <= decay <= 1:
        raise ValueError(f"ema_multi_avg_fn: expected decay to be in [0, 1], but got {decay}")
    return partial(_average, decay=decay)


@torch.no_grad()
def _average(
    averaged: list[Tensor], current: list[Tensor], _: Tensor | int, *, decay: float
) -> None:
    # AveragedModel calls this once for each dtype.
    if averaged[0].is_floating_point():
        torch._foreach_lerp_(averaged, current, 1 - decay)
    else:
        torch._foreach_copy_(averaged, current)
