"""The step of a codebook's own optimizer inside a training forward."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torchvq.vector_quantize import VectorQuantize

_ops = torch.ops.torchvq


def in_place_step(
    vq: "VectorQuantize", projected: Tensor, codebook: Tensor, mask: Tensor | None
) -> Tensor:
    """One step towards the tokens (H, T, D) of this batch; returns the loss it went down."""
    state = vq._codebook
    if state.replaying:
        return projected.new_zeros(())
    with torch.enable_grad():
        target = projected.detach()
        _, _, codes, inputs = _ops.quantize(target, codebook, state.rng, estimator="none")
        loss: Tensor = _ops.commitment_loss(inputs, codes, mask=mask)
        loss.backward()  # type: ignore[no-untyped-call]
    if not vq.manual_in_place_optimizer_update:
        vq.update_in_place_optimizer()
    state.record_embed()
    return loss.detach()
