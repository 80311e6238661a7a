"""sign_step: signs, entropies and losses of a step with one gradient, against softmax over all codes in float64."""

from __future__ import annotations

import pytest
import torch
from lookup_free_oracle import assert_near, entropies

from support import any_path

ops = torch.ops.torchvq
WEIGHTS = dict(entropy_weight=0.3, diversity_gamma=1.5, commitment_weight=0.25)
NAMES = ("codes", "indices", "loss", "per_sample", "batch", "commitment")


def tokens(generator, *shape):
    return torch.randn(shape, generator=generator) * 0.05


def oracle(x, mask):
    codes = torch.where(x > 0, 0.5, -0.5)
    places = 2 ** torch.arange(x.shape[-1] - 1, -1, -1)
    per_sample, batch = entropies(x, 40.0, mask)
    distances = (x - codes).square()
    commitment = distances.mean() if mask is None else distances[mask].mean()
    loss = 0.3 * (per_sample - 1.5 * batch) + 0.25 * commitment
    straight = x + (codes - x).detach()
    return straight, ((x > 0) * places).sum(-1), loss, per_sample, batch, commitment


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("path", ["cpu", "any"])
def test_values_by_softmax_over_all_codes(path, masked, generator):
    x = tokens(generator, 2, 31, 5)
    mask = torch.rand(2, 31, generator=generator) > 0.4 if masked else None
    call = ops.sign_step if path == "cpu" else any_path("sign_step")
    found = call(x, scale=0.5, sharpness=40.0, mask=mask, entropy_mask=mask, **WEIGHTS)
    for name, value, right in zip(NAMES, found, oracle(x.double(), mask), strict=False):
        if name == "indices":
            assert torch.equal(value, right)
        else:
            assert_near(value, right, 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("ends", [(0,), (2,), (3,), (4, 5), (0, 2), (0, 2, 3, 4, 5)], ids=str)
def test_gradient_of_every_output(ends, masked, dtype, generator):
    x = tokens(generator, 2, 17, 4).to(dtype).requires_grad_()
    mask = torch.rand(2, 17, generator=generator) > 0.4 if masked else None
    found = ops.sign_step(x, scale=0.5, sharpness=40.0, mask=mask, entropy_mask=mask, **WEIGHTS)
    twin = x.detach().double().requires_grad_()
    expected = oracle(twin, mask)
    weights = [torch.randn(found[i].shape, generator=generator).to(dtype) for i in ends]
    (ours,) = torch.autograd.grad([found[i] for i in ends], x, weights)
    (right,) = torch.autograd.grad(
        [expected[i] for i in ends], twin, [weight.double() for weight in weights]
    )
    assert ours.dtype == dtype
    assert_near(ours, right, 1e-10 if dtype == torch.float64 else 1e-5)


def test_gradient_paths_agree(generator):
    x, grads = tokens(generator, 2, 9, 4), [torch.randn((), generator=generator) for _ in range(4)]
    mask = torch.rand(2, 9, generator=generator) > 0.4
    saved = ops.sign_step(x, scale=0.5, sharpness=40.0, wanted=True, **WEIGHTS)
    for straight in (None, tokens(generator, 2, 9, 4)):
        for own in (None, mask):
            call = (straight, *grads, x, saved[0], saved[6], saved[7], own, 0.3, 1.5, 0.25)
            right = any_path("sign_step_backward")(*call)
            assert_near(ops.sign_step_backward(*call), right, 1e-6)


def test_no_weight_no_commitment(generator):
    x = tokens(generator, 1, 6, 4).requires_grad_()
    found = ops.sign_step(x, sharpness=40.0)
    assert found[5] == 0
    (gradient,) = torch.autograd.grad(found[5], x)
    assert gradient.eq(0).all()


@pytest.mark.parametrize("path", ["cpu", "any"])
def test_no_tokens_and_padding_that_is_not_finite(path, generator):
    call = ops.sign_step if path == "cpu" else any_path("sign_step")
    empty = call(torch.zeros(2, 0, 4), sharpness=40.0, **WEIGHTS)
    assert empty[0].shape == (2, 0, 4) and empty[2] == 0
    x = tokens(generator, 1, 8, 4)
    mask = torch.arange(8)[None] < 5
    x[0, 6, 1] = float("nan")
    found = call(x, sharpness=40.0, mask=mask, entropy_mask=mask, **WEIGHTS)
    alone = call(x[:, :5], sharpness=40.0, **WEIGHTS)
    assert all(torch.equal(a, b) for a, b in zip(found[2:6], alone[2:6], strict=True))
    assert found[0][0, 6].isnan().all()


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((torch.zeros(4, 2),), {}, "expected latents to have 3 dimensions"),
        ((torch.zeros(1, 4, 2),), dict(scale=0.0), "expected scale to be finite and positive"),
        ((torch.zeros(1, 4, 2),), dict(entropy_weight=float("nan")), "expected weights to be"),
        ((torch.zeros(1, 4, 2),), dict(mask=torch.ones(1, 3, dtype=torch.bool)), "expected mask"),
    ],
)
def test_errors_name_the_argument(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        ops.sign_step(*arguments, sharpness=1.0, **options)


def test_refuses_a_second_derivative(generator):
    x = tokens(generator, 1, 6, 4).requires_grad_()
    loss = ops.sign_step(x, sharpness=40.0)[2]
    with pytest.raises(NotImplementedError, match="create_graph"):
        torch.autograd.grad(loss, x, create_graph=True)


@pytest.mark.parametrize("masked", [False, True])
def test_second_derivatives_but_of_the_entropies(masked, generator):
    x = tokens(generator, 2, 17, 4).double()
    mask = torch.rand(2, 17, generator=generator) > 0.4 if masked else None
    found = []
    for step in ("ours", "right"):
        leaf = x.clone().requires_grad_()
        if step == "ours":
            results = ops.sign_step(
                leaf, scale=0.5, sharpness=40.0, mask=mask, entropy_mask=mask, **WEIGHTS
            )
        else:
            results = oracle(leaf, mask)
        value = (results[0] * leaf).square().sum() + 3 * results[5]
        (first,) = torch.autograd.grad(value, leaf, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), leaf)[0])
    torch.testing.assert_close(*found, rtol=1e-12, atol=0)
