"""k-means for users: a codebook from vectors."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchvq import ops
from torchvq._base.arguments import expect_kind, expect_tensor, integer
from torchvq._base.layout import check_mask
from torchvq._base.readable import is_readable_after_wait
from torchvq.outputs import exportable


class KmeansOutput(NamedTuple):
    """``codebook`` (K, D) or (H, K, D); ``counts`` int64 (K,) or (H, K), the vectors nearest to each code."""

    codebook: Tensor
    counts: Tensor


exportable(KmeansOutput)


def kmeans(
    x: Tensor,
    codebook_size: int,
    iterations: int = 10,
    metric: str = "euclidean",
    mask: Tensor | None = None,
    seed: int = 0,
) -> KmeansOutput:
    """Clusters the vectors ``x``, (N, D) or (H, N, D), into ``codebook_size`` codes.

    Starts from k-means++ seeding, then takes ``iterations`` Lloyd steps with exact means. All steps but the last
    overshoot: they move a code 1.7 times as far as the mean of its vectors, which lowers the error after a given number
    of steps. ``metric`` is "euclidean" or "cosine" (spherical k-means). ``mask``, (N,) or (H, N), is True for real
    vectors; vectors that are not finite are left out, as are zero vectors with "cosine". The result depends on the
    vectors and ``seed`` alone, not on their order. With at most ``codebook_size`` distinct vectors each becomes a code,
    and further codes repeat them with count 0.

    Raises:
        ValueError: where a head has no usable vector, and for bad shapes and options. TypeError: for bad dtypes, and
            for options of other types.
    """
    expect_tensor("kmeans", "x", x)
    if x.dim() not in (2, 3):
        raise ValueError(
            f"kmeans: expected x to have shape (N, D) or (H, N, D), but got shape {list(x.shape)}"
        )
    single = x.dim() == 2
    if mask is not None:
        check_mask("kmeans", mask)
    expect_kind("kmeans", "metric", metric, str, "a string")
    rng = torch.tensor([integer("kmeans", "seed", seed), 0], device=x.device)
    codebook, counts = ops.kmeans(
        x[None] if single else x,
        integer("kmeans", "codebook_size", codebook_size),
        rng,
        iterations=integer("kmeans", "iterations", iterations),
        metric=metric,
        mask=mask,
    )
    if is_readable_after_wait(counts) and not bool(counts.sum(-1).ne(0).all()):
        unusable = "masked or zero" if metric == "cosine" else "masked"
        raise ValueError(
            f"kmeans: expected x to hold at least 1 finite vector that is not {unusable}, "
            f"but got none of {x.shape[-2]}"
        )
    return KmeansOutput(codebook[0], counts[0]) if single else KmeansOutput(codebook, counts)
