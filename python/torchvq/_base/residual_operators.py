"""The operators of residual stacks as Python functions; users find them in ``torchvq.ops``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

import torchvq._library  # noqa: F401  (registers the operators)

_ops = torch.ops.torchvq


def residual_beam_search(
    x: Tensor,
    codebooks: Sequence[Tensor],
    beam: int,
    *,
    mask: Tensor | None = None,
    depth: Tensor | None = None,
    weights: Sequence[float] = (),
) -> Tensor:
    """Indices (H, N, Q), int64, of the levels whose codes leave least of ``x`` (H, N, D), among ``beam`` paths.

    A path is one code for each level so far. From the best ``beam`` paths of a level all extensions by a code of the
    next are scored by the squared residual, and the best ``beam`` are kept. A beam of 1 is greedy search.

    Args:
        x: Floating point, any strides. The search is in float32, or float64 if ``x`` or a codebook is.
        codebooks: Q >= 1 of (H, K_q, D), or (1, K_q, D) or (K_q, D) shared by all heads.
        beam: At least 1. More than there are paths costs nothing.
        mask: bool (H, N), True for real tokens; the others get -1. Default: all are real.
        depth: One int64, in [1, Q]: levels from there on get -1. Default: Q.
        weights: None, or one for each level, finite and at least 0: the score is then the sum, over the levels of a
            path, of weight times squared residual. Default: the last squared residual.

    Returns:
        The same indices on every machine; the path with the lower code at the first difference wins a tie. A row with a
        NaN or infinity gets 0 at every level. No tokens: an empty result.

    No gradient. Babenko and Lempitsky 2014, Additive quantization; Liu et al. 2015, arXiv:1509.05195.

    Raises:
        ValueError: for bad shapes, ``beam``, ``depth`` or ``weights``.
        TypeError: for bad dtypes.
    """
    return _ops.residual_beam_search(x, codebooks, beam, mask=mask, depth=depth, weights=weights)


def residual_encode(
    x: Tensor,
    codebooks: Sequence[Tensor],
    *,
    metric: str = "euclidean",
    depth: Tensor | None = None,
    mask: Tensor | None = None,
    prepared: Sequence[Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """The nearest code of each level, of what the levels before have left of ``x`` (H, N, D).

    ``codebooks`` are Q of (H, K_q, D), or (1, K_q, D) or (K_q, D) shared by all heads. Returns the sum of the codes
    (H, N, D), float32 or float64, and indices (H, N, Q), int64. Exact like :func:`torchvq.ops.nearest_code`. Indices
    are -1 and codes 0 where ``mask`` (H, N) is False and at levels from ``depth`` (1,) on. A row with a NaN or infinity
    gets index 0 and NaN; no tokens give empty results. No gradient. ``prepared``, what :func:`prepare_codes` has made
    of each codebook as it is now, makes the search of up to 191 rows a head faster on the CPU, in float32, by
    ``"euclidean"``; the results are the same. ValueError for bad shapes, ``metric`` or ``depth``, TypeError for bad
    dtypes.
    """
    return _ops.residual_encode(
        x, codebooks, metric=metric, depth=depth, mask=mask, prepared=prepared
    )


def prepare_codes(codebook: Tensor) -> Tensor:
    """A copy of a codebook (K, D) or (H, K, D) in 8 bits, for :func:`residual_encode` of a few rows.

    Returns uint8 (bytes,) or (H, bytes), on the same device: a quarter of the memory in float32, and 16 bytes a code;
    none below 16 features or above 16384. A copy is of the codes as they are now: prepare them again when they change.
    Half precision as float32; a copy of float64 codes serves nothing. No gradient. The same bytes on every device.
    """
    return _ops.prepare_codes(codebook)


def projected_residual_encode(
    x: Tensor,
    codebooks: Sequence[Tensor],
    in_weights: Sequence[Tensor],
    in_biases: Sequence[Tensor],
    out_weights: Sequence[Tensor],
    out_biases: Sequence[Tensor],
    *,
    metric: str = "euclidean",
    zero_code: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The nearest code of each level between two projections, of what the levels before have left of ``x`` (B, T, C).

    A level multiplies what is left by a matrix, takes the code nearest to that latent, multiplies
    ``latent + (code - latent)`` by another matrix, and takes the product away, as DAC does.

    Args:
        x: Floating point, any strides. Half precision is computed in float32.
        codebooks: Q >= 1 of (K_q, D).
        in_weights: Q of (D, C), or (D, C, 1) as a convolution has it.
        in_biases: Q of (D,).
        out_weights: Q of (C, D), or (C, D, 1).
        out_biases: Q of (C,).
        metric: ``"euclidean"``, or ``"cosine"``: squared distances between unit vectors, ``v / max(|v|, 1e-12)``.
        zero_code: Added to the squared distance of codes of zeros, with ``"cosine"``.

    Returns:
        The sum of what the levels have taken (B, T, C); indices (B, T, Q), int64; latents of all levels (B, T, Q D);
        squared distances between latents and codes (B, T, Q). They lie in memory as ``x`` does: features first where
        it is the transposed of a contiguous (B, C, T).

    Indices are exact for the latents as they are returned; the lowest of equal ones. On CPU results have the same bits
    on every instruction set, for any number of threads, and frame by frame; other devices agree to rounding. A vector
    with a NaN or infinity gets index 0 and NaN. Empty: empty results. No gradient.

    Raises:
        ValueError: for bad shapes, numbers of levels, ``metric`` or ``zero_code``.
        TypeError: for bad dtypes.
    """
    maps = in_weights, in_biases, out_weights, out_biases
    return _ops.projected_residual_encode(x, codebooks, *maps, metric=metric, zero_code=zero_code)


def residual_decode(indices: Tensor, codebooks: Sequence[Tensor]) -> Tensor:
    """The sum (H, N, D) of the codes of all levels, from the first to the last, each addition rounded once.

    ``indices`` is int64 (H, N, Q), -1 where a level adds nothing; ``codebooks`` are Q >= 1 of (H, K_q, D), or
    (1, K_q, D) or (K_q, D) shared by all heads. The dtype is their promoted one; half precision is added up in float32
    and rounded once. The same bits on every device. Gradient to each codebook, added up in the order of the tokens. No
    tokens: an empty result. IndexError on the CPU for an index outside [-1, K_q), ValueError for bad shapes, TypeError
    for bad dtypes.
    """
    return _ops.residual_decode(indices, codebooks)
