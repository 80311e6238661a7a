"""Operator soft_clamp: torch's own operators and float64 as oracles, in values, bits and derivatives."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import torchvq  # noqa: F401  (registers the operators)

_ops = torch.ops.torchvq
LIMITS = {"one": torch.tensor(1.3), "each": torch.tensor([0.7, 1.0, 2.5, 9.0, 1e-3])}
SPECIAL = [0.0, -0.0, 1e-42, -1e-42, 1e30, -1e30, 0.5, -0.5, 8.9, -8.9]


def by_torch(x: Tensor, limit: Tensor) -> Tensor:
    return (x / limit).tanh() * limit + (x.detach() - x.detach())


def inputs(dtype: torch.dtype, rows: int = 40000) -> Tensor:
    torch.manual_seed(0)
    x = torch.randn(rows, 5, dtype=dtype) * 4
    x[: len(SPECIAL)] = torch.tensor(SPECIAL, dtype=dtype).unsqueeze(-1)
    return x


@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("threads", [1, 2])
def test_bits_are_those_of_the_operators(dtype: torch.dtype, limit: Tensor, threads: int) -> None:
    torch.set_num_threads(threads)
    x = inputs(dtype)
    upstream = torch.randn(x.shape, dtype=dtype)
    found, expected = (x.clone().requires_grad_() for _ in range(2))
    output = _ops.soft_clamp(found, limit)
    oracle = by_torch(expected, limit.to(dtype))
    bits = torch.int32 if dtype == torch.float32 else torch.int64
    assert torch.equal(output.view(bits), oracle.view(bits))
    assert torch.equal(_ops.soft_clamp(x, limit).view(bits), oracle.view(bits))
    (own,) = torch.autograd.grad(output, found, upstream)
    (theirs,) = torch.autograd.grad(oracle, expected, upstream)
    assert torch.equal(own.view(bits), theirs.view(bits))


STRIDED: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x.t().contiguous().t(),
    "group": lambda x: torch.cat([x, x * 3], -1).chunk(2, -1)[0],
    "group of a batch": lambda x: torch.cat([x, x], -1).view(8, 2, -1, 10).chunk(2, -1)[1],
    "items of a larger batch": lambda x: torch.stack([x, x]).view(4, -1, 5)[::2],
    "every other feature": lambda x: x.repeat_interleave(2, 1)[:, ::2],
    "repeated": lambda x: x[:1].expand(7, 5),
    "repeated batch": lambda x: x[None].expand(3, *x.shape),
    "channels first": lambda x: x.view(4, -1, 5).transpose(1, 2).contiguous().transpose(1, 2),
    "one row": lambda x: x[::40000],
    "features once": lambda x: x[:, :1].expand(-1, 5),
}


@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("strided", STRIDED.values(), ids=STRIDED)
def test_other_strides_have_the_same_bits(
    limit: Tensor, strided: Callable[[Tensor], Tensor]
) -> None:
    whole = inputs(torch.float32)
    x = strided(whole)
    found, expected = x.detach().requires_grad_(), x.contiguous().requires_grad_()
    output, oracle = _ops.soft_clamp(found, limit), by_torch(expected, limit)
    assert torch.equal(output, oracle) and torch.equal(_ops.soft_clamp(x, limit), oracle)
    assert output.stride() == by_torch(found, limit).stride()
    of_the_same_strides = strided(torch.randn(whole.shape))
    repeated = torch.ones(()).expand(x.shape)
    for upstream in (torch.randn(x.shape), of_the_same_strides, repeated):
        (own,) = torch.autograd.grad(output, found, upstream, retain_graph=True)
        (theirs,) = torch.autograd.grad(oracle, expected, upstream, retain_graph=True)
        assert torch.equal(own, theirs)


@pytest.mark.parametrize("features", [1, 3, 128, 200])
@pytest.mark.parametrize("rows", [1, 2, 129, 1000])
def test_rows_taken_together_have_the_same_bits(features: int, rows: int) -> None:
    limit = torch.rand(features) + 0.5
    x = torch.randn(rows, features).requires_grad_()
    output, oracle = _ops.soft_clamp(x, limit), by_torch(x, limit)
    assert torch.equal(output, oracle)
    upstream = torch.randn(x.shape)
    own, theirs = (torch.autograd.grad(y, x, upstream)[0] for y in (output, oracle))
    assert torch.equal(own, theirs)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_what_is_not_finite_becomes_nan_alone(value: float) -> None:
    x = inputs(torch.float32, 20)
    x[3, 2] = value
    x.requires_grad_()
    output = _ops.soft_clamp(x, LIMITS["each"])
    output.sum().backward()
    assert output.isnan().nonzero().tolist() == [[3, 2]]
    assert isinstance(x.grad, Tensor) and x.grad.isnan().sum() <= 1


@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS)
def test_first_and_second_derivatives_are_those_of_finite_differences(limit: Tensor) -> None:
    x = (torch.randn(3, 5, dtype=torch.float64) * 0.5).requires_grad_()
    wide = limit.double().clamp_min(0.5)
    assert torch.autograd.gradcheck(lambda x: _ops.soft_clamp(x, wide), (x,))
    assert torch.autograd.gradgradcheck(lambda x: _ops.soft_clamp(x, wide), (x,))


def test_transforms_and_a_limit_with_gradient() -> None:
    limit = LIMITS["each"].double().clamp_min(0.5)
    x = torch.randn(3, 5, dtype=torch.float64)

    def total(function: Callable[..., Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda x, limit: function(x, limit).square().sum()

    ours, theirs = total(_ops.soft_clamp), total(by_torch)
    for arguments in (0, 1):
        found = torch.func.grad(ours, arguments)(x, limit)
        torch.testing.assert_close(found, torch.func.grad(theirs, arguments)(x, limit))
    tangent = torch.func.jvp(lambda x: ours(x, limit), (x,), (torch.ones_like(x),))
    torch.testing.assert_close(
        tangent, torch.func.jvp(lambda x: theirs(x, limit), (x,), (torch.ones_like(x),))
    )
    mapped = torch.func.vmap(lambda row: _ops.soft_clamp(row, limit))(x)
    torch.testing.assert_close(mapped, by_torch(x, limit))
    given = limit.clone().requires_grad_()
    ours(x, given).backward()
    expected = limit.clone().requires_grad_()
    theirs(x, expected).backward()
    torch.testing.assert_close(given.grad, expected.grad)


def test_results_may_be_written_to() -> None:
    x = inputs(torch.float32, 20).requires_grad_()
    output = _ops.soft_clamp(x, LIMITS["each"])
    output.data.mul_(2)
    output.mul_(3).sum().backward()
    again = x.detach().clone().requires_grad_()
    (by_torch(again, LIMITS["each"]) * 3).sum().backward()
    assert isinstance(x.grad, Tensor) and isinstance(again.grad, Tensor)
    torch.testing.assert_close(x.grad, again.grad)


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (2, 0, 5)])
def test_nothing_stays_nothing(shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape, requires_grad=True)
    output = _ops.soft_clamp(x, LIMITS["one"])
    output.sum().backward()
    assert output.shape == shape and x.grad is not None
