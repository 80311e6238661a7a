"""The leaf operators of torchvq as Python functions, one per operator of ``torch.ops.torchvq``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

import torchvq._library  # noqa: F401  (registers the operators)


def random_uniform(
    rng: Tensor,
    purpose: int,
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    stream: int = 0,
) -> Tensor:
    """Uniform numbers inside (0, 1) from the counter-based generator.

    ``rng`` is int64 of shape (2,), ``(seed, step)``; ``purpose`` and ``stream`` separate draws of one step.
    The same bits on every device; torch's generator is not used.
    """
    return torch.ops.torchvq.random_uniform(rng, purpose, size, dtype=dtype, stream=stream)


def random_normal(
    rng: Tensor,
    purpose: int,
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    stream: int = 0,
) -> Tensor:
    """Standard normal numbers from the counter-based generator (Box and Muller 1958).

    Arguments as for :func:`random_uniform`. The same bits on every device with IEEE float64 arithmetic.
    """
    return torch.ops.torchvq.random_normal(rng, purpose, size, dtype=dtype, stream=stream)


def code_exponents(codebook: Tensor) -> Tensor:
    """Fixed-point exponent of each code, int32 (H, K), for :func:`code_statistics`.

    The smallest e with ``max|code| <= 2**e``, but at least the mean of these over the codes of the head.
    """
    return torch.ops.torchvq.code_exponents(codebook)


def code_statistics(
    x: Tensor, indices: Tensor, exponents: Tensor, *, mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Counts and exact sums of the tokens of each code.

    ``x`` is (H, N, D), ``indices`` int64 (H, N) with -1 for tokens that are left out, ``mask`` bool (H, N) or (N,)
    with True for real tokens. Returns counts int64 (H, K), sums int64 (W, H, K, D) in fixed point (W = 2 for
    float64 tokens, else 1), and the exponents in use, int32 (H, K). The same bits for any order, split, thread
    count and device; :func:`decode_sums` turns sums into floating point. Rows that are not finite are left out.
    """
    return torch.ops.torchvq.code_statistics(x, indices, exponents, mask=mask)


def decode_sums(sums: Tensor, exponents: Tensor, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Fixed-point sums of :func:`code_statistics` as float32 or float64 (H, K, D), rounded once."""
    return torch.ops.torchvq.decode_sums(sums, exponents, dtype=dtype)


def ema_update_(
    cluster_size: Tensor,
    embed_avg: Tensor,
    embed: Tensor,
    counts: Tensor,
    sums: Tensor,
    exponents: Tensor,
    *,
    decay: float = 0.8,
    eps: float = 1e-5,
    metric: str = "euclidean",
    weight: Tensor | None = None,
    from_codebook: bool = False,
    finish: bool = True,
) -> None:
    """Moving averages of counts and sums, and the codes that follow from them, in place.

    State is float32 or float64: ``cluster_size`` (H, K), ``embed_avg`` and ``embed`` (H, K, D); statistics are those
    of :func:`code_statistics`. ``weight`` scales ``1 - decay`` and broadcasts to (H, K). ``from_codebook`` starts
    from ``embed`` instead of ``embed_avg`` (after an optimiser's step). ``finish=False`` leaves ``embed`` to
    :func:`ema_finish_`. Idle codes keep their row once their size is below 1e-2, and a head without tokens is
    left as it is.
    """
    torch.ops.torchvq.ema_update_(
        cluster_size,
        embed_avg,
        embed,
        counts,
        sums,
        exponents,
        decay=decay,
        eps=eps,
        metric=metric,
        weight=weight,
        from_codebook=from_codebook,
        finish=finish,
    )


def ema_finish_(
    embed: Tensor, cluster_size: Tensor, embed_avg: Tensor, *, eps: float = 1e-5, metric: str = "euclidean"
) -> None:
    """Recomputes ``embed`` from the averages, in place: Laplace smoothing, and unit norm for cosine."""
    torch.ops.torchvq.ema_finish_(embed, cluster_size, embed_avg, eps=eps, metric=metric)


def replace_dead_codes_(
    embed: Tensor,
    embed_avg: Tensor,
    cluster_size: Tensor,
    cooldown: Tensor,
    x: Tensor,
    counts: Tensor,
    rng: Tensor,
    *,
    mask: Tensor | None = None,
    threshold: float = 2.0,
    reset_cluster_size: float = 2.0,
    cooldown_steps: int = 0,
    metric: str = "euclidean",
) -> Tensor:
    """Replaces dead codes by distinct random tokens of ``x`` (H, N, D), in place; returns replaced codes per head.

    Dead: ``cluster_size`` below ``threshold``, no token in this step (``counts``) and ``cooldown`` 0. The choice
    depends on the set of tokens and ``rng``, not on their order.
    """
    return torch.ops.torchvq.replace_dead_codes_(
        embed,
        embed_avg,
        cluster_size,
        cooldown,
        x,
        counts,
        rng,
        mask=mask,
        threshold=threshold,
        reset_cluster_size=reset_cluster_size,
        cooldown_steps=cooldown_steps,
        metric=metric,
    )


def dead_code_candidates(
    x: Tensor, rng: Tensor, count: int, *, mask: Tensor | None = None, metric: str = "euclidean"
) -> tuple[Tensor, Tensor]:
    """Keys (H, count) and rows (H, count, D) of the tokens that may replace dead codes.

    Results of several ranks are concatenated on axis 1 for :func:`replace_with_candidates_`.
    """
    return torch.ops.torchvq.dead_code_candidates(x, rng, count, mask=mask, metric=metric)


def replace_with_candidates_(
    embed: Tensor,
    embed_avg: Tensor,
    cluster_size: Tensor,
    cooldown: Tensor,
    keys: Tensor,
    rows: Tensor,
    counts: Tensor,
    rng: Tensor,
    *,
    threshold: float = 2.0,
    reset_cluster_size: float = 2.0,
    cooldown_steps: int = 0,
) -> Tensor:
    """Second half of :func:`replace_dead_codes_`: replaces dead codes by given candidates, in place."""
    return torch.ops.torchvq.replace_with_candidates_(
        embed,
        embed_avg,
        cluster_size,
        cooldown,
        keys,
        rows,
        counts,
        rng,
        threshold=threshold,
        reset_cluster_size=reset_cluster_size,
        cooldown_steps=cooldown_steps,
    )


def kmeans(
    x: Tensor,
    codebook_size: int,
    rng: Tensor,
    *,
    iterations: int = 10,
    metric: str = "euclidean",
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Codebook (H, K, D) and counts (H, K) of the tokens ``x`` (H, N, D); see :func:`torchvq.kmeans`.

    A head without usable tokens gets zeros instead of an error.
    """
    return torch.ops.torchvq.kmeans(x, codebook_size, rng, iterations=iterations, metric=metric, mask=mask)
