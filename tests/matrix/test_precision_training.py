"""Every class over many steps in bfloat16, and under a gradient scaler with an infinity."""

from __future__ import annotations

import pytest
import torch
from cells import Cell
from classes import ROWS, build, data, forward, learns, state
from float32_twin import Twins, difference
from torch import nn

# They learn a parameter, which follows the module into bfloat16, and each step is rounded, so tokens differ after some
# steps. docs/dtype_policy.md says what to do instead; tests/python/test_vector_quantize_precision.py tests the averages
# behind such codes.
ROUNDED = ("vq_orthogonal", "latent_in_place")
LEARNING = [row for row in ROWS if row not in ROUNDED and learns(build(row))]


def steps(row: str) -> int:
    """1000 for classes whose step is one search; stacks run the same code for each level, so fewer are enough."""
    return 1000 if row.startswith("vq") or row == "residual_vq" else 200


@pytest.mark.parametrize("row", LEARNING)
def test_state_of_a_bfloat16_module_follows_float32(row: str, cell: Cell) -> None:
    """Relative difference of the floating-point state after 1000 training steps (stacks: 200) on the same tokens."""
    twins = Twins(row, nn.Module.bfloat16)
    with torch.no_grad():
        for step in range(steps(row)):
            x = data(row, step).bfloat16()
            twins.module(x)
            twins.twin(x.float())
    found, expected = state(twins.module), state(twins.twin)
    drift = 0.0
    for name in dict(twins.module.named_buffers()).keys() & found.keys():
        if found[name].is_floating_point():
            assert found[name].dtype == torch.float32
            drift = max(drift, difference(found[name], expected[name]))
        else:
            assert torch.equal(found[name], expected[name]), name
    cell("precision", row, "drift", drift)
    assert drift < 1e-6, drift


@pytest.mark.parametrize("where", ["input", "gradient"])
@pytest.mark.parametrize("row", ROWS)
def test_gradient_scaler_steps_over_an_infinity(row: str, where: str, cell: Cell) -> None:
    cell("precision", row, "GradScaler", "yes")
    module, shift = build(row), nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.SGD([shift, *module.parameters()], lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def step(x: torch.Tensor, blow_up: bool = False) -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            found = forward(module, x + shift)
            if blow_up:
                found.quantized.register_hook(lambda gradient: gradient * float("inf"))
            loss = found.quantized.float().square().mean() + found.loss.sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    step(data(row))
    before = shift.detach().clone()
    assert before != 0 and scaler.get_scale() == 1024
    x = data(row, 1)
    if where == "input":
        x[0].flatten()[0] = float("inf")
    step(x, blow_up=where == "gradient")
    assert torch.equal(shift, before) and scaler.get_scale() == 512
    assert all(value.isfinite().all() for value in state(module).values())
    step(data(row, 2))
    assert not torch.equal(shift, before) and shift.isfinite()
    assert all(value.isfinite().all() for value in state(module).values())
