"""finite_scalar_quantize: FSQ on inputs of any layout equals quantizing their tokens one by one."""

from __future__ import annotations

import pytest
import torch

ops = torch.ops.torchvq
LEVELS = [5, 4]


@pytest.mark.parametrize("channel_first", [False, True])
@pytest.mark.parametrize("codebooks", [1, 2])
@pytest.mark.parametrize("positions", [(), (7,), (2, 3), (2, 1, 4)])
def test_each_token_is_quantized_where_it_lies(positions, codebooks, channel_first, generator):
    x = torch.randn(3, *positions, 2 * codebooks, generator=generator)
    first = channel_first and bool(positions)
    given = x.movedim(-1, 1) if first else x
    quantized, indices = ops.finite_scalar_quantize(
        given, LEVELS, codebooks=codebooks, channel_first=channel_first, keep_codebooks=True
    )
    codes, right = ops.scalar_quantize(x.reshape(-1, codebooks, 2), LEVELS)
    assert quantized.shape == given.shape
    moved = quantized.movedim(1, -1) if first else quantized
    assert torch.equal(moved.reshape(codes.shape), codes)
    assert torch.equal(indices, right.reshape(3, *positions, codebooks))


def test_gradient_of_an_input_is_that_of_its_tokens(generator):
    x = torch.randn(2, 3, 5, 2, generator=generator, requires_grad=True)
    weight = torch.randn(x.shape, generator=generator)
    given = x.movedim(-1, 1)
    mask = torch.rand(2, 15, generator=generator) > 0.4
    quantized, indices = ops.finite_scalar_quantize(given, LEVELS, channel_first=True, mask=mask)
    (found,) = torch.autograd.grad(quantized, x, weight.movedim(-1, 1))
    (right,) = torch.autograd.grad(ops.scalar_quantize(x, LEVELS)[0], x, weight)
    real = mask.reshape(2, 3, 5)
    assert torch.equal(found[real], right[real]) and found[~real].eq(0).all()
    assert indices[~real].eq(-1).all() and quantized.movedim(1, -1)[~real].eq(0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_output_has_the_dtype_of_the_input(dtype, generator):
    x = torch.randn(2, 4, 2, generator=generator).to(dtype)
    quantized, indices = ops.finite_scalar_quantize(x, LEVELS)
    assert quantized.dtype == dtype and indices.shape == (2, 4)
    assert torch.equal(quantized, ops.scalar_quantize(x, LEVELS)[0].to(dtype))


def test_several_codebooks_keep_their_axis():
    with pytest.raises(ValueError, match="expected keep_codebooks with several codebooks"):
        ops.finite_scalar_quantize(torch.zeros(1, 2, 4), LEVELS, codebooks=2)
