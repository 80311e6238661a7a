"""Beam search through the levels of a residual stack."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchvq._base.ranks import noise_rng
from torchvq._codebook.search import prepare, sampling_temperature, stored_codes
from torchvq._residual import implicit_beam as _implicit_beam
from torchvq._residual.engine import in_use, levels_to_walk, mask_in_use

if TYPE_CHECKING:
    from torchvq._residual.calls import StackRequest
    from torchvq.residual_vq import ResidualVQ

_ops = torch.ops.torchvq


def search_paths(rvq: "ResidualVQ", inputs: Tensor, request: "StackRequest") -> tuple[Tensor, ...]:
    """The indices (H, T) of all levels in use, for inputs (H, T, D); padding gets any valid index."""
    return best_paths(rvq, inputs, request).clamp_min(0).unbind(-1)


def best_paths(rvq: "ResidualVQ", inputs: Tensor, request: "StackRequest") -> Tensor:
    """The indices (H, T, levels in use) for inputs (H, T, D); -1 where masked."""
    if rvq.implicit_neural_codebook:
        return _implicit_beam.best_implicit_paths(rvq, inputs, request)
    levels = rvq.levels[: levels_to_walk(request.depth, rvq.num_quantizers)]
    codebooks = [stored_codes(level._codebook, inputs.dtype).detach() for level in levels]
    options: dict[str, Any] = dict(
        mask=None if request.mask is None else rvq.layout.split_mask(request.mask),
        depth=None if isinstance(request.depth, int) else request.depth.reshape(1),
        weights=rvq.beam_weights(len(levels)),
    )
    if temperature := sampling_temperature(rvq.first_level, request.temperature):
        rngs = [noise_rng(rvq._level_rng(level), request.ranks) for level in range(len(levels))]
        options |= dict(temperature=temperature, metric=levels[0]._codebook.metric)
        return _ops.sampled_beam_search(inputs.detach(), codebooks, rngs, request.beam, **options)
    return _ops.residual_beam_search(inputs.detach(), codebooks, request.beam, **options)


def prepare_levels(rvq: "ResidualVQ", inputs: Tensor, request: "StackRequest") -> None:
    """Prepares all levels before the search: k-means, and the statistics of the affine map.

    Each level sees the residual of the nearest codes of the levels before it, as in greedy search.
    """
    codebooks = [level._codebook for level in rvq.levels]
    changes = rvq.training and any(c.affine_param or not c.begins_initialised for c in codebooks)
    count = levels_to_walk(request.depth, rvq.num_quantizers)
    residual = inputs.detach()
    path: _implicit_beam.Paths | None = None
    for index, codebook in enumerate(codebooks[:count]):
        if index > 0 and rvq.shared_codebook:
            break
        mask = beginning_mask(rvq, request, index)
        level = rvq.levels[index]
        prepare(level, residual, mask, request.frozen or level.freeze_codebook, request.ranks)
        if changes and rvq.implicit_neural_codebook:
            path = _implicit_beam.extend_implicit(
                rvq, index, path or _implicit_beam.first_paths(inputs), request, 1
            )
            residual = path.residual.squeeze(2)
        elif changes:
            own, rng, metric = codebook.codes().detach(), codebook.step_rng, codebook.metric
            codes = _ops.quantize(residual, own, rng, metric=metric, estimator="none")[2]
            residual = residual - codes


def beginning_mask(rvq: "ResidualVQ", request: "StackRequest", index: int) -> Tensor | None:
    """The tokens (H, T) from which a level begins. Compiled code does not know which levels it drops, nor looks again
    whether they are set: all begin in the first step."""
    if torch.compiler.is_compiling() and not rvq.levels[index]._codebook.begins_initialised:
        return None if request.mask is None else rvq.layout.split_mask(request.mask)
    return level_mask(rvq, request, index)


def level_mask(rvq: "ResidualVQ", request: "StackRequest", index: int) -> Tensor | None:
    """The tokens (H, T) of a level: all False if the level is not in use."""
    mask = mask_in_use(request.mask, in_use(request.depth, index), request.batch)
    return None if mask is None else rvq.layout.split_mask(mask)
