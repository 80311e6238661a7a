"""A stack with a mask equals it on the real tokens: outputs, losses, gradients, state; padding may hold anything."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from residual_vq_cases import (
    DIM,
    LEVELS,
    STACKS,
    assert_same_state,
    build,
    data,
    features_last,
    layout_of,
    mask_of,
    state,
    train_step,
)

from torchvq import ResidualVQ

# Draws per token depend on the token's position.
RANDOM = {"diveq", "directional", "sampling", "implicit_sampling"}
# Candidates are drawn by the bits of residuals, which a network rounds differently for other numbers of tokens.
ROUNDED = {"implicit_dead_codes"}
# The reference's masked commitment loss is undefined without tokens.
COMPATIBLE = {"compatible", "compatible_shared"}


def with_padding(stack, x, mask, value):
    filled = features_last(stack, x).clone()
    filled[~mask] = value
    return filled.movedim(-1, 1) if layout_of(stack).channel_first else filled


def only_real(stack, x, mask):
    """The real tokens as one sequence in the layout of the stack."""
    rows = features_last(stack, x)[mask]
    if not layout_of(stack).channel_first:
        return rows[None]
    single = rows.T[None]
    extra = {None: 0, 4: 1, 5: 2}[layout_of(stack).map_rank]
    return single.reshape(1, DIM, *(1,) * extra, -1)


@pytest.mark.parametrize("case", sorted(STACKS.keys() - RANDOM - ROUNDED))
def test_masked_run_is_the_run_on_real_tokens(case: str) -> None:
    masked, alone = build(case), build(case)
    for step in range(3):
        x, mask = data(masked, step), mask_of(masked, step)
        kwargs = dict(freeze_codebook=step == 1)
        result, gradient = train_step(
            masked, with_padding(masked, x, mask, math.nan), mask=mask, **kwargs
        )
        expected, expected_gradient = train_step(alone, only_real(masked, x, mask), **kwargs)
        torch.testing.assert_close(result[2], expected[2], rtol=1e-5, atol=1e-6)
        rows = features_last(masked, result[0])
        torch.testing.assert_close(
            rows[mask], features_last(alone, expected[0]).reshape(-1, DIM), rtol=1e-5, atol=1e-5
        )
        assert (rows[~mask] == 0).all()
        gradient = features_last(masked, gradient)
        torch.testing.assert_close(
            gradient[mask],
            features_last(alone, expected_gradient).reshape(-1, DIM),
            rtol=1e-4,
            atol=1e-5,
        )
        assert (gradient[~mask] == 0).all()
        indices = result[1] if result[1].dim() == mask.dim() + 1 else None
        if indices is not None:
            assert (indices[~mask] == -1).all()
    assert_same_state(masked, state(alone), tolerance=1e-5)


@pytest.mark.parametrize("case", sorted(STACKS.keys() - COMPATIBLE))
def test_nothing_real_changes_nothing(case: str) -> None:
    stack = build(case)
    before = state(stack)
    x = data(stack)
    result, gradient = train_step(stack, x, mask=torch.zeros_like(mask_of(stack)))
    # The orthogonal loss depends on the codes alone.
    assert case == "orthogonal" or (result[2] == 0).all()
    assert (result[0] == 0).all()
    assert (result[1] == -1).all()
    assert (gradient == 0).all()
    if case != "orthogonal":
        assert_same_state(stack, before)


@pytest.mark.parametrize(
    "case", ["default", "shared", "implicit", "dropout", "groups", "learnable", "diversity"]
)
@pytest.mark.parametrize("compatible", [False, True])
def test_no_tokens(case: str, compatible: bool) -> None:
    stack = build(case, vqp_compat=compatible)
    before = state(stack)
    quantized, indices, loss = stack(torch.zeros(2, 0, DIM))
    assert quantized.shape == (2, 0, DIM)
    assert indices.shape[-3:] == (2, 0, LEVELS)
    assert (loss == 0).all()
    assert_same_state(stack, before)


@pytest.mark.parametrize(
    "case", ["default", "cosine", "shared", "affine", "dead_codes", "implicit"]
)
def test_non_finite_tokens_harm_only_themselves(case: str) -> None:
    stack = build(case)
    x = data(stack)
    x[0, 3, 2], x[2, 1, 0] = math.nan, math.inf
    bad = ~x.isfinite().all(-1)
    quantized, indices, _ = stack(x)
    assert quantized[bad].isnan().any(-1).all()
    assert quantized[~bad].isfinite().all()
    assert (indices[bad] == 0).all()
    assert all(value.isfinite().all() for value in stack.state_dict().values())


@pytest.mark.parametrize("case", ["default", "projections", "image", "implicit"])
def test_padding_can_be_returned(case: str) -> None:
    stack = build(case, return_zeros_for_masked_padding=False).eval()
    x, mask = data(stack), mask_of(stack)
    rows = features_last(stack, stack(x, mask=mask)[0])
    assert torch.equal(rows[~mask], features_last(stack, x)[~mask])


@pytest.mark.parametrize("vqp_compat", [False, True], ids=["", "compatible"])
@pytest.mark.parametrize(
    "options",
    [dict(directional_reparam=True, threshold_ema_dead_code=1e-9), dict(rotation_trick=True)],
)
def test_padding_elsewhere_does_not_change_a_sample_where_gradients_are_off(
    options: dict[str, Any], vqp_compat: bool
) -> None:
    """A leaf says that it requires a gradient also under no_grad, where its copy with zeros for padding does not."""
    # Without noise for x, which takes no gradient there, the output is the codes.
    rvq = ResidualVQ(
        dim=6, codebook_size=8, num_quantizers=2, vqp_compat=vqp_compat, **options
    ).train()
    x = torch.randn(2, 4, 6).requires_grad_()
    full = torch.ones(2, 4, dtype=torch.bool)
    part = full.clone()
    part[1, 3] = False
    with torch.no_grad():
        outputs = [copy.deepcopy(rvq)(x, mask=mask).quantized[0] for mask in (None, full, part)]
    assert torch.equal(outputs[0], outputs[1]) and torch.equal(outputs[0], outputs[2])
