"""The leaf operators, one function each; they call ``torch.ops.torchvq``."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchvq import _library as _library


class NearestCodeOutput(NamedTuple):
    """What `nearest_code` returns."""

    indices: Tensor
    codes: Tensor
    distances: Tensor


def nearest_code(
    x: Tensor,
    codebook: Tensor,
    *,
    metric: str = "euclidean",
    bias: Tensor | None = None,
    topk: int | None = None,
    return_codes: bool = False,
    return_distances: bool = False,
) -> NearestCodeOutput:
    """Finds the nearest code of every vector, exactly, whatever the machine.

    The score that decides is ``sum_d (c_d**2 / 2 - x_d * c_d) + bias / 2`` (euclidean) or ``-sum_d x^_d * c^_d + bias``
    (cosine, unit vectors ``x^`` and ``c^``), summed in float64 over d in index order; the lowest index wins a tie.
    Every instruction set, thread count and device returns the same indices.

    Args:
        x: ``(H, N, D)`` or ``(N, D)``, floating point, any strides.
        codebook: ``(H, K, D)``, or ``(1, K, D)`` or ``(K, D)`` shared by all heads, floating point, any strides.
        metric: ``"euclidean"`` (squared distance) or ``"cosine"`` (1 - cosine similarity; 1 for zero vectors).
        bias: ``(H, K)``, ``(1, K)`` or ``(K,)``, added to the distance of each code before codes are compared; infinity or
            NaN rules a code out.
        topk: Return the k nearest codes on a trailing axis, best first; None returns one, without the axis.
        return_codes: Whether to return the chosen rows of the codebook; otherwise ``codes`` is empty.
        return_distances: Whether to return the distances; otherwise ``distances`` is empty.

    Returns:
        ``indices``, int64, of shape ``(H, N)`` (``(N,)`` for two-dimensional x), with topk ``(H, N, k)``; ``codes``, that
        shape and ``(D,)``; ``distances``, of the shape of indices, computed from x and the chosen code in float64. Codes
        and distances are float64 if x or codebook is, otherwise float32.

    Gradients flow from codes to codebook, and from distances to x, codebook and bias; indices have none. A row of x with
    a NaN or infinity gets index 0 (0 .. k-1), codes and distances of NaN. A code with one ranks behind all others.

    Raises:
        ValueError: for wrong shapes, an unknown metric, or topk outside [1, K].
        TypeError: for arguments that are not floating point.
    """
    return NearestCodeOutput(
        *torch.ops.torchvq.nearest_code(
            x,
            codebook,
            metric=metric,
            bias=bias,
            topk=topk,
            return_codes=return_codes,
            return_distances=return_distances,
        )
    )
