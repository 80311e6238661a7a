"""Checks of the arguments of a call of a residual stack, and what ranks compare before it."""

from collections.abc import Iterable, Sequence
from operator import index
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchvq._base.options import expect
from torchvq._codebook.in_place import optimizer_text
from torchvq._codebook.learning import is_left_out
from torchvq._codebook.request import check_targets, check_temperature

if TYPE_CHECKING:
    from torchvq.residual_vq import ResidualVQ

_OWNER = "ResidualVQ"


def options_text(rvq: "ResidualVQ") -> str:
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


def beam_of(rvq: "ResidualVQ", size: int | None) -> int:
    """The number of paths of a forward that is called with this size."""
    if size is None:
        size = rvq.beam_size if rvq.training else rvq.eval_beam_size
    beam = 1 if size is None else index(size)
    expect(_OWNER, beam >= 1, "beam_size", "at least 1", beam)
    optimizers = (rvq.in_place_codebook_optimizer, rvq.levels[0].in_place_codebook_optimizer)
    learns_in_place = rvq.training and any(own is not None for own in optimizers)
    if learns_in_place:  # compiled code cannot write a symbolic size into a text
        expect(
            _OWNER,
            beam == 1,
            "in_place_codebook_optimizer",
            f"off in training with beam_size {beam} (use eval_beam_size for a beam in evaluation alone)",
            True,
        )
    return beam


def sees_padding(rvq: "ResidualVQ") -> bool:
    """Whether padding is left as it is, because the diversity loss covers it, as in the reference."""
    return rvq.training and rvq.vqp_compat and rvq.levels[0].has_codebook_diversity_loss


def sampling_temperature(rvq: "ResidualVQ", asked: float | None) -> float:
    """The temperature at which a forward draws codes; 0: it takes the nearest ones."""
    first = rvq.levels[0]
    if not (first.training and first.stochastic_sample_codes):
        return 0.0
    return first.sample_codebook_temp if asked is None else asked


def targets_of(
    rvq: "ResidualVQ",
    x: Tensor,
    indices: Tensor | Sequence[Tensor] | None,
    temperature: float | None,
) -> tuple[Tensor, ...] | None:
    """The targets of each level; checks them and the temperature before the forward writes anything."""
    if not torch.compiler.is_compiling():
        check_temperature(rvq.levels[0], temperature, _OWNER)
    if indices is None:
        return None
    levels = _parts(_OWNER, indices, -1, "level")
    count = rvq.num_quantizers
    expect(_OWNER, len(levels) == count, "indices", f"of {count} levels", len(levels))
    if not torch.compiler.is_compiling():
        layout = rvq.layout
        for level, size in zip(levels, rvq.codebook_sizes, strict=True):
            check_targets(level, x, layout, size)
    return levels


def check_levels(indices: Tensor, levels: int, fewer: bool) -> None:
    """Raises ValueError unless indices have all levels on the last axis, or with ``fewer`` at least one."""
    given = indices.shape[-1] if indices.dim() > 0 else 0
    if not (1 if fewer else levels) <= given <= levels:
        raise ValueError(
            f"ResidualVQ: expected indices to have {levels} levels on the last axis, "
            f"or fewer with quantize_dropout, but got shape {list(indices.shape)}"
        )


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
        return indices.unbind(axis) if indices.dim() > 0 else ()
    if not isinstance(indices, Iterable):
        raise TypeError(
            f"{owner}: expected indices to be a tensor or one tensor for each {part}, "
            f"but got {type(indices).__name__}"
        )
    return tuple(indices)
