"""Brute force over all codes in float64: the entropies of lookup-free quantization by definition."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def all_bits(bits: int) -> Tensor:
    """(2^bits, bits) of 0 and 1, the first column being the most significant bit."""
    return torch.tensor(
        [[(k >> (bits - 1 - d)) & 1 for d in range(bits)] for k in range(2**bits)],
        dtype=torch.float64,
    )


def entropies(x: Tensor, sharpness: float, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Per-sample and batch entropy of tokens (H, N, D) by softmax over every code, differentiable."""
    heads, _, dim = x.shape
    codes = all_bits(dim) * 2 - 1
    per_sample, batch = [], []
    for h in range(heads):
        tokens = x[h].double() if mask is None else x[h].double()[mask[h]]
        log_p = (tokens @ codes.mT * (sharpness / 2)).log_softmax(-1)
        per_sample.append(-(log_p.exp() * log_p).sum(-1).mean())
        log_mean = log_p.logsumexp(0) - math.log(len(tokens))
        batch.append(-(log_mean.exp() * log_mean).sum())
    return torch.stack(per_sample).mean(), torch.stack(batch).mean()


def with_gradients(x: Tensor, sharpness: float, mask: Tensor | None = None) -> list[Tensor]:
    """Both entropies and their gradients to x."""
    x = x.double().detach().requires_grad_()
    values = entropies(x, sharpness, mask)
    grads = [torch.autograd.grad(value, x, retain_graph=True)[0] for value in values]
    return [*(value.detach() for value in values), *grads]


def assert_near(found: Tensor, right: Tensor, relative: float) -> None:
    """Within a fraction of the largest magnitude."""
    error = (found.double() - right.double()).abs().max()
    assert error <= relative * right.abs().max().clamp_min(1e-30), f"{error} of {right.abs().max()}"
