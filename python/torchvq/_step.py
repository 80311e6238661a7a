"""One forward of VectorQuantize between its projections: one operator, unless Python has a say in the learning."""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from torchvq import _losses
from torchvq._call import Call
from torchvq._ranks import advance_rng
from torchvq._search import estimator
from torchvq._stats import begin_step, count_step
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
    vq: "VectorQuantize",
    projected: Tensor,
    searched: Tensor,
    tokens: Tensor,
    mask: Tensor | None,
    call: Call,
    in_place: Tensor | None,
) -> Step:
    """Searches, scores and learns.

    Args:
        projected: (H, T, D), the same tokens as ``tokens`` (B, N, dim).
        searched: (H, K, D) the codes, or (H, T, K, D) codes of each token.
        mask: (H, T).
        in_place: the loss that the codebook's own optimizer has gone down, if it has one.
    """
    if not vq.training:
        return _evaluate(vq, projected, searched, tokens, mask, call)
    codebook = vq._codebook
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
        orthogonal = _learn_apart(vq, inputs, indices, mask, call)
        if call.targets is None:
            loss = loss + vq.orthogonal_reg_weight * orthogonal
    elif learns:
        codebook.keep_in_shards()
    in_place = inputs.new_zeros(()) if in_place is None else in_place
    return Step(
        quantized, indices, loss, LossBreakdown(commitment, diversity, orthogonal, in_place)
    )


def _evaluate(
    vq: "VectorQuantize",
    projected: Tensor,
    searched: Tensor,
    tokens: Tensor,
    mask: Tensor | None,
    call: Call,
) -> Step:
    """Changes no state, so that codebooks that several models share can be mapped over."""
    quantized, indices, codes, inputs = _ops.quantize(
        projected,
        searched,
        vq._codebook.rng,
        mask=mask,
        topk=call.topk,
        metric=vq._codebook.metric,
        estimator="none",
    )
    chosen = _losses.Chosen(tokens, inputs, searched, mask, codes, indices)
    terms = _losses.breakdown(inputs, _losses.commitment(vq, chosen, call), None, None, None)
    return Step(quantized, indices, _losses.total(vq, terms, call), terms)


def _arguments(vq: "VectorQuantize", tokens: Tensor, call: Call, apart: bool) -> dict[str, Any]:
    """What the search and the losses need to know; what is as by default is left out."""
    codebook = vq._codebook
    sampling = vq.stochastic_sample_codes
    arguments: dict[str, Any] = dict(
        codebook.collecting(call.ranks),
        training=True,
        estimator=estimator(vq),
        topk=call.topk,
        temperature=call.temperature if sampling else None,
        gradient_temperature=call.temperature,
        commitment_weight=vq.commitment_weight if vq.has_commitment_loss else 0.0,
        commitment_use_cross_entropy_loss=vq.commitment_use_cross_entropy_loss,
        pulls_codes=vq.learnable_codebook and not call.frozen,
        variance=vq.directional_reparam_variance,
        sync_update_v=vq.sync_update_v,
        affine=codebook.affine_state() if codebook.affine_param else [],
        totals=codebook.recorded_totals(),
    )
    if call.targets is not None:
        arguments["targets"] = vq._layout.split_indices(call.targets)
    if vq.has_codebook_diversity_loss:
        arguments |= dict(
            diversity_weight=vq.codebook_diversity_loss_weight,
            diversity_temperature=vq.codebook_diversity_temperature,
        )
    if vq.has_codebook_orthogonal_loss and not apart:
        arguments |= dict(
            orthogonal_weight=vq.orthogonal_reg_weight,
            orthogonal_active_codes_only=vq.orthogonal_reg_active_codes_only,
            orthogonal_max_codes=vq.orthogonal_reg_max_codes,
        )
    if vq.vqp_compat:
        arguments |= dict(
            tokens=tokens,
            token_mask=call.mask,
            heads=vq.heads,
            separate=vq.separate_codebook_per_head,
            projected=vq.has_projections,
        )
    return arguments


def _learn_apart(
    vq: "VectorQuantize", inputs: Tensor, indices: Tensor, mask: Tensor | None, call: Call
) -> Tensor:
    """The second half of the operator, with Python in the middle. Returns the orthogonal loss, which comes last."""
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
    orthogonal = inputs.new_zeros(())
    if vq.has_codebook_orthogonal_loss:
        orthogonal = _ops.orthogonal_loss(
            codebook.embed,
            indices=indices if vq.orthogonal_reg_active_codes_only else None,
            max_codes=vq.orthogonal_reg_max_codes,
            rng=codebook.rng,
        )
    count_step([vq], [indices])
    advance_rng(codebook.rng, counts, mask, inputs, call.ranks)
    return orthogonal
