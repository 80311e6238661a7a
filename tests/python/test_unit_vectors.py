"""unit_vectors and its gradient (include/torchvq/ops/unit_vectors.h)."""

from __future__ import annotations

import math

import pytest
import torch

from support import any_path

ops = torch.ops.torchvq
PATHS = {"dispatched": ops.unit_vectors, "any": any_path("unit_vectors")}
BACKWARD = {
    "dispatched": ops.unit_vectors_backward,
    "any": any_path("unit_vectors_backward"),
}
SHAPES = [(3, 17, 5), (2, 40, 64), (7,), (1, 1), (2, 3, 2, 33)]


@pytest.fixture(params=BACKWARD.values(), ids=BACKWARD.keys())
def backward(request):
    return request.param


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS.keys())
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_row_is_divided_by_its_length(path, shape, generator):
    x = torch.randn(shape, generator=generator)
    units = path(x)
    for row, unit in zip(x.reshape(-1, shape[-1]), units.reshape(-1, shape[-1]), strict=True):
        length = math.sqrt(sum(value * value for value in row.tolist()))
        expected = torch.tensor([value / length for value in row.tolist()], dtype=torch.float64)
        assert torch.equal(unit, expected.float())


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str
)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_gradient_is_that_of_the_formula(backward, dtype, shape, generator):
    x = torch.randn(shape, generator=generator).to(dtype)
    units = ops.unit_vectors(x)
    grad = torch.randn(shape, generator=generator).to(units.dtype)
    wide = x.double().clone().requires_grad_()
    (wide / wide.norm(dim=-1, keepdim=True)).backward(grad.double())
    found = backward(grad, x, units)
    assert found.dtype == units.dtype and found.shape == x.shape
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    torch.testing.assert_close(found.double(), wide.grad, rtol=tolerance, atol=tolerance)
    leaf = x.clone().requires_grad_()
    ops.unit_vectors(leaf).backward(grad)
    assert leaf.grad.dtype == dtype
    torch.testing.assert_close(leaf.grad, found.to(dtype), rtol=tolerance, atol=tolerance)


def test_first_and_second_derivatives_by_finite_differences(generator):
    x = torch.randn(2, 3, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(ops.unit_vectors, (x,))
    assert torch.autograd.gradgradcheck(ops.unit_vectors, (x,))


def test_zero_rows_stay_zero_and_nan_stays_in_its_row(backward, generator):
    x = torch.randn(6, 9, generator=generator)
    x[1], x[2, 3], x[4, 0] = 0, math.nan, math.inf
    units = ops.unit_vectors(x)
    assert torch.equal(units[1], torch.zeros(9)) and units[2].isnan().all()
    assert units[4, 0].isnan() and torch.equal(units[4, 1:], torch.zeros(8))
    found = backward(torch.ones_like(x), x, units)
    assert torch.equal(found[1], torch.zeros(9)) and found[2].isnan().all()
    assert found[[0, 3, 5]].isfinite().all()


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_hostile_lengths(backward, scale, generator):
    x = torch.randn(4, 8, generator=generator) * scale
    units = ops.unit_vectors(x)
    wide = x.double().requires_grad_()
    (wide / wide.norm(dim=-1, keepdim=True)).backward(torch.ones_like(wide))
    found = backward(torch.ones_like(x), x, units)
    torch.testing.assert_close(found.double(), wide.grad, rtol=1e-5, atol=1e-6 / scale)


def test_strides_and_no_rows(backward, generator):
    x, grad = torch.randn(2, 5, 6, 9, generator=generator).mT.unbind(0)
    units = ops.unit_vectors(x)
    plain = backward(grad.contiguous(), x.contiguous(), units.contiguous())
    assert torch.equal(backward(grad, x, units), plain)
    for shape in ((0, 4), (3, 0)):
        empty = torch.empty(shape)
        assert backward(empty, empty, empty).shape == shape


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (lambda g, x, u: (g.long(), x, u), TypeError, "grad to be floating point"),
        (lambda g, x, u: (g, x, u.double()), TypeError, "units to be Float"),
        (lambda g, x, u: (g[:1], x, u), ValueError, "grad to have the shape of x"),
        (lambda g, x, u: (g, x, u[:, :1]), ValueError, "units to have the shape of x"),
        (lambda g, x, u: (g.sum(), x.sum(), u.sum()), ValueError, "at least 1 dimension"),
    ],
)
def test_bad_arguments_are_named(backward, change, kind, message, generator):
    x = torch.randn(3, 4, generator=generator)
    with pytest.raises(kind, match=f"unit_vectors_backward: .*{message}"):
        backward(*change(x, x, ops.unit_vectors(x)))
