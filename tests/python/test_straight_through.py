"""straight_through: codes forward, identity backward (include/torchvq/ops/straight_through.h)."""

from __future__ import annotations

import pytest
import torch

from support import any_path

ops = torch.ops.torchvq
HOSTILE = [0.0, -0.0, 1e-30, 1e30, float("inf"), float("nan")]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def make_tokens(generator, dtype=torch.float32, shape=(2, 7, 3)):
    return (torch.randn(shape, generator=generator).to(dtype) for _ in range(3))


def same_bits(a, b):
    return a.dtype == b.dtype and torch.equal(
        a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("path", ["dispatched", "any"])
def test_straight_through_value_is_the_code_bit_for_bit(path, dtype, generator):
    x, codes, _ = make_tokens(generator, dtype)
    codes[0, :2] = torch.tensor(HOSTILE).view(2, 3).to(dtype)
    op = ops.straight_through if path == "dispatched" else any_path("straight_through")
    assert same_bits(op(x.mT.contiguous().mT, codes.mT.contiguous().mT), codes)


def test_straight_through_gradient_is_the_identity_to_x_alone(generator):
    x, codes, upstream = make_tokens(generator)
    x.requires_grad_(), codes.requires_grad_()
    y = ops.straight_through(x, codes)
    grad_x, grad_codes = torch.autograd.grad(y, (x, codes), upstream, allow_unused=True)
    assert torch.equal(grad_x, upstream) and grad_codes is None


def test_straight_through_gradient_has_the_dtype_of_x(generator):
    x, codes, upstream = make_tokens(generator)
    x = x.bfloat16().requires_grad_()
    ops.straight_through(x, codes).backward(upstream)
    assert x.grad.dtype == torch.bfloat16 and torch.equal(x.grad, upstream.bfloat16())


def test_straight_through_shares_no_memory_with_the_codes(generator):
    x, codes, _ = make_tokens(generator)
    assert ops.straight_through(x, codes).data_ptr() != codes.data_ptr()


@pytest.mark.parametrize("shape", [(1, 0, 4), (2, 1, 1), (0, 3, 2)])
def test_straight_through_of_few_tokens(shape, generator):
    x, codes, upstream = make_tokens(generator, shape=shape)
    y = ops.straight_through(x.requires_grad_(), codes)
    y.backward(upstream)
    assert torch.equal(y, codes) and torch.equal(x.grad, upstream)


@pytest.mark.parametrize(
    ("change", "error", "fragment"),
    [
        (lambda x, c: (x, c[:, :3]), ValueError, "expected codes to have the shape of x"),
        (lambda x, c: (x[0], c[0]), ValueError, "expected x to have 3 dimensions"),
        (lambda x, c: (x.long(), c), TypeError, "expected x to be floating point"),
    ],
)
def test_straight_through_names_bad_arguments(change, error, fragment, generator):
    x, codes, _ = make_tokens(generator)
    for op in (ops.straight_through, any_path("straight_through")):
        with pytest.raises(error, match=f"straight_through: {fragment}"):
            op(*change(x, codes))


def test_estimators_by_name(generator):
    """Oracle: the operators of the estimators, called by themselves."""
    x, codes, _ = make_tokens(generator)
    rng = torch.tensor([3, 4])
    # RandomPurpose::kDirectionalReparam
    noise = ops.random_numbers(rng, 8, list(x.shape), normal=True, dtype=x.dtype)
    estimators = {
        "none": lambda x, codes: codes,
        "straight_through": ops.straight_through,
        "rotation_trick": ops.rotation_trick,
        "vqp_rotation_trick": ops.vqp_rotation_trick,
        "directional_reparam": lambda x, codes: ops.directional_reparam(
            x, codes, noise, variance=0.1
        ),
    }
    for name, own in estimators.items():
        for v in (0.0, 0.5):
            found = ops.estimate(x, codes, rng, estimator=name, variance=0.1, sync_update_v=v)
            expected = own(x, codes)
            assert torch.equal(found, ops.sync_update_v(expected, v=v) if v else expected)
    message = "^estimate: expected estimator to be .* or none, but got gumbel"
    with pytest.raises(ValueError, match=message):
        ops.estimate(x, codes, rng, estimator="gumbel")


def test_straight_through_passes_opcheck(generator):
    x, codes, _ = make_tokens(generator)
    torch.library.opcheck(ops.straight_through.default, (x.requires_grad_(), codes))
