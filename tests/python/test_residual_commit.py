"""residual_commit: what the levels of a stack leave, and their losses (include/torchvq/ops/residual_commit.h)."""

from __future__ import annotations

import math

import pytest
import torch

from support import any_path

ops = torch.ops.torchvq
op = ops.residual_commit
PATHS = {"dispatched": op, "any": any_path("residual_commit")}
BACKWARD = {
    "dispatched": ops.residual_commit_backward,
    "any": any_path("residual_commit_backward"),
}
HEADS, TOKENS, DIM, SIZES = 2, 17, 5, (3, 6, 4)
ESTIMATORS = ("straight_through", "rotation_trick", "none")


@pytest.fixture(params=PATHS.values(), ids=PATHS.keys())
def commit(request):
    return request.param


@pytest.fixture(params=BACKWARD.values(), ids=BACKWARD.keys())
def backward(request):
    return request.param


def make(generator, dtype=torch.float32, tokens=TOKENS):
    x = torch.randn(HEADS, tokens, DIM, generator=generator).to(dtype)
    codebooks = [torch.randn(HEADS, k, DIM, generator=generator).to(dtype) for k in SIZES]
    columns = [torch.randint(k, (HEADS, tokens), generator=generator) for k in SIZES]
    return x, codebooks, torch.stack(columns, -1)


def some_mask(generator):
    return torch.rand(HEADS, TOKENS, generator=generator) < 0.6


def expected(x, codebooks, indices):
    """The sum and the residuals, one token at a time."""
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    residuals = torch.empty(len(codebooks), *x.shape, dtype=wide)
    total = torch.zeros(x.shape, dtype=wide)
    for h in range(x.shape[0]):
        for t in range(x.shape[1]):
            left = x[h, t].to(wide)
            for q, codebook in enumerate(codebooks):
                finite = all(math.isfinite(value) for value in left.tolist())
                code = codebook.expand(x.shape[0], -1, -1)[h, indices[h, t, q]].to(wide)
                code = code if finite else torch.full_like(code, math.nan)
                total[h, t] += code
                left = residuals[q, h, t] = left - code
    return total, residuals


def codes_of(codebooks, indices):
    return [
        torch.stack([book[index] for book, index in zip(codebook, indices[..., q], strict=True)])
        for q, codebook in enumerate(codebooks)
    ]


def assert_same(found, wanted):
    total, _, residuals = found
    for ours, theirs in zip((total, residuals), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


# Values ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str
)
def test_each_level_leaves_the_rest_to_the_next(commit, dtype, generator):
    arguments = make(generator, dtype)
    assert_same(commit(*arguments), expected(*arguments))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("tokens", [TOKENS, 3000])
def test_each_loss_is_the_mean_square_of_its_level(commit, masked, tokens, generator):
    x, codebooks, indices = make(generator, tokens=tokens)
    mask = torch.rand(HEADS, tokens, generator=generator) < 0.6 if masked else None
    _, losses, residuals = commit(x, codebooks, indices, mask=mask)
    inputs = [x, *residuals[:-1]]
    assert losses.shape == (3,) and losses.dtype == torch.float32
    for loss, given, code in zip(losses, inputs, codes_of(codebooks, indices), strict=True):
        rows = given.double() - code.double()
        values = (rows[mask] if masked else rows).flatten().tolist()
        exact = math.fsum(value * value for value in values) / len(values)
        assert loss.item() == pytest.approx(exact, rel=1e-7)
    alone = [
        ops.commitment_loss(given, code, mask=mask)
        for given, code in zip(inputs, codes_of(codebooks, indices), strict=True)
    ]
    assert torch.equal(losses, torch.stack(alone)) or commit is PATHS["any"]


def test_a_token_that_is_not_finite_has_no_code(commit, generator):
    x, codebooks, indices = make(generator)
    x[0, 3, 2], x[1, 5, 0], x[1, 6, 4] = math.nan, math.inf, -math.inf
    real = torch.isfinite(x).all(-1)
    assert commit(x, codebooks, indices, mask=real)[1].isfinite().all()
    # Finite at the first level; the residual for the second overflows float32.
    x[0, 8, 1], codebooks[0][0, indices[0, 8, 0], 1] = 3e38, -3e38
    found = commit(x, codebooks, indices)
    assert_same(found, expected(x, codebooks, indices))
    assert found[0].isnan().all(-1).sum() == 4
    assert found[1].isnan().all()


