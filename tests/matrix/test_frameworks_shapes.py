"""Training steps of every class without data, on the meta device and with fake tensors, as memory planners run them."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from classes import ROWS, Seen, build, data, forward
from framework_steps import assert_same_state, construct
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

every_row = pytest.mark.parametrize("row", ROWS)


def step(module: nn.Module, x: Tensor) -> Seen:
    """A training forward, and backward as far as there is a gradient."""
    found = forward(module, x)
    loss = found.quantized.sum() + found.loss.sum()
    if loss.requires_grad:
        loss.backward()
    return found


def assert_shapes(found: Seen, expected: Seen) -> None:
    for part, other in zip(found, expected, strict=True):
        assert part.shape == other.shape and part.dtype == other.dtype


@every_row
@pytest.mark.parametrize("built", ["on meta", "moved"])
def test_training_on_meta_gives_shapes(row: str, built: str) -> None:
    """k-means, replaced codes, draws and dropped levels included; the second step begins with codes that are set."""
    if built == "moved":
        module = build(row).to("meta")
    else:
        with torch.device("meta"):
            module = construct(row)
    module.train()
    expected = step(build(row).train(), data(row).requires_grad_())
    for _ in range(2):
        found = step(module, data(row).to("meta").requires_grad_())
        assert all(part.is_meta for part in found)
        assert_shapes(found, expected)


@every_row
@pytest.mark.parametrize("built", ["fake", "real"])
def test_training_with_fake_tensors_gives_shapes(row: str, built: str) -> None:
    """A real module keeps its state, and goes on as if nothing had happened."""
    mode = FakeTensorMode(allow_non_fake_inputs=built == "real")
    with mode if built == "fake" else nullcontext():
        module = construct(row) if built == "fake" else build(row)
    module.train()
    twin = build(row).train()
    with mode:
        x = torch.empty(data(row).shape, requires_grad=True)
        found = step(module, x)
        if built == "fake":
            found = step(module, x)
    expected = step(twin, data(row).requires_grad_())
    assert_shapes(found, expected)
    if built == "real":
        module.zero_grad()
        again = forward(module, data(row))
        assert torch.equal(again.indices, expected.indices)
        assert_same_state(module, twin.state_dict())
