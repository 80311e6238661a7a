"""residual_lookup_free_quantize: all levels of a lookup-free stack, against float64 and its levels one by one."""

from __future__ import annotations

import pytest
import torch
from lookup_free_oracle import assert_near, entropies
from torch.utils._python_dispatch import TorchDispatchMode

ops = torch.ops.torchvq
SCALES = [1.0, 0.5, 0.25]
WEIGHTS = dict(entropy_weight=0.3, diversity_gamma=1.5, commitment_weight=0.25)
NAMES = ("total", "indices", "losses", "codes", "latents", "signs", "counted")
CASES = {
    "scored": {},
    "masked": dict(mask=True),
    "drawn": dict(fraction=0.5, rng=torch.tensor([3, 5])),
    "in evaluation": dict(scores=False),
    "estimated": dict(estimates=True),
    "on spheres": dict(estimates=True, radii=[2 * scale for scale in SCALES]),
    "clamped": dict(estimates=True, soft_clamps=[1.5 * scale for scale in SCALES]),
    "rotated": dict(rotations=True),
    "softplus": dict(softplus_offset=5.0),
    "reference": dict(vqp_compat=True, mask=True),
}


class Watched(TorchDispatchMode):
    """A mode under which values are not read, so that each level is a node of its own."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def tokens(generator, dtype=torch.float64):
    return (torch.randn(2, 7, 4, generator=generator, dtype=torch.float64) * 0.7).to(dtype)


def options_of(case, generator):
    given = dict(scores=True, rotations=[], radii=[], soft_clamps=[], **WEIGHTS)
    given.update(CASES[case])
    if given.pop("mask", False):
        given["mask"] = torch.rand(2, 7, generator=generator) > 0.3
    if given["rotations"]:
        given["rotations"] = [
            torch.linalg.qr(torch.randn(4, 4, generator=generator))[0] for _ in SCALES
        ]
    return given


def stack(x, **options):
    found = ops.residual_lookup_free_quantize(x, scales=SCALES, **options)
    return dict(zip(NAMES, found, strict=True))


def level_by_level(x, *, rotations, radii, soft_clamps, **options):
    """The same from ``lookup_free_quantize``, whose output leaves out padding."""
    residual, total, losses, indices = x, torch.zeros_like(x), [], []
    for level, scale in enumerate(SCALES):
        own = dict(
            rotation=rotations[level] if rotations else None,
            radius=radii[level] if radii else None,
            soft_clamp=soft_clamps[level] if soft_clamps else None,
        )
        codes, index, loss, *_ = ops.lookup_free_quantize(
            residual, totals=[], scale=scale, **own, **options
        )
        total = total + codes
        residual = residual - codes.detach()
        losses.append(loss)
        indices.append(index)
    return total, torch.stack(indices, -1), torch.stack(losses)


def gradient_of(total, losses, x, weights):
    grad = torch.arange(1.0, total.numel() + 1).view_as(total).to(total.dtype)
    score = (losses * weights.to(losses.dtype)).sum()
    if total.requires_grad:
        score = score + (total * grad).sum()
    return torch.autograd.grad(score, x)[0] if score.requires_grad else None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("watched", [False, True], ids=["", "watched"])
@pytest.mark.parametrize("case", CASES)
def test_equals_its_levels_bit_for_bit(case, watched, dtype, generator):
    options, weights = options_of(case, generator), torch.tensor([1.0, 0.5, 2.0])
    x = tokens(generator, dtype).requires_grad_()
    total, indices, losses = level_by_level(x, **options)
    right = gradient_of(total, losses, x, weights)
    if watched:
        with Watched():
            found = stack(x, **options)
    else:
        found = stack(x, **options)
    absent = None if options.get("vqp_compat") else options.get("mask")
    kept = torch.ones(2, 7).bool() if absent is None else absent
    assert torch.equal(found["total"][kept], total[kept])
    assert torch.equal(found["indices"][kept], indices[kept])
    assert torch.equal(found["losses"], losses)
    # Of padding the output has a gradient, which leads nowhere.
    ours = gradient_of(
        found["total"] if absent is None else found["total"] * kept.unsqueeze(-1),
        found["losses"],
        x,
        weights,
    )
    assert (ours is None) == (right is None)
    assert ours is None or torch.equal(ours, right)
    summed = sum(code.detach() for code in found["codes"])
    torch.testing.assert_close(summed.view_as(total)[kept], total.detach()[kept])


def test_losses_by_softmax_over_all_codes(generator):
    x = tokens(generator).requires_grad_()
    found = stack(x, **options_of("scored", generator))
    residual = x.reshape(1, 14, 4)
    for level, scale in enumerate(SCALES):
        codes = torch.where(residual > 0, scale, -scale).double()
        per_sample, batch = entropies(residual, 4 * 100.0 * scale, None)
        loss = 0.3 * (per_sample - 1.5 * batch) + 0.25 * (residual - codes).square().mean()
        assert_near(found["losses"][level], loss, 1e-10)
        (ours,) = torch.autograd.grad(found["losses"][level], x, retain_graph=True)
        (right,) = torch.autograd.grad(loss, x, retain_graph=True)
        assert_near(ours, right, 1e-9)
        residual = residual - codes.detach()
    assert_near(
        found["total"].reshape(1, 14, 4) + residual.detach(), x.detach().view(1, 14, 4), 1e-12
    )


def test_the_commitment_has_a_second_derivative_and_the_entropy_says_that_it_has_none(generator):
    x = tokens(generator).requires_grad_()
    lists = dict(rotations=[], radii=[], soft_clamps=[])
    options = dict(scores=True, entropy_weight=0.0, commitment_weight=0.5, **lists)
    assert torch.autograd.gradgradcheck(lambda x: stack(x, **options)["losses"], x)
    losses = stack(x, scores=True, **lists)["losses"].sum()
    with pytest.raises(NotImplementedError, match="sign_step"):
        torch.autograd.grad(losses, x, create_graph=True)


def test_a_step_without_levels_or_with_lists_of_other_lengths_is_refused(generator):
    x = tokens(generator)
    with pytest.raises(ValueError, match="expected levels to be at least one, but got none"):
        ops.residual_lookup_free_quantize(x, scales=[], rotations=[], radii=[], soft_clamps=[])
    with pytest.raises(ValueError, match="expected radii to be empty or one for each of 3 levels"):
        stack(x, rotations=[], radii=[1.0], soft_clamps=[])
    lists = dict(rotations=[], radii=[], soft_clamps=[])
    with pytest.raises(ValueError, match="expected tokens to have 3 dimensions"):
        stack(x[0], **lists)
    for compat in (False, True):
        with pytest.raises(ValueError, match="expected mask to have one value per token, but got"):
            stack(x, mask=torch.ones(7, 2).bool(), vqp_compat=compat, **lists)
    with pytest.raises(TypeError, match="expected tokens to be"):
        stack(x.long(), **lists)


def test_half_precision_is_widened_and_outputs_are_no_views(generator):
    x = tokens(generator, torch.bfloat16)
    found = stack(x, rotations=[], radii=[], soft_clamps=[])
    assert found["total"].dtype == torch.float32
    wide = stack(x.float(), rotations=[], radii=[], soft_clamps=[])
    assert torch.equal(found["total"], wide["total"])
    with torch.no_grad():
        outputs = stack(x.float().requires_grad_(), rotations=[], radii=[], soft_clamps=[])
    for name in ("total", "indices"):
        assert not outputs[name]._is_view()


def test_no_tokens_and_a_token_that_is_not_finite(generator):
    lists = dict(rotations=[], radii=[], soft_clamps=[])
    empty = stack(torch.zeros(2, 0, 4, requires_grad=True), scores=True, **lists)
    assert empty["total"].shape == (2, 0, 4) and empty["indices"].shape == (2, 0, 3)
    assert empty["losses"].eq(0).all()
    x = tokens(generator, torch.float32)
    x[0, 1, 2] = float("nan")
    found = stack(x, scores=True, **lists)
    assert found["total"][0, 1].isnan().all() and found["indices"][0, 1].eq(0).all()
    assert found["total"][1].isfinite().all()
