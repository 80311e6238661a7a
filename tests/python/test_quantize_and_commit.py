"""quantize_and_commit: search, estimator and commitment loss as one node of the graph."""

from __future__ import annotations

import pytest
import torch
from torch.utils._pytree import tree_map_only

from support import any_path

ops = torch.ops.torchvq
ESTIMATORS = ("straight_through", "rotation_trick", "none")
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
SHAPES = [(2, 9, 5), (7, 5), (1, 1, 5), (3, 4, 2, 5), (3, 8, 16), (4, 43), (0, 5), (2, 0, 5)]
BACKWARD = {
    "dispatched": ops.quantize_and_commit_backward,
    "any": any_path("quantize_and_commit_backward"),
}


def tokens_and_codes(shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(sum(shape))
    x = torch.randn(shape, generator=generator).to(dtype)
    return x, torch.randn(1, 11, shape[-1], generator=generator)


def parts(x, codebook, estimator):
    """The same by the operators that it fuses, each its own node."""
    wide = x if x.dtype == torch.float64 else x.float()
    rows = wide.reshape(1, -1 if x.numel() else 0, x.shape[-1])
    found = ops.nearest_code(rows, codebook, return_codes=True)
    indices, codes = found[0], found[1]
    outputs = {
        "straight_through": lambda: ops.straight_through(rows, codes),
        "rotation_trick": lambda: ops.rotation_trick(rows, codes),
        "none": codes.clone,
    }
    quantized = outputs[estimator]().reshape(x.shape).to(x.dtype)
    return quantized, indices.reshape(x.shape[:-1]), codes, ops.commitment_loss(rows, codes)


def with_gradient(function, x, codebook, estimator):
    leaf = x.clone().requires_grad_()
    quantized, indices, codes, commitment = function(leaf, codebook, estimator=estimator)
    loss = commitment * 3
    if quantized.requires_grad:
        loss = loss + (quantized.float() * torch.arange(x.shape[-1])).sum()
    loss.backward()
    return quantized, indices, codes, commitment, leaf.grad


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_bits_of_its_parts(shape, dtype, estimator):
    x, codebook = tokens_and_codes(shape, dtype)
    ours = with_gradient(ops.quantize_and_commit, x, codebook, estimator)
    theirs = with_gradient(parts, x, codebook, estimator)
    for own, their in zip(ours, theirs, strict=True):
        assert own.dtype == their.dtype
        torch.testing.assert_close(own, their, rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(2, 9, 5), (40, 3)])
def test_nearest_codes_and_losses_by_brute_force(shape):
    x, codebook = tokens_and_codes(shape, torch.float64)
    quantized, indices, codes, commitment = ops.quantize_and_commit(x, codebook)
    rows = x.reshape(-1, shape[-1])
    distances = (rows[:, None] - codebook[0].double()).square().sum(-1)
    assert torch.equal(indices.flatten(), distances.argmin(-1))
    assert torch.equal(quantized.reshape(rows.shape), codebook[0].double()[distances.argmin(-1)])
    assert torch.equal(codes[0], quantized.reshape(rows.shape))
    expected = (rows - codes[0]).square().mean()
    torch.testing.assert_close(commitment, expected, rtol=1e-14, atol=0)


def test_the_gradient_is_that_of_finite_differences():
    x, codebook = tokens_and_codes((2, 4, 3), torch.float64)
    wide = codebook.double()

    def loss(x):
        return ops.quantize_and_commit(x, wide, estimator="none")[3]

    assert torch.autograd.gradcheck(loss, x.requires_grad_())
    assert torch.autograd.gradgradcheck(loss, x)


@pytest.mark.parametrize("of", ["quantized", "commitment"])
@pytest.mark.parametrize("estimator", ESTIMATORS[:2])
def test_each_result_has_its_gradient_alone(of, estimator):
    x, codebook = tokens_and_codes((2, 9, 5))
    found = []
    for function in (ops.quantize_and_commit, parts):
        leaf = x.clone().requires_grad_()
        result = function(leaf, codebook, estimator=estimator)
        (result[0].square() if of == "quantized" else result[3]).sum().backward()
        found.append(leaf.grad)
    torch.testing.assert_close(*found, rtol=0, atol=0)


def masked_parts(x, codebook, mask, zeros, estimator):
    """The same by its parts, in which padding is cut off before and put back behind."""
    real, rows = mask[0], x.reshape(-1, x.shape[-1])
    quantized, indices, codes, commitment = parts(rows[real], codebook, estimator)
    places = real.nonzero().squeeze(-1)
    padding = torch.zeros_like(rows) if zeros else rows.masked_fill(real.unsqueeze(-1), 0)
    return (
        padding.index_copy(0, places, quantized).reshape(x.shape),
        torch.full(real.shape, -1).index_copy(0, places, indices).reshape(x.shape[:-1]),
        codes.new_zeros(1, *rows.shape).index_copy(1, places, codes),
        commitment,
    )


