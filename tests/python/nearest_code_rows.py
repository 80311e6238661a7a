"""Adversarial rows and codebooks for searches: used by the tests and by exactness.py."""

from __future__ import annotations

import torch
from torch import Generator, Tensor


def normal(n: int, k: int, d: int, g: Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(n, d, generator=g), torch.randn(k, d, generator=g)


def near_codes(n, k, d, g):
    """Rows near codes, as in a trained quantizer."""
    x, c = normal(n, k, d, g)
    return c[torch.randint(0, k, (n,), generator=g)] + 0.1 * x, c


def offset(scale: float):
    """A mean far from zero: in float32, the expansion ||c||^2 / 2 - <x, c> cancels completely."""

    def rows(n, k, d, g):
        x, c = normal(n, k, d, g)
        return 0.1 * x + scale, 0.1 * c + scale

    return rows


def lattice(n, k, d, g):
    """Small integers: many exact ties."""
    return (torch.randint(-1, 2, size, generator=g).float() for size in ((n, d), (k, d)))


def midpoints(n, k, d, g):
    """Rows halfway between two codes, rounded: ties except for the last bits."""
    x, c = normal(n, k, d, g)
    pair = torch.randint(0, k, (2, n), generator=g)
    return (c[pair[0]] + c[pair[1]]) / 2, c


def middles(x: Tensor, codes: Tensor, distance: float, g: Generator) -> Tensor:
    """Rows near the midpoint of two codes."""
    pair = torch.randint(0, len(codes), (2, len(x)), generator=g)
    return (codes[pair[0]] + codes[pair[1]]) / 2 + distance * x


def duplicates(n, k, d, g):
    x, c = normal(n, k, d, g)
    return x, c[torch.randint(0, max(k // 4, 1), (k,), generator=g)]


def collapsed(n, k, d, g):
    """Codes that differ only in their last bits, and in signs of zero."""
    x, c = normal(n, k, d, g)
    c = c[:1].repeat(k, 1) * (1 + torch.randint(0, 3, (k, 1), generator=g) * 2**-23)
    c[:, 0] = 0.0 * torch.randn(k, generator=g)
    return x, c


def repeated(n, k, d, g):
    """Few different rows, as padding and silence are, among others; most codes are closer than a product tells."""
    x, c = normal(n, k, d, g)
    x[::2] = 0.0
    x[1::4] = x[:1] + 1e-3
    c[1:] *= 1e-6
    c[0] *= 1e3
    return x, c


def scaled(scale: float):
    def rows(n, k, d, g):
        x, c = normal(n, k, d, g)
        return x * scale, c * scale

    return rows


def outliers(n, k, d, g):
    """A few rows and codes far out, some so large that their squares overflow float32."""
    x, c = normal(n, k, d, g)
    c[::17] *= 1e6
    c[5::97] *= 1e25
    x[::13] *= 1e6
    x[7::29] *= 1e25
    return x, c


def spread(n, k, d, g):
    """Norms over twelve decades."""
    x, c = normal(n, k, d, g)
    decades = [torch.rand(m, 1, generator=g) * 12 - 6 for m in (n, k)]
    return x * 10 ** decades[0], c * 10 ** decades[1]


def not_finite(n, k, d, g):
    x, c = normal(n, k, d, g)
    x[::3, 0] = float("nan")
    x[1::7, -1] = float("-inf")
    c[::2, -1] = float("inf")
    return x, c


KINDS = {
    "normal": normal,
    "near_codes": near_codes,
    "offset_1e2": offset(1e2),
    "offset_1e4": offset(1e4),
    "offset_1e6": offset(1e6),
    "lattice": lattice,
    "midpoints": midpoints,
    "duplicates": duplicates,
    "collapsed": collapsed,
    "repeated": repeated,
    "subnormal": scaled(1e-39),
    "tiny": scaled(1e-22),
    "huge": scaled(1e30),
    "outliers": outliers,
    "spread": spread,
    "not_finite": not_finite,
}
