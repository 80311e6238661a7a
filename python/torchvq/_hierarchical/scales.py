"""The loop of HierarchicalVQ over its scales, and the learning after it.

Order of a training forward: each scale searches the residual of the scales before, all with the codes at the start of
the step; losses; then one update from the tokens of all scales (docs/design/hierarchical.md).
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor

from torchvq._base.gradients import reaching
from torchvq._base.layout import SplitTokens
from torchvq._base.options import expect
from torchvq._base.ranks import Ranks, distributed_training
from torchvq._base.torch_private import as_constants
from torchvq._codebook import learning as _learning
from torchvq._codebook import losses as _losses
from torchvq._codebook import request as _request
from torchvq._codebook.learning import StepTokens
from torchvq._codebook.losses import SearchedTokens, SearchResult, Terms
from torchvq._codebook.search import choose, prepare
from torchvq._codebook.stats import begin_step, finish_step
from torchvq._hierarchical.at_once import can_walk_at_once, quantize_scales
from torchvq._hierarchical.calls import whole_indices
from torchvq._hierarchical.phi import spread
from torchvq._residual.engine import in_use, levels_to_walk, mask_in_use, only_if
from torchvq.vector_quantize import VectorQuantize

if TYPE_CHECKING:
    from torchvq.hierarchical_vq import HierarchicalVQ

_ops = torch.ops.torchvq


class ScaleRequest(NamedTuple):
    """The arguments of one forward."""

    mask: Tensor | None  # (B, *S)
    targets: list[Tensor] | None  # per scale, (B, *shape)
    temperature: float | None
    frozen: bool | None  # None: as each scale's option says
    depth: int | Tensor  # scales in use: an int, or a tensor if only the device knows
    ranks: Ranks

    def freezes(self, vq: VectorQuantize) -> bool:
        """Whether the codebook of a scale is frozen."""
        return vq.freeze_codebook if self.frozen is None else self.frozen


class Scale(NamedTuple):
    """The search of one scale."""

    vq: VectorQuantize
    request: _request.Request
    result: SearchResult


class ScaleWalk(NamedTuple):
    """The result of all scales."""

    output: Tensor  # (B, P, D)
    scales: list[StepTokens]  # of those that were searched
    together: StepTokens | None  # the tokens of all scales, if a codebook in training is shared
    loss: Tensor  # (), the mean over the scales in use
    counts: list[Tensor | None]  # tokens per code of each update, of all ranks


def walk(
    hvq: "HierarchicalVQ", rows: Tensor, positions: torch.Size, request: ScaleRequest
) -> ScaleWalk:
    """Searches scale by scale; in training the codebooks learn.

    rows: (B, P, D), float32 or float64, a map with these positions.
    """
    if hvq.shared_codebook:
        _prepare_shared(hvq, rows, positions, request)
    if can_walk_at_once(hvq, rows, request):
        return _walk_at_once(hvq, rows, positions, request)
    return _walk_in_turn(hvq, _map_of(rows, positions), request)


def _walk_at_once(
    hvq: "HierarchicalVQ", rows: Tensor, positions: torch.Size, request: ScaleRequest
) -> ScaleWalk:
    found = quantize_scales(hvq, rows, positions, cast(int, request.depth))
    scales = [StepTokens(found.tokens, own.view(1, own.numel()), None) for own in found.indices]
    if not hvq.training:
        return ScaleWalk(found.quantized, scales, None, found.loss, [])
    together = None
    if hvq.shared_codebook:
        together = StepTokens(_as_one(found.tokens), _as_one(found.token_indices), None)
    else:
        cells = [part.shape[1] for part in found.indices]
        parts = torch.split_with_sizes(found.tokens, cells, 1)
        scales = [
            own._replace(inputs=_as_one(part)) for own, part in zip(scales, parts, strict=True)
        ]
    counts = _learn_all(hvq, scales, together, request)
    return ScaleWalk(found.quantized, scales, together, found.loss, counts)


def _walk_in_turn(hvq: "HierarchicalVQ", maps: Tensor, request: ScaleRequest) -> ScaleWalk:
    """The same for a map (B, D, *S), where Python code runs between the scales."""
    in_turn = hvq.training and hvq.vqp_compat
    # In the reference, dropped scales search and learn like the others.
    walked = hvq.num_levels if in_turn else levels_to_walk(request.depth, hvq.num_levels)
    levels = hvq.levels
    if in_turn:
        begin_step(hvq._codebooks())
    residual = maps
    total: Tensor | None = None
    scales: list[Scale] = []
    terms: list[Terms] = []
    losses: list[Tensor] = []
    counts: list[Tensor | None] = []
    for index in range(walked):
        if in_turn and hvq.shared_codebook:
            levels[0]._codebook.search_in_turn(index)
        scale = _choose_scale(hvq, levels[index], index, residual, request)
        scales.append(scale)
        terms.append(_losses.search_losses(scale.vq, scale.result.searched, scale.request))
        decoded = _spread(hvq, index, scale, maps)
        used = in_use(request.depth, index)
        if in_turn:
            counts += _learn([scale.result.searched], [scale.vq], request)
            losses.append(only_if(used, _loss(scale, terms[-1])))
        if not isinstance(request.depth, int) or index < request.depth:
            own = only_if(used, decoded)
            total = own if total is None else total + own
        if index + 1 < walked:
            residual = residual - decoded
    searched = [scale.result.searched for scale in scales]
    tokens = [StepTokens(part.inputs.detach(), part.indices, part.mask) for part in searched]
    together = _joined_if_shared(hvq, tokens, maps.shape[0])
    if not in_turn:
        counts = _learn_all(hvq, tokens, together, request)
        losses = [
            only_if(in_use(request.depth, index), _loss(*found))
            for index, found in enumerate(zip(scales, terms, strict=True))
        ]
    assert total is not None  # the first scale is always in use
    in_mean = losses[: request.depth] if isinstance(request.depth, int) else losses
    loss = sum(in_mean[1:], in_mean[0]) / request.depth
    return ScaleWalk(total.flatten(2).transpose(1, 2), tokens, together, loss, counts)


def options_text(hvq: "HierarchicalVQ", request: ScaleRequest) -> str:
    """The options in which all ranks must agree, besides those of the levels."""
    # A call that freezes all scales sends nothing, and has the text of an ordinary call, so that a rank may make it
    # alone without a handshake of its own.
    asked = request._replace(frozen=None if request.frozen else request.frozen)
    scales = list(enumerate(hvq.levels))
    frozen = [index for index, vq in scales if _learning.is_left_out(vq, asked.freezes(vq))]
    unmoved = [index for index, vq in scales if not vq.ema_update]
    (dropout,) = as_constants((hvq.nested_dropout,))
    return (
        f"HierarchicalVQ of scales {hvq.level_shapes}, shared {hvq.shared_codebook}, "
        f"dropout {dropout} from {hvq.nested_dropout_min_levels}, "
        f"frozen scales {frozen}, without averages {unmoved}"
    )


def targets_of(
    hvq: "HierarchicalVQ", x: Tensor, indices: Sequence[Tensor] | None, temperature: float | None
) -> list[Tensor] | None:
    """The targets of each scale, int64; checks them and the temperature before the forward writes anything."""
    targets = None if indices is None else whole_indices(indices, hvq.level_shapes, x.shape[0])
    for vq in hvq._quantizers():
        _request.check_temperature("HierarchicalVQ", vq, temperature)
    for vq, scale in zip(hvq.levels, targets or [], strict=False):
        if not torch.compiler.is_compiling():
            _request.check_target_values("HierarchicalVQ", scale, vq.codebook_size)
        here = scale.device == x.device
        expect("HierarchicalVQ", here, "indices", f"on {x.device} like x", scale.device)
    return targets


def finish_scales(hvq: "HierarchicalVQ", done: ScaleWalk, request: ScaleRequest) -> None:
    """Ends the step: counts the uses of codes of each scale."""
    # In the reference, dropped scales take part in the step like the others.
    depth = None if hvq.vqp_compat else request.depth
    searched, uses = done.scales, hvq.counts_of_scales()
    quantizers = hvq.levels if done.together is None else hvq._quantizers()
    if done.together is not None:
        # A Monitor watches the quantizer itself, which therefore counts the tokens of all scales.
        searched, uses = [done.together, *searched], [quantizers[0].step_counts, *uses]
    drew = [
        _learning.draws_numbers(vq, request.freezes(vq)) or hvq.nested_dropout > 0
        for vq in quantizers[: len(searched)]
    ]
    finish_step(quantizers, searched, done.counts, request.ranks, uses, drew=drew, depth=depth)


def reach_dropped(hvq: "HierarchicalVQ", loss: Tensor, depth: int | Tensor) -> Tensor:
    """The loss, with a gradient of zero for dropped scales, for which distributed wrappers wait."""
    if not hvq.training or not isinstance(depth, int):
        return loss
    first = hvq._quantizers()[0]
    by_gradient = first.learnable_codebook or first.has_codebook_orthogonal_loss
    for index in range(depth, hvq.num_levels):
        loss = reaching(loss, hvq.choose_phi(index))
        if by_gradient and distributed_training():
            loss = reaching(loss, hvq.levels[index])
    return loss


# One scale --------------------------------------------------------------------------------------------------


def _choose_scale(
    hvq: "HierarchicalVQ", vq: VectorQuantize, index: int, residual: Tensor, request: ScaleRequest
) -> Scale:
    shape = list(hvq.level_shapes[index])
    tokens = _ops.pool_scale(residual, shape, mask=request.mask)
    cell_mask = _cell_mask(hvq, index, tokens, request)
    targets = None if request.targets is None else request.targets[index]
    own_request = _request.request_of_level(
        vq, targets, cell_mask, request.temperature, request.freezes(vq), request.ranks
    )
    row_mask = None if cell_mask is None else cell_mask.view(1, -1)
    split = SplitTokens(tokens, _as_one(tokens), row_mask)
    if not hvq.shared_codebook:
        begins_from = split.mask
        if torch.compiler.is_compiling() and not vq._codebook.begins_initialised:
            # Compiled code does not look again whether a dropped scale is set: all begin in the first step.
            every = _pooled_mask(hvq, index, request)
            begins_from = None if every is None else every.view(1, -1)
        prepare(vq, split.rows, begins_from, own_request.frozen, request.ranks)
    rng = vq._codebook.step_rng
    if hvq.shared_codebook and (vq.stochastic_sample_codes or vq.directional_reparam):
        rng = _ops.level_rng(rng, index, True)
    return Scale(vq, own_request, choose(vq, split, own_request, rng=rng))


def _pooled_mask(hvq: "HierarchicalVQ", index: int, request: ScaleRequest) -> Tensor | None:
    """Mask of the tokens of a scale (B, L) that are real."""
    if request.mask is None:
        return None
    return _ops.pool_scale_mask(request.mask, list(hvq.level_shapes[index]))


def _cell_mask(
    hvq: "HierarchicalVQ", index: int, tokens: Tensor, request: ScaleRequest
) -> Tensor | None:
    """Mask of the tokens of a scale (B, L) that take part."""
    mask = _pooled_mask(hvq, index, request)
    used = None if hvq.vqp_compat else in_use(request.depth, index)
    return mask_in_use(mask, used, tokens.shape[:2])


def _spread(hvq: "HierarchicalVQ", index: int, scale: Scale, maps: Tensor) -> Tensor:
    """The map of a scale's codes; masked cells contribute zeros."""
    tokens = scale.result.searched.tokens
    codes = scale.result.quantized.view(tokens.shape)
    if scale.request.mask is not None:
        codes = _ops.fill_masked(codes, scale.request.mask)
    return spread(hvq.choose_phi(index), codes, hvq.level_shapes[index], maps.shape[2:])


