"""scalar_perturb, scalar_centroids, token_moments, moment_loss (include/torchvq/ops)."""

from __future__ import annotations

import math

import pytest
import torch

import torchvq  # noqa: F401
from support import any_path

ops = torch.ops.torchvq
RNG = torch.tensor([987654321, 3])
LEVELS = [8, 5, 40]
CDFS = {
    "tanh": lambda z: (z.tanh() + 1) / 2,
    "sigmoid": torch.sigmoid,
    "normal": lambda z: torch.special.ndtr(z),
    "laplace": lambda z: torch.distributions.Laplace(0.0, 1.0).cdf(z),
    "cauchy": lambda z: z.atan() / math.pi + 0.5,
}


@pytest.mark.parametrize("cdf", CDFS)
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str
)
def test_scalar_perturb_levels_are_the_bins(cdf, dtype, generator):
    x = (torch.randn(5, 200, 3, generator=generator) * 1.5).to(dtype)
    codes, levels, indices, acceptance = ops.scalar_perturb(x, LEVELS, None, cdf=cdf)
    u = CDFS[cdf](x.double()) * torch.tensor(LEVELS)
    clear = (u - u.round()).abs() > 1e-9
    assert clear.double().mean() > 0.97
    assert torch.equal(levels[clear], u.floor().long()[clear])
    assert torch.equal(indices, ops.scalar_indices(levels, LEVELS)) and acceptance == 1
    centre = (levels + 0.5) / torch.tensor(LEVELS).double() - 0.5
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    torch.testing.assert_close(codes, (centre * math.sqrt(12)).to(wide), rtol=1e-6, atol=1e-7)
    assert torch.equal(codes, ops.scalar_centroids(indices, LEVELS, cdf=cdf, dtype=wide))


@pytest.mark.parametrize("form", ["act", "unit", "inverse"])
@pytest.mark.parametrize("cdf", CDFS)
def test_scalar_perturb_noise_and_gradient(cdf, form, generator):
    x = torch.randn(4, 300, 3, generator=generator).double().requires_grad_()
    codes, *_, acceptance = ops.scalar_perturb(x, LEVELS, RNG, cdf=cdf, form=form)
    noise = ops.random_numbers(RNG, 6, x.shape).double() - 0.5
    twin = x.detach().requires_grad_()
    u = CDFS[cdf](twin)
    moved = u + noise / torch.tensor(LEVELS)
    inside = (moved >= 0) & (moved <= 1)
    moved = torch.where(inside, moved, u)
    torch.testing.assert_close(acceptance, inside.double().mean())
    scaled = {"act": moved, "unit": math.sqrt(12) * (moved - 0.5), "inverse": twin}[form]
    if form == "inverse":
        back = CDFS[cdf](codes.detach())
        torch.testing.assert_close(back, moved.detach().clamp(1e-6, 1 - 1e-6), rtol=1e-9, atol=1e-9)
    else:
        torch.testing.assert_close(codes, scaled, rtol=1e-9, atol=1e-12)
    weight = torch.randn(x.shape, generator=generator).double()
    (codes * weight).sum().backward()
    (scaled * weight).sum().backward()
    torch.testing.assert_close(x.grad, twin.grad, rtol=1e-9, atol=1e-12)


def test_scalar_perturb_paths_agree(generator):
    x = torch.randn(6, 70, 3, generator=generator)
    x[0, 1, 2], x[2, 3, 0] = math.nan, math.inf
    mask = torch.rand(6, 70, generator=generator) < 0.7
    for rate in (0.0, 0.4, 1.0):
        for form in ("act", "unit", "inverse"):
            for tokens, real in ((x, mask), (x.half(), None), (x.transpose(0, 1), None)):
                kw = dict(quantize_rate=rate, form=form, mask=real)
                found = ops.scalar_perturb(tokens, LEVELS, RNG, **kw)
                other = any_path("scalar_perturb")(tokens, LEVELS, RNG, **kw)
                for a, b in zip(found, other, strict=True):
                    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6, equal_nan=True)
    codes, levels, indices, _ = ops.scalar_perturb(x, LEVELS, RNG)
    assert codes[0, 1].isnan().all() and indices[0, 1] == 0 and indices[2, 3] == 0
    grad = torch.randn(x.shape, generator=generator)
    for cdf in CDFS:
        args = (grad, x.nan_to_num(), indices, cdf, "unit")
        torch.testing.assert_close(
            ops.scalar_perturb_backward(*args),
            any_path("scalar_perturb_backward")(*args),
            rtol=1e-5,
            atol=1e-6,
        )


