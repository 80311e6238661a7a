"""token_moment_loss: a loss of the tokens' moments as one operator, against autograd of the formula in float64."""

from __future__ import annotations

import pytest
import torch

from support import any_path

ops = torch.ops.torchvq
TARGETS, WEIGHTS = [0.1, 0.8, 0.2, -0.5], [1.0, 0.7, 0.3, 0.2]


def statistics(x):
    centred = x - x.mean(0)
    variance = x.var(0) if len(x) > 1 else torch.zeros_like(x[0])
    spread = variance.clamp_min(1e-60)
    third, fourth = centred.pow(3).mean(0), centred.pow(4).mean(0)
    return x.mean(0), variance, third / spread**1.5, fourth / spread**2 - 3


def formula(x):
    terms = zip(statistics(x), TARGETS, WEIGHTS, strict=True)
    return sum(weight * (value - target).square().mean() for value, target, weight in terms)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("deviation", [1.0, 1e-3])
def test_loss_statistics_and_gradient(deviation, masked, dtype, generator):
    x = torch.randn(3, 21, 4, generator=generator).mul(deviation).to(dtype).requires_grad_()
    mask = torch.rand(3, 21, generator=generator) > 0.4 if masked else None
    loss, *found, _ = ops.token_moment_loss(x, TARGETS, WEIGHTS, mask=mask)
    twin = x.detach().double().requires_grad_()
    rows = twin.flatten(0, 1) if mask is None else twin[mask]
    assert loss.dtype == found[0].dtype == (dtype if dtype == torch.float64 else torch.float32)
    for value, right in zip(found, statistics(rows), strict=True):
        torch.testing.assert_close(value.double(), right, rtol=1e-5, atol=1e-6)
        assert not value.requires_grad
    right = formula(rows)
    torch.testing.assert_close(loss.double(), right, rtol=1e-5, atol=0)
    loss.backward()
    right.backward()
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5}.get(dtype, 1e-2)
    atol = tolerance / 10 / deviation
    torch.testing.assert_close(x.grad.double(), twin.grad, rtol=tolerance, atol=atol)


@pytest.mark.parametrize("value", [0.0, 0.3, 1e-30, -7e8])
def test_constant_features_have_finite_statistics_and_gradients(value):
    x = torch.full((37, 2), value)
    x[:, 1] = torch.arange(37.0)
    two_parts = torch.stack([ops.token_moments(x[:20]), ops.token_moments(x[20:])])
    for moments in (ops.token_moments(x)[None], two_parts):
        for path in (ops.moment_loss, any_path("moment_loss")):
            moments = moments.detach().requires_grad_()
            loss, *found = path(moments, TARGETS, WEIGHTS)
            assert loss.isfinite() and all(part.isfinite().all() for part in found)
            assert found[2][0] == 0 and found[3][0] == -3
        (slope,) = torch.autograd.grad(ops.moment_loss(moments, TARGETS, WEIGHTS)[0], moments)
        other = any_path("moment_loss_backward")(
            torch.ones((), dtype=moments.dtype), moments, TARGETS, WEIGHTS
        )
        assert slope.isfinite().all()
        torch.testing.assert_close(other, slope, rtol=1e-9, atol=0)


def test_it_is_its_two_operators_to_the_bit(generator):
    x = torch.randn(40, 4, generator=generator).requires_grad_()
    loss, *found, moments = ops.token_moment_loss(x, TARGETS, WEIGHTS)
    (gradient,) = torch.autograd.grad(loss, x)
    apart = ops.token_moments(x)
    right, *others = ops.moment_loss(apart.unsqueeze(0), TARGETS, WEIGHTS)
    (expected,) = torch.autograd.grad(right.float(), x)
    assert torch.equal(moments, apart) and torch.equal(loss, right.float())
    assert all(torch.equal(a, b.float()) for a, b in zip(found, others, strict=True))
    assert torch.equal(gradient, expected)


def test_no_tokens_have_no_loss():
    x = torch.zeros(0, 4, requires_grad=True)
    loss = ops.token_moment_loss(x, TARGETS, WEIGHTS)[0]
    loss.backward()
    assert loss == 0 and x.grad.shape == (0, 4)


def test_opcheck(generator):
    x = torch.randn(5, 4, generator=generator, requires_grad=True)
    torch.library.opcheck(ops.token_moment_loss, (x, TARGETS, WEIGHTS))


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match="expected 4 targets and weights, but got 3"):
        ops.token_moment_loss(torch.zeros(3, 2), [0.0] * 3, WEIGHTS)
    with pytest.raises(ValueError, match="expected mask to have shape"):
        ops.token_moment_loss(
            torch.zeros(3, 2), TARGETS, WEIGHTS, mask=torch.ones(2, dtype=torch.bool)
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(moments=torch.empty(1, 0)), "moments to have shape"),
        (dict(targets=[]), "4 targets and weights"),
        (dict(grad=torch.ones(2)), "grad to have"),
    ],
    ids=["moments", "targets", "grad"],
)
def test_wrong_arguments_of_the_gradient_are_refused(change, message):
    moments = ops.token_moments(torch.randn(1, 8, 4))[None]
    given = dict(grad=torch.ones(()), moments=moments, targets=TARGETS, weights=WEIGHTS) | change
    for path in (ops.moment_loss_backward, any_path("moment_loss_backward")):
        with pytest.raises(ValueError, match=f"expected {message}"):
            path(**given)


@pytest.mark.parametrize(
    ("moments", "message"),
    [
        (torch.zeros(17), "moments to be Double"),
        (
            torch.zeros(17, dtype=torch.float64, device="meta"),
            "x and moments to be on the same device",
        ),
    ],
    ids=["dtype", "device"],
)
def test_other_moments_are_refused(moments, message):
    arguments = (torch.ones(()), torch.randn(8, 4), moments, TARGETS, WEIGHTS, None)
    for path in (ops.token_moment_loss_backward, any_path("token_moment_loss_backward")):
        with pytest.raises(
            (TypeError, RuntimeError), match=f"token_moment_loss_backward: expected {message}"
        ):
            path(*arguments)
