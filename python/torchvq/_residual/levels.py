"""The loop of a residual stack over its levels, and the learning after it.

Order of a training forward: each level searches the residual of the one before, all with the codes at the start of the
step; losses; then all levels learn. So no level sees another's update, and the statistics of all levels are available
together: one reduction over ranks serves the whole stack.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from torchvq._base.layout import SplitTokens
from torchvq._base.ranks import Ranks, noise_rng
from torchvq._base.readable import takes_gradient
from torchvq._base.torch_private import uncounted
from torchvq._codebook import in_place as _in_place
from torchvq._codebook import learning as _learning
from torchvq._codebook import losses as _losses
from torchvq._codebook.in_flight import StepInFlight, may_overlap
from torchvq._codebook.losses import SearchedTokens, SearchResult, Terms, sees_padding
from torchvq._codebook.request import Request, request_of_level
from torchvq._codebook.search import choose, estimator_of, prepare
from torchvq._residual.beam import beginning_mask, level_mask, prepare_levels, search_paths
from torchvq._residual.calls import StackRequest
from torchvq._residual.engine import (
    WalkedLevel,
    balanced,
    in_use,
    levels_to_walk,
    mask_in_use,
    only_if,
    undivided,
)
from torchvq._residual.engine import walk as walk_levels
from torchvq._residual.implicit_codebook import Implicit, choose_implicit, own_codes
from torchvq.vector_quantize import VectorQuantize

if TYPE_CHECKING:
    from torchvq.residual_vq import ResidualVQ

_ops = torch.ops.torchvq


class Level(NamedTuple):
    """The search of one level."""

    vq: VectorQuantize
    request: Request
    result: SearchResult
    codes: Tensor  # (H, T, D), zeros where the level is not in use
    implicit: Implicit | None
    used: Tensor | None  # () bool; None: in use


class Walk(NamedTuple):
    """The result of the whole stack: its output before ``project_out``, and its levels."""

    output: Tensor  # (H, T, D)
    levels: list[Level]


def walk(rvq: "ResidualVQ", inputs: Tensor, request: StackRequest) -> Walk:
    """Searches level by level. inputs: (H, T, D), projected, float32 or float64."""
    compared = _balanced(rvq, inputs, request)
    # The sum of the levels' outputs, for stacks in which these have the gradient, not the sum of the codes.
    sums_outputs = rvq.estimates_levels or rvq.implicit_neural_codebook
    summed = torch.zeros_like(inputs)
    paths = None
    if request.beam > 1:
        prepare_levels(rvq, inputs, request)
        paths = search_paths(rvq, inputs, request)

    # Whether _balanced has divided the gradient of inputs that are scored against targets. Without a gradient of the
    # inputs that of the output goes to the codes, undivided.
    divided = request.targets is not None and _averages_gradients(rvq) and takes_gradient(inputs)

    def scored(x: Tensor) -> Tensor:
        """The inputs as the losses see them. A loss of targets is not balanced, so its gradient is not divided."""
        return undivided(x, request.depth, 1 - rvq.quant_grad_frac) if divided else x

    def choose(index: int, residual: Tensor, total: Tensor) -> tuple[Level, WalkedLevel]:
        nonlocal summed
        implicit = None
        if index > 0 and rvq.implicit_neural_codebook:
            # Codes that a network computes, and through them its condition, get their gradient from the losses alone.
            implicit = Implicit(rvq.mlp(index), scored(_condition(rvq, compared, total, summed)))
        chosen = None if paths is None else paths[index]
        level = _choose_level(rvq, index, residual, implicit, request, chosen)
        if divided:
            searched = level.result.searched
            searched = searched._replace(inputs=scored(searched.inputs))
            level = level._replace(result=level.result._replace(searched=searched))
        output = only_if(level.used, level.result.quantized)
        if sums_outputs:
            summed = summed + output
        handed_on = _handed_on(output, rvq.quant_grad_frac if rvq.training else 0.0)
        return level, WalkedLevel(level.codes, handed_on)

    total, levels = walk_levels(compared, levels_to_walk(request.depth, rvq.num_quantizers), choose)
    if rvq.estimates_levels:
        return Walk(summed, levels)
    return Walk(_estimate_stack(rvq, inputs, total, request.ranks), levels)


def _balanced(rvq: "ResidualVQ", inputs: Tensor, request: StackRequest) -> Tensor:
    """The inputs as the levels see them: ``engine.balanced`` in training, unless gradients of levels are summed.

    A stack that averages these takes the gradient of its output from the same inputs, so they are divided also where
    targets are scored; in other stacks a loss of targets is not balanced.
    """
    balances = _averages_gradients(rvq) or request.targets is None
    if not rvq.training or _sums_gradients(rvq) or not balances:
        return inputs
    return balanced(inputs, request.depth, 1 - rvq.quant_grad_frac)


def _sums_gradients(rvq: "ResidualVQ") -> bool:
    """Whether gradients of levels are summed, not averaged: as in the reference, or given to the codes."""
    by_codes = not rvq.first_level.route_gradients_to_input
    return rvq.estimates_levels and (rvq.vqp_compat or by_codes)


def _averages_gradients(rvq: "ResidualVQ") -> bool:
    return rvq.estimates_levels and not _sums_gradients(rvq)


def _condition(rvq: "ResidualVQ", inputs: Tensor, total: Tensor, summed: Tensor) -> Tensor:
    # Decoding must compute the same condition, so an estimator that adds noise cannot be used here.
    if rvq.estimates_levels or not rvq.training:
        return summed
    return _ops.straight_through(inputs, total)


def _handed_on(output: Tensor, fraction: float) -> Tensor:
    """The output as the next level subtracts it, with a fraction of its gradient."""
    if fraction == 0:
        return output.detach()
    # The value is exact: the residual of a training step is that of evaluation.
    return output if fraction == 1 else _ops.straight_through(output * fraction, output.detach())


def _choose_level(
    rvq: "ResidualVQ",
    index: int,
    residual: Tensor,
    implicit: Implicit | None,
    request: StackRequest,
    chosen: Tensor | None,
) -> Level:
    vq = rvq.levels[index]
    used = in_use(request.depth, index)
    head_mask = level_mask(rvq, request, index)
    targets = None if request.targets is None else request.targets[index]
    frozen = request.frozen or vq.freeze_codebook
    # The caller's mask: the reference's losses with a mask differ from those without one, also if it hides nothing.
    own_request = request_of_level(
        vq, targets, request.mask, request.temperature, frozen, request.ranks
    )
    if chosen is None and (index == 0 or not rvq.shared_codebook):
        begins_from = beginning_mask(rvq, request, index)
        prepare(vq, residual, begins_from, own_request.frozen, request.ranks)
    if index == 0 and rvq.shared_codebook and not request.frozen:
        step_shared_optimizer(rvq, residual, request)
    tokens = rvq.layout.merge_heads(residual, *request.batch).flatten(2)
    # With one estimator for the stack, a level needs its own only to hand a gradient on to the next level.
    own = vq.training and (rvq.estimates_levels or rvq.quant_grad_frac > 0)
    estimator = None if own else "none"
    rng = rvq._level_rng(index)
    split = SplitTokens(tokens, residual, head_mask)
    options: dict[str, Any] = dict(estimator=estimator, rng=rng, chosen=chosen)
    if implicit is None:
        result = choose(vq, split, own_request, **options)
    else:
        result = choose_implicit(vq, implicit, split, own_request, **options)
    codes = result.searched.codes
    if head_mask is not None and sees_padding(rvq, rvq.first_level):
        zeros = rvq.return_zeros_for_masked_padding
        codes = _with_padding(codes, residual.detach(), head_mask, zeros)
        output = _with_padding(result.quantized, residual, head_mask, zeros)
        result = result._replace(quantized=output)
    return Level(vq, own_request, result, only_if(used, codes), implicit, used)


def _with_padding(output: Tensor, residual: Tensor, mask: Tensor, zeros: bool) -> Tensor:
    """A level's output (H, T, D) as the reference passes it on: of padding zero, so that the residual stays, or the
    level's input, so that nothing is left."""
    real = mask.unsqueeze(-1)
    return output.masked_fill(~real, 0) if zeros else torch.where(real, output, residual)


