"""Modules and inputs that the tests of HierarchicalVQ have in common."""

from __future__ import annotations

import torch
from torch import Tensor

from torchvq import HierarchicalVQ

DIM, CODES = 6, 16
SHAPES = {1: [(4,), (9,), (3,)], 2: [(4, 4), (5, 7), (2, 3)], 3: [(4, 4, 4), (3, 5, 2)]}


def build(axes: int = 1, codes: bool = True, **options) -> HierarchicalVQ:
    torch.manual_seed(1)
    own = dict(dim=DIM, codebook_size=CODES, scales=(1, 2, 4), kmeans_init=not codes)
    own |= dict(accept_image_fmap=axes == 2, accept_3d_fmap=axes == 3) | options
    module = HierarchicalVQ(**own)
    for level in module.levels if codes else ():
        level.codebook = torch.randn(level.codebook.shape) * 0.7
    return module


def data(*shape: int, seed: int = 2) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def half_mask(*shape: int, seed: int = 3) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.5