MASKED_SHAPES = [shape for shape in SHAPES if torch.Size(shape).numel() > 5]


def random_mask(x):
    generator = torch.Generator().manual_seed(3)
    return torch.rand(1, x[..., 0].numel(), generator=generator) > 0.3


@pytest.mark.parametrize("of", ["both", "quantized", "commitment"])
@pytest.mark.parametrize("zeros", [True, False])
@pytest.mark.parametrize("estimator", ESTIMATORS[:2])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", MASKED_SHAPES, ids=str)
def test_padding_takes_no_part(shape, dtype, estimator, zeros, of):
    x, codebook = tokens_and_codes(shape, dtype)
    mask = random_mask(x)
    found = []
    for function in (
        lambda x: ops.quantize_and_commit(
            x, codebook, estimator=estimator, mask=mask, zeros_for_masked=zeros
        ),
        lambda x: masked_parts(x, codebook, mask, zeros, estimator),
    ):
        leaf = x.clone().requires_grad_()
        result = function(leaf)
        loss = result[3] * 3 if of != "quantized" else 0
        if of != "commitment":
            loss = loss + (result[0].float() * torch.arange(x.shape[-1])).sum()
        loss.backward()
        found.append((*result, leaf.grad))
    for own, their in zip(*found, strict=True):
        assert own.dtype == their.dtype
        # The mean adds blocks of tokens, which begin elsewhere without padding.
        rtol = 0 if own.dtype == torch.int64 else 1e-6
        rtol = 1e-2 if dtype in (torch.float16, torch.bfloat16) and own.dtype == dtype else rtol
        torch.testing.assert_close(own, their, rtol=rtol, atol=1e-6)
    assert torch.equal(found[0][1], found[1][1]) and torch.equal(found[0][2], found[1][2])


@pytest.mark.parametrize("zeros", [True, False])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_padding_may_hold_anything(estimator, zeros):
    x, codebook = tokens_and_codes((2, 9, 5))
    mask = random_mask(x)
    absent = ~mask.reshape(2, 9, 1)
    found = []
    for filling in (0.0, float("nan"), float("inf")):
        leaf = x.masked_fill(absent, filling).requires_grad_()
        result = ops.quantize_and_commit(
            leaf, codebook, estimator=estimator, mask=mask, zeros_for_masked=zeros
        )
        loss = result[3]
        if result[0].requires_grad:
            loss = loss + result[0].masked_fill(absent, 0).sum()
        loss.backward()
        found.append((result[0].masked_fill(absent, 0), *result[1:], leaf.grad))
        assert leaf.grad.masked_select(absent).eq(0).all()
    for other in found[1:]:
        for own, their in zip(found[0], other, strict=True):
            assert torch.equal(own, their)


def test_without_a_real_token_the_loss_is_zero():
    x, codebook = tokens_and_codes((2, 9, 5))
    leaf = x.clone().requires_grad_()
    quantized, indices, codes, commitment = ops.quantize_and_commit(
        leaf, codebook, mask=torch.zeros(1, 18, dtype=torch.bool)
    )
    (quantized.sum() + commitment).backward()
    assert commitment == 0 and leaf.grad.eq(0).all()
    assert indices.eq(-1).all() and codes.eq(0).all() and quantized.eq(0).all()


def test_the_masked_gradient_is_that_of_finite_differences():
    x, codebook = tokens_and_codes((2, 4, 3), torch.float64)
    wide, mask = codebook.double(), random_mask(x)

    def loss(x):
        return ops.quantize_and_commit(x, wide, estimator="straight_through", mask=mask)[3]

    assert torch.autograd.gradcheck(loss, x.requires_grad_())
    assert torch.autograd.gradgradcheck(loss, x)