# What the scales learn --------------------------------------------------------------------------------------


def _prepare_shared(
    hvq: "HierarchicalVQ", rows: Tensor, positions: torch.Size, request: ScaleRequest
) -> None:
    """k-means on the first training tokens, of all scales at once, because the coarsest has few tokens per image."""
    (vq,) = hvq._quantizers()
    if vq._codebook.initialised:
        vq._codebook.begin_record()
        return
    maps = _map_of(rows, positions)
    if vq.training and not vq._codebook.replaying and not hvq.vqp_compat:
        # The recomputation of a checkpointed step skips this, so nothing may be saved for backward.
        with torch.no_grad():
            tokens = _tokens_without_codes(hvq, maps, request)
        shapes = hvq.level_shapes
    else:
        shapes = hvq.level_shapes[:1]
        tokens = [_ops.pool_scale(maps.detach(), list(shapes[0]), mask=request.mask)]
    mask = None
    if request.mask is not None:
        masks = [_ops.pool_scale_mask(request.mask, list(shape)) for shape in shapes]
        mask = torch.cat(masks, 1).view(1, -1)
    prepare(vq, _as_one(torch.cat(tokens, 1)), mask, request.freezes(vq), request.ranks)


def _tokens_without_codes(
    hvq: "HierarchicalVQ", maps: Tensor, request: ScaleRequest
) -> list[Tensor]:
    """The tokens of each scale as if those of the coarser scales were quantized without error: (B, L, D)."""
    residual = maps
    tokens = []
    for index, shape in enumerate(hvq.level_shapes):
        tokens.append(_ops.pool_scale(residual, list(shape), mask=request.mask))
        residual = residual - spread(hvq.choose_phi(index), tokens[-1], shape, maps.shape[2:])
    return tokens