def test_strides_and_no_tokens(commit, generator):
    x, codebooks, indices = make(generator)
    turned = [c.transpose(0, 2).contiguous().transpose(0, 2) for c in codebooks]
    flipped = indices.transpose(0, 2).contiguous().transpose(0, 2)
    assert_same(commit(x.mT.contiguous().mT, turned, flipped), expected(x, codebooks, indices))
    total, losses, residuals = commit(x[:, :0], codebooks, indices[:, :0])
    assert total.shape == (HEADS, 0, DIM) and residuals.shape == (3, HEADS, 0, DIM)
    assert losses.tolist() == [0, 0, 0]


def test_heads_may_share_codebooks(commit, generator):
    x, own, indices = make(generator)
    found = commit(x, [own[0][0], own[1], own[2][:1]], indices)
    assert_same(found, expected(x, [own[0][:1], own[1], own[2][:1]], indices))


def test_codebooks_of_another_dtype_are_read_in_that_of_the_tokens(commit, generator):
    x, codebooks, indices = make(generator)
    found = commit(x, [codebook.half() for codebook in codebooks], indices)
    assert_same(found, expected(x, [codebook.half().float() for codebook in codebooks], indices))


def test_results_share_no_memory(commit, generator):
    x, codebooks, indices = make(generator)
    tensors = [x, *codebooks, *commit(x, codebooks, indices)]
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == len(tensors)


# Gradients ---------------------------------------------------------------------------------------------------


def plainly(x, codebooks, indices, mask, weights):
    """The weighted loss of a stack in torch, differentiable: the input of a level is x minus constants."""
    residual, total = x, x.new_zeros(())
    real = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
    for weight, code in zip(weights, codes_of(codebooks, indices), strict=True):
        total = total + weight * (residual - code)[real].square().mean()
        residual = residual - code
    return total


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("gain", [1.0, 3.0])
def test_the_gradient_is_that_of_the_levels_written_plainly(masked, gain, generator):
    x, codebooks, indices = make(generator, torch.float64)
    mask = some_mask(generator) if masked else None
    weights = torch.tensor([0.3, -1.2, 2.0], dtype=torch.float64)

    def ours(x, gain=gain):
        return (op(x, codebooks, indices, mask=mask, gain=gain)[1] * weights).sum()

    x.requires_grad_()
    found = torch.autograd.grad(ours(x), x)[0]
    wanted = torch.autograd.grad(plainly(x, codebooks, indices, mask, weights), x)[0] / gain
    torch.testing.assert_close(found, wanted, rtol=1e-13, atol=1e-15)
    # The codes are constants to autograd, and to finite differences as long as no choice changes.
    assert torch.autograd.gradcheck(lambda x: ours(x, 1.0), (x,))
    assert torch.autograd.gradgradcheck(lambda x: ours(x, 1.0), (x,))
    second = [
        torch.autograd.grad(torch.autograd.grad(ours(x, g), x, create_graph=True)[0].sum(), x)[0]
        for g in (1.0, gain)
    ]
    torch.testing.assert_close(second[0], second[1] * gain, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_gradient_has_the_bits_of_its_parts(masked, estimator, generator):
    """One estimator of the sum, and one loss per level, in autograd's order: from the last level to the first."""
    x, codebooks, indices = make(generator)
    mask = some_mask(generator) if masked else None
    weights, upstream = torch.randn(3, generator=generator), torch.randn(x.shape)
    gain = 3.0
    leaf = x.clone().requires_grad_()
    total, losses, _ = op(leaf, codebooks, indices, mask=mask, estimator=estimator, gain=gain)
    ends = [(losses * weights).sum()]
    if estimator != "none":
        ends.append((total * upstream).sum())
    sum(ends).backward()

    other = x.clone().requires_grad_()
    balanced = ops.straight_through(other * (1 / gain), other.detach())
    residual, parts = balanced, []
    for code in codes_of(codebooks, indices):
        parts.append(ops.commitment_loss(residual, code, mask=mask))
        residual = residual - code
    ends = [(torch.stack(parts) * weights).sum()]
    if estimator != "none":
        estimated = getattr(ops, estimator)(other, total.detach())
        assert torch.equal(estimated, total)
        ends.append((estimated * upstream).sum())
    sum(ends).backward()
    assert torch.equal(leaf.grad, other.grad)
    assert total.requires_grad == (estimator != "none")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_backward_adds_from_the_last_level_to_the_first(backward, dtype, generator):
    x, codebooks, indices = make(generator, dtype)
    residuals, mask = op(x, codebooks, indices)[2], some_mask(generator)
    grads, other = torch.randn(3, generator=generator, dtype=dtype), torch.randn_like(x)
    found = backward(grads, residuals, mask=mask, gain=7.0)
    added = backward(grads, residuals, mask=mask, gain=7.0, other=other)
    scales = grads * 2 / (mask.sum() * DIM)
    share = torch.tensor(1 / 7, dtype=dtype)
    for h in range(HEADS):
        for t in range(TOKENS):
            total = torch.zeros(DIM, dtype=dtype)
            for q in (2, 1, 0) if mask[h, t] else ():
                total = residuals[q, h, t] * scales[q] + total
            assert torch.equal(found[h, t], total * share)
            assert torch.equal(added[h, t], total * share + other[h, t])


def test_padding_may_hold_anything(generator):
    x, codebooks, indices = make(generator)
    mask = some_mask(generator)
    spoiled = x.masked_fill(~mask.unsqueeze(-1), math.nan)
    results = []
    for tokens in (x, spoiled):
        leaf = tokens.clone().requires_grad_()
        losses = op(leaf, codebooks, indices, mask=mask)[1]
        losses.sum().backward()
        results.append((losses.detach(), leaf.grad))
    assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1], results[1][1])


