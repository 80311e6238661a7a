"""Evaluation by one operator equals the loop over levels, bit for bit."""

from __future__ import annotations

import pytest
import torch
from residual_vq_cases import STACKS, build, data, train_step

# `return_all_codes` selects the loop over levels.
CASES = sorted(name for name in STACKS if "implicit" not in name)


def same(a, b):
    assert torch.equal(a.indices, b.indices)
    assert torch.equal(a.quantized.isnan(), b.quantized.isnan())
    assert torch.equal(a.quantized.nan_to_num(), b.quantized.nan_to_num())
    assert torch.equal(a.loss, b.loss) and a.loss.dtype == b.loss.dtype
    assert a.quantized.dtype == b.quantized.dtype


@pytest.mark.parametrize("beam", [None, 3])
@pytest.mark.parametrize("case", CASES)
def test_evaluation_equals_the_walk(case, beam):
    stack = build(case)
    train_step(stack, data(stack))
    stack.eval()
    x = data(stack, 5)
    x.view(-1)[0] = float("nan")
    with torch.no_grad():
        same(stack(x, beam_size=beam), stack(x, beam_size=beam, return_all_codes=True))


@pytest.mark.parametrize("beam", [None, 3])
def test_masks_and_half_precision_equal_the_walk(beam, generator):
    stack = build("default")
    train_step(stack, data(stack))
    x = data(stack, 5)
    mask = torch.rand(x.shape[:2], generator=generator) > 0.4
    for module, tokens in ((stack, x), (stack.bfloat16(), x.bfloat16())):
        module.eval()
        with torch.no_grad():
            arguments = dict(mask=mask, beam_size=beam)
            same(module(tokens, **arguments), module(tokens, return_all_codes=True, **arguments))


def test_codes_that_need_a_gradient_get_it():
    stack = build("learnable").eval()
    output = stack(data(stack))
    output.quantized.sum().backward()
    assert all(level._codebook.embed.grad is not None for level in stack.levels)
    with torch.no_grad():
        assert torch.equal(stack(data(stack)).quantized, output.quantized)
