"""One forward of VectorQuantize between its projections: one operator, unless Python code takes part in learning."""

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from torchvq._base.layout import Layout
from torchvq._base.lean_call import without_defaults
from torchvq._codebook import losses as _losses
from torchvq._codebook import search as _search
from torchvq._codebook.in_flight import StepInFlight, may_overlap
from torchvq._codebook.in_place import InPlaceStep, learns_in_place
from torchvq._codebook.learning import StepTokens, learn_apart
from torchvq._codebook.request import Request
from torchvq._codebook.stats import begin_step, finish_step, fit_to_codes
from torchvq._codebook.undo import Undo, may_fail_late
from torchvq.outputs import LossBreakdown

if TYPE_CHECKING:
    from torchvq.codebook import Codebook
    from torchvq.vector_quantize import VectorQuantize

_ops = torch.ops.torchvq


class ForwardResult(NamedTuple):
    """The result of a forward, in the layout of its input."""

    quantized: Tensor  # with the estimator's gradient
    indices: Tensor
    loss: Tensor  # a scalar; with topk one per candidate
    breakdown: LossBreakdown


def step(
    vq: "VectorQuantize", x: Tensor, before: Tensor | None, request: Request, layout: Layout
) -> ForwardResult:
    """Initialises the codebook if it is not set, searches, computes losses and learns.

    Args:
        x: in ``layout``; projected if there is a projection.
        before: (B, N, dim), the tokens before the projection, masked ones zero; None without a projection.
    """
    if not vq.training:
        return _evaluate(vq, x, before, request, layout)
    apart = learns_in_place(vq, vq._codebook) or vq._codebook.learns_apart(
        request.accumulate, request.weight
    )
    if may_fail_late(vq._codebook, apart):
        with Undo([vq._codebook], apart):
            return _train(vq, x, before, request, layout)
    return _train(vq, x, before, request, layout)


def _train(
    vq: "VectorQuantize", x: Tensor, before: Tensor | None, request: Request, layout: Layout
) -> ForwardResult:
    codebook = vq._codebook
    fit_to_codes(vq)
    codes, own = _prepare(vq, codebook, x, request, layout)
    way = _way_to_learn(codebook, x, request, own)
    arguments = _arguments(vq, x, before, codes, request, layout)
    if way != "apart":
        arguments |= _losses.orthogonal_options(vq)
    if way == "at once":
        arguments |= codebook.learning_options(
            request.ema_update, request.weight, accumulate=request.accumulate
        )
    finishes = way in ("at once", "none") and not codebook.replaying
    arguments |= dict(learns=way == "at once", finishes=finishes)
    *found, inputs, head_indices, totals = _ops.vector_quantize_.default(
        x,
        codes,
        codebook.state(),
        codebook.step_rng,
        vq.step_counts,
        **without_defaults("vector_quantize_", arguments),
    )
    quantized, indices, loss, commitment, diversity, orthogonal = found
    codebook.record_totals(totals)
    if way == "apart":
        regularisation = _finish_apart(vq, inputs, head_indices, request, own)
        if regularisation is not None:
            orthogonal = regularisation
            if request.targets is None:
                loss = loss + vq.orthogonal_reg_weight * orthogonal
    elif way == "later":
        _learn_later(vq, inputs, head_indices, request).settle_after_backward(quantized, loss)
    elif way == "at once":
        codebook.keep_in_shards()
    if own is not None:
        in_place = own.loss
    else:
        in_place = inputs.new_zeros(()) if vq.has_codebook_diversity_loss else diversity
    return ForwardResult(
        quantized, indices, loss, LossBreakdown(commitment, diversity, orthogonal, in_place)
    )


def _way_to_learn(
    codebook: "Codebook", x: Tensor, request: Request, own: InPlaceStep | None
) -> Literal["none", "at once", "apart", "later"]:
    """How a training forward learns: not at all, within its operator, after it, or when its message has arrived."""
    frozen = request.frozen or request.topk is not None
    if frozen or codebook.replaying or not codebook.training:
        return "none"
    # Statistics that accumulate, or that a callable weighs, are handled in Python between two operators; a codebook
    # with an optimizer of its own has learnt before the search.
    if own is not None or codebook.learns_apart(request.accumulate, request.weight):
        return "apart"
    overlaps = codebook.learns(request.ema_update) and may_overlap(codebook, request.ranks, x)
    return "later" if overlaps else "at once"


