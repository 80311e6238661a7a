"""merge_statistics: sums of two calls on the larger exponents, against Python integers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torchvq import ops

_ops = torch.ops.torchvq


def whole_numbers(sums: Tensor) -> list[int]:
    """Sums (W, 1, K, D) in units of their last word."""
    words = sums.flatten(1).tolist()
    if len(words) == 1:
        return words[0]
    return [high * 2**32 + low for high, low in zip(*words, strict=True)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 3.0, 2.0**20, 2.0**31, 2.0**32, 2.0**40, 2.0**70, 2.0**110])
@pytest.mark.parametrize("swap", [False, True])
def test_no_bit_is_lost_but_below_the_last(dtype: torch.dtype, scale: float, swap: bool):
    indices = torch.arange(6)[None] % 3
    exponents = torch.zeros(1, 3, dtype=torch.int32)
    small, large = torch.randn(2, 1, 6, 4, dtype=dtype)
    parts = [ops.code_statistics(tokens, indices, exponents) for tokens in (small, large * scale)]
    if swap:
        parts.reverse()
    counts, sums, merged = _ops.merge_statistics(*parts[0], *parts[1])
    assert counts.tolist() == [[4, 4, 4]]
    assert torch.equal(merged, parts[0][2].maximum(parts[1][2]))
    expected = [0] * 12
    for _, own, own_exponents in parts:
        shifts = (merged - own_exponents).flatten().repeat_interleave(4).tolist()
        numbers = [n >> shift for n, shift in zip(whole_numbers(own), shifts, strict=True)]
        expected = [a + b for a, b in zip(expected, numbers, strict=True)]
    assert whole_numbers(sums) == expected
