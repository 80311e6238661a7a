"""Gradients that exist although they are zero."""

from collections.abc import Iterable

from torch import Tensor, nn


def reaching(loss: Tensor, parameters: Iterable[nn.Parameter]) -> Tensor:
    """The loss, whose backward also reaches these parameters, with gradients of zero.

    Wrappers, DistributedDataParallel above all, wait for a gradient of every parameter.
    """
    for parameter in parameters:
        if parameter.requires_grad:
            # The sum of an empty slice.
            loss = loss + parameter.flatten()[:0].sum().to(loss.dtype)
    return loss
