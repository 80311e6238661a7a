"""Checks of the arguments of a call of a residual stack, and what ranks compare before it."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from torchvq._base.arguments import expect_dense, expect_kind, integer
from torchvq._base.layout import Layout
from torchvq._base.options import expect
from torchvq._base.ranks import ALONE, Ranks, distributed_training, ranks_of
from torchvq._base.torch_private import is_observed_itself
from torchvq._codebook.in_place import optimizer_text
from torchvq._codebook.learning import is_left_out, synced_level
from torchvq._codebook.messages import agree_in_stack
from torchvq._codebook.request import check_targets, check_temperature

if TYPE_CHECKING:
    from torchvq.lookup_free_quantization import LFQ
    from torchvq.residual_vq import ResidualVQ
    from torchvq.sim_vq import SimVQ
    from torchvq.vector_quantize import VectorQuantize

_OWNER = "ResidualVQ"
_OWN_PROJECTIONS = (nn.Identity, nn.Linear)


class StackRequest(NamedTuple):
    """The checked arguments of one forward of a stack."""

    layout: Layout
    mask: Tensor | None  # (B, N)
    targets: tuple[Tensor, ...] | None  # per level, in the shape of forward's indices
    temperature: float | None
    frozen: bool
    ranks: Ranks
    beam: int  # paths kept between levels
    levels: list["VectorQuantize"]
    # Known when the forward has begun.
    batch: torch.Size = torch.Size()  # B, N
    depth: int | Tensor = 0  # levels in use: an int, or a tensor if only the device knows


def checked_call(
    rvq: "ResidualVQ",
    x: Tensor,
    mask: Tensor | None,
    indices: Tensor | Sequence[Tensor] | None,
    temperature: float | None,
    frozen: bool,
    beam_size: int | None,
) -> StackRequest:
    """The arguments of a forward; groups check those of all before one of them begins."""
    layout = rvq.layout
    layout.check_input(x)
    beam = _beam_of(rvq, beam_size)
    targets = _targets_of(rvq, x, indices, temperature)
    levels = rvq.levels
    if rvq.training and rvq.shared_codebook:
        _expect_one_codebook(levels)
    return StackRequest(
        layout,
        layout.token_mask(x, mask, None),
        targets,
        temperature,
        frozen or all(level.freeze_codebook for level in levels),
        ranks_of(synced_level(levels), type(rvq).__name__, rvq.dim),
        beam,
        levels,
    )


class Siblings(NamedTuple):
    """What a stack has to know of those that learn in the same step."""

    trained: str  # the groups that train, as text for the handshake, unless all do
    calls_back: bool  # whether code of the user runs while one of them that trains searches


def siblings_of(stacks: Sequence["ResidualVQ"]) -> Siblings:
    """Of the groups of one module."""
    trained = ""
    if distributed_training():
        groups = [n for n, rvq in enumerate(stacks) if synced_level(rvq.levels).training]
        trained = "" if len(groups) == len(stacks) else f"groups {groups} in training, "
    return Siblings(trained, any(rvq.training and _calls_back(rvq) for rvq in stacks))


def _calls_back(rvq: "ResidualVQ") -> bool:
    projection = rvq.project_in
    own = type(projection) in _OWN_PROJECTIONS and not is_observed_itself(projection)
    return not own or rvq.first_level._codebook.vq_bridge is not None


def shared_ranks(levels: Iterable["LFQ | SimVQ"], owner: str, dim: int) -> Ranks:
    """The ranks of the first level that has any: a level may evaluate, or learn by itself. ``dim`` is that of the
    stack."""
    if not distributed_training():
        return ALONE
    found = (ranks_of(level, owner, dim) for level in levels)
    return next((ranks for ranks in found if not ranks.alone), ALONE)


def agree(
    rvq: "ResidualVQ",
    siblings: Siblings | None,
    ranks: Ranks,
    *,
    frozen: bool,
    dtype: torch.dtype,
    depth: int | None,
) -> None:
    """The handshake of a forward, alone or with siblings; ``depth`` as for ``agree_in_stack``."""
    if ranks.alone:
        return
    text = ("" if siblings is None else siblings.trained) + _options_text(rvq)
    agree_in_stack(
        rvq.levels, rvq._codebooks(), ranks, text, frozen=frozen, dtype=dtype, depth=depth
    )


def _options_text(rvq: "ResidualVQ") -> str:
    """The options in which all ranks must agree, besides those of the levels."""
    levels = list(enumerate(rvq.levels))
    frozen = [index for index, level in levels if is_left_out(level, level.freeze_codebook)]
    unmoved = [index for index, level in levels if not level.ema_update]
    return (
        f"ResidualVQ of {rvq.num_quantizers} levels, shared {rvq.shared_codebook}, "
        f"implicit {rvq.implicit_neural_codebook}, dropout {rvq.quantize_dropout} from "
        f"{rvq.quantize_dropout_cutoff_index} in multiples of {rvq.quantize_dropout_multiple_of}, "
        f"frozen levels {frozen}, without averages {unmoved}, "
        f"own optimizer {optimizer_text(rvq)}"
    )


def _beam_of(rvq: "ResidualVQ", size: int | None) -> int:
    """The number of paths of a forward that is called with this size."""
    if size is None:
        size = rvq.beam_size if rvq.training else rvq.eval_beam_size
    beam = 1 if size is None else integer(_OWNER, "beam_size", size)
    expect(_OWNER, beam >= 1, "beam_size", "at least 1", beam)
    optimizers = (rvq.in_place_codebook_optimizer, rvq.first_level.in_place_codebook_optimizer)
    learns_in_place = rvq.training and any(own is not None for own in optimizers)
    condition = "1 in training with in_place_codebook_optimizer (set eval_beam_size for evaluation)"
    expect(_OWNER, beam == 1 or not learns_in_place, "beam_size", condition, beam)
    return beam


def _expect_one_codebook(levels: Sequence["VectorQuantize"]) -> None:
    """Tokens of all levels move the first level's codes; those of a level that was replaced are no tokens of these."""
    first = levels[0]._codebook
    others = [index for index, level in enumerate(levels) if level._codebook is not first]
    condition = "levels of one codebook, with shared_codebook"
    expect(_OWNER, not others, "layers", condition, f"another in levels {others}")