def _prepare(
    vq: "VectorQuantize", codebook: "Codebook", x: Tensor, request: Request, layout: Layout
) -> tuple[Tensor, InPlaceStep | None]:
    """The codes to search, and the step of their own optimizer, or None."""
    began = codebook.begins_initialised
    learning = not (request.frozen and began)
    looks = learning and (codebook.affine_param or not began)
    if not looks and request.transform is None and vq.in_place_codebook_optimizer is None:
        # Nothing needs the tokens before the search, so the operator splits them itself.
        codebook.begin_record()
        return _search.stored_codes(codebook, x.dtype), None
    split = layout.split_tokens(x, request.mask)
    _search.prepare(vq, split.rows, split.mask, request.frozen, request.ranks)
    return _search.codes_of_step(vq, split, request, learns=codebook.training)


def _evaluate(
    vq: "VectorQuantize", x: Tensor, before: Tensor | None, request: Request, layout: Layout
) -> ForwardResult:
    """Evaluation. It changes no state, so torch.vmap works over codebooks that several models share."""
    split = layout.split_tokens(x, request.mask)
    _search.prepare(vq, split.rows, split.mask, request.frozen, request.ranks)
    if before is not None:
        split = split._replace(tokens=before)
    quantized, searched = _search.choose(vq, split, request)
    override: float | None = None
    weight = vq.commitment_weight if request.targets is None else 1.0
    if request.topk is not None and request.targets is None and not vq.has_commitment_loss:
        # The losses of candidates rank them, so without a weight they are unweighted, not absent.
        override = weight = 1.0
    commitment, zero = _losses.search_losses(vq, searched, request, commitment_weight=override)
    loss = _ops.weighted_loss([commitment], [weight], False)
    if loss.dim() > 0:  # topk: one loss per candidate
        loss = layout.restore_positions(loss, x)
        commitment = layout.restore_positions(commitment, x)
    return ForwardResult(
        layout.restore_tokens(quantized, x, request.mask, _zeros_for_masked(vq, before)),
        layout.restore_positions(searched.indices, x),
        loss,
        LossBreakdown(commitment, zero, zero, zero),
    )


def _arguments(
    vq: "VectorQuantize",
    x: Tensor,
    before: Tensor | None,
    codes: Tensor,
    request: Request,
    layout: Layout,
) -> dict[str, Any]:
    """Arguments of the search and of the losses."""
    codebook = vq._codebook
    # The reference asks whether the input requires a gradient, not whether its projection does.
    reached = before if vq.vqp_compat and before is not None else x
    arguments: dict[str, Any] = dict(
        codebook.statistics_options(request.ranks) | _losses.loss_options(vq, request),
        mask=request.mask,
        topk=request.topk,
        **_search.search_options(vq, request),
        estimator=_search.estimator_of(vq, reached, codes),
        affine=codebook.affine_state() if codebook.affine_param else [],
        totals=codebook.recorded_totals(),
        heads=layout.heads,
        separate=layout.separate,
        channel_first=layout.channel_first,
        zeros_for_masked=_zeros_for_masked(vq, before),
    )
    if vq.vqp_compat:
        arguments |= dict(vqp_compat=True, projected=vq.has_projections)
        if before is not None:
            arguments |= dict(tokens=before, token_mask=request.mask)
    return arguments


def _finish_apart(
    vq: "VectorQuantize", inputs: Tensor, indices: Tensor, request: Request, own: InPlaceStep | None
) -> Tensor | None:
    """Learns from the tokens after the operator, unless the codebook did by itself, and ends the step; the orthogonal
    loss of the codes then, or None without it."""
    mask = _head_mask(vq, request)
    if own is None:
        counts = learn_apart(vq._codebook, inputs, indices, mask, request)
    else:
        counts = own.counts
    loss = _losses.orthogonal_loss(vq, indices) if vq.has_codebook_orthogonal_loss else None
    # Last, because it moves the generator, from which the orthogonal loss draws its codes.
    finish_step([vq], [StepTokens(inputs, indices, mask)], [counts], request.ranks)
    return loss


def _learn_later(
    vq: "VectorQuantize", inputs: Tensor, indices: Tensor, request: Request
) -> StepInFlight:
    """Counts the tokens now, and starts a step that learns from them when it settles."""
    codebook = vq._codebook
    mask = _head_mask(vq, request)
    begin_step([codebook])
    tokens = StepTokens(inputs, indices, mask)
    finish_step([vq], [tokens], [], request.ranks, drew=False)
    return StepInFlight([codebook], [tokens], request.ranks, request.ema_update, request.weight)


def _zeros_for_masked(vq: "VectorQuantize", before: Tensor | None) -> bool:
    """Behind a projection padding is filled after the way back; until then it takes no gradient."""
    return before is not None or vq.return_zeros_for_masked_padding


def _head_mask(vq: "VectorQuantize", request: Request) -> Tensor | None:
    return None if request.mask is None else vq._layout.split_mask(request.mask)
