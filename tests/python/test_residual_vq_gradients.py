"""The gradient of a stack: one estimator for all levels, commitment at full weight, codes as they were in forward."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import vector_quantize_pytorch
from residual_vq_cases import CODES, DIM, LEARNABLE, QINCO, STACKS, build, data
from torch.nn.functional import cross_entropy

from torchvq import ops

GAIN_CASES = [
    "default",
    "shared",
    "learnable",
    "implicit",
    "dropout",
    "kmeans",
    "affine",
    "groups",
]

# Without noise, which differs between the libraries.
SIMULATED: dict[str, Any] = dict(
    directional_reparam=True, directional_reparam_variance=1e-30, threshold_ema_dead_code=1e-9
)
# Stacks whose levels rotate the gradient, normalize their inputs or simulate their errors, each in its own way.
AVERAGED: dict[str, dict[str, Any]] = {
    "default": dict(rotation_trick=True),
    "shared": dict(rotation_trick=True, shared_codebook=True),
    "learnable": dict(rotation_trick=True, **LEARNABLE),
    "fraction": dict(rotation_trick=True),
    "cosine": dict(rotation_trick=True, use_cosine_sim=True),
    "cosine, copied": dict(rotation_trick=False, use_cosine_sim=True),
    "directional": SIMULATED,
}


@pytest.mark.parametrize("levels", [1, 2, 8])
@pytest.mark.parametrize("case", GAIN_CASES)
def test_straight_through_gain_is_one(case: str, levels: int) -> None:
    # Several levels copy the gradient by default; one level rotates it, as VectorQuantize does.
    stack = build(case, num_quantizers=levels, rotation_trick=False if levels == 1 else None)
    x = data(stack).requires_grad_()
    weight = torch.rand(x.shape)
    (gradient,) = torch.autograd.grad((stack(x)[0] * weight).sum(), x)
    assert torch.equal(gradient, weight)


@pytest.mark.parametrize("levels", [1, 3])
def test_the_reference_gain_is_the_number_of_levels(levels: int) -> None:
    stack = build("default", num_quantizers=levels, rotation_trick=False, vqp_compat=True)
    x = data(stack).requires_grad_()
    (gradient,) = torch.autograd.grad(stack(x)[0].sum(), x)
    torch.testing.assert_close(gradient, torch.full_like(x, levels))


@pytest.mark.parametrize("levels", [1, 2, 4])
@pytest.mark.parametrize("case", AVERAGED)
def test_gradients_of_levels_are_those_of_the_reference_averaged(case: str, levels: int) -> None:
    fraction = 0.25 if case == "fraction" else 0.0
    options = AVERAGED[case] | dict(num_quantizers=levels, quant_grad_frac=fraction)
    stack = build("default", **options)
    theirs = vector_quantize_pytorch.ResidualVQ(dim=DIM, codebook_size=CODES, **options)
    theirs.load_state_dict(stack.state_dict(), strict=False)
    gradients = []
    for module in (stack, theirs):
        x = data(stack).requires_grad_()
        output, _, losses = module(x)[:3]
        gradients.append(torch.autograd.grad((output**3).sum() + 20 * losses.sum(), x)[0])
    gain = sum((1 - fraction) ** level for level in range(levels))
    torch.testing.assert_close(gradients[0] * gain, gradients[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("walk", ["C++", "Python"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("fraction", [0.1, 0.3, 0.7])
def test_fraction_changes_no_token(fraction: float, dtype: torch.dtype, walk: str) -> None:
    """Integers, whose differences are exact, so that many codes are equally near."""
    stack = build("default", num_quantizers=8, quant_grad_frac=fraction).to(dtype)
    if walk == "Python":
        # Levels that differ, here in an option without effect.
        stack.layers[1].codebook_diversity_temperature = 1.0
    generator = torch.Generator().manual_seed(2)
    for layer in stack.layers:
        layer.codebook = torch.randint(-4, 5, (CODES, DIM), generator=generator).to(dtype)
    x = torch.randint(-8, 9, (4, 500, DIM), generator=generator).to(dtype).requires_grad_()
    expected = stack.eval()(x)[1]
    assert torch.equal(stack.train()(x)[1], expected)


@pytest.mark.parametrize("fraction", [0.0, 0.25, 1.0])
def test_fraction_weakens_the_commitment_of_later_levels(fraction: float) -> None:
    stack = build("default", rotation_trick=False, quant_grad_frac=fraction)
    plain = build("default", rotation_trick=False)
    # The gain of the output with one estimator per level, by which the losses are divided.
    gain = sum((1 - fraction) ** level for level in range(len(plain.layers)))
    for level in range(3):
        gradients = []
        for module in (stack, plain):
            x = data(module).requires_grad_()
            loss = copy.deepcopy(module)(x)[2][level]
            gradients.append(torch.autograd.grad(loss, x)[0])
        balanced = gradients[1] * len(plain.layers) / gain
        torch.testing.assert_close(gradients[0], balanced * (1 - fraction) ** level)


@pytest.mark.parametrize("levels", [1, 2, 4])
@pytest.mark.parametrize("fraction", [0.0, 0.25, 1.0])
def test_losses_and_output_have_the_balance_of_one_estimator_per_level(
    levels: int, fraction: float
) -> None:
    """Oracle: ``vqp_compat``, with one estimator per level; its gradients are longer, and parallel."""
    options = dict(rotation_trick=False, quant_grad_frac=fraction, num_quantizers=levels)
    gradients = []
    for compatible in (False, True):
        stack = build("default", **options, vqp_compat=compatible)
        x = data(stack).requires_grad_()
        quantized, _, loss = stack(x)
        gradients.append(torch.autograd.grad(quantized.square().sum() + 50 * loss.sum(), x)[0])
    gain = sum((1 - fraction) ** level for level in range(levels))
    torch.testing.assert_close(gradients[0] * gain, gradients[1])


# Stacks whose losses have a divided gradient without targets; most of them average that of the output, too.
SCORED: dict[str, dict[str, Any]] = AVERAGED | {
    "copied": dict(rotation_trick=False),
    "diveq": dict(diveq=True, directional_reparam_variance=0.0),
    "dropout": dict(rotation_trick=True, quantize_dropout=True, num_quantizers=6),
    "heads": dict(rotation_trick=True, heads=2, codebook_dim=4),
    "groups": dict(rotation_trick=True, groups=2),
    "groups, cosine": dict(use_cosine_sim=True, groups=2),
    "implicit": dict(rotation_trick=True, **QINCO),
    "affine": dict(rotation_trick=True, affine_param=True),
    "beam": dict(rotation_trick=True, beam_size=2),
}


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("case", SCORED)
def test_targets_leave_the_output_and_its_gradient(case: str, mixed: bool) -> None:
    options = SCORED[case] | dict(quant_grad_frac=0.25 if case == "fraction" else 0.0)
    stack = build("default", **options).double()
    layers = [layer for own in getattr(stack, "rvqs", [stack]) for layer in own.layers]
    layers[-1].commitment_weight = 2.0 if mixed else 1.0  # levels that differ are walked in Python
    x = data(stack).double().requires_grad_()
    shape = copy.deepcopy(stack).eval()(x)[1].shape
    outputs, gradients = [], []
    for targets in ({}, {"indices": torch.randint(0, CODES, shape)}):
        output = copy.deepcopy(stack)(x, freeze_codebook=True, **targets)[0]
        outputs.append(output)
        gradients.append(torch.autograd.grad((output**3).sum(), x)[0])
    assert torch.equal(*outputs)
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)  # float64


@pytest.mark.parametrize("fraction", [0.0, 0.25])
@pytest.mark.parametrize("mixed", [False, True])
def test_targets_leave_the_gradient_of_codes_that_the_output_gives(
    mixed: bool, fraction: float
) -> None:
    """The mean over levels divides the gradient of the input, not that of the codes."""
    gradients = []
    for targets in (False, True):
        stack = build("default", **SIMULATED, quant_grad_frac=fraction).double()
        stack.layers[-1].commitment_weight = 2.0 if mixed else 1.0  # then the walk is in Python
        x = data(stack).double().requires_grad_()
        shape = *x.shape[:-1], len(stack.layers)
        call = dict(indices=torch.zeros(shape, dtype=torch.long)) if targets else {}
        output = stack(x, **call)[0]
        gradients.append(torch.autograd.grad((output**3).sum(), [x, *stack.parameters()]))
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", ["copied", *sorted(AVERAGED.keys() - {"fraction"})])
def test_losses_of_targets_have_the_gradient_of_their_value(case: str) -> None:
    """With targets no loss is balanced with the output, so that of the targets is not divided."""
    stack = build("default", **SCORED[case]).double()
    x = data(stack)[:1, :3].double().requires_grad_()
    targets = torch.zeros(1, 3, len(stack.layers), dtype=torch.long)

    def loss(x):
        return stack(x, indices=targets, freeze_codebook=True)[1]

    assert torch.autograd.gradcheck(loss, (x,), eps=1e-6, atol=1e-7)


@pytest.mark.parametrize("fraction", [0.0, 0.25])
def test_losses_of_targets_reach_the_condition_of_implicit_codes_undivided(fraction: float) -> None:
    """Two levels, composed of operators of torch and the rotation that gives the condition its gradient."""
    options = dict(rotation_trick=True, num_quantizers=2, quant_grad_frac=fraction, **QINCO)
    stack = build("default", **options).double()
    x = data(stack).double().flatten(0, 1)[None].requires_grad_()
    targets = torch.randint(0, CODES, (2, x.shape[1]))
    loss = stack(x, indices=targets.mT[None], freeze_codebook=True)[1]
    first, second = (level._codebook.embed[0].detach() for level in stack.layers)
    condition = ops.rotation_trick(x, first[torch.cdist(x[0], first).argmin(-1)][None])[0]
    left = x[0] - fraction * condition - (1 - fraction) * condition.detach()
    computed = stack.mlps[0].rows(second, condition[:, None])
    scores = torch.cdist(x[0], first), torch.cdist(left[:, None], computed)[:, 0]
    expected = sum(cross_entropy(-score, own) for score, own in zip(scores, targets, strict=True))
    torch.testing.assert_close(loss, expected)
    gradients = [torch.autograd.grad(own, x)[0] for own in (loss, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("fraction", [0.25, 1.0])
def test_losses_of_targets_reach_codes_below_without_a_gradient_of_the_input(
    fraction: float,
) -> None:
    """Then levels hand the gradient of later losses on to their codes, where nothing has divided it."""
    options = dict(rotation_trick=True, num_quantizers=2, quant_grad_frac=fraction, **LEARNABLE)
    stack = build("default", **options).double()
    x = data(stack).double().flatten(0, 1)
    targets = torch.randint(0, CODES, (2, len(x)))
    first, second = codes = [level._codebook.embed for level in stack.layers]
    chosen = first[0][torch.cdist(x, first[0]).argmin(-1)]
    left = x - fraction * chosen - (1 - fraction) * chosen.detach()
    scores = torch.cdist(x, first[0]), torch.cdist(left, second[0])
    expected = sum(cross_entropy(-score, own) for score, own in zip(scores, targets, strict=True))
    loss = stack(x[None], indices=targets.mT[None])[1]
    gradients = [torch.autograd.grad(own, codes) for own in (loss, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)


# Freezing also stops k-means, affine statistics, and the gradient of the codebook; with an implicit codebook, the last
# is part of the gradient of the input.
OTHERWISE_FROZEN = {
    case for case in STACKS if any(part in case for part in ("kmeans", "affine", "implicit"))
}


@pytest.mark.parametrize("case", sorted(STACKS.keys() - OTHERWISE_FROZEN))
def test_the_update_of_a_step_changes_no_gradient_of_it(case: str) -> None:
    gradients = []
    for frozen in (False, True):
        stack = build(case)
        x = data(stack).requires_grad_()
        quantized, _, loss = stack(x, freeze_codebook=frozen)
        (quantized.square().sum() + loss.sum()).backward()
        gradients.append(torch.zeros_like(x) if x.grad is None else x.grad)
    assert torch.equal(*gradients)


@pytest.mark.parametrize("case", ["implicit", "learnable", "diveq", "groups_implicit"])
def test_replacing_dead_codes_changes_no_gradient_of_the_step(case: str) -> None:
    gradients = []
    for threshold in (0, 100):
        stack = build(case, threshold_ema_dead_code=threshold)
        x = data(stack).requires_grad_()
        quantized, _, loss = stack(x)
        (quantized.square().sum() + loss.sum()).backward()
        gradients.append([x.grad, *(p.grad for p in stack.parameters())])
    for a, b in zip(*gradients, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("case", ["default", "learnable", "implicit"])
def test_losses_pass_finite_differences(case: str) -> None:
    stack = build(case, rotation_trick=False).double()
    levels = len(stack.layers)

    class Loss(torch.autograd.Function):
        """Its backward undoes the division by the number of levels."""

        @staticmethod
        def forward(ctx, x):
            with torch.enable_grad():
                leaf = x.detach().requires_grad_()
                loss = stack(leaf, freeze_codebook=True)[2][0]
            (ctx.gradient,) = torch.autograd.grad(loss, leaf)
            return loss.detach()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.gradient * levels

    x = data(stack)[:1, :3].double().requires_grad_()
    assert torch.autograd.gradcheck(Loss.apply, (x,), eps=1e-6, atol=1e-7)


def test_learnable_codes_get_the_gradient_of_their_own_level() -> None:
    stack = build("default", rotation_trick=False, **LEARNABLE)
    loss = stack(data(stack))[2]
    gradients = torch.autograd.grad(
        loss[2], [v._codebook.embed for v in stack.layers], allow_unused=True
    )
    assert [g is not None and bool(g.abs().sum() > 0) for g in gradients] == [False, False, True]


def test_directional_reparam_of_the_levels_is_that_of_the_stack() -> None:
    # Without noise both simulate the full error, whose gradient reaches the codes of every level.
    options = dict(directional_reparam_variance=1e-18)
    by_level = build("directional", **options)
    whole = build("diveq", **options)
    for stack in (by_level, whole):
        x = data(stack).requires_grad_()
        quantized, indices, _ = stack(x)
        torch.testing.assert_close(
            quantized, stack.get_codes_from_indices(indices).sum(0), rtol=1e-5, atol=1e-5
        )
        gradients = torch.autograd.grad(
            quantized.square().sum(), [x] + [v._codebook.embed for v in stack.layers]
        )
        assert all(g.isfinite().all() and g.abs().sum() > 0 for g in gradients)


def test_codes_get_the_gradient_of_the_error_that_their_level_simulates() -> None:
    stack = build("default", **SIMULATED)
    theirs = vector_quantize_pytorch.ResidualVQ(
        dim=DIM, codebook_size=CODES, num_quantizers=len(stack.layers), **SIMULATED
    )
    theirs.load_state_dict(stack.state_dict(), strict=False)
    gradients = []
    for module in (stack, theirs):
        output = module(data(stack).requires_grad_())[0]
        codes = [level._codebook.embed for level in module.layers]
        gradients.append(torch.autograd.grad((output**3).sum(), codes))
    for ours, other in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-4, atol=1e-4)


def test_latents_without_a_gradient_get_the_codes_also_without_a_graph() -> None:
    # A simulated error would only be noise.
    for options in (dict(kmeans_init=True), dict(affine_param=True)):
        stack = build("directional", **options)
        with torch.no_grad():
            output, _, _, codes = stack(data(stack), return_all_codes=True)
        torch.testing.assert_close(output, codes.sum(0))
