"""The state of a stack: copies, checkpoints, freezing, shared codebooks, activation checkpointing, compilers."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from residual_vq_cases import (
    CODES,
    DIM,
    LEVELS,
    STACKS,
    assert_same_state,
    build,
    data,
    layers_of,
    state,
    train_step,
)
from torch.utils.checkpoint import checkpoint

from torchvq import GroupedResidualVQ, ResidualVQ

SOME = [
    "default",
    "shared_dead_codes",
    "implicit",
    "diveq",
    "sampling",
    "dropout",
    "groups_dropout",
    "kmeans",
]


def assert_same_steps(a, b, steps: int = 2) -> None:
    for step in range(steps):
        x = data(a, 30 + step)
        (result, gradient), (expected, expected_gradient) = train_step(a, x), train_step(b, x)
        for value, other in zip(result[:3], expected[:3], strict=True):
            assert torch.equal(value, other)
        assert torch.equal(gradient, expected_gradient)
    assert_same_state(a, state(b))


@pytest.mark.parametrize("mode", ["training", "evaluation"])
def test_a_group_whose_codes_are_refused_leaves_the_others_as_they_are(mode: str) -> None:
    stack = GroupedResidualVQ(dim=2 * DIM, groups=2, num_quantizers=2, codebook_size=CODES)
    last = stack.rvqs[1].train(mode == "training").layers[1]._codebook
    last.embed = torch.randn(1, CODES + 1, DIM) if mode == "training" else torch.randn(CODES, DIM)
    before = state(stack)
    with pytest.raises(ValueError, match="expected embed to have the shape"):
        stack(torch.randn(1, 6, 2 * DIM))
    assert_same_state(stack, before)


def through_pickle(stack):
    return pickle.loads(pickle.dumps(stack))


def through_a_checkpoint(stack):
    file = io.BytesIO()
    torch.save(stack.state_dict(), file)
    file.seek(0)
    other = copy.deepcopy(stack)
    for parameter in other.parameters():
        parameter.data.zero_()
    other.load_state_dict(torch.load(file))
    return other


@pytest.mark.parametrize("copied", [copy.deepcopy, through_pickle, through_a_checkpoint])
@pytest.mark.parametrize("case", SOME)
def test_a_copy_goes_on_like_the_original(case: str, copied) -> None:
    stack = build(case)
    train_step(stack, data(stack))
    assert_same_steps(copied(stack), stack)


@pytest.mark.parametrize("case", STACKS)
def test_evaluation_changes_nothing(case: str) -> None:
    stack = build(case).eval()
    before = state(stack)
    first = stack(data(stack))
    second = stack(data(stack))
    assert torch.equal(first[0], second[0])
    assert_same_state(stack, before)


@pytest.mark.parametrize(
    "case",
    sorted(
        STACKS.keys()
        - {"kmeans", "shared_kmeans", "dropout_kmeans"}
        # With vqp_compat, a stack ignores freeze_codebook at construction, as the reference does.
        - {"compatible", "compatible_shared"}
    ),
)
def test_frozen_at_construction_stays_frozen(case: str) -> None:
    stack = build(case, freeze_codebook=True, threshold_ema_dead_code=5)
    before = {name: value for name, value in state(stack).items() if "rng" not in name}
    for step in range(2):
        stack(data(stack, step))
    after = state(stack)
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_shared_codebook_is_one_object_in_copies_and_casts() -> None:
    for stack in (build("shared"), copy.deepcopy(build("shared")), build("shared").double()):
        first = stack.layers[0]._codebook
        assert all(layer._codebook is first for layer in stack.layers)
    stack = build("shared")
    ours = {id(b) for name, b in stack.named_buffers() if "._codebook." in name}
    assert len(ours) == len(dict(stack.layers[0]._codebook.named_buffers()))


def test_shared_codebook_updates_once_per_forward() -> None:
    stack = build("shared")
    book = stack.layers[0]._codebook
    before = book.cluster_size.sum()
    x = data(stack)
    stack(x)
    tokens = x.shape[0] * x.shape[1]
    torch.testing.assert_close(book.cluster_size.sum(), 0.8 * before + 0.2 * tokens * LEVELS)
    assert int(book.rng[1]) == 1


def test_levels_of_a_shared_codebook_draw_different_noise() -> None:
    stack = build("shared", stochastic_sample_codes=True, num_quantizers=2)
    # With codes of 0 both levels have the same residual, so equal draws would choose equal codes for every token.
    stack.layers[0]._codebook.set_codes(torch.zeros_like(stack.layers[0]._codebook.embed))
    indices = stack(data(stack))[1]
    assert not torch.equal(indices[..., 0], indices[..., 1])


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("case", SOME)
def test_activation_checkpointing_updates_once(case: str, reentrant: bool) -> None:
    plain, checkpointed = build(case), build(case)
    for step in range(2):
        results = []
        for stack in (plain, checkpointed):
            x = data(stack, step).requires_grad_()
            inner = x * 1.0
            if stack is checkpointed:
                quantized, _, loss = checkpoint(stack, inner, use_reentrant=reentrant)
            else:
                quantized, _, loss = stack(inner)
            (quantized.square().sum() + loss.sum()).backward()
            results.append((quantized.detach(), x.grad))
        assert torch.equal(results[0][0], results[1][0])
        assert torch.equal(results[0][1], results[1][1])
    assert_same_state(checkpointed, state(plain))


@pytest.mark.parametrize("case", ["default", "shared_dead_codes", "implicit", "dropout", "groups"])
def test_compiled_training_is_eager_training(case: str) -> None:
    eager, other = build(case), build(case)
    compiled = torch.compile(other, fullgraph=True, backend="aot_eager")
    for step in range(2):
        gradients = []
        for stack in (eager, compiled):
            x = data(eager, step).requires_grad_()
            quantized, indices, loss = stack(x)
            (quantized.square().sum() + loss.sum()).backward()
            gradients.append((indices, quantized.detach(), x.grad))
        assert torch.equal(gradients[0][0], gradients[1][0])
        for a, b in zip(gradients[0][1:], gradients[1][1:], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    assert_same_state(other, state(eager), tolerance=1e-5)


def test_bfloat16_module_keeps_float32_averages() -> None:
    stack = build("default").bfloat16()
    quantized = stack(data(stack).bfloat16())[0]
    assert quantized.dtype == torch.bfloat16
    assert all(layer._codebook.embed_avg.dtype == torch.float32 for layer in layers_of(stack))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("case", ["default", "projections", "implicit", "diveq", "groups"])
def test_any_input_dtype(case: str, dtype: torch.dtype) -> None:
    stack = build(case)
    x = data(stack).to(dtype).requires_grad_()
    quantized, indices, loss = stack(x)
    assert quantized.dtype == dtype
    assert indices.dtype == torch.int64
    (quantized.sum() + loss.sum()).backward()
    assert x.grad.dtype == dtype
    assert x.grad.isfinite().all()


def test_construction_is_refused_with_a_reason() -> None:
    with pytest.raises(ValueError, match="expected num_quantizers to be at least 1, but got None"):
        ResidualVQ(dim=DIM, codebook_size=CODES)
    with pytest.raises(ValueError, match="expected dim to be a multiple of 3 groups, but got 8"):
        GroupedResidualVQ(dim=DIM, groups=3, num_quantizers=2, codebook_size=CODES)
    with pytest.raises(ValueError, match="ResidualVQ: expected x to have 8 features"):
        build()(torch.zeros(2, 5, 7))
    with pytest.raises(ValueError, match="GroupedResidualVQ: expected x to have 8 features"):
        build("groups")(torch.zeros(2, 5, 4))
