"""One forward of VectorQuantize between its projections: one operator, unless Python has a say in the learning."""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from torchvq._call import Call
from torchvq._losses import loss_options, orthogonal_loss, search_losses
from torchvq._search import choose, codes_of_step, estimator
from torchvq._stats import begin_step, finish_step
from torchvq.outputs import LossBreakdown

if TYPE_CHECKING:
    from torchvq.vector_quantize import VectorQuantize

_ops = torch.ops.torchvq


class Step(NamedTuple):
    """What a forward has found."""

    quantized: Tensor  # (H, T, D), or (H, T, k, D), with the estimator's gradient
    indices: Tensor  # (H, T), or (H, T, k)
    loss: Tensor  # a scalar; of candidates (H, T, k)
    breakdown: LossBreakdown


def step(
    vq: "VectorQuantize", projected: Tensor, tokens: Tensor, mask: Tensor | None, call: Call
) -> Step:
    """Searches, scores and learns.

    Args:
        projected: (H, T, D), the same tokens as ``tokens`` (B, N, dim).
        mask: (H, T).
    """
    if not vq.training:
        return _evaluate(vq, projected, tokens, mask, call)
    codebook = vq._codebook
    searched, in_place = codes_of_step(vq, projected, tokens, mask, call)
    steps = not codebook.replaying
    learns = steps and not call.frozen and call.topk is None
    # Statistics that are kept for later, or that a function of the caller weighs, lie between two operators.
    apart = learns and (call.accumulate or callable(call.weight) or codebook.has_pending)
    arguments = _arguments(vq, tokens, call, apart)
    if learns and not apart:
        arguments |= codebook.learning(call.ema_update, call.weight)
    *found, totals = _ops.vector_quantize_(
        projected,
        searched,
        codebook.state(),
        codebook.rng,
        vq.step_counts,
        mask=mask,
        learns=learns and not apart,
        finishes=steps and not apart,
        **arguments,
    )
    quantized, indices, inputs, loss, commitment, diversity, orthogonal = found
    codebook.record_totals(totals)
    if apart:
        _learn_apart(vq, inputs, indices, mask, call)
        if vq.has_codebook_orthogonal_loss:
            orthogonal = orthogonal_loss(vq, indices)
            if call.targets is None:
                loss = loss + vq.orthogonal_reg_weight * orthogonal
    elif learns:
        codebook.keep_in_shards()
    in_place = inputs.new_zeros(()) if in_place is None else in_place
    return Step(
        quantized, indices, loss, LossBreakdown(commitment, diversity, orthogonal, in_place)
    )


def _evaluate(
    vq: "VectorQuantize", projected: Tensor, tokens: Tensor, mask: Tensor | None, call: Call
) -> Step:
    """Changes no state, so that codebooks that several models share can be mapped over."""
    quantized, chosen, _ = choose(vq, projected, tokens, mask, call)
    commitment, zero = search_losses(chosen, loss_options(vq, tokens, call))
    weight = vq.commitment_weight if call.targets is None else 1.0
    loss = _ops.weighted_loss([commitment], [weight], False)
    return Step(quantized, chosen.indices, loss, LossBreakdown(commitment, zero, zero, zero))


def _arguments(vq: "VectorQuantize", tokens: Tensor, call: Call, apart: bool) -> dict[str, Any]:
    """What the search and the losses need to know; what is as by default is left out."""
    codebook = vq._codebook
    arguments: dict[str, Any] = dict(
        codebook.collecting(call.ranks) | loss_options(vq, tokens, call),
        estimator=estimator(vq),
        topk=call.topk,
        temperature=call.temperature if vq.stochastic_sample_codes else None,
        gradient_temperature=call.temperature,
        variance=vq.directional_reparam_variance,
        sync_update_v=vq.sync_update_v,
        affine=codebook.affine_state() if codebook.affine_param else [],
        totals=codebook.recorded_totals(),
    )
    if vq.has_codebook_orthogonal_loss and not apart:
        arguments |= dict(
            orthogonal_weight=vq.orthogonal_reg_weight,
            orthogonal_active_codes_only=vq.orthogonal_reg_active_codes_only,
            orthogonal_max_codes=vq.orthogonal_reg_max_codes,
        )
    return arguments


def _learn_apart(
    vq: "VectorQuantize", inputs: Tensor, indices: Tensor, mask: Tensor | None, call: Call
) -> None:
    """The second half of the operator, with Python in the middle."""
    codebook = vq._codebook
    begin_step([codebook])
    counts = codebook.learn(
        inputs,
        indices,
        mask,
        ema_update=call.ema_update,
        accumulate=call.accumulate,
        weight=call.weight,
        ranks=call.ranks,
    )
    finish_step([vq], [indices], [] if counts is None else [counts], [mask], call.ranks)
