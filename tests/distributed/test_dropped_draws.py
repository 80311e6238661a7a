"""Dropped levels draw nothing: steps in which only the device knows the depth leave their generators alone, too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ranks import Ranks

from torchvq import GroupedResidualVQ, HierarchicalVQ, ResidualVQ

DIM, STEPS = 6, 5
BY_GRADIENT = dict(learnable_codebook=True, ema_update=False)
STACK = dict(dim=DIM, codebook_size=8, num_quantizers=4, quantize_dropout=True, **BY_GRADIENT)
SCALES = dict(dim=DIM, codebook_size=8, scales=(2, 4), channel_first=False, shared_codebook=False)
CASES: dict[str, tuple[type[torch.nn.Module], dict[str, Any]]] = {
    "sampled": (ResidualVQ, STACK | dict(stochastic_sample_codes=True)),
    "DiVeQ": (ResidualVQ, STACK | dict(diveq=True)),
    "implicit": (ResidualVQ, STACK | dict(implicit_neural_codebook=True)),
    "groups": (GroupedResidualVQ, STACK | dict(groups=2)),
    "scales": (HierarchicalVQ, SCALES | dict(nested_dropout=0.9, freeze_codebook=True)),
}


def train(rank: int, case: str, compiles: bool) -> list[torch.Tensor]:
    """The generators and indices of each step."""
    torch.compiler.reset()
    torch.manual_seed(0)
    cls, options = CASES[case]
    module = cls(**options)
    call = torch.compile(module, backend="aot_eager", fullgraph=True) if compiles else module
    found = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(10 * step + rank)
        output = call(torch.randn(2, 4, DIM, generator=generator, requires_grad=True))
        found += [b.clone() for name, b in module.named_buffers() if name.endswith("rng")]
        found += output[1] if isinstance(output[1], tuple) else [output[1]]
    return found


@pytest.mark.parametrize("case", CASES)
def test_compiled_steps_advance_the_generators_that_eager_ones_advance(
    two: Ranks, case: str
) -> None:
    eager, compiled = two.run(train, case, False), two.run(train, case, True)
    for wanted, found in zip(eager, compiled, strict=True):
        assert len(wanted) > STEPS
        assert all(map(torch.equal, found, wanted))