def test_scalar_perturb_masked_equals_the_real_tokens_alone(generator):
    x = torch.randn(4, 9, 3, generator=generator)
    mask = torch.rand(4, 9, generator=generator) < 0.6
    alone = ops.scalar_perturb(x[mask], LEVELS, RNG, quantize_rate=0.3)
    padded = x.masked_fill(~mask[..., None], math.nan)
    found = ops.scalar_perturb(padded, LEVELS, RNG, quantize_rate=0.3, mask=mask)
    for a, b in zip(found[:3], alone[:3], strict=True):
        assert torch.equal(a[mask], b)
    assert (found[0][~mask] == 0).all() and (found[2][~mask] == -1).all()
    torch.testing.assert_close(found[3], alone[3])


@pytest.mark.parametrize("default", [torch.float32, torch.bfloat16], ids=str)
def test_scalar_perturb_acceptance_is_a_quotient_in_float64(default, generator):
    x = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        for form in ("unit", "inverse"):
            options = dict(quantize_rate=0.5, cdf="normal", form=form)
            found = ops.scalar_perturb(x, LEVELS, RNG, **options)
            other = any_path("scalar_perturb")(x, LEVELS, RNG, **options)
            assert found[3] == other[3] and found[3] != found[3].float()
    finally:
        torch.set_default_dtype(before)


def test_scalar_act_levels_by_hand():
    act = torch.tensor([[0.0, 0.2], [0.1249999, 0.99], [0.125, 1.0], [math.nan, 2.0]])
    assert ops.scalar_act_levels(act, [8, 5]).tolist() == [[0, 1], [0, 4], [1, 4], [0, 4]]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_token_moments_need_a_feature(device):
    x, mask = torch.zeros(2, 3, 0, device=device), torch.ones(2, 3, dtype=torch.bool, device=device)
    for options in ({}, dict(mask=mask)):
        with pytest.raises(
            ValueError, match="token_moments: expected x to have at least 1 feature"
        ):
            ops.token_moments(x, **options)


@pytest.mark.parametrize("masked", [False, True])
def test_token_moments_value_and_gradient(masked, generator):
    x = (torch.randn(3, 50, 2, generator=generator) + 4).double().requires_grad_()
    mask = torch.rand(3, 50, generator=generator) < 0.5 if masked else None
    rows = x.detach()[mask] if masked else x.detach().reshape(-1, 2)
    rest = rows - rows.mean(0)
    expected = [torch.tensor([float(len(rows))]).double(), rows.mean(0)]
    expected += [rest.pow(k).sum(0) for k in (2, 3, 4)]
    found = ops.token_moments(x, mask=mask)
    torch.testing.assert_close(found, torch.cat(expected), rtol=1e-10, atol=1e-9)
    other = any_path("token_moments")(x, mask=mask)
    torch.testing.assert_close(found, other, rtol=1e-10, atol=1e-9)
    assert torch.autograd.gradcheck(lambda t: ops.token_moments(t, mask=mask), (x,), atol=1e-4)
    grad = torch.randn(9, generator=generator).double()
    args = (grad, x.detach(), found.detach(), mask)
    torch.testing.assert_close(
        ops.token_moments_backward(*args), any_path("token_moments_backward")(*args)
    )


