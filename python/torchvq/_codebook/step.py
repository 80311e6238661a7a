"""One forward of VectorQuantize between its projections: one operator, unless Python has a say in the learning."""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from torchvq._base.layout import Layout
from torchvq._codebook.call import Call
from torchvq._codebook.in_flight import StepInFlight, may_overlap
from torchvq._codebook.learning import Taught
from torchvq._codebook.losses import (
    loss_options,
    orthogonal_loss,
    orthogonal_options,
    search_losses,
)
from torchvq._codebook.search import (
    choose,
    codes_of_step,
    estimator,
    prepare,
    search_options,
    stored_codes,
)
from torchvq._codebook.stats import begin_step, finish_step
from torchvq.outputs import LossBreakdown

if TYPE_CHECKING:
    from torchvq.vector_quantize import VectorQuantize

_ops = torch.ops.torchvq


class Step(NamedTuple):
    """What a forward has found, in the layout that it was given."""

    quantized: Tensor  # with the estimator's gradient
    indices: Tensor
    loss: Tensor  # a scalar; one for each of candidates
    breakdown: LossBreakdown


def step(
    vq: "VectorQuantize", x: Tensor, before: Tensor | None, call: Call, layout: Layout
) -> Step:
    """Initialises where that is due, searches, scores and learns.

    Args:
        x: as the layout says; projected where there is a projection.
        before: (B, N, dim), the tokens before the projection, masked ones zero; None without.
    """
    if not vq.training:
        return _evaluate(vq, x, before, call, layout)
    codebook = vq._codebook
    searched, in_place = _prepare(vq, x, call, layout)
    steps = not codebook.replaying
    learns = steps and not call.frozen and call.topk is None
    # Statistics that are kept for later, or that a function of the caller weighs, lie between two operators.
    apart = learns and codebook.learns_apart(call.accumulate, call.weight)
    overlaps = learns and not apart and codebook.learns(call.ema_update)
    overlaps = overlaps and may_overlap(codebook, call.ranks, x)
    at_once = not apart and not overlaps
    arguments = _arguments(vq, call, apart)
    if learns and at_once:
        arguments |= codebook.learning(call.ema_update, call.weight, accumulate=call.accumulate)
    if vq.vqp_compat:
        arguments |= dict(vqp_compat=True, tokens=before)
    *found, inputs, chosen, totals = _ops.vector_quantize_(
        x,
        searched,
        codebook.state(),
        codebook.rng,
        vq.step_counts,
        mask=call.mask,
        heads=layout.heads,
        separate=layout.separate,
        channel_first=layout.channel_first,
        zeros_for_masked=vq.return_zeros_for_masked_padding,
        learns=learns and at_once,
        finishes=steps and at_once,
        **arguments,
    )
    quantized, indices, loss, commitment, diversity, orthogonal = found
    codebook.record_totals(totals)
    if apart:
        _learn_apart(vq, inputs, chosen, call)
        if vq.has_codebook_orthogonal_loss:
            orthogonal = orthogonal_loss(vq, chosen)
            if call.targets is None:
                loss = loss + vq.orthogonal_reg_weight * orthogonal
    elif overlaps:
        _learn_later(vq, inputs, chosen, call).settle_after_backward(quantized, loss)
    elif learns:
        codebook.keep_in_shards()
    if in_place is None:
        in_place = inputs.new_zeros(()) if vq.has_codebook_diversity_loss else diversity
    return Step(
        quantized, indices, loss, LossBreakdown(commitment, diversity, orthogonal, in_place)
    )


def _prepare(
    vq: "VectorQuantize", x: Tensor, call: Call, layout: Layout
) -> tuple[Tensor, Tensor | None]:
    """What precedes the search: the codes, and the loss that their own optimizer has gone down, if it has one."""
    codebook = vq._codebook
    learning = not (call.frozen and codebook.initialised)
    looks = learning and (codebook.affine_param or not codebook.initialised)
    if not looks and call.transform is None and vq.in_place_codebook_optimizer is None:
        # Nothing needs the tokens before the search, so its operator splits them.
        prepare(vq, x, None, call.frozen, call.ranks)
        return stored_codes(vq, x.dtype), None
    tokens, projected, mask = layout.split_tokens(x, call.mask)
    prepare(vq, projected, mask, call.frozen, call.ranks)
    return codes_of_step(vq, projected, tokens, mask, call)


def _evaluate(
    vq: "VectorQuantize", x: Tensor, before: Tensor | None, call: Call, layout: Layout
) -> Step:
    """Changes no state, so that codebooks that several models share can be mapped over."""
    tokens, projected, mask = layout.split_tokens(x, call.mask)
    prepare(vq, projected, mask, call.frozen, call.ranks)
    quantized, chosen, _ = choose(vq, projected, tokens if before is None else before, mask, call)
    commitment, zero = search_losses(vq, chosen, call, loss_options(vq, call))
    weight = vq.commitment_weight if call.targets is None else 1.0
    loss = _ops.weighted_loss([commitment], [weight], False)
    if loss.dim() > 0:  # of candidates
        loss = layout.restore_positions(loss, x)
        commitment = layout.restore_positions(commitment, x)
    return Step(
        layout.restore_tokens(quantized, x, call.mask, vq.return_zeros_for_masked_padding),
        layout.restore_positions(chosen.indices, x),
        loss,
        LossBreakdown(commitment, zero, zero, zero),
    )


def _arguments(vq: "VectorQuantize", call: Call, apart: bool) -> dict[str, Any]:
    """What the search and the losses need to know; what is as by default is left out."""
    codebook = vq._codebook
    arguments: dict[str, Any] = dict(
        codebook.collecting(call.ranks) | loss_options(vq, call),
        estimator=estimator(vq),
        topk=call.topk,
        **search_options(vq, call),
        affine=codebook.affine_state() if codebook.affine_param else [],
        totals=codebook.recorded_totals(),
    )
    if not apart:
        arguments |= orthogonal_options(vq)
    return arguments


def _learn_later(vq: "VectorQuantize", inputs: Tensor, indices: Tensor, call: Call) -> StepInFlight:
    """The same with the end of the step in a later place; tokens are counted now."""
    codebook = vq._codebook
    mask = None if call.mask is None else vq._layout.split_mask(call.mask)
    begin_step([codebook])
    finish_step([vq], [indices], [], [mask], call.ranks, drew=False)
    taught = Taught(inputs, indices, mask)
    return StepInFlight([codebook], [taught], call.ranks, call.ema_update, call.weight)


def _learn_apart(vq: "VectorQuantize", inputs: Tensor, indices: Tensor, call: Call) -> None:
    """The second half of the operator, with Python in the middle."""
    codebook = vq._codebook
    mask = None if call.mask is None else vq._layout.split_mask(call.mask)
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
