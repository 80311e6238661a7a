"""One operator for a step of a residual stack equals the loop over levels, bit for bit: outputs, gradients, state."""

from __future__ import annotations

import copy

import pytest
import torch
from residual_vq_cases import BATCH, CODES, LENGTH, LEVELS, STACKS, build, data

import torchvq._residual.results as results
from torchvq import ResidualVQ
from torchvq._residual.step import can_step_at_once

# Left out: cases with Python code between the levels (networks that compute codes, statistics of the affine map).
CASES = sorted(
    name for name in STACKS if not {"implicit", "affine", "groups"} & set(name.split("_"))
)
CALLS = {
    "plain": {},
    "codes": dict(return_all_codes=True),
    "frozen": dict(freeze_codebook=True),
    "temperature": dict(sample_codebook_temp=0.3),
}


def run(stack: ResidualVQ, steps: int, mask=None, **call):
    """Everything that a few steps return, and the state after them."""
    found = []
    for step in range(steps):
        x = data(stack, step).requires_grad_()
        output = stack(x, mask=mask, **call)
        weight = torch.arange(float(output[0].numel())).reshape(output[0].shape).cos()
        stack.zero_grad()
        ((output[0] * weight).sum() + output[-1 if "indices" in call else 2].sum()).backward()
        gradients = [p.grad for p in stack.parameters() if p.grad is not None]
        found += [*output, x.grad, *(g.clone() for g in gradients)]
    state = [*stack.state_dict().values(), *(level.step_counts for level in stack.levels)]
    return [t.detach().clone() for t in [*found, *state] if isinstance(t, torch.Tensor)]


def same_bits(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    assert len(ours) == len(theirs)
    for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        assert a.dtype == b.dtype and a.shape == b.shape, number
        assert torch.equal(a.nan_to_num(), b.nan_to_num()), number


def compare(stack: ResidualVQ, monkeypatch, **call) -> None:
    """Steps from the same state, by one operator and level by level."""
    training = stack.training
    tokens = data(stack).requires_grad_()
    for number in range(20):  # until k-means has run at every level, even with dropout
        if not can_step_at_once(stack, tokens, stack.levels):
            with torch.no_grad():
                stack.train()(data(stack, number))
            stack.train(training)
    assert can_step_at_once(stack, tokens, stack.levels)
    walked = copy.deepcopy(stack)
    at_once = run(stack, 3, **call)
    monkeypatch.setattr(results, "can_step_at_once", lambda *_: False)
    same_bits(at_once, run(walked, 3, **call))


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("case", CASES)
def test_training(case, call, monkeypatch):
    compare(build(case).train(), monkeypatch, **CALLS[call])


@pytest.mark.parametrize("case", CASES)
def test_masks(case, monkeypatch, generator):
    stack = build(case).train()
    positions = stack.layout.positions(data(stack))
    mask = torch.rand((BATCH, *positions), generator=generator) > 0.4
    compare(stack, monkeypatch, mask=mask)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "case", ["default", "shared_heads", "separate_heads", "sizes", "compatible"]
)
def test_targets(case, training, monkeypatch, generator):
    stack = build(case).train()
    with torch.no_grad():
        indices = stack(data(stack, 7)).indices
    stack.train(training)
    compare(stack, monkeypatch, indices=indices)


@pytest.mark.parametrize(
    "case", ["default", "shared", "separate_heads", "compatible", "compatible_shared"]
)
def test_beam(case, monkeypatch):
    compare(build(case).train(), monkeypatch, beam_size=3)


def test_double(monkeypatch):
    compare(build("default").double().train(), monkeypatch)


@pytest.mark.parametrize("case", ["default", "learnable", "cosine"])
def test_a_vector_that_is_not_finite(case, monkeypatch):
    stack = build(case).train()
    walked = copy.deepcopy(stack)
    x = data(stack)
    x.view(-1)[3] = float("inf")
    outputs = [stack(x)]
    monkeypatch.setattr(results, "can_step_at_once", lambda *_: False)
    outputs.append(walked(x))
    same_bits([t.detach() for t in outputs[0]], [t.detach() for t in outputs[1]])
    assert outputs[0].quantized.isnan().any()


def test_no_tokens(monkeypatch):
    stack = build("default").train()
    before = {name: value.clone() for name, value in stack.state_dict().items()}
    output = stack(torch.empty(BATCH, 0, stack.dim))
    assert output.indices.shape == (BATCH, 0, LEVELS)
    for name, value in stack.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_what_goes_level_by_level():
    mixed = build("default").train()
    mixed.layers[1].eval()
    weighed = build("default").train()
    weighed.layers[1].commitment_weight = 0.5
    others = [build(case).train() for case in ("kmeans", "implicit", "affine")]
    for stack in [mixed, weighed, *others]:
        assert not can_step_at_once(stack, data(stack).requires_grad_(), stack.levels)


def test_codes_that_hand_their_gradient_on_go_level_by_level():
    """If only the codes take a gradient, the first level has nothing to reach, and later ones have."""
    stack = build("learnable").train()
    stack.quant_grad_frac = 0.5
    x = data(stack)
    assert not can_step_at_once(stack, x, stack.levels)
    assert can_step_at_once(stack, x.clone().requires_grad_(), stack.levels)


def test_a_list_of_another_length_is_an_error():
    codes = torch.randn(1, CODES, 4)
    state = [codes.clone(), torch.ones(1, CODES), codes.clone()]
    with pytest.raises(
        ValueError, match="residual_quantize_: expected state to hold 4 or 9 tensors for each of 1"
    ):
        torch.ops.torchvq.residual_quantize_(
            torch.randn(1, LENGTH, 4),
            [codes],
            state,
            [torch.zeros(2, dtype=torch.long)],
            [torch.zeros(1, CODES, dtype=torch.long)],
            targets=[],
            totals=[],
        )
