"""Every class at the sizes at which it is used: kernels divide large arguments into parts, which small tests never see.

The oracle is the same step in float64: the same indices, and losses and gradients to the rounding of float32.
"""

from __future__ import annotations

import copy
from typing import Any

import classes
import pytest
import torch
from classes import ROWS, Row
from torch import Tensor, nn

import torchvq

TOKENS, IMAGES = (2, 384, 64), (2, 64, 16, 24)
SIZES = dict(dim=64, codebook_size=1024, codebook_dim=16, frozen_codebook_dim=16)
# These draw by the bits of their tokens, or noise, which float64 changes.
DRAWING = (
    "sampling", "sampled", "dropout", "directional", "fsp", "symmetric", "evo", "part_of", "kmeans", "dead_codes",
)  # fmt: skip
# Residuals of float32 decide near ties of later levels.
SAME_CODES = 0.99


def at_size(row: str) -> Row:
    """The row with more tokens, codes and features."""
    name, options, _, axis = ROWS[row]
    larger: dict[str, Any] = options | {k: size for k, size in SIZES.items() if k in options}
    # Modules of the row, or the codes themselves, have that width.
    dim = SIZES["dim"] if "dim" in options and name != "EvoLFQ" else classes.DIM
    if "dim" in options:
        larger["dim"] = dim
    if "scales" in options:
        larger["scales"] = (1, 4, IMAGES[2:]) if axis == 1 else (1, 8, TOKENS[1])
    if "implicit_neural_codebook" in options:
        larger["codebook_size"] = 64  # a network makes all codes of each token
    shape = (IMAGES[0], dim, *IMAGES[2:]) if axis == 1 else (*TOKENS[:-1], dim)
    return Row(name, larger, shape, axis)


def build(row: Row) -> nn.Module:
    torch.manual_seed(0)
    module = classes.construct(torchvq, row.name, row.options)
    for part in module.modules():
        if isinstance(part, torchvq.VectorQuantize) and part._codebook.initted.item():
            codes = torch.randn(part._codebook.embed.shape)
            part.codebook = nn.functional.normalize(codes, dim=-1) if part.use_cosine_sim else codes
    return module


def step(module: nn.Module, x: Tensor) -> tuple[classes.Seen, Tensor | None]:
    leaf = x.clone().requires_grad_()
    torch.manual_seed(1)
    seen = classes.forward(module, leaf)
    objective = seen.quantized.square().mean() + seen.loss.sum()
    if not objective.requires_grad:
        return seen, None
    objective.backward()
    return seen, leaf.grad


@pytest.mark.parametrize("row", [row for row in ROWS if row != "lfq_bare"])
def test_a_step_is_that_of_float64(row: str) -> None:
    large = at_size(row)
    narrow = build(large)
    wide = copy.deepcopy(narrow).double()
    x = torch.randn(large.shape, generator=torch.Generator().manual_seed(3))
    for training in (True, False):
        seen, grad = step(narrow.train(training), x)
        assert seen.quantized.isfinite().all() and seen.loss.isfinite().all()
        assert grad is None or grad.isfinite().all()
        if any(word in row for word in DRAWING):
            continue
        exact, right = step(wide.train(training), x.double())
        same = seen.indices == exact.indices
        assert same.float().mean() > SAME_CODES
        found, expected = seen.loss.double().sum(), exact.loss.double().sum()
        torch.testing.assert_close(found, expected, rtol=2e-3, atol=1e-5)
        if grad is not None and right is not None and bool(same.all()):
            most = 2e-3 * right.abs().max().item()
            torch.testing.assert_close(grad.double(), right, rtol=2e-2, atol=most)
