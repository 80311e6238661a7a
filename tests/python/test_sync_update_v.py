"""sync_update_v: the same value, a larger gradient (include/torchvq/ops/sync_update_v.h)."""

from __future__ import annotations

import pytest
import torch

ops = torch.ops.torchvq


def make_tokens(generator, dtype=torch.float32, shape=(2, 7, 3)):
    return (torch.randn(shape, generator=generator).to(dtype) for _ in range(3))


def same_bits(a, b):
    return a.dtype == b.dtype and torch.equal(
        a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)
    )


@pytest.mark.parametrize("v", [0.0, 0.3, 1.0])
def test_sync_update_v_multiplies_the_gradient_by_one_plus_v(v, generator):
    _, quantized, upstream = make_tokens(generator)
    y = ops.sync_update_v(quantized.requires_grad_(), v=v)
    y.backward(upstream)
    assert same_bits(y.detach(), quantized.detach())
    assert torch.equal(quantized.grad, upstream * (1 + v))


@pytest.mark.parametrize("v", [-0.1, float("nan"), float("inf")])
def test_sync_update_v_rejects_a_bad_v(v):
    with pytest.raises(
        ValueError, match="sync_update_v: expected v to be finite and non-negative, but got"
    ):
        ops.sync_update_v(torch.zeros(1, 2, 3), v=v)


def test_sync_update_v_passes_opcheck(generator):
    x, _, _ = make_tokens(generator)
    torch.library.opcheck(ops.sync_update_v.default, (x.requires_grad_(),), {"v": 0.5})