@uncounted
def step_shared_optimizer(rvq: "ResidualVQ", inputs: Tensor, request: StackRequest) -> None:
    """One step of a shared codebook's own optimizer towards the residuals of all levels."""
    first = rvq.first_level
    codebook = first._codebook
    if not _in_place.learns_in_place(rvq, codebook) or codebook.replaying:
        return
    head_mask = None if request.mask is None else rvq.layout.split_mask(request.mask)
    with _in_place.gradients_before(codebook) as before:
        with _in_place.own_backward():
            residual = _in_place.target_of(inputs)
            head_mask = None if head_mask is None else _in_place.target_of(head_mask)
            for index in range(levels_to_walk(request.depth, rvq.num_quantizers)):
                used = in_use(request.depth, index)
                mask = mask_in_use(head_mask, used, residual.shape[:2])
                own, rng, metric = codebook.codes(), codebook.rng, codebook.metric
                *_, codes, compared = _ops.quantize(
                    residual, own, rng, metric=metric, estimator="none"
                )
                loss: Tensor = _ops.commitment_loss(compared, codes, mask=mask)
                _in_place.accumulate_gradients(loss, codebook)
                residual = residual - codes.detach()
        learns = _in_place.average_gradients(before, residual, head_mask, request.ranks)
        if learns and not first.manual_in_place_optimizer_update:
            rvq.update_in_place_optimizer()
    codebook.record_embed()


