"""HierarchicalVQ as plain loops in float64."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from torchvq import HierarchicalVQ


def cells(size: int, count: int) -> list[slice]:
    return [slice(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


def averages(residual: np.ndarray, real: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """(B, *shape, D) in float64, NaN for cells without a real position."""
    found = np.empty((residual.shape[0], *shape, residual.shape[1]))
    grids = [cells(size, count) for size, count in zip(residual.shape[2:], shape, strict=True)]
    for place in np.ndindex(shape):
        cell = tuple(grid[i] for grid, i in zip(grids, place, strict=True))
        for b in range(residual.shape[0]):
            inside = real[(b, *cell)].reshape(-1)
            values = residual[(b, slice(None), *cell)].reshape(residual.shape[1], -1)
            found[(b, *place)] = values[:, inside].mean(1) if inside.any() else np.nan
    return found


def interpolated(grid: np.ndarray, full: tuple[int, ...]) -> np.ndarray:
    """(B, *shape, D) to (B, *full, D), linearly along each axis, corners not aligned."""
    for axis, size in enumerate(full, start=1):
        count = grid.shape[axis]
        places = np.clip((np.arange(size) + 0.5) * count / size - 0.5, 0, count - 1)
        low = np.floor(places).astype(int)
        high = np.minimum(low + 1, count - 1)
        part = (places - low).reshape([-1 if a == axis else 1 for a in range(grid.ndim)])
        grid = grid.take(low, axis) * (1 - part) + grid.take(high, axis) * part
    return grid


def smoothed(maps: np.ndarray, conv: nn.Module) -> np.ndarray:
    """A convolution by its definition: (B, *S, D) to (B, *S, D)."""
    weight, bias = conv.weight.detach().double().numpy(), conv.bias.detach().double().numpy()
    axes = maps.ndim - 2
    padded = np.pad(maps, [(0, 0), *[(1, 1)] * axes, (0, 0)])
    total = np.zeros_like(maps) + bias
    for shift in np.ndindex(*[3] * axes):
        window = tuple(slice(s, s + n) for s, n in zip(shift, maps.shape[1:-1], strict=True))
        total += padded[(slice(None), *window)] @ weight[(slice(None), slice(None), *shift)].T
    return total


def expected_walk(module: HierarchicalVQ, x: Tensor, mask: Tensor | None = None):
    """Indices and output by plain loops in float64, and the tokens of each scale."""
    residual = x.double().numpy()
    full = tuple(x.shape[2:])
    real = np.ones((x.shape[0], *full), bool) if mask is None else mask.numpy()
    output, indices, tokens = 0.0, [], []
    for n, shape in enumerate(module.level_shapes):
        grid = averages(residual, real, shape)
        codes = module.get_vq(n).codebook.detach().double().numpy()
        distances = ((grid[..., None, :] - codes) ** 2).sum(-1)
        absent = np.isnan(grid).any(-1)
        chosen = np.where(absent, -1, np.nan_to_num(distances).argmin(-1))
        tokens.append(torch.from_numpy(grid[~absent]))
        maps = interpolated(np.where(absent[..., None], 0, codes[chosen]), full)
        phi = module.choose_phi(n)
        taken = (1 - phi.resi_ratio) * maps + phi.resi_ratio * smoothed(maps, phi.conv)
        taken = np.moveaxis(taken, -1, 1)
        output, residual = output + taken, residual - taken
        indices.append(torch.from_numpy(chosen))
    return indices, torch.from_numpy(output * real[:, None]), tokens
