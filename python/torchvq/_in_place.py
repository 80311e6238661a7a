"""The step of a codebook's own optimizer inside a training forward."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torchvq.vector_quantize import VectorQuantize

_ops = torch.ops.torchvq


def _keep(tensor: Tensor) -> Tensor:
    return tensor


def in_place_step(
    vq: "VectorQuantize", projected: Tensor, codebook: Tensor, mask: Tensor | None
) -> Tensor:
    """One step towards the tokens (H, T, D) of this batch; returns the loss it went down."""
    state = vq._codebook
    if state.replaying:
        return projected.new_zeros(())
    # A backward of its own, here and now: checkpointing must not drop what it saves, or it would recompute the region.
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(_keep, _keep):
        target = projected.detach()
        _, _, codes, inputs = _ops.quantize(target, codebook, state.rng, estimator="none")
        loss: Tensor = _ops.commitment_loss(inputs, codes, mask=mask)
        loss.backward()  # type: ignore[no-untyped-call]
    if not vq.manual_in_place_optimizer_update:
        vq.update_in_place_optimizer()
    state.record_embed()
    return loss.detach()