def _estimate_stack(rvq: "ResidualVQ", inputs: Tensor, total: Tensor, ranks: Ranks) -> Tensor:
    """The sum of the codes with the gradient of one estimator between input and sum, for any number of levels."""
    first = rvq.first_level
    # Without a graph the sum does not tell whether the codes learn.
    learned = total if takes_gradient(total) else first._codebook.embed
    name = estimator_of(first, inputs, learned)
    if rvq.diveq and rvq.training:
        name = "directional_reparam"
    return _ops.estimate(
        inputs,
        total,
        noise_rng(first._codebook.step_rng, ranks),
        estimator=name,
        variance=first.directional_reparam_variance,
        sync_update_v=first.sync_update_v if rvq.training else 0.0,
    )


# After the search ------------------------------------------------------------------------------------------


def search_losses(rvq: "ResidualVQ", levels: list[Level], ranks: Ranks) -> list[Terms]:
    """The losses of each level that are computed before the codes change."""
    searched = [_compared(level) for level in levels]
    totals = _losses.shared_totals(rvq.levels, searched, ranks)
    return [
        _losses.search_losses(level.vq, own, level.request, total)
        for level, own, total in zip(levels, searched, totals, strict=True)
    ]


def _compared(level: Level) -> SearchedTokens:
    """The search of a level as its losses need it: if they compare tokens with all codes, and these differ for each
    token, the codes of each token."""
    vq, searched = level.vq, level.result.searched
    by_entropy = vq.has_commitment_loss and vq.commitment_use_cross_entropy_loss
    compares = vq.training and (by_entropy or vq.has_codebook_diversity_loss)
    if level.implicit is None or not (compares or level.request.targets is not None):
        return searched
    return searched._replace(codebook=own_codes(level.implicit, searched.codebook))


def level_loss(level: Level, terms: Terms) -> Tensor:
    """The weighted loss of one level, a scalar; call it after ``learn``."""
    return only_if(
        level.used, _losses.level_loss(level.vq, level.result.searched, terms, level.request)
    )


