"""Random numbers and gradient estimators: their operators as Python functions, which users find in ``torchvq.ops``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

import torchvq._library  # noqa: F401  (registers the operators)

_ops = torch.ops.torchvq


def random_numbers(
    rng: Tensor,
    purpose: int,
    size: Sequence[int],
    *,
    normal: bool = False,
    dtype: torch.dtype | None = None,
    stream: int = 0,
) -> Tensor:
    """Random numbers from the counter-based generator: uniform inside (0, 1), or standard normal (Box and Muller 1958).

    ``rng`` is int64 of shape (2,), ``(seed, step)``, on the device of the result; ``purpose``, a number of
    ``include/torchvq/random_purpose.h``, and ``stream`` separate draws of one step. The result has the shape ``size``
    and is float16, bfloat16, float32 (the default) or float64; an axis of 0 gives an empty one. The bits are the same
    on every device (normal numbers: with IEEE float64 arithmetic), and torch's generator is not used. No gradient.
    ValueError for a wrong shape of ``rng``, TypeError for wrong dtypes. The generator is that of Steele, Lea and Flood
    2014, Fast splittable pseudorandom number generators.
    """
    return _ops.random_numbers(rng, purpose, size, normal=normal, dtype=dtype, stream=stream)


def straight_through(x: Tensor, codes: Tensor) -> Tensor:
    """The codes, bit for bit, with the gradient handed to ``x`` unchanged (arXiv:1711.00937).

    ``x`` and ``codes`` are (H, N, D); the result has the dtype of ``codes``, the gradient that of ``x``.
    No gradient reaches ``codes``. ValueError for unequal shapes.
    """
    return _ops.straight_through(x, codes)


def rotation_trick(x: Tensor, codes: Tensor) -> Tensor:
    """The codes, bit for bit, with the gradient rotated from the code back to the token (arXiv:2410.06424).

    With ``e = x / |x|``, ``q = c / |c|``, ``r = (e + q) / |e + q|`` and ``gain = min(|c| / |x|, 100)``, all
    constant: ``dx = gain * (dy - 2 (dy.r) r + 2 (dy.q) e)``, without the term of ``r`` where ``|e + q| < 1e-3``, and
    ``dx = dy`` where a norm is below 1e-12 or not finite. No gradient reaches ``codes``. ``x`` and ``codes`` are
    (H, N, D), and the result has the dtype of ``codes``. Once differentiable: a second derivative is a
    NotImplementedError.
    """
    return _ops.rotation_trick(x, codes)


def directional_reparam(x: Tensor, codes: Tensor, noise: Tensor, *, variance: float) -> Tensor:
    """Directional reparametrisation (DiVeQ, https://openreview.net/forum?id=KRVnpTbx7R).

    ``y = x + |codes - x| * u`` with ``u`` the constant unit vector along ``codes - x + sqrt(variance) * noise``.
    All tensors are (H, N, D); the result has the dtype of ``x``. With ``t = dy.u`` and
    ``n = (x - codes) / |x - codes|`` (0 where they are equal): ``dx = dy + t n``, ``dcodes = -t n``, once
    differentiable. ``noise`` is standard normal, as from :func:`random_numbers`; ``variance`` is finite and at least 0,
    or a ValueError.
    """
    return _ops.directional_reparam(x, codes, noise, variance=variance)


def sync_update_v(quantized: Tensor, *, v: float) -> Tensor:
    """``quantized``, of any shape, bit for bit, with its gradient multiplied by ``1 + v`` (arXiv:2305.08842).

    ``v`` is finite and at least 0, or a ValueError.
    """
    return _ops.sync_update_v(quantized, v=v)
