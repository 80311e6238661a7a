"""DistributedDataParallel waits for a gradient of every parameter, those of dropped levels and scales included."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ranks import Ranks
from torch import nn

from torchvq import GroupedResidualVQ, HierarchicalVQ, ResidualVQ

DIM, STEPS = 6, 6
STACK = dict(dim=DIM, codebook_size=8, num_quantizers=4, quantize_dropout=True)
BY_GRADIENT = dict(learnable_codebook=True, ema_update=False)
CASES: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "learnable": (ResidualVQ, STACK | BY_GRADIENT),
    "orthogonal": (ResidualVQ, STACK | dict(orthogonal_reg_weight=1.0)),
    "implicit": (ResidualVQ, STACK | dict(implicit_neural_codebook=True)),
    "DiVeQ": (ResidualVQ, STACK | dict(diveq=True)),
    "groups": (GroupedResidualVQ, STACK | BY_GRADIENT | dict(groups=2)),
    "scales": (
        HierarchicalVQ,
        dict(
            dim=DIM,
            codebook_size=8,
            scales=(2, 4),
            channel_first=False,
            shared_codebook=False,
            nested_dropout=0.9,
            orthogonal_reg_weight=1.0,
        ),
    ),
}


def train(rank: int, case: str) -> Any:
    """The gradients of each step, and how many of them are zero."""
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    cls, options = CASES[case]
    model = DistributedDataParallel(nn.Sequential(nn.Linear(DIM, DIM), cls(**options)))
    gradients, dropped = [], 0
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(10 * step + rank)
        output = model(torch.randn(2, 4, DIM, generator=generator))
        (output[0].square().sum() + output[2].sum()).backward()
        found = [parameter.grad.clone() for parameter in model.parameters()]
        dropped += sum(not gradient.any() for gradient in found)
        gradients += found
        model.zero_grad()
    return gradients, dropped


@pytest.mark.parametrize("case", CASES)
def test_dropped_levels_have_gradients_of_zero(ranks: Ranks, case: str) -> None:
    (first, dropped), *others = ranks.run(train, case)
    assert dropped > 0
    for gradients, _ in others:
        assert all(map(torch.equal, gradients, first))