class Searched(NamedTuple):
    """A stack after its search, as ``learn`` takes it."""

    rvq: "ResidualVQ"
    levels: list[Level]  # those that learn
    request: StackRequest


def learn(stacks: Sequence[Searched]) -> list[list[Tensor | None]]:
    """Updates the averages and codes of all levels, and replaces dead codes, from the results of the search.

    Stacks with equal options share one exchange over ranks. Returns for each stack the tokens per code of each level,
    over all ranks; None for a level that does not learn.
    """
    # Asks a stack that trains: one that evaluates has neither the ranks of the step nor the record of a recomputation.
    training = (stack for stack in stacks if _learning.synced_level(stack.rvq.levels).training)
    rvq, (first, *_), request = next(training, stacks[0])
    if first.vq._codebook.replaying:
        return [[] for _ in stacks]
    if rvq.shared_codebook and first.vq.vqp_compat:
        return [_learn_in_turn(stack.levels) for stack in stacks]
    return _learning.learn_stacks([_stack_step(stack) for stack in stacks], request.ranks)


def overlaps(rvq: "ResidualVQ", tokens: Tensor, request: StackRequest) -> bool:
    """Whether the levels learn after the forward (``overlap_sync``); see ``_codebook/in_flight.py``."""
    first = rvq.first_level
    codebook = first._codebook
    learns = rvq.training and not request.frozen and codebook.learns(first.ema_update)
    if not codebook.overlap_sync or not learns or codebook.replaying:
        return False
    # One call learns all levels later.
    alike = _learning.learn_alike([level._codebook for level in rvq.levels])
    if not alike or not all(_learning.trains(level, level.freeze_codebook) for level in rvq.levels):
        return False
    # Levels that learn one after the other need their messages one after the other, within the forward. A step of the
    # first level alone would leave the generators of the others behind.
    in_turn = first.vqp_compat and (rvq.shared_codebook or request.beam > 1)
    return not in_turn and may_overlap(codebook, request.ranks, tokens)


def learn_later(stacks: Sequence[Searched]) -> StepInFlight:
    """Starts the step of ``learn``; it settles later."""
    (first, *_), request = stacks[0].levels, stacks[0].request
    steps = [_stack_step(stack) for stack in stacks]
    joined = steps[0] if len(steps) == 1 else _learning.joined_stacks(steps)
    return StepInFlight(*joined, request.ranks, first.vq.ema_update)


def _stack_step(stack: Searched) -> _learning.StackStep:
    searched = [level.result.searched for level in stack.levels]
    if not stack.rvq.shared_codebook:
        frozen = stack.request.frozen
        trained = [_learning.trains(vq, frozen or vq.freeze_codebook) for vq in stack.rvq.levels]
        return _learning.step_of_levels(stack.rvq.levels, searched, trained)
    # A shared codebook sees the residuals of all levels as the tokens of one step.
    learning = [level.result.searched for level in filter(_trains, stack.levels)]
    joined = _learning.StepTokens.by(learning or searched)
    return [stack.levels[0].vq._codebook], [
        joined if learning else joined.without_tokens(trains=False)
    ]


def _trains(level: Level) -> bool:
    return _learning.trains(level.vq, level.request.frozen)


def level_draws(rvq: "ResidualVQ", level: Level) -> bool:
    """Whether a training forward draws random numbers from the generator of a level, or for the whole stack."""
    return (
        _learning.draws_numbers(level.vq, level.request.frozen) or rvq.diveq or rvq.quantize_dropout
    )


def _learn_in_turn(levels: list[Level]) -> list[Tensor | None]:
    """Updates a shared codebook once for each level, as the reference does."""
    counts: list[Tensor | None] = []
    for level in filter(_trains, levels):
        searched, request = level.result.searched, level.request
        tokens = searched.inputs, searched.indices, searched.mask
        codebook = level.vq._codebook
        counts.append(codebook.learn(*tokens, ema_update=request.ema_update, ranks=request.ranks))
    return [found for found in counts if found is not None]
