"""The stages of a forward of residual stacks after its beginning: search, joint learning, results of each stack."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from torchvq._base.gradients import reaching
from torchvq._base.layout import Layout
from torchvq._base.projection import projects_nothing
from torchvq._base.ranks import distributed_training
from torchvq._base.torch_private import is_mapped
from torchvq._codebook.learning import learn_alike
from torchvq._codebook.losses import Terms
from torchvq._codebook.set_later import check_level
from torchvq._codebook.stats import begin_step, finish_step
from torchvq._codebook.undo import Undo, undo_of
from torchvq._residual import levels as _levels
from torchvq._residual.calls import Siblings, StackRequest
from torchvq._residual.engine import restore_codes, restored_output, stack_levels
from torchvq._residual.evaluation import can_encode_at_once, encode_at_once
from torchvq._residual.step import StackForward, can_step_at_once, step_at_once
from torchvq.outputs import ResidualOutput, ResidualOutputWithCodes, ResidualResult

if TYPE_CHECKING:
    from torchvq.residual_vq import ResidualVQ


class Started(NamedTuple):
    """A forward of one stack; after its search it has ``step``, and has learnt, or ``walk``, and has not yet."""

    rvq: "ResidualVQ"
    layout: Layout
    x: Tensor
    request: StackRequest
    return_all_codes: bool
    tokens: Tensor  # (B, N, heads * D), projected
    step: StackForward | None = None
    walk: _levels.Walk | None = None
    overlaps: bool = False  # whether the step ends after the forward
    undo: Undo | None = None  # of what the search has written to the codebooks


def search(
    started: Sequence[Started], steps: ExitStack, siblings: Siblings | None = None
) -> list[Started]:
    """The searches of stacks that learn in the same step.

    Args:
        started: after the handshakes of all.
        steps: open until the end of the step.
        siblings: what each has to know of the others, if there are any.
    """
    levels = [(level, stack.request.frozen) for stack in started for level in stack.request.levels]
    if any(level.training for level, _ in levels):  # otherwise none learns
        for level, frozen in levels:
            check_level(level, frozen or level.freeze_codebook)
    return [_search(stack, steps, siblings) for stack in started]


def _search(started: Started, steps: ExitStack, siblings: Siblings | None) -> Started:
    rvq, layout, _, request, return_all_codes, tokens = started[:6]
    if not return_all_codes and can_encode_at_once(rvq, request):
        step = encode_at_once(rvq, layout.split_heads(tokens), request)
        if step is not None:
            return started._replace(step=step)
    # Stacks that learn together on ranks, or later, exchange their statistics in `finish`. Code of the user may fail,
    # and must not find another stack that has learnt.
    later = _levels.overlaps(rvq, tokens, request)
    waits = siblings is not None and (siblings.calls_back or not request.ranks.alone)
    # An operator that may write to the state cannot be mapped over the tokens alone.
    at_once = (rvq.training or not is_mapped(tokens)) and can_step_at_once(
        rvq, tokens, request.levels
    )
    if at_once and not later and not waits:
        return started._replace(step=step_at_once(rvq, tokens, request, return_all_codes))
    undo = undo_of(rvq._codebooks()) if rvq.training else None
    if undo is not None:
        steps.enter_context(undo)
    walked = _levels.walk(rvq, layout.split_heads(tokens), request)
    return started._replace(walk=walked, overlaps=later, undo=undo)


def finish(started: Sequence[Started]) -> list[ResidualResult]:
    """The end of the forwards of stacks with equal options, which learn in one exchange over ranks."""
    if all(stack.step is not None for stack in started):
        return [_result(stack, stack.step) for stack in started if stack.step is not None]
    later = all(stack.overlaps for stack in started) and learn_alike(
        [stack.rvq.first_level._codebook for stack in started]
    )
    walked = [
        (stack._replace(overlaps=later), stack.walk) for stack in started if stack.walk is not None
    ]
    terms = [
        _levels.search_losses(stack.rvq, walk.levels, stack.request.ranks) for stack, walk in walked
    ]
    counts: list[list[Tensor | None]] = [[] for _ in walked]
    for stack, _ in walked:
        if stack.rvq.training:
            begin_step(stack.rvq._codebooks())
    learns = any(stack.rvq.training and not stack.request.frozen for stack, _ in walked)
    if learns and not later:
        counts = _levels.learn([_searched(stack, walk) for stack, walk in walked])
    for stack, _ in walked:
        if stack.undo is not None:
            stack.undo.forget()
    ended = [
        _end_walk(stack, walk, scored, found)
        for (stack, walk), scored, found in zip(walked, terms, counts, strict=True)
    ]
    if later:
        step = _levels.learn_later([_searched(stack, walk) for stack, walk in walked])
        outputs = [output for end in ended for output in (end.quantized, end.losses)]
        step.settle_after_backward(*outputs)
    steps = iter(ended)
    return [_result(stack, next(steps) if stack.step is None else stack.step) for stack in started]


def _searched(started: Started, walk: _levels.Walk) -> _levels.Searched:
    # In the reference, only the first level learns under a beam.
    first_only = started.rvq.vqp_compat and started.request.beam > 1
    levels = walk.levels[:1] if first_only else walk.levels
    return _levels.Searched(started.rvq, levels, started.request)


def _end_walk(
    started: Started, walk: _levels.Walk, terms: list[Terms], counts: list[Tensor | None]
) -> StackForward:
    """Ends the step and computes the losses of all levels; call it when their codebooks have learnt."""
    rvq, request, every = started.rvq, started.request, started.rvq.num_quantizers
    losses = [_levels.level_loss(*scored) for scored in zip(walk.levels, terms, strict=True)]
    searched = [level.result.searched for level in walk.levels]
    if rvq.training:
        # A step that settles later advances the generators itself.
        drew = [not started.overlaps and _levels.level_draws(rvq, level) for level in walk.levels]
        depth = request.depth
        finish_step(rvq.levels, searched, counts, request.ranks, drew=drew, depth=depth)
    return StackForward(
        walk.output,
        stack_levels([part.indices for part in searched], every, missing=-1, dim=-1),
        stack_levels(losses, every),
        [level.codes for level in walk.levels],
    )


def _result(started: Started, step: StackForward) -> ResidualResult:
    rvq, layout, x, request, return_all_codes = started[:5]
    quantized = _restore(rvq, layout, step.quantized, x, request)
    losses = _reaching_dropped(rvq, step.losses, request.depth)
    if request.targets is not None:
        return quantized, losses.sum()
    # Dropped levels have index -1 and codes of zeros.
    indices = layout.restore_positions(step.indices, x)
    if not return_all_codes:
        return ResidualOutput(quantized, indices, losses)
    codes = _all_codes(rvq, layout, step.codes, indices, x, request)
    return ResidualOutputWithCodes(quantized, indices, losses, codes)


def _reaching_dropped(rvq: "ResidualVQ", losses: Tensor, depth: int | Tensor) -> Tensor:
    """On ranks, dropped levels whose codes learn by gradient get one of zero; alone none, as in the reference."""
    if not rvq.training or not isinstance(depth, int) or not distributed_training():
        return losses
    first = rvq.first_level
    # The options tell: a look into the codebook would end a step that is still on its way.
    if not (first.learnable_codebook or first.has_codebook_orthogonal_loss):
        return losses
    for number in range(depth, rvq.num_quantizers):
        losses = reaching(losses, rvq.levels[number])
        if rvq.implicit_neural_codebook:
            losses = reaching(losses, rvq.mlp(number))
    return losses


def _restore(
    rvq: "ResidualVQ", layout: Layout, output: Tensor, x: Tensor, request: StackRequest
) -> Tensor:
    if projects_nothing(rvq.project_out):
        return layout.restore_tokens(output, x, request.mask, rvq.return_zeros_for_masked_padding)
    merged = layout.merge_heads(output, *request.batch).flatten(2)
    padding = None
    if request.mask is not None and not rvq.return_zeros_for_masked_padding:
        padding = layout.pack(x)
    return restored_output(merged, x, request.mask, layout, rvq.project_out, padding)


def _all_codes(
    rvq: "ResidualVQ",
    layout: Layout,
    levels: list[Tensor],
    indices: Tensor,
    x: Tensor,
    request: StackRequest,
) -> Tensor:
    if rvq.vqp_compat:
        # The reference looks codes up after their update, with the gradient of the lookup.
        return rvq.get_codes_from_indices(indices)
    rows = [layout.merge_heads(level, *request.batch).flatten(2) for level in levels]
    codes = [restore_codes(row, x, request.mask, layout) for row in rows]
    return stack_levels(codes, rvq.num_quantizers)
