"""Training steps of the frameworks matrix, and bitwise comparisons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import classes
import torch
from classes import ROWS, Seen, data, forward
from torch import Tensor, nn

import torchvq


def construct(row: str) -> nn.Module:
    """A module as constructed, without writing codes, for devices on which nothing can be read or written."""
    return classes.construct(torchvq, ROWS[row].name, ROWS[row].options)


def objective(seen: Seen) -> Tensor:
    """A sum with a different weight for each number, so that no gradient cancels, plus the loss."""
    weights = torch.linspace(0.5, 1.5, seen.quantized.numel()).reshape(seen.quantized.shape)
    return (seen.quantized * weights).sum() + seen.loss.sum()


def sgd(module: nn.Module) -> torch.optim.Optimizer | None:
    """An optimizer with state; None if nothing learns by gradient."""
    parameters = list(module.parameters())
    return torch.optim.SGD(parameters, 0.01, momentum=0.9) if parameters else None


def train(
    module: nn.Module,
    row: str,
    steps: Sequence[int],
    optimizer: torch.optim.Optimizer | None = None,
    call: Callable[..., Any] | None = None,
) -> list[Tensor]:
    """Training steps; returns everything visible."""
    seen = []
    for step in steps:
        x = data(row, step).requires_grad_()
        found = forward(call or module, x)
        objective(found).backward()
        seen += [*(part.detach().clone() for part in found), gradient(x)]
        seen += [gradient(parameter) for parameter in module.parameters()]
        if optimizer is not None:
            optimizer.step()
        module.zero_grad()
    return seen


def gradient(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad.clone()


def same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.nan_to_num(7), b.nan_to_num(7))


def assert_same(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    assert len(actual) == len(expected)
    for number, (a, b) in enumerate(zip(actual, expected, strict=True)):
        assert same(a, b), f"tensor {number} differs: {a} {b}"


def assert_same_state(module: nn.Module, expected: dict[str, Tensor]) -> None:
    actual = module.state_dict()
    assert actual.keys() == expected.keys()
    different = [name for name, value in expected.items() if not same(actual[name], value)]
    assert not different, f"state differs: {different}"


def assert_goes_on_like(module: nn.Module, original: nn.Module, row: str) -> None:
    """Evaluation, two more steps and their state are equal bit for bit. Changes both modules."""
    x = data(row, 20)
    with torch.no_grad():
        assert_same(forward(module.eval(), x), forward(original.eval(), x))
    actual = train(module.train(), row, [21, 22], sgd(module))
    assert_same(actual, train(original.train(), row, [21, 22], sgd(original)))
    assert_same_state(module, original.state_dict())
