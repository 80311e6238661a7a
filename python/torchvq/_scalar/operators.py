"""The operators of quantizers without a codebook as Python functions; users find them in ``torchvq.ops``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

import torchvq._library  # noqa: F401  (registers the operators)
from torchvq.outputs import exportable

_ops = torch.ops.torchvq


class ScalarCodes(NamedTuple):
    """What the quantizing functions here return."""

    codes: Tensor
    indices: Tensor


class SignEntropy(NamedTuple):
    """What `sign_entropy` returns."""

    per_sample: Tensor
    batch: Tensor


exportable(ScalarCodes)
exportable(SignEntropy)


def scalar_quantize(x: Tensor, levels: Sequence[int], *, bound: str = "tanh") -> ScalarCodes:
    """The nearest of ``levels[d]`` evenly spaced numbers for each feature d (FSQ, arXiv:2309.15505).

    Args:
        x: (*, D), floating.
        levels: D numbers in [2, 65536] (for "tanh" and "clamp" from 3), their product at most 2^62.
        bound: "tanh", "clamp", "symmetric_tanh" or "symmetric_clamp": how features are kept in [-1, 1].

    Returns:
        codes (*, D), float32 (float64 for float64); indices (*), int64, the first feature counting fastest. The same
        for every dtype, device and thread count. A row with NaN or infinity has codes NaN and index 0.

    Gradient: of the codes to x, that of the bound. Errors: ValueError, TypeError.
    """
    return ScalarCodes(*_ops.scalar_quantize(x, levels, bound=bound))


def scalar_decode(
    indices: Tensor,
    levels: Sequence[int],
    *,
    symmetric: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The codes (*, D) of indices (*), int64, equal to the bit to those of :func:`scalar_quantize`.

    ``symmetric`` for the bounds of that name; ``dtype`` is float32 by default. -1 gives zeros. IndexError for an index
    out of range on CPU.
    """
    return _ops.scalar_decode(indices, levels, symmetric=symmetric, dtype=dtype)


def residual_scalar_quantize(
    x: Tensor, levels: Sequence[int], scales: Tensor, *, bound: str = "symmetric_clamp"
) -> ScalarCodes:
    """All levels of a residual stack of :func:`scalar_quantize` in one pass.

    Args:
        x: (*, D), floating.
        levels: as for :func:`scalar_quantize`.
        scales: (Q, D): level q quantizes what is left over ``scales[q]``, and its codes are as many times that.
        bound: "symmetric_clamp" or "symmetric_tanh".

    Returns:
        The sum of the codes (*, D) and indices (*, Q). Gradient to x: that of the levels as a function.
    """
    return ScalarCodes(*_ops.residual_scalar_quantize(x, levels, scales, bound=bound))


def sign_quantize(x: Tensor, *, scale: float = 1.0) -> ScalarCodes:
    """The nearest code of {-scale, scale}^D (LFQ, arXiv:2310.05737).

    ``x`` is (*, D), D in [1, 62]. Returns codes (*, D) and indices (*), int64: the first feature is the most
    significant bit, and zero is a bit that is not set. No gradient; :func:`straight_through` gives one. A row with NaN
    or infinity has codes NaN and index 0.
    """
    return ScalarCodes(*_ops.sign_quantize(x, scale=scale))


def sign_decode(
    indices: Tensor, bits: int, *, scale: float = 1.0, dtype: torch.dtype | None = None
) -> Tensor:
    """The codes (*, bits) of indices (*), int64; -1 gives zeros. float32 by default. IndexError out of range on CPU."""
    return _ops.sign_decode(indices, bits, scale=scale, dtype=dtype)


def sign_entropy(
    x: Tensor, *, sharpness: float, mask: Tensor | None = None, totals: Tensor | None = None
) -> SignEntropy:
    """The two entropies of LFQ's loss in nats, exact, with gradient to x.

    Args:
        x: (C, N, D) latents of C codebooks.
        sharpness: the probability that bit d is set is sigmoid(sharpness * x[d]).
        mask: bool (C, N), True for real tokens.
        totals: :func:`sign_entropy_totals` of the tokens of all ranks, added up. Default: these tokens alone.

    Returns:
        The mean entropy of a token, and the entropy of the mean distribution over codes; that of more than 24 bits is
        the sum over groups of bits (arXiv:2406.07548). No tokens: 0.
    """
    found = _ops.sign_entropy(x, sharpness=sharpness, mask=mask, totals=totals)
    return SignEntropy(*found)


def sign_entropy_totals(x: Tensor, *, sharpness: float, mask: Tensor | None = None) -> Tensor:
    """What ranks add up for :func:`sign_entropy`: sums of probabilities and entropies, and the number of tokens."""
    return _ops.sign_entropy_totals(x, sharpness=sharpness, mask=mask)
