"""residual_linear_quantize: all levels of a stack of linear SimVQ, against its levels one by one and formulas."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

ops = torch.ops.torchvq
LEVELS, CODES, WIDTH, DIM = 3, 11, 5, 4
TO_INPUTS, TO_CODES = [0.25, 0.5, 0.1], [1.0, 2.0, 0.3]
CASES = {
    "rotated": {},
    "copied": dict(estimator="straight_through"),
    "estimated": dict(estimator="none"),
    "reference": dict(estimator="vqp_rotation_trick"),
    "masked": dict(mask=True),
    "biased": dict(biases=True),
    "one transform": dict(shared=True, biases=True),
    "of codes alone": dict(to_inputs=[0.0] * LEVELS),
}


class Watched(TorchDispatchMode):
    """A mode under which values are not read, so that each level has nodes of its own."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def normal(generator, *shape, dtype=torch.float64):
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def arguments_of(case, generator, dtype=torch.float64):
    given = dict(estimator="rotation_trick", to_inputs=TO_INPUTS, to_codes=TO_CODES, mask=None)
    given.update(CASES[case])
    if given["mask"]:
        given["mask"] = torch.rand(2, 7, generator=generator) > 0.3
    shared, biased = given.pop("shared", False), given.pop("biases", False)
    frozen = [normal(generator, CODES, WIDTH, dtype=dtype) for _ in range(LEVELS)]
    weights, biases = [], []
    for _ in range(1 if shared else LEVELS):
        weights.append((normal(generator, DIM, WIDTH) / 3).to(dtype).requires_grad_())
        biases.append((normal(generator, DIM) / 3).to(dtype).requires_grad_())
    if shared:
        weights, biases = weights * LEVELS, biases * LEVELS
    return (frozen, weights, biases if biased else []), given


def level_by_level(x, frozen, weights, biases, *, mask, estimator, to_inputs, to_codes):
    """The same from ``linear_quantize`` and ``paired_loss``."""
    rows = x.reshape(1, -1, DIM)
    real = None if mask is None else mask.reshape(1, -1)
    residual, total, losses, indices = rows, torch.zeros_like(rows), [], []
    for level in range(LEVELS):
        seen = residual.view_as(residual)
        bias = biases[level] if biases else None
        quantized, index, codes, inputs = ops.linear_quantize(
            seen, frozen[level], weights[level], bias, estimator=estimator
        )
        losses.append(
            ops.paired_loss(
                inputs,
                codes,
                mask=real,
                to_inputs=to_inputs[level],
                to_codes=to_codes[level],
                training=True,
            )
        )
        own = codes.detach() if estimator == "none" else quantized
        total = total + own
        residual = residual - own.detach()
        indices.append(index)
    indices = torch.stack(indices, -1).view(*x.shape[:2], LEVELS)
    return total.view_as(x), indices, torch.stack(losses)


