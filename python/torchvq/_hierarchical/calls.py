"""Checks of the arguments of a call of HierarchicalVQ."""

from collections.abc import Iterable, Sequence
from operator import index

from torch import Tensor

from torchvq._base.arguments import expect_kind
from torchvq._base.integers import as_int64
from torchvq._base.options import expect

_OWNER = "HierarchicalVQ"


def whole_indices(
    indices: Sequence[Tensor], shapes: Sequence[Sequence[int]], batch: int | None
) -> list[Tensor]:
    """Indices as int64, one tensor for each scale, of a batch of this size or of any; TypeError or ValueError else."""
    expect_kind(_OWNER, "indices", indices, Iterable, "one tensor for each scale")
    whole = [as_int64(_OWNER, scale) for scale in indices]
    if batch is None:
        batch = whole[0].shape[0] if whole and whole[0].dim() > 0 else 0
    expected, got = [[batch, *shape] for shape in shapes], [list(scale.shape) for scale in whole]
    expect(_OWNER, got == expected, "indices", f"tensors of the shapes {expected}", got)
    return whole


def positions_of(
    shape: Sequence[int] | int, axes: int, name: str = "full_shape"
) -> tuple[int, ...]:
    """The positions of a map; TypeError for what is no integer, ValueError for another number of axes."""
    try:
        # A number has no axes of its own: it is the size of each, as in `scales`.
        own = shape if isinstance(shape, Iterable) else (shape,) * axes
        full = tuple(map(index, own))
    except TypeError as error:
        raise TypeError(f"{_OWNER}: expected {name} to be integers, but got {shape!r}") from error
    expect(_OWNER, len(full) == axes, name, f"{axes} numbers", list(full))
    return full
