"""Operators of ``torch.ops.torchvq`` that are useful on their own, as Python functions.

What holds for all of them unless a docstring says otherwise: tensors of floating point are float16, bfloat16, float32
or float64, with any strides; ``mask`` is bool, True for real tokens, and by default all tokens are real; no tokens give
an empty result; results are the same for any number of threads. A wrong shape or option is a ValueError, a wrong
dtype a TypeError, and an index out of range on the CPU an IndexError; nothing has changed then. The headers
``include/torchvq/ops/<name>.h`` have the formulas and the papers.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

import torchvq._library  # noqa: F401  (registers the operators)
from torchvq._base.operators import (  # noqa: F401  (random numbers, estimators)
    directional_reparam,
    random_numbers,
    rotation_trick,
    straight_through,
    sync_update_v,
)
from torchvq._base.residual_operators import (  # noqa: F401  (stacks of codebooks)
    prepare_codes,
    projected_residual_encode,
    residual_beam_search,
    residual_decode,
    residual_encode,
)
from torchvq._scalar.operators import (  # noqa: F401  (the operators without a codebook)
    ScalarCodes,
    SignEntropy,
    residual_scalar_quantize,
    scalar_decode,
    scalar_quantize,
    sign_decode,
    sign_entropy,
    sign_entropy_totals,
    sign_quantize,
)
from torchvq.outputs import exportable

_ops = torch.ops.torchvq


class NearestCodeOutput(NamedTuple):
    """The result of `nearest_code`."""

    indices: Tensor
    codes: Tensor
    distances: Tensor


exportable(NearestCodeOutput)


def lookup_codes(codebook: Tensor, indices: Tensor) -> Tensor:
    """Codes (H, N, D) of indices (H, N), int64, from a codebook (H, K, D), in its dtype. -1 gives zeros.

    Gradient to the codebook, added up in the order of the tokens. IndexError for an index outside [-1, K).
    """
    return _ops.lookup_codes(codebook, indices)


def unit_vectors(x: Tensor) -> Tensor:
    """The rows of x, (..., D), divided by their Euclidean lengths: float32, or float64 for float64.

    Squares are added up in float64, so the bits are the same on every device. A zero row stays zero; one with NaN is
    NaN; one with an infinity is NaN there and zero elsewhere. Gradient to x: ``(g - u (u . g)) / |x|``, 0 for a zero
    row. ValueError for a scalar, TypeError for integers.
    """
    return _ops.unit_vectors(x)


def code_exponents(codebook: Tensor) -> Tensor:
    """Fixed-point exponent of each code of a codebook (H, K, D): int32 (H, K), for :func:`code_statistics`.

    The smallest e with ``max|code| <= 2**e``, but at least the mean of these over the codes of the head, rounded down.
    Zero codes, and codes that are not finite, have that mean. K and D are at least 1. No gradient.
    """
    return _ops.code_exponents(codebook)


def code_statistics(
    x: Tensor, indices: Tensor, exponents: Tensor, *, mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Counts and exact sums of the tokens of each code.

    ``x`` is (H, N, D), ``indices`` int64 (H, N) with -1 for tokens that are left out, ``mask`` bool (H, N) or (N,)
    with True for real tokens. Returns counts int64 (H, K), sums int64 (W, H, K, D) in fixed point (W = 2 for
    float64 tokens, else 1), and the exponents of the sums, int32 (H, K). The bits are the same for any order, split,
    thread count and device; :func:`decode_sums` converts sums to floating point. Rows that are not finite, or beyond
    2^998, are left out. No tokens: zeros. No gradient. Demmel and Nguyen 2015, Parallel reproducible summation.
    """
    return _ops.code_statistics(x, indices, exponents, mask=mask)


