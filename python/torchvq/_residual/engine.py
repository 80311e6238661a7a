"""The engine of every residual stack, whatever its levels are: loop over levels, output.

A family (``ResidualVQ``; ``ResidualFSQ`` and ``ResidualLFQ`` by ``_residual/stack.py``) defines how a level chooses.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from torchvq._base import joined as _joined
from torchvq._base.layout import Layout
from torchvq._base.projection import project
from torchvq._base.torch_private import is_mapped, records_results

_ops = torch.ops.torchvq
LevelT = TypeVar("LevelT")


class WalkedLevel(NamedTuple):
    """The result of a level for the loop."""

    codes: Tensor  # added to the sum
    output: Tensor  # the same values, subtracted from the residual; its gradient is the one that the level hands on


def walk(
    inputs: Tensor, levels: int, choose: Callable[[int, Tensor, Tensor], tuple[LevelT, WalkedLevel]]
) -> tuple[Tensor, list[LevelT]]:
    """Each level in turn quantizes the residual of the levels before.

    Args:
        inputs: the input of the first level.
        levels: the number of levels to run.
        choose: called with a level's number, the residual, and the sum of the codes so far.

    Returns:
        The sum of the codes, and the result of each level.
    """
    residual = inputs
    # Contiguous, whatever the strides of the inputs: users call view() on the output.
    total = torch.zeros_like(inputs, memory_format=torch.contiguous_format)
    levels_found: list[LevelT] = []
    records = records_results()
    for index in range(levels):
        level, (codes, output) = choose(index, residual, total)
        # Nothing else holds the sum; adding in place keeps it in the cache. Under vmap an ensemble has codes of each
        # member, which do not fit into the sum of an input that all members share.
        keeps = codes.requires_grad or records or is_mapped(codes)
        total = total + codes if keeps else total.add_(codes)
        residual = residual - output
        levels_found.append(level)
    return total, levels_found


def balanced(inputs: Tensor, depth: int | Tensor, handed_on: float = 1.0) -> Tensor:
    """The inputs of a stack with one estimator, as the losses of its levels see them: gradients are divided by a gain.

    The losses of all levels add up in the encoder, where the output's gradient arrives once. With one estimator per
    level, as in the reference, it arrives ``sum(handed_on**n)`` times, i.e. once per level if a level hands on all of
    its gradient, and users choose the weight of the losses for that balance. Hence the division by this gain.
    """
    return _ops.balanced_inputs(inputs, **_levels(depth), ratio=handed_on)


def undivided(inputs: Tensor, depth: int | Tensor, handed_on: float) -> Tensor:
    """Inputs of ``balanced``, or what was computed of them, with a gradient that is not divided."""
    return _ops.undivided_inputs(inputs, **_levels(depth), ratio=handed_on)


def weighted(inputs: Tensor, depth: int | Tensor, levels: int) -> Tensor:
    """The inputs of a stack, as its one estimator sees them: with the share of levels in use as weight of the gradient.

    In the reference, whose levels add up, a step of few levels moves the encoder less. With equal weights, steps that
    drop nearly all levels disturb the others (docs/design/residual.md).
    """
    if isinstance(depth, int):
        return _ops.weighted_inputs(inputs, depth, levels)
    return _ops.weighted_inputs(inputs, levels, levels, depth=depth)


def _levels(depth: int | Tensor) -> dict[str, Any]:
    """The arguments of operators that say how many levels are in use: a tensor if only the device knows."""
    return dict(levels=depth) if isinstance(depth, int) else dict(levels=0, depth=depth)


def restored_output(
    total: Tensor,
    x: Tensor,
    mask: Tensor | None,
    layout: Layout,
    project_out: nn.Module,
    padding: Tensor | None = None,
) -> Tensor:
    """The output of a stack from the sum of its codes (B, N, D), in layout and dtype of its input."""
    return layout.unpack(project(project_out, total).to(x.dtype), x, mask, padding)


def restore_codes(codes: Tensor, x: Tensor, mask: Tensor | None, layout: Layout) -> Tensor:
    """Codes of one level, (B, N, D) to (B, *, D), with zeros for padding."""
    if mask is not None:
        codes = _ops.fill_masked(codes, mask)
    return layout.unpack_positions(codes, x)


def stack_levels(
    levels: Sequence[Tensor], count: int, *, missing: float = 0, dim: int = 0
) -> Tensor:
    """Stacks the tensors of ``count`` levels; dropped levels are filled with ``missing``."""
    if len(levels) < count:
        levels = [*levels] + [torch.full_like(levels[0], missing)] * (count - len(levels))
    return _joined.stack(levels, dim)


def levels_to_walk(depth: int | Tensor, levels: int) -> int:
    """The number of levels to run: all if only the device knows the depth."""
    return depth if isinstance(depth, int) else levels


def in_use(depth: int | Tensor, level: int) -> Tensor | None:
    """Whether a level is in use, () bool; None: it is known to be."""
    return None if isinstance(depth, int) else depth > level


def mask_in_use(mask: Tensor | None, used: Tensor | None, shape: Sequence[int]) -> Tensor | None:
    """The mask of the tokens of a level; all False if the level is not in use, as ``used`` of ``in_use`` says."""
    if used is None:
        return mask
    return used.expand(shape) if mask is None else mask & used


def only_if(used: Tensor | None, value: Tensor, otherwise: float = 0) -> Tensor:
    """``value`` if the level is in use, else ``otherwise``; ``used`` is that of ``in_use``."""
    return value if used is None else torch.where(used, value, otherwise)
