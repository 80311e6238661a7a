"""One forward of VectorQuantize between its projections: one operator, unless Python has a say in the learning."""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from torchvq._base.layout import Layout
from torchvq._base.lean_call import without_defaults
from torchvq._codebook.in_flight import StepInFlight, may_overlap
from torchvq._codebook.learning import StepTokens
from torchvq._codebook.losses import (
    loss_options,
    orthogonal_loss,
    orthogonal_options,
    search_losses,
)
from torchvq._codebook.request import Request
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
    from torchvq.codebook import Codebook
    from torchvq.vector_quantize import VectorQuantize

_ops = torch.ops.torchvq


class Step(NamedTuple):
    """What a forward has found, in the layout that it was given."""

    quantized: Tensor  # with the estimator's gradient
    indices: Tensor
    loss: Tensor  # a scalar; one for each of candidates
    breakdown: LossBreakdown


def step(
    vq: "VectorQuantize", x: Tensor, before: Tensor | None, request: Request, layout: Layout
) -> Step:
    """Initialises where that is due, searches, scores and learns.

    Args:
        x: as the layout says; projected where there is a projection.
        before: (B, N, dim), the tokens before the projection, masked ones zero; None without.
    """
    if not vq.training:
        return _evaluate(vq, x, before, request, layout)
    codebook = vq._codebook
    codes, in_place = _prepare(vq, codebook, x, request, layout)
    steps = not codebook.replaying
    learns = steps and not request.frozen and request.topk is None
    # Statistics that are kept for later, or that a function of the caller weighs, lie between two operators.
    apart = learns and codebook.learns_apart(request.accumulate, request.weight)
    overlaps = learns and not apart and codebook.learns(request.ema_update)
    overlaps = overlaps and may_overlap(codebook, request.ranks, x)
    at_once = not apart and not overlaps
    arguments = _arguments(vq, codebook, request, apart)
    if learns and at_once:
        arguments |= codebook.learning(
            request.ema_update, request.weight, accumulate=request.accumulate
        )
    if vq.vqp_compat:
        arguments |= dict(vqp_compat=True, tokens=before)
    arguments |= dict(
        mask=request.mask,
        heads=layout.heads,
        separate=layout.separate,
        channel_first=layout.channel_first,
        zeros_for_masked=vq.return_zeros_for_masked_padding,
        learns=learns and at_once,
        finishes=steps and at_once,
    )
    *found, inputs, head_indices, totals = _ops.vector_quantize_.default(
        x,
        codes,
        codebook.state(),
        codebook.rng,
        vq.step_counts,
        **without_defaults("vector_quantize_", arguments),
    )
    quantized, indices, loss, commitment, diversity, orthogonal = found
    codebook.record_totals(totals)
    if apart:
        _learn_apart(vq, inputs, head_indices, request)
        if vq.has_codebook_orthogonal_loss:
            orthogonal = orthogonal_loss(vq, head_indices)
            if request.targets is None:
                loss = loss + vq.orthogonal_reg_weight * orthogonal
    elif overlaps:
        _learn_later(vq, inputs, head_indices, request).settle_after_backward(quantized, loss)
    elif learns:
        codebook.keep_in_shards()
    if in_place is None:
        in_place = inputs.new_zeros(()) if vq.has_codebook_diversity_loss else diversity
    return Step(
        quantized, indices, loss, LossBreakdown(commitment, diversity, orthogonal, in_place)
    )


def _prepare(
    vq: "VectorQuantize", codebook: "Codebook", x: Tensor, request: Request, layout: Layout
) -> tuple[Tensor, Tensor | None]:
    """What precedes the search: the codes, and the loss that their own optimizer has gone down, if it has one."""
    learning = not (request.frozen and codebook.initialised)
    looks = learning and (codebook.affine_param or not codebook.initialised)
    if not looks and request.transform is None and vq.in_place_codebook_optimizer is None:
        # Nothing needs the tokens before the search, so its operator splits them.
        codebook.begin_record()
        return stored_codes(codebook, x.dtype), None
    tokens, projected, mask = layout.split_tokens(x, request.mask)
    prepare(vq, projected, mask, request.frozen, request.ranks)
    return codes_of_step(vq, projected, tokens, mask, request)


def _evaluate(
    vq: "VectorQuantize", x: Tensor, before: Tensor | None, request: Request, layout: Layout
) -> Step:
    """Changes no state, so that codebooks that several models share can be mapped over."""
    tokens, projected, mask = layout.split_tokens(x, request.mask)
    prepare(vq, projected, mask, request.frozen, request.ranks)
    quantized, searched, _ = choose(
        vq, projected, tokens if before is None else before, mask, request
    )
    commitment, zero = search_losses(vq, searched, request, loss_options(vq, request))
    weight = vq.commitment_weight if request.targets is None else 1.0
    loss = _ops.weighted_loss([commitment], [weight], False)
    if loss.dim() > 0:  # of candidates
        loss = layout.restore_positions(loss, x)
        commitment = layout.restore_positions(commitment, x)
    return Step(
        layout.restore_tokens(quantized, x, request.mask, vq.return_zeros_for_masked_padding),
        layout.restore_positions(searched.indices, x),
        loss,
        LossBreakdown(commitment, zero, zero, zero),
    )


def _arguments(
    vq: "VectorQuantize", codebook: "Codebook", request: Request, apart: bool
) -> dict[str, Any]:
    """What the search and the losses need to know."""
    arguments: dict[str, Any] = dict(
        codebook.collecting(request.ranks) | loss_options(vq, request),
        estimator=estimator(vq),
        topk=request.topk,
        **search_options(vq, request),
        affine=codebook.affine_state() if codebook.affine_param else [],
        totals=codebook.recorded_totals(),
    )
    if not apart:
        arguments |= orthogonal_options(vq)
    return arguments


def _learn_later(
    vq: "VectorQuantize", inputs: Tensor, indices: Tensor, request: Request
) -> StepInFlight:
    """The same with the end of the step in a later place; tokens are counted now."""
    codebook = vq._codebook
    mask = None if request.mask is None else vq._layout.split_mask(request.mask)
    begin_step([codebook])
    finish_step([vq], [indices], [], [mask], request.ranks, drew=False)
    tokens = StepTokens(inputs, indices, mask)
    return StepInFlight([codebook], [tokens], request.ranks, request.ema_update, request.weight)


def _learn_apart(vq: "VectorQuantize", inputs: Tensor, indices: Tensor, request: Request) -> None:
    """The second half of the operator, with Python in the middle."""
    codebook = vq._codebook
    mask = None if request.mask is None else vq._layout.split_mask(request.mask)
    begin_step([codebook])
    counts = codebook.learn(
        inputs,
        indices,
        mask,
        ema_update=request.ema_update,
        accumulate=request.accumulate,
        weight=request.weight,
        ranks=request.ranks,
    )
    finish_step([vq], [indices], [] if counts is None else [counts], [mask], request.ranks)
