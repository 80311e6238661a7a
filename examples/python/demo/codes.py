"""What the codes of a trained model look like, and how they lie to one another."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from model import DOWNSCALE, VQAutoencoder
from torch import Tensor

MARGIN = 2  # pixels of the surroundings that a patch shows around a token's own


@torch.no_grad()
def code_patches(model: VQAutoencoder, tokens: Tensor) -> Tensor:
    """What the decoder paints for each code, (K, C, P, P): the mean over its occurrences in `tokens` (B, h, w).

    A code that does not occur is shown among tokens of its own kind.
    """
    model.eval()
    codes = model.quantizer.codebook_size
    alone = torch.arange(codes).view(-1, 1, 1).expand(-1, 3, 3)
    patches = torch.cat([windows(model.decode(part))[:, 4] for part in alone.split(256)])
    sums = torch.zeros_like(patches)
    counts = torch.zeros(codes)
    for part in tokens.split(256):
        seen = windows(model.decode(part)).flatten(0, 1)
        sums.index_add_(0, part.flatten(), seen)
        counts += torch.bincount(part.flatten(), minlength=codes)
    occurs = counts > 0
    patches[occurs] = sums[occurs] / counts[occurs].view(-1, 1, 1, 1)
    return patches


def windows(pictures: Tensor) -> Tensor:
    """The squares (B, h * w, C, P, P) of pictures (B, C, H, W) that their tokens stand for, with a margin."""
    channels, side = pictures.shape[1], DOWNSCALE + 2 * MARGIN
    padded = F.pad(pictures, [MARGIN] * 4, mode="replicate")
    squares = F.unfold(padded, side, stride=DOWNSCALE)
    return squares.transpose(1, 2).unflatten(2, (channels, side, side))


def principal_components(codes: Tensor, count: int = 2) -> tuple[Tensor, float]:
    """Coordinates (K, count) of codes (K, D) along their directions of largest variance, and the share of it.

    Components that the codes are too few or too flat to have are 0.
    """
    centred = codes.double() - codes.double().mean(0)
    u, s, _ = torch.linalg.svd(centred, full_matrices=False)
    found = u[:, :count] * s[:count]
    # Either direction of a component is as good; this one does not depend on the linear algebra library.
    found = found * found.pow(3).sum(0).sign()
    share = (s[:count].square().sum() / s.square().sum().clamp_min(1e-30)).item()
    padded = found.new_zeros(len(codes), count)
    padded[:, : found.shape[1]] = found
    return padded, share


def on_a_grid(points: Tensor, columns: int) -> Tensor:
    """An order (K,) of 2-D points that puts neighbours close to each other on a grid with so many columns.

    Bands by the second coordinate become rows, and inside a row the first coordinate decides.
    """
    by_height = points[:, 1].argsort(descending=True, stable=True)
    rows = [row[points[row, 0].argsort(stable=True)] for row in by_height.split(columns)]
    return torch.cat(rows)