@pytest.mark.parametrize("zeros", [True, False])
@pytest.mark.parametrize("rotates", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_masked_backward_has_one_meaning(dtype, rotates, zeros):
    (grad, weight, x, codes), _ = gradients_and_parts(dtype, rotates, dim=70)
    mask = random_mask(x)
    x = x.masked_fill(~mask.reshape(3, 20, 1), float("nan"))
    found = [
        path(grad, weight, x, codes, rotates=rotates, mask=mask, zeros_for_masked=zeros)
        for path in BACKWARD.values()
    ]
    tolerance = {torch.float16: 1e-2, torch.bfloat16: 1e-1}.get(dtype, 1e-6)
    torch.testing.assert_close(*found, rtol=tolerance, atol=tolerance)
    at_padding = found[0].reshape(60, 70)[~mask[0]]
    assert torch.equal(
        at_padding, torch.zeros_like(at_padding) if zeros else grad.reshape(60, 70)[~mask[0]]
    )


def gradients_and_parts(dtype, rotates, dim=13):
    """Arguments of the backward for tokens of a dtype, and its result by formula in float64."""
    generator = torch.Generator().manual_seed(dim)
    x, grad = (torch.randn(3, 20, dim, generator=generator).to(dtype) for _ in range(2))
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    codes = torch.randn(1, 60, dim, generator=generator).to(wide)
    weight = torch.tensor(2.5, dtype=wide)
    rows, of_codes = x.double().reshape(1, 60, dim), codes.double()
    expected = grad.double().reshape(1, 60, dim)
    if rotates:
        to, at = (v / v.norm(dim=-1, keepdim=True) for v in (of_codes, rows))
        r = (to + at) / (to + at).norm(dim=-1, keepdim=True)
        gain = of_codes.norm(dim=-1, keepdim=True) / rows.norm(dim=-1, keepdim=True)

        def dot(a, b):
            return (a * b).sum(-1, keepdim=True)

        expected = gain * (expected - 2 * dot(expected, r) * r + 2 * dot(expected, to) * at)
    expected = expected + 2.5 * 2 / x.numel() * (rows - of_codes)
    return (grad, weight, x, codes), expected.reshape(x.shape)


@pytest.mark.parametrize("path", BACKWARD)
@pytest.mark.parametrize("rotates", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_both_gradients_by_their_formula(dtype, rotates, path):
    arguments, expected = gradients_and_parts(dtype, rotates)
    found = BACKWARD[path](*arguments, rotates=rotates)
    assert found.dtype == dtype
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3}.get(dtype, 2e-2)
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("rotates", [True, False])
def test_the_backward_is_the_sum_of_those_of_its_parts(rotates):
    # 70 features: vectors of every instruction set, and some elements behind them.
    (grad, weight, x, codes), _ = gradients_and_parts(torch.float32, rotates, dim=70)
    rows, upstream = x.reshape(1, 60, 70), grad.reshape(1, 60, 70)
    estimated = ops.rotation_trick_backward(upstream, rows, codes) if rotates else upstream
    committed = ops.commitment_loss_backward(weight, rows, codes)
    for name, path in BACKWARD.items():
        found = path(grad, weight, x, codes, rotates=rotates)
        # Without a kernel, sums of the rotation have another order.
        exact = name == "dispatched" or not rotates
        torch.testing.assert_close(
            found, (estimated + committed).reshape(x.shape), rtol=0, atol=0 if exact else 1e-6
        )


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (dict(grad_quantized=torch.zeros(3, 5)), ValueError, "expected grad_quantized"),
        (dict(grad_quantized=torch.zeros(2, 5).long()), TypeError, "expected grad_quantized"),
        (dict(grad_commitment=torch.zeros(1)), ValueError, "expected grad_commitment"),
        (dict(grad_commitment=torch.zeros(()).double()), TypeError, "codes and grad_commitment"),
        (dict(x=torch.zeros(10)), ValueError, "at least 2 dimensions"),
        (dict(x=torch.zeros(2, 5).long()), TypeError, "expected x"),
        (dict(codes=torch.zeros(2, 5)), ValueError, r"codes .*\(1, N, D\)"),
        (dict(codes=torch.zeros(1, 3, 5)), ValueError, "those of the tokens"),
        (dict(codes=torch.zeros(1, 2, 5).double()), TypeError, "codes and grad_commitment"),
        (dict(mask=torch.ones(1, 3).bool()), ValueError, "expected mask"),
    ],
    ids=str,
)
def test_bad_arguments_of_the_backward_are_refused(change, error, message):
    x, codes = torch.zeros(2, 5), torch.zeros(1, 2, 5)
    given = dict(grad_quantized=x, grad_commitment=torch.zeros(()), x=x, codes=codes) | change
    with pytest.raises(error, match=f"quantize_and_commit_backward: .*{message}"):
        ops.quantize_and_commit_backward(**given, rotates=True)


def test_a_second_derivative_is_refused_where_the_estimator_has_none():
    x, codebook = tokens_and_codes((2, 9, 5))
    leaf = x.clone().requires_grad_()
    quantized = ops.quantize_and_commit(leaf, codebook)[0]
    with pytest.raises(NotImplementedError, match="rotation_trick"):
        torch.autograd.grad(quantized.sum(), leaf, create_graph=True)


