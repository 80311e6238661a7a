"""lookup_free_quantize: a forward of lookup-free quantization between its projections, against loops and float64."""

from __future__ import annotations

import pytest
import torch
from lookup_free_oracle import assert_near, entropies

ops = torch.ops.torchvq
WEIGHTS = dict(entropy_weight=0.3, diversity_gamma=1.5, commitment_weight=0.25)
NAMES = ("quantized", "indices", "loss", "per_sample", "batch", "commitment", "latents", "codes")


def step(x, **options):
    found = ops.lookup_free_quantize(x, totals=[], **options)
    return dict(zip(NAMES, found[:8], strict=True), counted=found[8], totals=found[9])


def tokens(generator, *shape):
    return torch.randn(shape, generator=generator, dtype=torch.float64) * 0.05


def index_of(row) -> int:
    return sum(2**place for place, value in enumerate(reversed(row.tolist())) if value > 0)


@pytest.mark.parametrize("channel_first", [False, True])
def test_each_part_of_the_features_is_its_signs(channel_first, generator):
    x = tokens(generator, 2, 7, 6)
    given = x.transpose(1, 2) if channel_first else x
    found = step(given, codebooks=2, scale=0.5, channel_first=channel_first)
    quantized = found["quantized"].transpose(1, 2) if channel_first else found["quantized"]
    assert torch.equal(quantized, torch.where(x > 0, 0.5, -0.5).double())
    for batch in range(2):
        for token in range(7):
            row = x[batch, token]
            expected = [index_of(row[:3]), index_of(row[3:])]
            assert found["indices"][batch, token].tolist() == expected
    assert all(found[name] == 0 for name in ("loss", "per_sample", "batch", "commitment"))


@pytest.mark.parametrize("masked", [False, True])
def test_losses_by_softmax_over_all_codes(masked, generator):
    x = tokens(generator, 2, 9, 8).requires_grad_()
    mask = torch.rand(2, 9, generator=generator) > 0.4 if masked else None
    found = step(x, mask=mask, codebooks=2, inv_temperature=20.0, scores=True, **WEIGHTS)
    heads = x.reshape(18, 2, 4).transpose(0, 1)
    rows = None if mask is None else mask.reshape(1, 18).expand(2, 18)
    per_sample, batch = entropies(heads, 4 * 20.0, rows)
    distances = (heads - torch.where(heads > 0, 1.0, -1.0)).square()
    commitment = distances.mean() if rows is None else distances[rows].mean()
    loss = 0.3 * (per_sample - 1.5 * batch) + 0.25 * commitment
    expected = dict(loss=loss, per_sample=per_sample, batch=batch, commitment=commitment)
    for name, right in expected.items():
        assert_near(found[name], right, 1e-12)
    (ours,) = torch.autograd.grad(found["loss"], x)
    (right,) = torch.autograd.grad(loss, x)
    assert_near(ours, right, 1e-10)


def test_padding_takes_no_part_and_may_hold_anything(generator):
    x = tokens(generator, 2, 5, 4)
    mask = torch.tensor([[True, True, False, True, False], [False, True, True, True, True]])
    found = step(x.masked_fill(~mask.unsqueeze(-1), float("nan")), mask=mask, scores=True)
    alone = step(x[mask].unsqueeze(0), scores=True)
    assert torch.equal(found["quantized"][mask], alone["quantized"][0])
    assert found["quantized"][~mask].eq(0).all() and found["indices"][~mask].eq(-1).all()
    assert_near(found["loss"], alone["loss"], 1e-12)


def test_latents_are_clamped_then_put_on_the_sphere_then_rotated(generator):
    x = tokens(generator, 1, 6, 3) * 100
    rotation = torch.linalg.qr(tokens(generator, 3, 3))[0]
    found = step(x, rotation=rotation, radius=2.0, soft_clamp=1.5, scale=2 / 3**0.5)
    clamped = torch.tanh(x / 1.5) * 1.5
    latents = 2 * clamped / clamped.norm(dim=-1, keepdim=True) @ rotation
    torch.testing.assert_close(found["latents"], latents, rtol=1e-12, atol=1e-12)
    nearest = latents.sign() * 2 / 3**0.5
    assert_near(found["quantized"].norm(dim=-1), torch.full((1, 6), 2.0), 1e-12)
    # Rotated back, the code is as near to the latents as before the rotation.
    cosine = (found["quantized"] * clamped).sum(-1) / clamped.norm(dim=-1)
    assert_near(cosine, (nearest * latents).sum(-1) / 2, 1e-10)


@pytest.mark.parametrize("estimates", [False, True])
def test_gradient_goes_straight_through_if_asked(estimates, generator):
    x = tokens(generator, 2, 5, 4).float().requires_grad_()
    found = step(x, estimates=estimates, scores=True)
    assert not found["codes"].requires_grad
    assert found["quantized"].requires_grad == estimates
    if estimates:
        (gradient,) = torch.autograd.grad(found["quantized"].sum(), x)
        assert torch.equal(gradient, torch.ones_like(x))


def test_fraction_of_the_tokens_enters_the_entropies(generator):
    x = tokens(generator, 1, 40, 4)
    found = step(x, rng=torch.tensor([3, 1]), fraction=0.25, scores=True)
    (counted,) = found["counted"]
    assert counted.sum() == 10
    chosen = x[:, counted.reshape(-1)]
    assert_near(found["per_sample"], entropies(chosen, 400.0)[0], 1e-10)


def test_totals_stand_for_the_tokens_of_all_ranks(generator):
    x, other = tokens(generator, 1, 8, 4), tokens(generator, 1, 12, 4)
    totals = sum(ops.sign_entropy_totals(part, sharpness=400.0) for part in (x, other))
    found = ops.lookup_free_quantize(x, totals=[totals], scores=True)
    assert_near(found[4], entropies(torch.cat([x, other], 1), 400.0)[1], 1e-10)
    later = ops.lookup_free_losses(found[6], found[7], totals=totals)
    assert all(torch.equal(a, b) for a, b in zip(later, found[2:6], strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_output_has_the_dtype_of_the_input(dtype, generator):
    found = step(tokens(generator, 2, 5, 4).to(dtype), scores=True)
    assert found["quantized"].dtype == dtype
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert found["latents"].dtype == found["loss"].dtype == wide


def test_no_tokens_and_a_token_that_is_not_finite(generator):
    empty = step(torch.zeros(2, 0, 4), scores=True)
    assert empty["quantized"].shape == (2, 0, 4) and empty["loss"] == 0
    x = tokens(generator, 1, 3, 4)
    x[0, 1, 2] = float("inf")
    found = step(x)
    assert found["quantized"][0, 1].isnan().all() and found["indices"][0, 1] == 0


def test_refuses_features_that_codebooks_do_not_divide():
    with pytest.raises(
        ValueError, match="expected the feature size to be a multiple of 3 heads, but got"
    ):
        step(torch.zeros(1, 2, 4), codebooks=3)
