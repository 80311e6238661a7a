"""The specification of nearest_code in numpy: every pair, float64, dimension after dimension."""

from __future__ import annotations

import numpy as np
import torch


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    return (
        tensor.detach()
        .to(torch.float64 if tensor.dtype == torch.float64 else torch.float32)
        .numpy()
    )


def unit_rows(rows: np.ndarray) -> np.ndarray:
    squares = np.zeros(rows.shape[0])
    for d in range(rows.shape[1]):
        column = rows[:, d].astype(np.float64)
        squares = squares + column * column
    norm = np.sqrt(squares)[:, None]
    return np.where(
        norm == 0, 0.0, rows.astype(np.float64) / np.where(norm == 0, 1.0, norm)
    ).astype(rows.dtype)


def scores(
    x: np.ndarray, codebook: np.ndarray, cosine: bool, bias: np.ndarray | None
) -> np.ndarray:
    """(N, K) scores; infinite for codes that must not win."""
    excluded = ~np.isfinite(codebook).all(1)
    if bias is not None:
        excluded |= ~np.isfinite(bias)
    if cosine:
        x, codebook = unit_rows(x), unit_rows(codebook)
    total = np.zeros((x.shape[0], codebook.shape[0]))
    for d in range(x.shape[1]):
        a, c = x[:, d, None].astype(np.float64), codebook[None, :, d].astype(np.float64)
        total = total + (-(a * c) if cosine else c * c / 2 - a * c)
    if bias is not None:
        total = total + bias.astype(np.float64) * (1.0 if cosine else 0.5)
    return np.where(excluded | np.isnan(total), np.inf, total)


def nearest(
    x: torch.Tensor,
    codebook: torch.Tensor,
    metric: str = "euclidean",
    bias: torch.Tensor | None = None,
    k: int = 1,
) -> np.ndarray:
    """(N, k) indices of one head, best first."""
    wide = torch.float64 in (x.dtype, codebook.dtype)
    dtype = np.float64 if wide else np.float32
    rows, codes = to_numpy(x).astype(dtype), to_numpy(codebook).astype(dtype)
    offsets = None if bias is None else to_numpy(bias).astype(dtype)
    finite = np.isfinite(rows).all(1)
    with np.errstate(all="ignore"):
        total = scores(np.where(finite[:, None], rows, 0), codes, metric == "cosine", offsets)
    order = np.argsort(total, axis=1, kind="stable")[:, :k]
    order[~finite] = np.arange(k)
    return order


def distances(x: torch.Tensor, codes: torch.Tensor, metric: str = "euclidean") -> np.ndarray:
    """Distances of rows x (N, D) from codes (N, D), in float64."""
    a, c = to_numpy(x).astype(np.float64), to_numpy(codes).astype(np.float64)
    if metric == "euclidean":
        return ((a - c) ** 2).sum(1)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(c, axis=1)
    return 1 - np.where(norms == 0, 0, (a * c).sum(1) / np.where(norms == 0, 1, norms))
