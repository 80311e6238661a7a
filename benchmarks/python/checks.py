"""Checks that contenders computed the same. A benchmark whose check fails stops."""

from __future__ import annotations

import torch
from torch import Tensor

# Float32 distances by a GEMM: wrong choices are near ties, worse by a few rounding errors of |x|^2.
TOLERANCE = 1e-4
ROWS = 256


def exact_distances(x: Tensor, codes: Tensor) -> Tensor:
    """Squared distances of the rows to all codes, in float64."""
    return torch.cdist(
        x.double(), codes.double(), compute_mode="donot_use_mm_for_euclid_dist"
    ).square()


def nearest(found: dict[str, Tensor], x: Tensor, codes: Tensor, ours: str) -> dict[str, int]:
    """The number of (sampled) rows on which each answer is not exact. Ours must have none; the others must be close."""
    rows = torch.linspace(0, len(x) - 1, min(ROWS, len(x))).long()
    distances = exact_distances(x[rows], codes)
    best, truth = distances.min(-1)
    wrong = {}
    for name, indices in found.items():
        chosen = indices.flatten()[rows]
        excess = distances.gather(1, chosen[:, None])[:, 0] - best
        scale = x[rows].double().square().sum(-1) + best
        if bool((excess > TOLERANCE * scale).any()):
            raise AssertionError(f"{name} chose codes that are not the nearest")
        wrong[name] = int((chosen != truth).sum())
    if wrong[ours]:
        raise AssertionError(f"{ours} missed the nearest code of {wrong[ours]} rows")
    return wrong


def close(name: str, value: Tensor, expected: Tensor, tolerance: float = 1e-3) -> float:
    """The largest difference, relative to the largest value; raises if it is too large."""
    difference = float((value - expected).abs().max() / expected.abs().max().clamp_min(1e-30))
    if not difference <= tolerance:
        raise AssertionError(f"{name} differ by {difference:.1e}")
    return difference


def gradients(name: str, value: Tensor, expected: Tensor, tolerance: float = 1e-3) -> float:
    """The norm of the difference over that of the expected value; raises if it is too large."""
    if value.shape != expected.shape:
        raise AssertionError(f"gradients of {name} have shape {list(value.shape)}")
    norm = expected.double().norm()
    if not bool(norm > 0):
        raise AssertionError(f"gradients to check those of {name} are 0")
    difference = float((value.double() - expected.double()).norm() / norm)
    if not difference <= tolerance:
        raise AssertionError(f"gradients of {name} differ by {difference:.1e}")
    return difference


def fraction_different(name: str, indices: Tensor, expected: Tensor, most: float = 1e-3) -> float:
    """The fraction in which two answers differ, which only rounding may cause; raises if it is too large."""
    fraction = float((indices != expected).double().mean())
    if fraction > most:
        raise AssertionError(f"{name}: {fraction:.1e} of the indices are others")
    return fraction