def _loss(scale: Scale, terms: Terms) -> Tensor:
    """The weighted loss of one scale, a scalar; call it when the codebook has learnt."""
    return _losses.level_loss(scale.vq, scale.result.searched, terms, scale.request)


def _learn_all(
    hvq: "HierarchicalVQ",
    scales: list[StepTokens],
    together: StepTokens | None,
    request: ScaleRequest,
) -> list[Tensor | None]:
    """One update from the tokens of all scales, which are ``together`` those of a shared codebook."""
    quantizers = hvq._quantizers()
    if hvq.training:
        begin_step([vq._codebook for vq in quantizers])
    if together is None:
        return _learn(scales, hvq.levels, request)
    # As fast as in the reference, whose averages decay once per scale, dropped ones included.
    return _learn([together], quantizers, request, decays=hvq.num_levels)


def _learn(
    scales: Sequence[StepTokens | SearchedTokens],
    quantizers: Sequence[VectorQuantize],
    request: ScaleRequest,
    decays: int = 1,
) -> list[Tensor | None]:
    """One update of the codebooks of ``quantizers``; those that no scale has used contribute no tokens.

    Returns the tokens per code of each codebook, over all ranks; None for one that does not learn.
    """
    if quantizers[0]._codebook.replaying:
        return []
    trained = [_learning.trains(vq, request.freezes(vq)) for vq in quantizers]
    if not any(trained):
        return [None] * len(quantizers)
    step = _learning.step_of_levels(quantizers, scales, trained)
    return _learning.learn_together(*step, request.ranks, decays=decays)