def gradients_of(total, losses, inputs, weights):
    grad = torch.arange(1.0, total.numel() + 1).view_as(total).to(total.dtype)
    score = (losses * weights.to(losses.dtype)).sum()
    if total.requires_grad:
        score = score + (total * grad).sum()
    return torch.autograd.grad(score, inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("watched", [False, True], ids=["", "watched"])
@pytest.mark.parametrize("case", CASES)
def test_equals_its_levels_bit_for_bit(case, watched, dtype, generator):
    tensors, options = arguments_of(case, generator, dtype)
    x = normal(generator, 2, 7, DIM, dtype=dtype).requires_grad_()
    learnt = [x, *dict.fromkeys([*tensors[1], *tensors[2]])]
    total, indices, losses = level_by_level(x, *tensors, **options)
    weights = torch.tensor([1.0, 0.5, 2.0])
    right = gradients_of(total, losses, learnt, weights)
    if watched:
        with Watched():
            found = ops.residual_linear_quantize(x, *tensors, **options)
    else:
        found = ops.residual_linear_quantize(x, *tensors, **options)
    assert torch.equal(found[0], total) and torch.equal(found[1], indices)
    assert torch.equal(found[2], losses)
    assert found[0].requires_grad == total.requires_grad
    for ours, theirs in zip(gradients_of(found[0], found[2], learnt, weights), right, strict=True):
        assert torch.equal(ours, theirs)
    torch.testing.assert_close(sum(found[3]), total.detach())
    assert not any(codes.requires_grad for codes in found[3])


def losses_by_formulas(x, indices, frozen, weights, biases):
    """Each half of a loss moves one side alone."""
    residual, losses = x, []
    for level in range(LEVELS):
        every = frozen[level] @ weights[level].T + biases[level]
        nearest = (residual.detach().unsqueeze(-2) - every.detach()).square().sum(-1).argmin(-1)
        assert torch.equal(indices[..., level], nearest)
        codes = every[nearest]
        to_inputs = (residual - codes.detach()).square().mean()
        to_codes = (residual.detach() - codes).square().mean()
        losses.append(TO_INPUTS[level] * to_inputs + TO_CODES[level] * to_codes)
        residual = residual - codes.detach()
    return torch.stack(losses), residual


def test_losses_with_first_and_second_derivatives_by_formulas_in_float64(generator):
    (frozen, weights, biases), options = arguments_of("biased", generator)
    options["estimator"] = "none"
    x = normal(generator, 2, 7, DIM).requires_grad_()
    total, indices, losses, _ = ops.residual_linear_quantize(x, frozen, weights, biases, **options)
    right, rest = losses_by_formulas(x, indices, frozen, weights, biases)
    close = dict(rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(losses, right, **close)
    torch.testing.assert_close(total + rest.detach(), x.detach(), **close)
    learnt, factors = [x, *weights, *biases], torch.tensor([1.0, 0.5, 2.0]).double()
    gradients = [
        torch.autograd.grad((own * factors).sum(), learnt, create_graph=True)
        for own in (losses, right)
    ]
    second = [
        torch.autograd.grad(sum(own.square().sum() for own in first), learnt) for first in gradients
    ]
    for ours, theirs in (*zip(*gradients, strict=True), *zip(*second, strict=True)):
        torch.testing.assert_close(ours, theirs, **close)


def test_the_rotation_says_that_it_has_no_second_derivative(generator):
    (frozen, weights, biases), options = arguments_of("biased", generator)
    x = normal(generator, 2, 7, DIM).requires_grad_()
    total, *_ = ops.residual_linear_quantize(x, frozen, weights, biases, **options)
    with pytest.raises(NotImplementedError, match="rotation_trick"):
        torch.autograd.grad(total.sum(), x, create_graph=True)


@pytest.mark.parametrize("learns", ["inputs", "weights", "nothing"])
def test_a_step_of_which_only_a_part_takes_a_gradient(learns, generator):
    (frozen, weights, _), options = arguments_of("rotated", generator)
    x = normal(generator, 2, 7, DIM).requires_grad_(learns == "inputs")
    weights = [own.detach().requires_grad_(learns == "weights") for own in weights]
    total, _, losses, _ = ops.residual_linear_quantize(x, frozen, weights, [], **options)
    right = level_by_level(x, frozen, weights, [], **options)
    assert total.requires_grad == right[0].requires_grad
    losses.sum().backward()
    kept = [own.grad for own in (x, *weights)]
    for own in (x, *weights):
        own.grad = None
    right[2].sum().backward()
    for ours, own in zip(kept, (x, *weights), strict=True):
        assert (ours is None) == (own.grad is None)
        assert ours is None or torch.equal(ours, own.grad)


def test_weights_may_change_between_forward_and_backward(generator):
    """An optimizer may step before a loss of an earlier forward is used."""
    (frozen, weights, _), options = arguments_of("rotated", generator)
    x = normal(generator, 2, 7, DIM).requires_grad_()
    right = torch.autograd.grad(
        ops.residual_linear_quantize(x, frozen, weights, [], **options)[2].sum(), weights
    )
    losses = ops.residual_linear_quantize(x, frozen, weights, [], **options)[2]
    with torch.no_grad():
        for own in weights:
            own.mul_(2)
    for ours, theirs in zip(torch.autograd.grad(losses.sum(), weights), right, strict=True):
        assert torch.equal(ours, theirs)


def test_arguments_of_other_lengths_shapes_and_dtypes_are_refused(generator):
    tensors, options = arguments_of("rotated", generator)
    x = normal(generator, 2, 7, DIM)

    def call(x, frozen=tensors[0], weights=tensors[1], biases=(), **changed):
        return ops.residual_linear_quantize(x, frozen, weights, biases, **options | changed)

    with pytest.raises(ValueError, match="expected levels to be at least one, but got none"):
        call(x, [], [], to_inputs=[], to_codes=[])
    with pytest.raises(ValueError, match="expected weights to be one for each of 3 levels"):
        call(x, weights=tensors[1][:2])
    with pytest.raises(ValueError, match="biases to be empty or one for each of 3 levels"):
        call(x, biases=[tensors[1][0][:, 0]])
    with pytest.raises(ValueError, match="expected tokens to have 3 dimensions"):
        call(x[0])
    with pytest.raises(TypeError, match="expected tokens to be"):
        call(x.long())
    with pytest.raises(TypeError, match="expected frozen to be Float, but got Double"):
        call(x.float())
    with pytest.raises(ValueError, match="expected mask to have one value per token, but got"):
        call(x, mask=torch.ones(7, 2).bool())
    with pytest.raises(ValueError, match="expected estimator to be"):
        call(x, estimator="directional_reparam")


def test_half_precision_is_widened_and_outputs_are_no_views(generator):
    (frozen, weights, _), options = arguments_of("rotated", generator, torch.float32)
    x = normal(generator, 2, 7, DIM, dtype=torch.bfloat16)
    found = ops.residual_linear_quantize(x, frozen, weights, [], **options)
    wide = ops.residual_linear_quantize(x.float(), frozen, weights, [], **options)
    assert found[0].dtype == torch.float32 and torch.equal(found[0], wide[0])
    with torch.no_grad():
        found = ops.residual_linear_quantize(x.float(), frozen, weights, [], **options)
    assert not found[0]._is_view() and not found[1]._is_view()


def test_no_tokens_and_a_token_that_is_not_finite(generator):
    (frozen, weights, _), options = arguments_of("rotated", generator)
    empty = torch.zeros(2, 0, DIM, dtype=torch.float64, requires_grad=True)
    total, indices, losses, codes = ops.residual_linear_quantize(
        empty, frozen, weights, [], **options
    )
    assert total.shape == (2, 0, DIM) and indices.shape == (2, 0, LEVELS)
    assert losses.eq(0).all() and len(codes) == LEVELS
    x = normal(generator, 2, 7, DIM)
    x[0, 1, 2] = float("nan")
    total, indices, losses, _ = ops.residual_linear_quantize(x, frozen, weights, [], **options)
    assert total[0, 1].isnan().all() and indices[0, 1].eq(0).all()
    assert total[1].isfinite().all()
    for own in torch.autograd.grad(total[1].sum() + losses.nan_to_num().sum(), weights):
        assert own.isfinite().all()