def test_no_tokens_and_none_real(generator):
    x, codebooks, indices = make(generator)
    nothing = torch.zeros(HEADS, TOKENS, dtype=torch.bool)
    for count, mask in ((0, None), (TOKENS, nothing)):
        leaf = x[:, :count].clone().requires_grad_()
        losses = op(leaf, codebooks, indices[:, :count], mask=mask)[1]
        losses.sum().backward()
        assert losses.tolist() == [0, 0, 0]
        assert torch.equal(leaf.grad, torch.zeros_like(leaf))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_the_gradient_has_the_dtype_of_the_tokens(dtype, generator):
    x, codebooks, indices = make(generator, dtype)
    leaf = x.clone().requires_grad_()
    total, losses, _ = op(leaf, codebooks, indices)
    (losses.sum() + total.sum()).backward()
    assert losses.dtype == total.dtype == torch.float32 and leaf.grad.dtype == dtype


def test_a_straight_gradient_needs_no_saved_tensor(generator):
    x, codebooks, indices = make(generator)
    leaf = x.clone().requires_grad_()
    total, _, residuals = op(leaf, codebooks, indices, estimator="straight_through")
    residuals.zero_()
    total.sum().backward()
    assert torch.equal(leaf.grad, torch.ones_like(leaf))


def test_the_sum_may_be_written_to_before_backward(generator):
    x, codebooks, indices = make(generator)
    grads = []
    for write in (False, True):
        leaf = x.clone().requires_grad_()
        total = op(leaf, codebooks, indices)[0]
        (total.mul_(2) if write else total * 2).sum().backward()
        grads.append(leaf.grad)
    assert torch.equal(*grads)


def test_the_rotation_is_differentiable_once(generator):
    x, codebooks, indices = make(generator)
    leaf = x.clone().requires_grad_()
    total = op(leaf, codebooks, indices)[0]
    with pytest.raises(NotImplementedError, match="rotation_trick"):
        torch.autograd.grad(total.sum(), leaf, create_graph=True)


def test_nothing_else_has_a_gradient(generator):
    x, codebooks, indices = make(generator)
    total, losses, residuals = op(x, [c.requires_grad_() for c in codebooks], indices)
    residuals_of_x = op(x.requires_grad_(), codebooks, indices)[2]
    assert not any(t.requires_grad for t in (residuals, residuals_of_x))
    leaves = torch.autograd.grad(
        op(x, codebooks, indices)[1].sum(), [x, *codebooks], allow_unused=True
    )
    assert leaves[0] is not None and leaves[1:] == (None, None, None)