def _joined_if_shared(
    hvq: "HierarchicalVQ", scales: list[StepTokens], batch: int
) -> StepTokens | None:
    """The tokens of all scales as those of one step, sample by sample, if a codebook in training is shared.

    In this order, the tokens of several ranks one after the other equal those of the whole batch.
    """
    # The codebook may be in training where the module is not, and the other way round.
    if not (hvq.shared_codebook and (hvq.training or hvq._quantizers()[0].training)):
        return None
    cells = [math.prod(shape) for shape in hvq.level_shapes]

    def joined(parts: list[Tensor]) -> Tensor:
        rows = [
            part.view(batch, count, *part.shape[2:])
            for part, count in zip(parts, cells, strict=False)
        ]
        return _as_one(torch.cat(rows, 1))

    masks = [part.mask for part in scales if part.mask is not None]
    return StepTokens(
        joined([part.inputs for part in scales]),
        joined([part.indices for part in scales]),
        joined(masks) if masks else None,
    )


def _map_of(rows: Tensor, positions: torch.Size) -> Tensor:
    """(B, P, D) to (B, D, *S)."""
    return rows.transpose(1, 2).reshape(rows.shape[0], rows.shape[2], *positions)


def _as_one(rows: Tensor) -> Tensor:
    """(B, L, ...) to (1, B * L, ...), the shape in which codebooks take tokens."""
    return rows.reshape(1, rows.shape[0] * rows.shape[1], *rows.shape[2:])
