"""Measures of a quantizer that learns: error, use of the codebook, and replaced codes."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

import torchvq.ops as ops


def psnr(error: float) -> float:
    """PSNR in decibels of a mean squared error, for values in [0, 1]."""
    return -10 * math.log10(error)


def usage(indices: Tensor, codebook_size: int) -> dict[str, float]:
    """Share of the codes in use, and the perplexity: the exponential of the entropy of the codes."""
    counts = torch.bincount(indices.flatten(), minlength=codebook_size).double()
    share = counts / counts.sum()
    entropy = -(share * share.clamp_min(1e-300).log()).sum()
    return {"use": float((counts > 0).double().mean()), "perplexity": float(entropy.exp())}


def codes_of(quantizer: nn.Module) -> Tensor:
    """A copy of the codes (K, D), of ours or the reference."""
    return quantizer.codebook.detach().clone()


def replaced_share(before: Tensor, after: Tensor, tokens: Tensor) -> float:
    """Share of the codes that this step replaced: they moved, and each is now a token of the batch.

    A moving average reaches a token exactly only by replacement, so no access to internals is needed.
    """
    distance = ops.nearest_code(after, tokens, return_distances=True)[2]
    scale = after.square().sum(-1).clamp_min(1e-12)
    moved = (after - before).square().sum(-1) > 1e-8 * scale
    return float((moved & (distance < 1e-10 * scale)).double().mean())
