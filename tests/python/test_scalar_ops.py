"""torchvq.ops of quantizers without a codebook: the operators under their names, round trips, entropies by hand."""

from __future__ import annotations

import torch

from torchvq import ops

LEVELS = [5, 4, 3]


def test_scalar_codes_round_trip(generator: torch.Generator) -> None:
    x = torch.randn(2, 7, 3, generator=generator)
    for bound in ("tanh", "clamp", "symmetric_tanh", "symmetric_clamp"):
        codes, indices = ops.scalar_quantize(x, LEVELS, bound=bound)
        symmetric = bound.startswith("symmetric")
        assert torch.equal(ops.scalar_decode(indices, LEVELS, symmetric=symmetric), codes)


def test_residual_codes_are_those_of_the_levels_in_turn(generator: torch.Generator) -> None:
    x = torch.rand(50, 3, generator=generator) * 2 - 1
    scales = torch.tensor(LEVELS, dtype=torch.float32) ** -torch.arange(2.0)[:, None]
    total, indices = ops.residual_scalar_quantize(x, LEVELS, scales)
    residual = x
    for level in range(2):
        codes, found = ops.scalar_quantize(
            residual / scales[level], LEVELS, bound="symmetric_clamp"
        )
        assert torch.equal(indices[:, level], found)
        residual = residual - codes * scales[level]
    torch.testing.assert_close(total, x - residual, rtol=0, atol=1e-6)


def test_signs_round_trip(generator: torch.Generator) -> None:
    x = torch.randn(2, 7, 40, generator=generator)
    codes, indices = ops.sign_quantize(x, scale=0.5)
    assert torch.equal(codes, torch.where(x > 0, 0.5, -0.5))
    assert torch.equal(ops.sign_decode(indices, 40, scale=0.5), codes)


def test_entropies_are_those_of_all_codes(generator: torch.Generator) -> None:
    x = torch.randn(1, 9, 3, generator=generator, dtype=torch.float64)
    codes = ops.sign_decode(torch.arange(8), 3, dtype=torch.float64)
    # sigmoid(s x) over two signs equals a softmax of s / 2 times the product.
    share = (x[0] @ codes.T * 1.5 / 2).softmax(-1)
    mean = share.mean(0)
    totals = ops.sign_entropy_totals(x, sharpness=1.5)
    for found in (
        ops.sign_entropy(x, sharpness=1.5),
        ops.sign_entropy(x, sharpness=1.5, totals=totals),
    ):
        torch.testing.assert_close(found.per_sample, -(share * share.log()).sum(-1).mean())
        torch.testing.assert_close(found.batch, -(mean * mean.log()).sum())
