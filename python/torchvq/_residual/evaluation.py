"""Evaluation of a residual stack as one operator, for stacks whose levels need no Python code."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchvq._codebook.search import prepare, stored_codes
from torchvq._residual.beam import best_paths
from torchvq._residual.step import StackForward

if TYPE_CHECKING:
    from torchvq._residual.calls import StackRequest
    from torchvq.residual_vq import ResidualVQ

_ops = torch.ops.torchvq


def can_encode_at_once(rvq: "ResidualVQ", request: "StackRequest") -> bool:
    """Whether evaluation is only a search: no losses, and no codes that depend on the path."""
    if rvq.training or request.targets is not None:
        return False
    return not rvq.implicit_neural_codebook and isinstance(request.depth, int)


def encode_at_once(
    rvq: "ResidualVQ", inputs: Tensor, request: "StackRequest"
) -> StackForward | None:
    """The search of inputs (H, T, D); None if codes need a gradient, which the operators do not have."""
    assert isinstance(request.depth, int)
    levels = rvq.levels
    codebooks = [stored_codes(level._codebook, inputs.dtype) for level in levels]
    if torch.is_grad_enabled() and any(codes.requires_grad for codes in codebooks):
        return None
    mask = None if request.mask is None else rvq.layout.split_mask(request.mask)
    for level in levels:
        if not level._codebook.initialised:
            prepare(level, inputs, mask, request.frozen, request.ranks)
    used = codebooks[: request.depth]
    if request.beam > 1:
        indices = best_paths(rvq, inputs, request)
        finite = inputs.isfinite().all(-1, keepdim=True)
        total = _ops.residual_decode(indices, [codes.to(inputs.dtype) for codes in used])
        # The output of a non-finite token is NaN, so that it does not go unnoticed.
        quantized = torch.where(finite, total, float("nan"))
    else:
        metric = levels[0]._codebook.metric
        quantized, indices = _ops.residual_encode(inputs, used, metric=metric, mask=mask)
    dropped = rvq.num_quantizers - request.depth
    if dropped > 0:
        indices = torch.nn.functional.pad(indices, (0, dropped), value=-1)
    return StackForward(quantized, indices, quantized.new_zeros(rvq.num_quantizers), [])
