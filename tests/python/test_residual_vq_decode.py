"""decode(indices) is the output of a stack, bit for bit, for every layout and option."""

from __future__ import annotations

import pytest
import torch
from residual_vq_cases import CODES, DIM, LEVELS, STACKS, build, data, train_step

# In training, the output of these is a point near the code.
BESIDE = {"diveq", "directional"}
# These change the codes within the step, before the search.
MOVING = {"kmeans", "shared_kmeans", "dropout_kmeans", "affine", "shared_affine"}


def trained(case: str):
    stack = build(case)
    for step in range(2):
        train_step(stack, data(stack, step))
    return stack


@pytest.mark.parametrize("case", STACKS)
def test_decode_is_the_output_in_evaluation(case: str) -> None:
    stack = trained(case).eval()
    quantized, indices, loss = stack(data(stack, 9))
    assert torch.equal(stack.get_output_from_indices(indices), quantized)
    assert (loss == 0).all()
    assert not loss.requires_grad


@pytest.mark.parametrize(
    "case", sorted(STACKS.keys() - BESIDE - MOVING - {"compatible", "compatible_shared"})
)
def test_indices_of_training_decode_with_the_codes_before_the_update(case: str) -> None:
    stack = build(case)
    twin = build(case)
    quantized, indices, _ = stack(data(stack))
    torch.testing.assert_close(twin.get_output_from_indices(indices), quantized, rtol=0, atol=1e-6)


# With vqp_compat, codes are looked up after the update, as in the reference.
COMPATIBLE = {"compatible", "compatible_shared"}


@pytest.mark.parametrize("case", sorted(STACKS.keys() - BESIDE - COMPATIBLE))
def test_codes_of_training_sum_to_the_output(case: str) -> None:
    stack = build(case)
    x = data(stack)
    quantized, _, _, codes = stack(x, return_all_codes=True)
    if "groups" in case:
        stacks, parts = stack.rvqs, codes
        outputs = quantized.chunk(2, stack.split_dim)
    else:
        stacks, parts, outputs = [stack], [codes], [quantized]
    for part, code, output in zip(stacks, parts, outputs, strict=True):
        total = part.project_out(code.sum(0))
        torch.testing.assert_close(part.layout.place_features(total), output, rtol=1e-5, atol=1e-5)


def test_codes_are_those_that_decoding_gives() -> None:
    stack = trained("sizes").eval()
    x = data(stack)
    _, indices, _, codes = stack(x, return_all_codes=True)
    assert torch.equal(stack.get_codes_from_indices(indices), codes)


@pytest.mark.parametrize("case", ["dropout", "groups_dropout"])
def test_the_first_levels_decode_alone(case: str) -> None:
    stack = trained(case).eval()
    indices = stack(data(stack))[1]
    for levels in range(1, LEVELS + 1):
        padded = indices.clone()
        padded[..., levels:] = -1
        fewer = stack.get_output_from_indices(indices[..., :levels])
        assert torch.equal(fewer, stack.get_output_from_indices(padded))


def test_decoding_follows_the_gradient_of_learnable_codes() -> None:
    stack = build("implicit").eval()
    stack.get_output_from_indices(torch.zeros(2, 5, LEVELS, dtype=torch.long)).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in stack.parameters())


@pytest.mark.parametrize("case", ["default", "implicit", "projections", "implicit_projections"])
def test_absent_tokens_decode_to_zeros(case: str) -> None:
    stack = build(case)
    absent = torch.full((2, 5, LEVELS), -1)
    assert (stack.get_output_from_indices(absent) == 0).all()
    assert (stack.get_codes_from_indices(absent) == 0).all()


@pytest.mark.parametrize("index", [-2, CODES])
def test_indices_out_of_range_are_refused(index: int) -> None:
    with pytest.raises(IndexError):
        build().get_output_from_indices(torch.full((2, 5, LEVELS), index))


def test_wrong_number_of_levels_or_groups_is_refused() -> None:
    with pytest.raises(ValueError, match="expected indices to be of 3 levels"):
        build().get_codes_from_indices(torch.zeros(2, 5, 2, dtype=torch.long))
    with pytest.raises(ValueError, match="expected indices to be of 2 groups"):
        build("groups").get_output_from_indices(torch.zeros(3, 2, 5, LEVELS, dtype=torch.long))


def test_codebooks_read_level_by_level() -> None:
    stack = build("default")
    assert stack.codebooks.shape == (LEVELS, CODES, DIM)
    assert torch.equal(stack.codebooks[1], stack.layers[1].codebook)
    assert [tuple(c.shape) for c in build("sizes").codebooks] == [(4, DIM), (16, DIM), (7, DIM)]
    assert build("groups").codebooks.shape == (2, LEVELS, CODES, DIM // 2)
