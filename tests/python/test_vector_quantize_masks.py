"""``f(x, mask)`` equals ``f(x[mask])`` for any padding; non-finite rows; no tokens at all."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from vector_quantize_cases import (
    CASES,
    Step,
    assert_same_state,
    build,
    data,
    options_of,
    positions_of,
    same,
    state,
    train_step,
)

from torchvq import VectorQuantize

GARBAGE = [1e6, math.nan, math.inf]
# Draws per token depend on the token's position; the reference's loss and replacement on the amount of padding.
BY_PLACE = {"sampling", "sampling_cosine", "directional", "compat"}
COMPARED = [case for case in CASES if case not in BY_PLACE]


def mask_of(module: VectorQuantize) -> Tensor:
    mask = torch.rand(positions_of(module), generator=torch.Generator().manual_seed(3)) > 0.35
    mask.view(-1)[0] = False  # the first position is padding, on which nothing may rely
    return mask


def features_last(module: VectorQuantize, x: Tensor) -> Tensor:
    return x.movedim(1, -1) if module._layout.channel_first else x


def features_as_in(module: VectorQuantize, x: Tensor) -> Tensor:
    return x.movedim(-1, 1).contiguous() if module._layout.channel_first else x


def with_padding(module: VectorQuantize, x: Tensor, mask: Tensor, value: float) -> Tensor:
    last = features_last(module, x)
    return features_as_in(
        module, torch.where(mask.unsqueeze(-1), last, torch.full_like(last, value))
    )


def only_real(module: VectorQuantize, x: Tensor, mask: Tensor) -> Tensor:
    """The real tokens as one batch of single vectors (T, dim), which every layout accepts."""
    return features_last(module, x)[mask]


def step_with_weights(module: VectorQuantize, x: Tensor, weight: Tensor, **kwargs: Any) -> Step:
    x = x.detach().clone().requires_grad_()
    quantized, indices, loss = module(x, **kwargs)
    (loss + (quantized * weight).sum()).backward()
    gradients = {}
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            gradients[name] = parameter.grad.clone()
            parameter.data.sub_(parameter.grad, alpha=0.1)
            parameter.grad = None
    assert x.grad is not None
    return Step(quantized.detach(), indices, loss.detach(), x.grad, gradients)


@pytest.mark.parametrize("case", COMPARED)
def test_masked_run_is_the_run_on_real_tokens(case: str) -> None:
    masked, compact = build(case), build(case)
    mask = mask_of(masked)
    # The rotation of one feature multiplies gradients by |code| / |x|, and with it the rounding of the projection,
    # which depends on the number of rows.
    dtype = torch.float64 if case == "one_feature" else torch.float32
    masked.to(dtype), compact.to(dtype)
    for step, garbage in enumerate(GARBAGE):
        x = with_padding(masked, data(masked, step).to(dtype), mask, garbage)
        real = only_real(masked, x, mask)
        weight = torch.randn(real.shape, generator=torch.Generator().manual_seed(step)).to(dtype)
        spread = torch.zeros_like(features_last(masked, x))
        spread[mask] = weight
        a = step_with_weights(masked, x, features_as_in(masked, spread), mask=mask)
        b = step_with_weights(compact, real, weight)

        torch.testing.assert_close(a.loss, b.loss, rtol=1e-6, atol=1e-7)
        assert torch.equal(a.indices[mask], b.indices)
        assert (a.indices[~mask] == -1).all()
        quantized, gradient = features_last(masked, a.quantized), features_last(masked, a.gradient)
        torch.testing.assert_close(quantized[mask], b.quantized, rtol=1e-5, atol=1e-6)
        assert (quantized[~mask] == 0).all()
        torch.testing.assert_close(gradient[mask], b.gradient, rtol=1e-4, atol=1e-6)
        assert (gradient[~mask] == 0).all()
        assert a.parameters.keys() == b.parameters.keys()
        for name, value in a.parameters.items():
            torch.testing.assert_close(value, b.parameters[name], rtol=1e-4, atol=1e-5)
        for name, value in masked.state_dict().items():
            torch.testing.assert_close(value, compact.state_dict()[name], rtol=1e-4, atol=5e-6)


@pytest.mark.parametrize("case", COMPARED)
def test_state_does_not_see_padding_at_all(case: str) -> None:
    """Bit for bit, for several kinds of padding."""
    results = []
    for garbage in (0.0, *GARBAGE):
        module = build(case)
        mask = mask_of(module)
        steps = [
            train_step(
                module, module, with_padding(module, data(module, i), mask, garbage), mask=mask
            )
            for i in range(2)
        ]
        results.append((steps, state(module)))
    first_steps, first_state = results[0]
    for steps, last_state in results[1:]:
        for step, expected in zip(steps, first_steps, strict=True):
            assert same(step.loss, expected.loss) and same(step.quantized, expected.quantized)
            assert same(step.gradient, expected.gradient) and same(step.indices, expected.indices)
        assert all(same(last_state[name], first_state[name]) for name in first_state)


@pytest.mark.parametrize("case", sorted(BY_PLACE))
def test_padding_is_irrelevant_for_draws_per_token(case: str) -> None:
    states = []
    for garbage in (0.0, *GARBAGE):
        module = build(case)
        mask = mask_of(module)
        step = train_step(
            module, module, with_padding(module, data(module), mask, garbage), mask=mask
        )
        states.append((step, state(module)))
    for step, after in states[1:]:
        assert same(step.loss, states[0][0].loss) and same(step.gradient, states[0][0].gradient)
        assert all(same(after[name], states[0][1][name]) for name in after)


@pytest.mark.parametrize(
    "case", ["default", "separate_heads", "projections", "cosine", "channel_first", "dead_codes"]
)
def test_lens_are_a_mask(case: str) -> None:
    by_lens, by_mask = build(case), build(case)
    x = data(by_lens)
    lens = torch.tensor([12, 5, 0])
    mask = torch.arange(12)[None] < lens[:, None]
    a, b = train_step(by_lens, by_lens, x, lens=lens), train_step(by_mask, by_mask, x, mask=mask)
    assert same(a.quantized, b.quantized) and same(a.indices, b.indices) and same(a.loss, b.loss)
    assert same(a.gradient, b.gradient)
    assert_same_state(by_lens, state(by_mask))


def nothing_happened(
    module: VectorQuantize, before: dict[str, Tensor], x: Tensor, **kwargs: Any
) -> None:
    x = x.clone().requires_grad_()
    quantized, indices, loss = module(x, **kwargs)
    assert quantized.shape == x.shape and indices.dtype == torch.int64
    loss.backward()
    assert x.grad is None or (x.grad == 0).all()
    assert_same_state(module, before)
    assert all(p.grad is None or p.grad.isfinite().all() for p in module.parameters())
    for name, parameter in module.named_parameters():
        if parameter.grad is not None and not name.endswith("embed"):
            assert (parameter.grad == 0).all(), name
        parameter.grad = None
    if not module.has_codebook_orthogonal_loss:
        assert loss.item() == 0
    assert loss.isfinite()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("padding", [0.0, *GARBAGE])
def test_all_masked(case: str, padding: float) -> None:
    if case == "compat":
        padding_case = "dead_codes"  # the reference divides 0 by 0 here
    else:
        padding_case = case
    module = build(padding_case)
    x = torch.full_like(data(module), padding)
    nothing_happened(
        module, state(module), x, mask=torch.zeros(positions_of(module), dtype=torch.bool)
    )


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("empty", ["batch", "positions"])
def test_zero_tokens(case: str, empty: str) -> None:
    module = build(case)
    shape = list(data(module).shape)
    axis = 0 if empty == "batch" else (2 if module._layout.channel_first else 1)
    shape[axis] = 0
    nothing_happened(module, state(module), torch.zeros(shape))
    assert module.eval()(torch.zeros(shape))[1].numel() == 0


@pytest.mark.parametrize("case", CASES)
def test_one_token(case: str) -> None:
    module = build(case)
    for step in range(3):
        result = train_step(module, module, torch.randn(1, 8))
        assert (
            result.quantized.isfinite().all()
            and result.loss.isfinite()
            and result.gradient.isfinite().all()
        ), step
    assert all(value.isfinite().all() for value in module.state_dict().values())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("case", CASES)
def test_non_finite_row_never_reaches_the_state(case: str, value: float) -> None:
    """EMA state, k-means, affine statistics and dead-code candidates are as if the row were absent."""
    module = build(case)
    for step in range(3):
        x = data(module, step)
        last = features_last(module, x)
        last[0, ..., 3 if last.dim() == 3 else 1, 5] = value  # in place: `last` is a view of x
        bad = ~last.isfinite().all(-1)
        quantized, indices, loss = module(x)
        rows = features_last(module, quantized)
        assert rows[bad].isnan().any(-1).all()
        assert rows[~bad].isfinite().all()
        heads_hit = indices[bad] if module.heads == 1 else indices[bad][..., -1]
        assert (heads_hit == 0).all()
    assert all(tensor.isfinite().all() for tensor in module.state_dict().values())
    clean = data(module, 7)
    assert module.eval()(clean)[0].isfinite().all()


@pytest.mark.parametrize(
    "case", ["default", "cosine", "kmeans", "affine", "dead_codes", "affine_kmeans_dead_codes"]
)
def test_non_finite_rows_leave_the_state_as_if_masked(case: str) -> None:
    poisoned, masked = build(case), build(case)
    for step in range(3):
        x = data(poisoned, step)
        mask = mask_of(poisoned)
        poisoned(with_padding(poisoned, x, mask, math.nan))
        masked(x, mask=mask)
    assert_same_state(poisoned, state(masked))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_in_place_optimizer_does_not_learn_from_non_finite_rows(value: float) -> None:
    options = dict(
        learnable_codebook=True,
        ema_update=False,
        in_place_codebook_optimizer=lambda p: torch.optim.SGD(p, lr=0.5),
    )
    module = build("default", **options)
    x = data(module)
    x[0, 3, 2] = value
    module(x)
    assert module.codebook.isfinite().all()


@pytest.mark.parametrize("case", ["default", "projections", "image"])
def test_padding_can_be_returned(case: str) -> None:
    module = build(case, return_zeros_for_masked_padding=False).eval()
    x, mask = data(module), mask_of(module)
    quantized = features_last(module, module(x, mask=mask)[0])
    assert torch.equal(quantized[~mask], features_last(module, x)[~mask])


def test_gate_covers_every_option() -> None:
    assert len(COMPARED) >= 30 and all(options_of(case) for case in COMPARED)
