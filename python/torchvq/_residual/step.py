"""A forward of a residual stack by one operator, for stacks whose levels need no Python code."""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from torchvq._base.lean_call import without_defaults
from torchvq._base.ranks import joined_signature
from torchvq._base.readable import takes_gradient
from torchvq._codebook.learning import in_step
from torchvq._codebook.losses import loss_options, orthogonal_options
from torchvq._codebook.request import Request, request_of_level
from torchvq._codebook.search import estimator_of, search_options, stored_codes
from torchvq._residual.engine import levels_to_walk

if TYPE_CHECKING:
    from torchvq._residual.calls import StackRequest
    from torchvq.residual_vq import ResidualVQ
    from torchvq.vector_quantize import VectorQuantize

_ops = torch.ops.torchvq


class StackForward(NamedTuple):
    """The output of a forward before ``project_out``, and its levels."""

    quantized: Tensor  # (H, T, D), with the estimator's gradient
    indices: Tensor  # (H, T, Q), -1 where masked or dropped
    losses: Tensor  # (Q,)
    codes: list[Tensor]  # if asked for, (H, T, D) of each level in use


def can_step_at_once(rvq: "ResidualVQ", tokens: Tensor, levels: "list[VectorQuantize]") -> bool:
    """Whether no Python code runs between the levels: no k-means, no network that computes codes, no optimizer, and
    the same options for all levels."""
    first, training = levels[0], rvq.training
    rules, options = first._codebook.learning_rules, _options(first)
    optimizers = (rvq.in_place_codebook_optimizer, first.in_place_codebook_optimizer)
    if rvq.implicit_neural_codebook or any(own is not None for own in optimizers):
        return False
    by_gradient = training and "embed" in first._codebook._parameters
    if by_gradient and rvq.quant_grad_frac > 0 and not takes_gradient(tokens):
        # When codes take a gradient, later levels need an estimator and the first does not, so one option cannot serve
        # all.
        return False
    for level in levels:
        codebook = level._codebook
        alike = level is first or (codebook.learning_rules == rules and _options(level) == options)
        ready = codebook.begins_initialised and not codebook.affine_param
        if not (alike and ready and level.training == codebook.training == training):
            return False
    # Last, because in_step reads the state of all levels. The record of a checkpointed step that walks through the
    # levels has none for levels that were dropped; the recomputation of such a step has returned above.
    keeps = training and first._codebook.keeps_statistics and not rvq.shared_codebook
    return not keeps or in_step([level._codebook for level in levels])


def _options(level: "VectorQuantize") -> tuple[object, ...]:
    """The options of a level of which the operator has one value for all."""
    return (
        level.freeze_codebook,
        level.commitment_weight,
        level.has_commitment_loss,
        level.commitment_use_cross_entropy_loss,
        level.orthogonal_reg_weight,
        level.has_codebook_orthogonal_loss,
        level.orthogonal_reg_active_codes_only,
        level.orthogonal_reg_max_codes,
        level.codebook_diversity_loss_weight,
        level.has_codebook_diversity_loss,
        level.codebook_diversity_temperature,
        level.stochastic_sample_codes,
        level.sample_codebook_temp,
        level.straight_through,
        level.rotation_trick,
        level.directional_reparam,
        level.directional_reparam_variance,
        level.route_gradients_to_input,
        level.sync_update_v,
    )


def step_at_once(
    rvq: "ResidualVQ", tokens: Tensor, request: "StackRequest", returns_codes: bool
) -> StackForward:
    """Searches, computes losses and learns; tokens (B, N, heads * D) are projected, and zero where masked."""
    levels = request.levels
    first, codebooks = levels[0], [level._codebook for level in levels]
    first_codebook = codebooks[0]
    own_request = request_of_level(
        first, None, request.mask, request.temperature, request.frozen, request.ranks
    )
    used = codebooks[: levels_to_walk(request.depth, len(levels))]
    learners = codebooks[:1] if rvq.shared_codebook else codebooks
    for learner in learners:
        learner.begin_record()
    searched = [stored_codes(codebook, tokens.dtype) for codebook in used]
    steps = rvq.training and not first_codebook.replaying
    learns = steps and not request.frozen
    options = dict(
        mask=request.mask,
        depth=None if isinstance(request.depth, int) else request.depth,
        targets=_targets(rvq, request),
        totals=first_codebook.recorded_totals(),
        heads=rvq.heads,
        separate=first.separate_codebook_per_head,
        zeros_for_masked=rvq.return_zeros_for_masked_padding,
        learns=learns,
        finishes=steps,
        returns_codes=returns_codes,
        **_gradients(rvq, own_request, tokens, searched),
        **_arguments(rvq, first, request, own_request, learns),
    )
    quantized, indices, losses, codes, totals = _ops.residual_quantize_.default(
        tokens,
        searched,
        [tensor for learner in learners for tensor in learner.state()],
        [learner.step_rng for learner in learners],
        [level.step_counts for level in levels],
        **without_defaults("residual_quantize_", options),
    )
    first_codebook.record_totals(totals)
    if learns:
        for learner in learners:
            learner.keep_in_shards()
    return StackForward(quantized, indices, losses, codes)


def _targets(rvq: "ResidualVQ", request: "StackRequest") -> list[Tensor]:
    """The target indices (H, T) of each level in use."""
    if request.targets is None:
        return []
    used = request.targets[: levels_to_walk(request.depth, rvq.num_quantizers)]
    return [rvq.layout.split_indices(level) for level in used]


def _gradients(
    rvq: "ResidualVQ", own_request: Request, tokens: Tensor, searched: list[Tensor]
) -> dict[str, Any]:
    """The estimator of the output, and the gradient that levels hand on."""
    first = rvq.first_level
    codes = searched[0]
    if rvq.training and not takes_gradient(tokens):
        codes = next(filter(takes_gradient, searched), codes)
    estimator = estimator_of(first, tokens, codes)
    return dict(
        estimator="directional_reparam" if rvq.diveq and rvq.training else estimator,
        level_estimator=estimator,
        estimates_levels=rvq.estimates_levels,
        handed_on=rvq.quant_grad_frac,
        **search_options(first, own_request),
    )


def _arguments(
    rvq: "ResidualVQ",
    first: "VectorQuantize",
    request: "StackRequest",
    own_request: Request,
    learns: bool,
) -> dict[str, Any]:
    """Arguments of search, losses and learning."""
    codebook = first._codebook
    arguments = codebook.statistics_options(request.ranks) | loss_options(first, own_request)
    arguments |= orthogonal_options(first)
    arguments["vqp_compat"] = rvq.vqp_compat
    if learns:
        arguments |= codebook.learning_options(own_request.ema_update)
    if not (request.ranks.alone or rvq.shared_codebook):
        arguments["signature"] = joined_signature(level._codebook for level in request.levels)
    if request.beam > 1:
        weights = rvq.beam_weights(levels_to_walk(request.depth, rvq.num_quantizers))
        arguments |= dict(beam=request.beam, beam_weights=weights)
    arguments["draws"] = rvq.draws
    return arguments
