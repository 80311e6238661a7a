"""Gradients that exist although they are zero."""

import torch
from torch import Tensor, nn

from torchvq._base.sharded import gathered


def reaching(loss: Tensor, module: nn.Module) -> Tensor:
    """The loss, whose backward also reaches the parameters of a module that nothing has called, with gradients of zero.

    Wrappers, DistributedDataParallel above all, wait for a gradient of every parameter.
    """
    if not any(parameter.requires_grad for parameter in module.parameters()):
        return loss

    def nothing() -> Tensor:
        zero = torch.zeros_like(loss)
        for parameter in module.parameters():
            if parameter.requires_grad:
                # The sum of an empty slice is 0 whatever the parameter holds, NaN included.
                zero = zero + parameter.flatten()[:0].sum().to(loss.dtype)
        return zero

    return loss + gathered(module.modules(), nothing)
