"""Beam search over residual levels, one token at a time in numpy, following the operator's specification."""

from __future__ import annotations

import itertools

import numpy as np


def beam_search(x, codebooks, beam, weights=None):
    """x (T, D), codebooks (K_n, D): indices (T, Q)."""
    return np.array([_search(row, codebooks, beam, weights) for row in x], dtype=np.int64).reshape(
        len(x), len(codebooks)
    )


def _search(row, codebooks, beam, weights):
    if not np.isfinite(row).all():
        return [0] * len(codebooks)
    paths = [((), row, 0.0)]
    for level, codebook in enumerate(codebooks):
        extended = []
        for path, residual, before in paths:
            for code, score in enumerate(remaining(residual, codebook)):
                total = score if weights is None else before + weights[level] * score
                total = total if np.isfinite(total) else np.inf
                extended.append((total, (*path, code), residual - codebook[code]))
        extended.sort(key=lambda entry: entry[:2])
        paths = [(path, residual, total) for total, path, residual in extended[:beam]]
    return paths[0][0]


def remaining(residual, codebook):
    """Squared distances in float64, summed over the features in index order."""
    difference = residual.astype(np.float64) - codebook.astype(np.float64)
    total = np.zeros(len(codebook))
    for column in np.moveaxis(difference * difference, -1, 0):
        total = total + column
    return total


def exhaustive(x, codebooks):
    """The smallest squared error of any path (T,)."""
    paths = itertools.product(*(range(len(codebook)) for codebook in codebooks))
    sums = np.stack([sum(c[k] for c, k in zip(codebooks, path, strict=True)) for path in paths])
    return ((x[:, None] - sums[None]) ** 2).sum(-1).min(-1)


def error(x, codebooks, indices):
    """The squared error of every token (T,)."""
    total = sum(c[indices[:, n]] for n, c in enumerate(codebooks))
    return ((x.astype(np.float64) - total) ** 2).sum(-1)