def test_results_may_be_written_to():
    x, codebook = tokens_and_codes((2, 9, 5))
    before, leaf = x.clone(), x.clone().requires_grad_()
    quantized, _, codes, commitment = ops.quantize_and_commit(leaf, codebook)
    expected = torch.autograd.grad(quantized.sum() + commitment, leaf, retain_graph=True)[0]
    kept = codes.clone()
    quantized.detach().zero_()
    assert torch.equal(codes, kept) and torch.equal(leaf, before)
    actual = torch.autograd.grad(quantized.sum() + commitment, leaf)[0]
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_a_straight_gradient_needs_nothing_of_the_input():
    x, codebook = tokens_and_codes((2, 9, 5))
    leaf = x.clone().requires_grad_()
    encoded = leaf * 1
    quantized = ops.quantize_and_commit(encoded, codebook, estimator="straight_through")[0]
    encoded.detach().zero_()
    encoded.add_(1)
    quantized.sum().backward()
    assert leaf.grad.eq(1).all()


@pytest.mark.parametrize("strange", [float("nan"), float("inf")])
def test_a_token_that_is_not_finite_is_what_its_parts_make_of_it(strange):
    x, codebook = tokens_and_codes((2, 9, 5))
    x[0, 3, 2] = strange
    ours = with_gradient(ops.quantize_and_commit, x, codebook, "rotation_trick")
    theirs = with_gradient(parts, x, codebook, "rotation_trick")
    for own, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, their, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("codes", DTYPES, ids=str)
def test_the_tokens_decide_the_precision(dtype, codes):
    x, codebook = tokens_and_codes((2, 9, 5), dtype)
    found = with_gradient(ops.quantize_and_commit, x, codebook.to(codes), "rotation_trick")
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    rounded = codebook.to(codes).to(wide)
    expected = with_gradient(ops.quantize_and_commit, x, rounded, "rotation_trick")
    assert found[2].dtype == found[3].dtype == wide
    assert all(torch.equal(own, their) for own, their in zip(found, expected, strict=True))


def test_strides_do_not_matter():
    x, codebook = tokens_and_codes((4, 9, 5))
    strided = x.transpose(0, 1).contiguous().transpose(0, 1)
    for own, their in zip(
        with_gradient(ops.quantize_and_commit, strided, codebook, "rotation_trick"),
        with_gradient(ops.quantize_and_commit, x, codebook, "rotation_trick"),
        strict=True,
    ):
        assert torch.equal(own, their)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (dict(x=torch.zeros(5)), ValueError, "at least 2 dimensions"),
        (dict(x=torch.zeros(2, 4)), ValueError, "expected x to have"),
        (dict(x=torch.zeros(2, 5).long()), TypeError, "expected x"),
        (dict(codebook=torch.zeros(11, 5)), ValueError, r"codebook .*\(1, K, D\)"),
        (dict(codebook=torch.zeros(2, 11, 5)), ValueError, "one codebook"),
        (dict(codebook=torch.zeros(1, 0, 5)), ValueError, "at least 1 code"),
        (dict(x=torch.zeros(2, 0), codebook=torch.zeros(1, 9, 0)), ValueError, "at least 1 dim"),
        (dict(codebook=torch.zeros(1, 11, 5).long()), TypeError, "expected codebook"),
        (dict(estimator="gumbel"), ValueError, "expected estimator"),
        (dict(mask=torch.ones(1, 2)), TypeError, "expected mask"),
        (dict(mask=torch.ones(2).bool()), ValueError, r"mask .*\(1, N\)"),
        (dict(mask=torch.ones(1, 3).bool()), ValueError, "expected mask"),
    ],
    ids=str,
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_bad_arguments_are_refused(change, error, message, device):
    arguments = dict(x=torch.zeros(2, 5), codebook=torch.zeros(1, 11, 5), estimator="none")
    arguments = tree_map_only(torch.Tensor, lambda t: t.to(device), arguments | change)
    with pytest.raises(error, match=f"quantize_and_commit: .*{message}"):
        ops.quantize_and_commit(**arguments)


def test_compiled_is_eager():
    x, codebook = tokens_and_codes((2, 9, 5))

    def step(x):
        quantized, indices, codes, commitment = ops.quantize_and_commit(x, codebook)
        return (quantized.square().sum() + commitment), indices

    found = []
    for function in (step, torch.compile(step, fullgraph=True, backend="aot_eager")):
        leaf = x.clone().requires_grad_()
        loss, indices = function(leaf)
        loss.backward()
        found.append((loss.detach(), indices, leaf.grad))
    for own, their in zip(*found, strict=True):
        torch.testing.assert_close(own, their, rtol=0, atol=0)


def test_under_transforms():
    x, codebook = tokens_and_codes((6, 4, 5))

    def loss(x):
        quantized, _, _, commitment = ops.quantize_and_commit(
            x, codebook, estimator="straight_through"
        )
        return quantized.square().sum() + commitment

    mapped = torch.func.vmap(torch.func.grad(loss))(x)
    for own, row in zip(mapped, x, strict=True):
        leaf = row.clone().requires_grad_()
        loss(leaf).backward()
        torch.testing.assert_close(own, leaf.grad, rtol=0, atol=0)
