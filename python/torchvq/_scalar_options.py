"""Validation of the options of finite scalar quantizers."""

import math
import operator
import warnings
from collections.abc import Sequence

_MOST_LEVELS = 65536


def expect(owner: str, holds: bool, name: str, condition: str, value: object) -> None:
    """Raises ValueError unless an option holds what it must."""
    if not holds:
        raise ValueError(f"{owner}: expected {name} to be {condition}, but got {value}")


def check_levels(owner: str, levels: Sequence[int], symmetric: bool) -> tuple[int, ...]:
    """The levels, if scalar_quantize takes them."""
    try:
        levels = [operator.index(count) for count in levels]
    except TypeError:
        raise TypeError(
            f"{owner}: expected levels to be a list of integers, but got {levels}"
        ) from None
    fewest = 2 if symmetric else 3
    within = all(fewest <= count <= _MOST_LEVELS for count in levels)
    condition = f"numbers in [{fewest}, {_MOST_LEVELS}], at least one"
    if fewest == 3:
        condition += " (2 levels need preserve_symmetry)"
    expect(owner, bool(levels) and within, "levels", condition, levels)
    expect(owner, math.prod(levels) <= 2**62, "levels", "of a product up to 2^62", levels)
    return tuple(levels)


def check_noise(owner: str, fraction: float, symmetric: bool) -> None:
    """Noise is half a step of symmetric levels, on a fraction of the elements."""
    expect(owner, 0 <= fraction <= 1, "noise_dropout", "in [0, 1]", fraction)
    expect(
        owner,
        fraction == 0 or symmetric,
        "noise_dropout",
        "0 without preserve_symmetry, whose levels are evenly spaced in [-1, 1]",
        fraction,
    )


def warn_of_rotation(owner: str, levels: Sequence[int]) -> None:
    """Rotated features are alike, levels of different numbers are not."""
    if len(set(levels)) > 1:
        warnings.warn(
            f"{owner}: orthogonal_rotation mixes features that have different numbers of levels, {list(levels)}",
            stacklevel=3,
        )