def _targets_of(
    rvq: "ResidualVQ",
    x: Tensor,
    indices: Tensor | Sequence[Tensor] | None,
    temperature: float | None,
) -> tuple[Tensor, ...] | None:
    """The targets of each level; checks them and the temperature before the forward writes anything."""
    for level in rvq.levels:
        check_temperature(_OWNER, level, temperature)
    if indices is None:
        return None
    levels = _parts(_OWNER, indices, -1, "level")
    count = rvq.num_quantizers
    expect(_OWNER, len(levels) == count, "indices", f"of {count} levels", len(levels))
    if not torch.compiler.is_compiling():
        layout = rvq.layout
        for targets, size in zip(levels, rvq.codebook_sizes, strict=True):
            check_targets(targets, x, layout, size)
    return levels


def check_levels(owner: str, indices: Tensor, levels: int, fewer: bool) -> None:
    """Raises ValueError unless indices have all levels on the last axis, or with ``fewer`` at least one."""
    given = indices.shape[-1] if indices.dim() > 0 else 0
    fits = (1 if fewer else levels) <= given <= levels
    condition = f"of {levels} levels on the last axis, or fewer with quantize_dropout"
    expect(owner, fits, "indices", condition, f"shape {list(indices.shape)}")


def without_codebook_axis(owner: str, indices: Tensor) -> Tensor:
    """Indices (B, *, q) of (B, *, 1, q); ValueError for several codebooks."""
    if indices.dim() < 2:
        return indices
    condition = "of one codebook on the axis before the last"
    expect(owner, indices.shape[-2] == 1, "indices", condition, f"shape {list(indices.shape)}")
    return indices.squeeze(-2)


def groups_of(owner: str, indices: Tensor | Sequence[Tensor], groups: int) -> list[Tensor]:
    """The indices of each group: a tensor with the groups as first axis, or a tensor for each of them."""
    parts = _parts(owner, indices, 0, "group")
    got = f"shape {list(indices.shape)}" if isinstance(indices, Tensor) else f"{len(parts)} tensors"
    expect(owner, len(parts) == groups, "indices", f"of {groups} groups on the first axis", got)
    if any(part is None for part in parts):
        raise TypeError(f"{owner}: expected indices to be one tensor for each group, but got None")
    return list(parts)


def _parts(
    owner: str, indices: Tensor | Sequence[Tensor], axis: int, part: str
) -> tuple[Tensor, ...]:
    """The indices along an axis, none of a scalar; or those of a sequence."""
    if isinstance(indices, Tensor):
        expect_dense(owner, "indices", indices)
        return indices.unbind(axis) if indices.dim() > 0 else ()
    expect_kind(owner, "indices", indices, Iterable, f"a tensor or one tensor for each {part}")
    return tuple(indices)
