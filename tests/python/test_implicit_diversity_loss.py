"""implicit_diversity_loss against its formula over every token and code, in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

ops = torch.ops.torchvq


def brute_force(x: Tensor, codes: Tensor, temperature: float, real: list[bool]) -> float:
    total = [0.0] * codes.shape[1]
    for t in (t for t, keep in enumerate(real) if keep):
        scores = [-temperature * math.dist(x[t, 0].tolist(), code.tolist()) for code in codes[t]]
        norm = sum(math.exp(score) for score in scores)
        total = [old + math.exp(score) / norm for old, score in zip(total, scores, strict=True)]
    return sum(p / sum(real) * math.log(p / sum(real)) for p in total)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_the_formula(dtype: torch.dtype) -> None:
    x, codes = torch.randn(6, 1, 3, dtype=dtype), torch.randn(6, 5, 3, dtype=dtype)
    real = [True, False, True, True, False, True]
    loss = ops.implicit_diversity_loss(
        x, codes, temperature=1.7, mask=torch.tensor(real).unsqueeze(1)
    )
    wanted = brute_force(x, codes, 1.7, real)
    assert loss.dtype == dtype
    assert loss.item() == pytest.approx(wanted, rel=1e-5 if dtype == torch.float32 else 1e-12)


def test_gradient() -> None:
    x = torch.randn(4, 1, 3, dtype=torch.float64, requires_grad=True)
    codes = torch.randn(4, 5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x, codes: ops.implicit_diversity_loss(x, codes, temperature=2.0), (x, codes)
    )


def test_tokens_that_are_not_finite_take_no_part() -> None:
    x, codes = torch.randn(3, 1, 2), torch.randn(3, 4, 2)
    wanted = ops.implicit_diversity_loss(x[:2], codes[:2], temperature=1.0)
    x[2] = math.nan
    torch.testing.assert_close(ops.implicit_diversity_loss(x, codes, temperature=1.0), wanted)


@pytest.mark.parametrize("tokens", [0, 3])
def test_no_tokens(tokens: int) -> None:
    mask = torch.zeros(tokens, 1, dtype=torch.bool)
    x, codes = torch.randn(tokens, 1, 2), torch.randn(tokens, 4, 2)
    assert ops.implicit_diversity_loss(x, codes, temperature=1.0, mask=mask).item() == 0
