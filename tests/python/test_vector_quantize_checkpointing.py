"""Activation checkpointing: outputs, gradients and noise equal those of the plain run, and the state moves once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from vector_quantize_cases import (
    BATCH,
    CASES,
    DIM,
    LENGTH,
    assert_same_state,
    build,
    data,
    positions_of,
    state,
    train_step,
)

from torchvq import VectorQuantize

REENTRANT = [False, True]


def checkpointed(module: nn.Module, reentrant: bool) -> Callable[..., Any]:
    def forward(x: Tensor, **kwargs: Any) -> Any:
        if reentrant:
            # The reentrant form finds tensors that need a gradient only among the direct results.
            return checkpoint(lambda x: tuple(module(x, **kwargs)), x, use_reentrant=True)
        return checkpoint(module, x, use_reentrant=False, **kwargs)

    return forward


def assert_same_step(actual: Any, expected: Any) -> None:
    for name in ("quantized", "indices", "loss", "gradient"):
        assert torch.equal(getattr(actual, name), getattr(expected, name)), name
    assert actual.parameters.keys() == expected.parameters.keys()
    for name, gradient in expected.parameters.items():
        assert torch.equal(actual.parameters[name], gradient), name


@pytest.mark.parametrize("reentrant", REENTRANT)
@pytest.mark.parametrize("case", CASES)
def test_checkpointed_steps_are_plain_steps(case: str, reentrant: bool) -> None:
    """Every kind of codebook, three steps: k-means, noise, dead codes, averages and parameters included."""
    plain, module = build(case), build(case)
    for step in range(3):
        x = data(plain, step)
        expected = train_step(plain, plain, x)
        assert_same_step(train_step(checkpointed(module, reentrant), module, x), expected)
        assert_same_state(module, state(plain))
    assert not module._codebook._replays


@pytest.mark.parametrize("reentrant", REENTRANT)
@pytest.mark.parametrize("case", ["default", "separate_heads", "sampling", "dead_codes"])
def test_masked_steps(case: str, reentrant: bool) -> None:
    plain, module = build(case), build(case)
    for step in range(2):
        mask = torch.rand(positions_of(plain)) < 0.6
        expected = train_step(plain, plain, data(plain, step), mask=mask)
        actual = train_step(checkpointed(module, reentrant), module, data(plain, step), mask=mask)
        assert_same_step(actual, expected)
    assert_same_state(module, state(plain))


def run_regions(
    module: VectorQuantize, inputs: list[Tensor], wrap: bool, reentrant: bool
) -> Tensor:
    """One objective over several forwards; gradients arrive in the inputs."""
    total = torch.zeros(())
    for x in inputs:
        forward = checkpointed(module, reentrant) if wrap else module
        quantized, _, loss = forward(x)[:3]
        total = total + loss + quantized.sin().sum()
    return total


@pytest.mark.parametrize("reentrant", REENTRANT)
@pytest.mark.parametrize(
    "case", ["default", "sampling", "dead_codes", "affine", "orthogonal", "gumbel"]
)
def test_several_regions_in_one_backward(case: str, reentrant: bool) -> None:
    """Backward recomputes the regions from last to first; each finds the state with which it started."""
    results = []
    for wrap in (False, True):
        module = build(case)
        inputs = [data(module, step).requires_grad_() for step in range(4)]
        run_regions(module, inputs, wrap, reentrant).backward()
        results.append((module, [x.grad for x in inputs]))
    (plain, expected), (module, actual) = results
    for a, b in zip(actual, expected, strict=True):
        assert torch.equal(a, b)
    assert_same_state(module, state(plain))


@pytest.mark.parametrize("reentrant", REENTRANT)
def test_the_same_input_twice(reentrant: bool) -> None:
    """Regions with equal inputs start from different states; recomputation must not swap them."""
    results = []
    for wrap in (False, True):
        module = build("default", decay=0.2, rotation_trick=True)
        inputs = [data(module).requires_grad_() for _ in range(3)]
        run_regions(module, inputs, wrap, reentrant).backward()
        results.append([x.grad for x in inputs])
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("reentrant", REENTRANT)
@pytest.mark.parametrize("case", ["default", "learnable", "sampling"])
def test_gradient_accumulation(case: str, reentrant: bool) -> None:
    """Several backwards before an optimizer's step, with statistics kept for the last of them."""
    results = []
    for wrap in (False, True):
        module = build(case)
        forward = checkpointed(module, reentrant) if wrap else module
        for micro in range(3):
            x = data(module, micro).requires_grad_()
            quantized, _, loss = forward(x, accum_ema_update=micro < 2)[:3]
            (loss + quantized.sum()).backward()
        results.append((module, {n: p.grad.clone() for n, p in module.named_parameters()}))
    (plain, expected), (module, actual) = results
    assert actual.keys() == expected.keys()
    for name, gradient in expected.items():
        assert torch.equal(actual[name], gradient), name
    assert_same_state(module, state(plain))


class Stack(nn.Module):
    """An encoder layer and two quantizers in one region."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(DIM, DIM)
        self.first, self.second = build("default"), build("sampling", seed=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        quantized, _, loss = self.first(torch.tanh(self.layer(x)))
        rest, _, other = self.second(quantized + x)
        return rest, loss + other


@pytest.mark.parametrize("reentrant", REENTRANT)
def test_quantizers_inside_a_region(reentrant: bool) -> None:
    results = []
    for wrap in (False, True):
        stack = Stack()
        x = torch.randn(
            BATCH, LENGTH, DIM, generator=torch.Generator().manual_seed(5)
        ).requires_grad_()
        for _ in range(2):
            out, loss = checkpoint(stack, x, use_reentrant=reentrant) if wrap else stack(x)
            (out.sum() + loss).backward()
        results.append((stack, x.grad, stack.layer.weight.grad))
    (plain, *expected), (stack, *actual) = results
    for a, b in zip(actual, expected, strict=True):
        assert torch.equal(a, b)
    assert_same_state(stack, state(plain))


@pytest.mark.parametrize("reentrant", REENTRANT)
def test_an_optimizer_of_its_own_steps_once(reentrant: bool) -> None:
    def make() -> VectorQuantize:
        return build(
            "learnable",
            in_place_codebook_optimizer=lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9),
        )

    plain, module = make(), make()
    for step in range(3):
        expected = train_step(plain, plain, data(plain, step), learning_rate=0.0)
        actual = train_step(
            checkpointed(module, reentrant), module, data(plain, step), learning_rate=0.0
        )
        assert torch.equal(actual.gradient, expected.gradient)
        assert torch.equal(actual.quantized, expected.quantized)
        assert_same_state(module, state(plain))


@pytest.mark.parametrize("reentrant", REENTRANT)
def test_evaluation_inside_a_region(reentrant: bool) -> None:
    module = build("learnable").eval()
    before = state(module)
    x = data(module).requires_grad_()
    quantized, indices, _ = checkpointed(module, reentrant)(x)[:3]
    quantized.sum().backward()
    assert module._codebook.embed.grad is not None
    assert torch.equal(quantized, module.get_output_from_indices(indices))
    assert_same_state(module, before)


def test_records_without_backward_are_bounded() -> None:
    """Forwards without a backward must not hold memory forever."""
    module = build("default")
    for step in range(100):
        checkpoint(module, data(module, step).requires_grad_(), use_reentrant=False)
    assert len(module._codebook._replays) <= 32
