"""`overlap_sync`: a step whose message backward hides is, to the bit, the step that waits for it in forward."""

from __future__ import annotations

import copy
import gc
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ranks import Ranks, outcome
from test_modules import CASES, DIM, batch, build, shares_of
from torch import Tensor, nn

import torchvq
from torchvq import ResidualVQ, VectorQuantize

STEPS = 20
State = dict[str, Tensor]
# Steps of codes that are parameters wait as ever; these are the others.
OVERLAPPING = [case for case in CASES if case != "orthogonal"]


def books(module: nn.Module) -> list[nn.Module]:
    return [m for m in module.modules() if type(m).__name__ == "Codebook"]


def in_flight(module: nn.Module) -> bool:
    return any(book.step_in_flight is not None for book in books(module))


def state_of(module: nn.Module) -> State:
    return {name: value.clone() for name, value in module.state_dict().items()}


def assert_equal(found: State, right: State, where: Any = None) -> None:
    assert found.keys() == right.keys()
    for name, value in right.items():
        assert torch.equal(found[name], value), (where, name)


def tokens_of(rank: int, size: int, step: int) -> tuple[Tensor, Tensor]:
    x, mask = batch(step, shares_of(step, size))
    return x[rank].clone().requires_grad_(), mask[rank]


# The same bits ----------------------------------------------------------------------------------------------


def train(rank: int, size: int, case: str, options: dict[str, Any]) -> Any:
    """After each step: outputs, gradient of the tokens, state, whether it was in flight, and collectives."""
    module = build(case, 100 + rank, **options)
    found = []
    for step in range(STEPS):
        x, mask = tokens_of(rank, size, step)
        torch.ops.torchvq.reset_traffic()
        quantized, indices, loss = module(x, mask=mask)
        waits = in_flight(module)
        if step % 4 != 3:  # and steps without backward
            (quantized.square().sum() + loss.sum()).backward()
            assert not in_flight(module)
        state = state_of(module)
        used = [book.replaced.clone() for book in books(module)]
        sent = tuple(torch.ops.torchvq.traffic())
        gradient = torch.zeros(0) if x.grad is None else x.grad
        found.append(([quantized, indices, loss, gradient, *used], state, waits, sent))
        if step % 5 == 4:
            module.eval()(x)
            module.train()
    return [([part.detach() for part in own], *others) for own, *others in found]


@pytest.mark.parametrize("reduction", ["exact", "float"])
@pytest.mark.parametrize("case", CASES)
def test_the_same_bits_and_no_more_messages(ranks: Ranks, case: str, reduction: str) -> None:
    """Ragged, empty and masked ranks, k-means, dead codes, stacks, groups, dropout; outputs and gradients too."""
    options = {"reduction": reduction}
    waiting = ranks.run(train, ranks.size, case, options)
    overlapping = ranks.run(train, ranks.size, case, options | {"overlap_sync": True})
    for rank, (found, right) in enumerate(zip(overlapping, waiting, strict=True)):
        for step, (own, expected) in enumerate(zip(found, right, strict=True)):
            assert own[2] == (case in OVERLAPPING) and not expected[2]
            assert own[3] == expected[3], (rank, step)
            assert_equal(own[1], expected[1], (rank, step))
            for part, value in zip(own[0], expected[0], strict=True):
                assert torch.equal(part, value), (rank, step)