def test_moment_loss_of_parts_is_that_of_the_whole(generator):
    x = (torch.randn(90, 3, generator=generator) * 2 + 1).double()
    weights = [0.1, 0.07, 0.06, 0.05]
    targets = [0.1, 0.9, 0.2, -0.3]
    losses, grads = [], []
    for sizes in ([90], [1, 60, 29], [0, 90, 0]):
        leaf = x.clone().requires_grad_()
        rows = torch.stack([ops.token_moments(part) for part in leaf.split(sizes)])
        loss = ops.moment_loss(rows, targets, weights)[0]
        loss.backward()
        losses.append(loss.detach())
        grads.append(leaf.grad)
    leaf = x.clone().requires_grad_()
    scaled = (leaf - leaf.mean(0)) / (leaf.var(0) + 1e-8).sqrt()
    statistics = (leaf.mean(0), leaf.var(0), scaled.pow(3).mean(0), scaled.pow(4).mean(0) - 3)
    expected = sum(
        w * (s - t).square().mean() for w, s, t in zip(weights, statistics, targets, strict=True)
    )
    expected.backward()
    for loss, grad in zip(losses, grads, strict=True):
        torch.testing.assert_close(loss, expected.detach())
        torch.testing.assert_close(grad, leaf.grad)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_moment_loss_paths_agree(dtype, generator):
    targets = [0.1, 0.9, 0.2, -0.3]
    x = torch.randn(90, 3, generator=generator) * 2 + 1
    for weights in ([0.1, 0.07, 0.06, 0.05], [0.1, 0.07, 0.0, 0.0], [0.0] * 4):
        for sizes in ([90], [1, 60, 29], [0, 90], [0, 1], [0, 0]):
            parts = x[: sum(sizes)].split(sizes)
            rows = torch.stack([ops.token_moments(part) for part in parts]).to(dtype)
            args = (rows, targets, weights)
            for a, b in zip(ops.moment_loss(*args), any_path("moment_loss")(*args), strict=True):
                torch.testing.assert_close(a, b)
            slopes = (torch.tensor(1.3, dtype=dtype), *args)
            found = ops.moment_loss_backward(*slopes)
            assert found.isfinite().all()
            torch.testing.assert_close(found, any_path("moment_loss_backward")(*slopes))


def test_moment_loss_gradient(generator):
    weights, targets = [0.1, 0.07, 0.06, 0.05], [0.1, 0.9, 0.2, -0.3]
    parts = (torch.randn(90, 3, generator=generator) * 2 + 1).double().split([1, 60, 29])
    rows = torch.stack([ops.token_moments(part) for part in parts])
    counts = rows[:, :1]

    def loss(numbers):
        return ops.moment_loss(torch.cat([counts, numbers], 1), targets, weights)[0]

    assert torch.autograd.gradcheck(loss, (rows[:, 1:].clone().requires_grad_(),))
    leaf = rows.clone().requires_grad_()
    torch.library.opcheck(ops.moment_loss.default, (leaf, targets, weights))
    assert not any(s.requires_grad for s in ops.moment_loss(leaf, targets, weights)[1:])


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (dict(moments=torch.zeros(2, 6)), ValueError, "moments"),
        (dict(moments=torch.zeros(5)), ValueError, "moments"),
        (dict(moments=torch.zeros(1, 5).long()), TypeError, "moments"),
        (dict(weights=[0.1]), ValueError, "weights"),
    ],
)
def test_moment_loss_refuses(change, error, words):
    args = dict(moments=torch.zeros(1, 5), targets=[0.0] * 4, weights=[0.1] * 4) | change
    with pytest.raises(error, match=words):
        ops.moment_loss(**args)


def test_scalar_perturb_opcheck(generator):
    x = torch.randn(3, 4, 3, generator=generator, requires_grad=True)
    torch.library.opcheck(ops.scalar_perturb.default, (x, LEVELS, RNG), dict(quantize_rate=0.5))
    torch.library.opcheck(ops.token_moments.default, (x,))
    torch.library.opcheck(ops.scalar_centroids.default, (torch.arange(4), LEVELS))
    torch.library.opcheck(ops.scalar_act_levels.default, (torch.rand(4, 3), LEVELS))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (dict(x=torch.zeros(3, 2)), ValueError, "features"),
        (dict(x=torch.zeros(3, 3).long()), TypeError, "x"),
        (dict(levels=[8, 5, 1]), ValueError, "levels"),
        (dict(rng=RNG.int()), TypeError, "rng"),
        (dict(quantize_rate=1.5), ValueError, "quantize_rate"),
        (dict(quantize_rate=math.nan), ValueError, "quantize_rate"),
        (dict(cdf="relu"), ValueError, "cdf"),
        (dict(form="x"), ValueError, "form"),
        (dict(eps=0.0), ValueError, "eps"),
        (dict(mask=torch.ones(3)), TypeError, "mask"),
    ],
)
def test_scalar_perturb_refuses(change, error, words):
    args = dict(x=torch.zeros(3, 3), levels=LEVELS, rng=RNG) | change
    with pytest.raises(error, match=words):
        ops.scalar_perturb(**args)