def decode_sums(sums: Tensor, exponents: Tensor, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Fixed-point sums of :func:`code_statistics` as float32 or float64 (H, K, D), rounded once. No gradient."""
    return _ops.decode_sums(sums, exponents, dtype=dtype)


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
    """Updates the moving averages of counts and sums, and the codes from them, in place.

    State is float32 or float64: ``cluster_size`` (H, K), ``embed_avg`` and ``embed`` (H, K, D); statistics are those
    of :func:`code_statistics`. ``weight`` scales ``1 - decay`` and broadcasts to (H, K). ``from_codebook`` starts from
    ``embed`` instead of ``embed_avg`` (after a step of an optimizer). ``finish=False`` leaves ``embed`` to
    :func:`ema_finish_`. A faint code, without tokens here and with a size below ``min(0.03, (1 - decay) / 2)``, keeps
    its place. An unused one, of a size below 1e-5 and without a token for ``8 K / sum(cluster_size)`` steps, moves
    towards one of the codes with the most tokens by ``0.8 * weight`` of the distance, one unused code to each. A head
    without tokens does not change. No gradient; van den Oord et al. 2017, arXiv:1711.00937, appendix A.1.
    """
    _ops.ema_update_(
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
    embed: Tensor,
    cluster_size: Tensor,
    embed_avg: Tensor,
    *,
    decay: float = 0.8,
    eps: float = 1e-5,
    metric: str = "euclidean",
) -> None:
    """Recomputes ``embed`` from the averages, in place: Laplace smoothing, and unit norm for cosine.

    Shapes and dtypes of the state are those of :func:`ema_update_`. Faint codes keep their place, and unused ones move
    to codes with many tokens as there; ``decay`` says which codes these are, and 1 recomputes all. No gradient.
    """
    _ops.ema_finish_(embed, cluster_size, embed_avg, decay=decay, eps=eps, metric=metric)


def snapshot(codebook: Tensor) -> Tensor:
    """A contiguous copy with identity gradient that compilers save instead of recomputing.

    Use it for a codebook that backward needs and that the same forward overwrites.
    """
    return _ops.snapshot(codebook)


def commitment_loss(x: Tensor, codes: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Mean of ``(x - codes) ** 2`` over unmasked tokens, heads and features (arXiv:1711.00937).

    ``x`` and ``codes`` are (H, N, D), ``mask`` is (H, N) bool with True for real tokens. Detach ``codes`` for the
    commitment of the encoder, ``x`` for the codebook loss, neither for both. No unmasked token: 0 with zero
    gradient. The result is float64 if an argument is, else float32.
    """
    return _ops.commitment_loss(x, codes, mask=mask)


def commitment_cross_entropy(
    x: Tensor, codebook: Tensor, targets: Tensor, *, metric: str, mask: Tensor | None = None
) -> Tensor:
    """Mean cross-entropy between the scores of tokens against all codes and their target codes.

    Scores are ``-|x - c|`` for ``metric="euclidean"`` and the cosine for ``"cosine"``. ``x`` is (H, N, D),
    ``codebook`` (H, K, D), ``targets`` (H, N) int64 in [-1, K) with -1 ignored, ``mask`` (H, N) bool with True for
    real tokens. Gradients to ``x`` and ``codebook`` are computed by the forward, so that the codebook may be
    overwritten before backward; once differentiable. Memory O(N D + K D).
    """
    return _ops.commitment_cross_entropy(x, codebook, targets, metric=metric, mask=mask)


def codebook_diversity_loss(
    x: Tensor,
    codebook: Tensor,
    *,
    temperature: float,
    metric: str,
    mask: Tensor | None = None,
    totals: Tensor | None = None,
) -> Tensor:
    """Minus the entropy of the codes' average probability over all unmasked tokens, mean over heads.

    Probabilities are the softmax of ``temperature * scores``; scores and shapes are those of
    :func:`commitment_cross_entropy`. The minimum, ``-log(K)``, is at equal use of all codes. The average is over batch
    and positions. Gradients as in :func:`commitment_cross_entropy`. ``totals``, the sum over W ranks of
    :func:`codebook_diversity_totals`, gives the loss of the tokens of all ranks, with W times the gradient.
    """
    return _ops.codebook_diversity_loss(
        x, codebook, temperature=temperature, metric=metric, mask=mask, totals=totals
    )


def codebook_diversity_totals(
    x: Tensor, codebook: Tensor, *, temperature: float, metric: str, mask: Tensor | None = None
) -> Tensor:
    """Sums of the probabilities of :func:`codebook_diversity_loss`, number of tokens, and 1: (H, K + 2)."""
    return _ops.codebook_diversity_totals(
        x, codebook, temperature=temperature, metric=metric, mask=mask
    )


def orthogonal_loss(
    codebook: Tensor,
    *,
    indices: Tensor | None = None,
    max_codes: int | None = None,
    rng: Tensor | None = None,
) -> Tensor:
    """Mean squared cosine between the codes of a head, minus that of an orthonormal set (arXiv:2112.00384).

    ``codebook`` is (H, K, D). ``indices`` (H, N) int64, -1 ignored, restricts it to codes that occur; ``max_codes``
    to a random subset drawn by ``rng``, int64 of shape (2,). The gradient to ``codebook`` is computed by the
    forward; once differentiable. Memory O(K D).
    """
    return _ops.orthogonal_loss(codebook, indices=indices, max_codes=max_codes, rng=rng)


def replace_dead_codes_(
    embed: Tensor,
    embed_avg: Tensor,
    cluster_size: Tensor,
    x: Tensor,
    counts: Tensor,
    rng: Tensor,
    *,
    mask: Tensor | None = None,
    threshold: float = 2.0,
    threshold_fraction: float = 0.0,
    reset_cluster_size: float = 2.0,
    metric: str = "euclidean",
    replace_used: bool = False,
    most_per_token: float | None = None,
) -> Tensor:
    """Replaces dead codes by distinct random tokens of ``x`` (H, N, D), in place; returns replaced codes per head.

    A code is dead if ``cluster_size`` is below ``threshold`` (or ``threshold_fraction`` of the mean, if that is more)
    and it has no token in this step (``counts``) unless ``replace_used``. The choice depends on the set of tokens and
    ``rng``, not on their order. With ``most_per_token`` at most that many codes are replaced for each token in
    ``counts``, rounded up.

    Args:
        embed: (H, K, D), float32 or float64; changed in place, as are ``embed_avg`` of its shape and ``cluster_size``
            (H, K), both of its dtype. A replaced code is the token, with ``reset_cluster_size`` as its size.
        x: (H, N, D). Tokens with NaN or infinity, and those that equal a live code, replace nothing.
        counts: (H, K), int64: the tokens of each code in this step, on all ranks.
        rng: int64 of shape (2,), ``(seed, step)``.
        mask: (H, N) or (N,).
        threshold, threshold_fraction, reset_cluster_size, most_per_token: each in [0, 2^63]; a threshold of 0 replaces
            none, and ``reset_cluster_size`` counts as the threshold if that is more. None is no limit.
        metric: ``"euclidean"``, or ``"cosine"``: tokens become unit vectors, and zero tokens replace nothing.

    Returns:
        The number of codes replaced in each head, int64 (H,); 0 if there are no tokens. Dead codes take tokens in the
        order of their index; of more dead codes than tokens a random part.

    No gradient. Zeghidour et al. 2021, SoundStream, arXiv:2107.03312, section III-C.
    ``torch.ops.torchvq.replace_dead_codes_`` takes lists, an entry for each of several codebooks.
    """
    return _ops.replace_dead_codes_(
        [embed],
        [embed_avg],
        [cluster_size],
        [x],
        [counts],
        [rng],
        mask=[] if mask is None else [mask],
        threshold=threshold,
        threshold_fraction=threshold_fraction,
        reset_cluster_size=reset_cluster_size,
        metric=metric,
        replace_used=replace_used,
        most_per_token=most_per_token,
    )


def dead_code_candidates(
    x: Tensor, rng: Tensor, count: int, *, mask: Tensor | None = None, metric: str = "euclidean"
) -> tuple[Tensor, Tensor]:
    """Keys (H, count) and rows (H, count, D) of the tokens of ``x`` (H, N, D) that may replace dead codes.

    Results of several ranks are concatenated on axis 1 for :func:`replace_with_candidates_`. With ``count``, at least
    1, equal to the codebook size the outcome is that of one process with all tokens. ``rng``, ``mask`` and ``metric``
    are those of :func:`replace_dead_codes_`, and ``rng`` must be the same on all ranks.

    Keys are int64 in rising order; rows are float32, or float64 for float64. Where there are fewer distinct usable
    tokens than ``count``, keys are the largest int64 and rows are zero. No gradient.
    """
    return _ops.dead_code_candidates(x, rng, count, mask=mask, metric=metric)


def replace_with_candidates_(
    embed: Tensor,
    embed_avg: Tensor,
    cluster_size: Tensor,
    keys: Tensor,
    rows: Tensor,
    counts: Tensor,
    rng: Tensor,
    *,
    threshold: float = 2.0,
    threshold_fraction: float = 0.0,
    reset_cluster_size: float = 2.0,
    replace_used: bool = False,
    most_per_token: float | None = None,
) -> Tensor:
    """Second half of :func:`replace_dead_codes_`: replaces dead codes by given candidates, in place.

    ``keys`` (H, C), int64, and ``rows`` (H, C, D), float32 or float64, C >= 1, are results of
    :func:`dead_code_candidates`. Everything else, the result too, is as for :func:`replace_dead_codes_`.
    """
    return _ops.replace_with_candidates_(
        [embed],
        [embed_avg],
        [cluster_size],
        [keys],
        [rows],
        [counts],
        [rng],
        threshold=threshold,
        threshold_fraction=threshold_fraction,
        reset_cluster_size=reset_cluster_size,
        replace_used=replace_used,
        most_per_token=most_per_token,
    )


def gumbel_straight_through(
    x: Tensor, codebook: Tensor, indices: Tensor, *, temperature: float, metric: str
) -> Tensor:
    """The codes at ``indices``, bit for bit, with the gradient of a softmax over all codes.

    The gradient is that of ``(onehot + p - sg(p)) @ codebook`` with ``p = softmax(scores / temperature)``; scores
    and shapes are those of :func:`commitment_cross_entropy`. Index -1 gives zeros and no gradient, temperature 0
    no gradient to ``x``. Backward uses a copy of the codebook made by the forward; once differentiable.
    """
    return _ops.gumbel_straight_through(
        x, codebook, indices, temperature=temperature, metric=metric
    )


def sample_codes(
    x: Tensor,
    codebook: Tensor,
    rng: Tensor,
    *,
    temperature: float,
    metric: str,
    stream: int = 0,
    topk: int | None = None,
) -> Tensor:
    """A code for every token, drawn with probability ``softmax(scores / temperature)``: (H, N), int64.

    With ``topk``, in [1, K], that many different codes, drawn one after the other without replacement: (H, N, topk).

    Scores and shapes are those of :func:`commitment_cross_entropy`; ``rng`` is int64 of shape (2,), ``(seed, step)``,
    and ``stream`` separates draws of one step. Temperature 0 takes the best score. The draws are the same on
    every device; torch's generator is not used. A token with NaN or infinity gets index 0, and a code with one is drawn
    last. No gradient; see :func:`gumbel_straight_through`. Jang et al. 2017, arXiv:1611.01144.
    """
    return _ops.sample_codes(
        x, codebook, rng, temperature=temperature, metric=metric, stream=stream, topk=topk
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
    """Codebook (H, K, D) and counts int64 (H, K) of the tokens ``x`` (H, N, D); see :func:`torchvq.kmeans`.

    ``rng`` is int64 of shape (2,), ``(seed, step)``; ``mask`` is (H, N) or (N,). The codebook is float32, or float64
    for float64 tokens. A head without usable tokens gets zeros instead of an error. No gradient.
    """
    return _ops.kmeans(x, codebook_size, rng, iterations=iterations, metric=metric, mask=mask)


def nearest_code(
    x: Tensor,
    codebook: Tensor,
    *,
    metric: str = "euclidean",
    bias: Tensor | None = None,
    topk: int | None = None,
    return_codes: bool = False,
    return_distances: bool = False,
    mask: Tensor | None = None,
) -> NearestCodeOutput:
    """Finds the nearest code of every vector, exactly, with the same result on every machine.

    The score is ``sum_d (c_d**2 / 2 - x_d * c_d) + bias / 2`` (euclidean) or ``-sum_d x^_d * c^_d + bias``
    (cosine, unit vectors ``x^`` and ``c^``), summed in float64 over d in index order; the lowest index wins a tie.
    Every instruction set, thread count and device returns the same indices.

    Args:
        x: ``(H, N, D)`` or ``(N, D)``, floating point, any strides.
        codebook: ``(H, K, D)``, or ``(1, K, D)`` or ``(K, D)`` shared by all heads, floating point, any strides.
        metric: ``"euclidean"`` (squared distance) or ``"cosine"`` (1 - cosine similarity; 1 for zero vectors).
        bias: ``(H, K)``, ``(1, K)`` or ``(K,)``, added to the distance of each code before codes are compared; a code
            with infinity or NaN is never chosen.
        topk: Return the k nearest codes on a trailing axis, best first; None returns one, without the axis.
        return_codes: Whether to return the chosen rows of the codebook; otherwise ``codes`` is empty.
        return_distances: Whether to return the distances; otherwise ``distances`` is empty.
        mask: bool, ``(H, N)``, or ``(N,)`` for two-dimensional x; True for real tokens. Padding may hold anything, gets
            index -1, codes and distances of 0 and no gradient, and is not searched on the CPU.

    Returns:
        ``indices``, int64, of shape ``(H, N)`` (``(N,)`` for two-dimensional x), with topk ``(H, N,
        k)``; ``codes``, that shape and ``(D,)``; ``distances``, of the shape of indices, computed
        from x and the chosen code in float64. Codes and distances are float64 if x or codebook is,
        otherwise float32.

    Gradients flow from codes to codebook, and from distances to x, codebook and bias; indices have
    none. A row of x with a NaN or infinity gets index 0 (0 .. k-1), codes and distances of NaN. A code with a NaN or
    infinity ranks behind all others.

    Raises:
        ValueError: for wrong shapes, an unknown metric, or topk outside [1, K].
        TypeError: for arguments that are not floating point.
    """
    return NearestCodeOutput(
        *_ops.nearest_code(
            x,
            codebook,
            metric=metric,
            bias=bias,
            topk=topk,
            return_codes=return_codes,
            return_distances=return_distances,
            mask=mask,
        )
    )
