"""paired_commitment_loss: both halves of the loss of learnt codes, against autograd in float64."""

from __future__ import annotations

import pytest
import torch

from support import any_path

ops = torch.ops.torchvq


def pairs(generator, dtype=torch.float32):
    return [torch.randn(2, 23, 5, generator=generator).to(dtype) for _ in range(2)]


def oracle(x, codes, mask, to_x, to_codes):
    halves = (x.detach() - codes).square(), (x - codes.detach()).square()
    pulls = [half.mean() if mask is None else half[mask].mean() for half in halves]
    return to_codes * pulls[0] + to_x * pulls[1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("to_x", "to_codes"), [(0.25, 1.0), (0.0, 2.0), (0.5, 0.0)])
def test_value_and_gradients(to_x, to_codes, masked, dtype, generator):
    ours = [own.requires_grad_() for own in pairs(generator, dtype)]
    mask = torch.rand(2, 23, generator=generator) > 0.4 if masked else None
    loss = ops.paired_commitment_loss(*ours, mask=mask, to_x=to_x, to_codes=to_codes)
    twins = [own.detach().double().requires_grad_() for own in ours]
    right = oracle(*twins, mask, to_x, to_codes)
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5}.get(dtype, 1e-2)
    torch.testing.assert_close(loss.double(), right, rtol=1e-5, atol=0)
    loss.backward()
    right.backward()
    for own, twin in zip(ours, twins, strict=True):
        expected = torch.zeros_like(twin) if twin.grad is None else twin.grad
        torch.testing.assert_close(
            own.grad.double(), expected, rtol=tolerance, atol=tolerance / 100
        )


@pytest.mark.parametrize("masked", [False, True])
def test_second_derivatives_stay_on_the_side_that_moves(masked, generator):
    mask = torch.rand(2, 23, generator=generator) > 0.4 if masked else None
    found = []
    for loss in (ops.paired_commitment_loss, oracle):
        x, codes = (own.double().requires_grad_() for own in pairs(torch.Generator()))
        value = loss(x, codes, mask=mask, to_x=0.25, to_codes=1.0)
        first = torch.autograd.grad(value, (x, codes), create_graph=True)
        penalty = sum(own.pow(3).sum() for own in first)
        found.append(torch.autograd.grad(penalty, (x, codes)))
    for ours, right in zip(*found, strict=True):
        torch.testing.assert_close(ours, right, rtol=1e-12, atol=1e-15)


def test_paths_agree(generator):
    x, codes = pairs(generator)
    grad = torch.randn((), generator=generator)
    for mask in (None, torch.rand(2, 23, generator=generator) > 0.4):
        weights = dict(to_x=0.25, to_codes=1.0)
        found = ops.paired_commitment_loss(x, codes, mask=mask, **weights)
        other = any_path("paired_commitment_loss")(x, codes, mask=mask, **weights)
        torch.testing.assert_close(found, other)
        call = (grad, x, codes, mask, 0.25, 1.0)
        for ours, own in zip(
            ops.paired_commitment_loss_backward(*call),
            any_path("paired_commitment_loss_backward")(*call),
            strict=True,
        ):
            torch.testing.assert_close(ours, own, rtol=1e-6, atol=1e-9)


def test_padding_may_hold_anything_and_no_tokens_are_0(generator):
    x, codes = pairs(generator)
    mask = torch.rand(2, 23, generator=generator) > 0.4
    weights = dict(to_x=0.25, to_codes=1.0)
    right = ops.paired_commitment_loss(x, codes, mask=mask, **weights)
    x = x.masked_fill(~mask.unsqueeze(-1), float("nan")).requires_grad_()
    found = ops.paired_commitment_loss(x, codes, mask=mask, **weights)
    found.backward()
    assert torch.equal(found, right) and x.grad[~mask].eq(0).all()
    nothing = torch.zeros(2, 0, 5)
    assert ops.paired_commitment_loss(nothing, nothing, **weights) == 0


def test_opcheck(generator):
    x, codes = (own.requires_grad_() for own in pairs(generator))
    torch.library.opcheck(
        ops.paired_commitment_loss, (x, codes), dict(to_x=0.25, to_codes=1.0, mask=None)
    )


def test_errors_name_the_argument(generator):
    x, codes = pairs(generator)
    with pytest.raises(ValueError, match="expected to_x to be finite and non-negative"):
        ops.paired_commitment_loss(x, codes, to_x=-1.0, to_codes=1.0)
    with pytest.raises(ValueError, match="expected codes to have the shape of x"):
        ops.paired_commitment_loss(x, codes[:, 1:], to_x=1.0, to_codes=1.0)
