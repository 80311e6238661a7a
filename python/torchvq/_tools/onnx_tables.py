"""Constants of ONNX graphs, computed by the operators themselves."""

from collections.abc import Sequence

import torch
from torch import Tensor

_ops = torch.ops.torchvq


def place_values(levels: Sequence[int]) -> Tensor:
    """The place value of each feature's level in an index, int64 (D,)."""
    ones = torch.eye(len(levels), dtype=torch.int64)
    return _ops.scalar_indices(ones, list(levels))


def level_codes(levels: Sequence[int], symmetric: bool) -> Tensor:
    """Codes of the levels of each feature, float32 (D, L) with L the most levels; rows repeat their last code."""
    rows = []
    for count in levels:
        indices = torch.arange(max(levels)).clamp(max=count - 1)
        rows.append(_ops.scalar_decode(indices, [count], symmetric=symmetric).squeeze(-1))
    return torch.stack(rows)


def level_thresholds(levels: Sequence[int], bound: str) -> Tensor:
    """The smallest float32 of each level above the first, (D, L - 1); infinity beyond a feature's levels.

    Found by bisection over the float32 numbers, because levels rise with the input.
    """
    rows = []
    for count in levels:
        wanted = torch.arange(1, count)
        low, high = torch.full((count - 1,), _rank(-3e38)), torch.full((count - 1,), _rank(3e38))
        for _ in range(33):
            middle = torch.div(low + high, 2, rounding_mode="floor")
            found = _ops.scalar_quantize(_number(middle).unsqueeze(-1), [count], bound=bound)[1]
            high = torch.where(found >= wanted, middle, high)
            low = torch.where(found >= wanted, low, middle)
        row = torch.full((max(levels) - 1,), torch.inf, dtype=torch.float32)
        row[: count - 1] = _number(high)
        rows.append(row)
    return torch.stack(rows)


def _rank(value: float) -> int:
    """The position of a float32 among all of them in rising order; 0 for zero."""
    bits = int(torch.tensor(abs(value), dtype=torch.float32).view(torch.int32))
    return -bits if value < 0 else bits


def _number(rank: Tensor) -> Tensor:
    """The inverse of `_rank`."""
    magnitude = rank.abs().int().view(torch.float32)
    return torch.where(rank < 0, -magnitude, magnitude)
