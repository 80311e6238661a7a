"""linear_nearest_code: nearest of frozen codes under a linear map, against a product and a search in float64."""

from __future__ import annotations

import pytest
import torch

ops = torch.ops.torchvq


def arguments(generator, tokens, dtype=torch.float64):
    shapes = (1, tokens, 6), (20, 5), (6, 5), (6,)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("tokens", [0, 1, 7, 19, 20, 61])
def test_search_and_gradient_of_the_map(tokens, with_bias, generator):
    x, frozen, weight, bias = arguments(generator, tokens)
    learnt = [weight, bias] if with_bias else [weight]
    for own in learnt:
        own.requires_grad_()
    codes, indices = ops.linear_nearest_code(x, frozen, weight, bias if with_bias else None)
    every = torch.nn.functional.linear(frozen, *learnt)
    right = torch.cdist(x[0], every).argmin(-1)
    assert torch.equal(indices[0], right) and torch.equal(codes[0], every[right])
    upstream = torch.randn(codes.shape, generator=generator).double()
    found = torch.autograd.grad(codes, learnt, upstream)
    expected = torch.autograd.grad(every[right], learnt, upstream[0])
    for ours, own in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, own, rtol=1e-12, atol=1e-12)


def test_a_token_that_is_not_finite_reaches_no_weight(generator):
    x, frozen, weight, _ = arguments(generator, 4)
    x[0, 2, 1] = float("inf")
    weight.requires_grad_()
    codes, indices = ops.linear_nearest_code(x, frozen, weight)
    assert codes[0, 2].isnan().all() and indices[0, 2] == 0
    upstream = torch.ones_like(codes)
    (found,) = torch.autograd.grad(codes, weight, upstream)
    finite = x[:, [0, 1, 3]]
    alone = ops.linear_nearest_code(finite, frozen, weight)[0]
    (right,) = torch.autograd.grad(alone, weight, upstream[:, :3])
    torch.testing.assert_close(found, right, rtol=1e-12, atol=1e-12)


def test_second_derivative(generator):
    x, frozen, weight, bias = arguments(generator, 4)
    weight.requires_grad_()
    bias.requires_grad_()

    def call(weight, bias):
        return ops.linear_nearest_code(x, frozen, weight, bias)[0].square()

    assert torch.autograd.gradcheck(call, (weight, bias))
    assert torch.autograd.gradgradcheck(call, (weight, bias))


def test_opcheck(generator):
    x, frozen, weight, bias = arguments(generator, 9, torch.float32)
    weight.requires_grad_()
    torch.library.opcheck(ops.linear_nearest_code, (x, frozen, weight, bias))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (dict(x=torch.zeros(2, 4, 6)), ValueError, "expected x to have size 1"),
        (dict(x=torch.zeros(1, 4, 0), weight=torch.zeros(0, 5)), ValueError, "at least 1 dim"),
        (dict(weight=torch.zeros(7, 5)), ValueError, "expected weight to have size 6"),
        (dict(weight=torch.zeros(6, 4)), ValueError, "expected weight to have size 5"),
        (dict(weight=torch.zeros(6, 5).half()), TypeError, "expected weight to be"),
        (dict(frozen=torch.zeros(0, 5)), ValueError, "expected frozen to have at least 1 code"),
        (dict(bias=torch.zeros(5)), ValueError, "expected bias to have size 6"),
    ],
    ids=str,
)
def test_errors_name_the_argument(change, error, message, generator):
    given = dict(
        zip(
            ("x", "frozen", "weight", "bias"),
            arguments(generator, 4, torch.float32),
            strict=True,
        )
    )
    given |= change
    for device in ("cpu", "meta"):
        with pytest.raises(error, match=f"linear_nearest_code: .*{message}"):
            ops.linear_nearest_code(**{name: t.to(device) for name, t in given.items()})
