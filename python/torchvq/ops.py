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