# Errors, compilers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("bad", [-1, -2, 6])
def test_indices_out_of_range_are_refused(path, bad, generator):
    x, codebooks, indices = make(generator)
    indices[1, -1, 1] = bad
    with pytest.raises(IndexError, match=rf"residual_commit: .* \[0, 6\), but got {bad}"):
        PATHS[path](x, codebooks, indices)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (lambda x, c, i: (x.long(), c, i), TypeError, "x to be floating point"),
        (lambda x, c, i: (x[0], c, i), ValueError, "3 dimensions"),
        (lambda x, c, i: (x, [], i), ValueError, "at least 1 level"),
        (lambda x, c, i: (x, c[:2], i), ValueError, "levels of codebooks"),
        (lambda x, c, i: (x, [c[0].repeat(2, 1, 1), *c[1:]], i), ValueError, "heads of x"),
        (lambda x, c, i: (x, [c[0], c[1][..., :2], c[2]], i), ValueError, "features of x"),
        (lambda x, c, i: (x, [c[0][:, :0], *c[1:]], i), ValueError, "at least 1 code"),
        (lambda x, c, i: (x, c, i.int()), TypeError, "indices to be Long"),
        (lambda x, c, i: (x, c, i[:, :-1]), ValueError, "tokens of x"),
        (lambda x, c, i: (x, c, i[:1]), ValueError, "heads of x"),
    ],
)
def test_bad_arguments_are_named(commit, change, kind, message, generator):
    with pytest.raises(kind, match=f"residual_commit: .*{message}"):
        commit(*change(*make(generator)))


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        (dict(mask=torch.ones(HEADS, TOKENS)), TypeError, "mask to be Bool"),
        (dict(mask=torch.ones(HEADS, 2, dtype=torch.bool)), ValueError, "tokens of x"),
        (dict(estimator="rotation"), ValueError, "estimator to be straight_through"),
        (dict(gain=0.0), ValueError, "gain to be finite and positive, but got 0"),
        (dict(gain=math.nan), ValueError, "gain to be finite"),
    ],
)
def test_bad_options_are_named(commit, options, kind, message, generator):
    with pytest.raises(kind, match=f"residual_commit: .*{message}"):
        commit(*make(generator), **options)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (lambda g, r: dict(grads=g.double(), residuals=r), TypeError, "grads to be Float"),
        (lambda g, r: dict(grads=g[:2], residuals=r), ValueError, "levels of residuals"),
        (lambda g, r: dict(grads=g, residuals=r[0]), ValueError, "4 dimensions"),
        (lambda g, r: dict(grads=g[:0], residuals=r[:0]), ValueError, "at least 1 level"),
        (lambda g, r: dict(grads=g, residuals=r, other=r[0].double()), TypeError, "other to be"),
        (lambda g, r: dict(grads=g, residuals=r, other=r[0][:1]), ValueError, "other to have"),
        (lambda g, r: dict(grads=g, residuals=r, gain=-1.0), ValueError, "gain"),
    ],
)
def test_bad_arguments_of_the_backward_are_named(backward, change, kind, message, generator):
    residuals = op(*make(generator))[2]
    with pytest.raises(kind, match=f"residual_commit_backward: .*{message}"):
        backward(**change(torch.ones(3), residuals))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_opcheck_and_compile(estimator, generator):
    x, codebooks, indices = make(generator)
    mask = some_mask(generator)
    options = dict(mask=mask, estimator=estimator, gain=2.0)
    x.requires_grad_()
    torch.library.opcheck(op.default, (x, codebooks, indices), options)
    residuals = op(x, codebooks, indices)[2]
    torch.library.opcheck(
        ops.residual_commit_backward.default,
        (torch.ones(3), residuals),
        dict(mask=mask, other=residuals[0]),
    )

    def losses_and_sum(x):
        total, losses, _ = op(x, codebooks, indices, **options)
        return losses.square().sum() + (total.square().sum() if estimator != "none" else 0)

    compiled = torch.compile(losses_and_sum, fullgraph=True, backend="aot_eager")
    results = []
    for run in (compiled, losses_and_sum):
        value = run(x)
        results.append((value.detach(), torch.autograd.grad(value, x)[0]))
    assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1], results[1][1])
