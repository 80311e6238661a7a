"""residual_commitment_loss: the losses of all levels (include/torchvq/ops/residual_commitment_loss.h)."""

from __future__ import annotations

import math

import pytest
import torch

from support import any_path

ops = torch.ops.torchvq
op = ops.residual_commitment_loss
PATHS = {"dispatched": op, "any": any_path("residual_commitment_loss")}
BACKWARD = {
    "dispatched": ops.residual_commitment_loss_backward,
    "any": any_path("residual_commitment_loss_backward"),
}
HEADS, TOKENS, DIM, SIZES = 2, 19, 5, (3, 6, 4)


def make(generator, dtype=torch.float32):
    x = torch.randn(HEADS, TOKENS, DIM, generator=generator).to(dtype)
    codebooks = [torch.randn(HEADS, k, DIM, generator=generator).to(dtype) for k in SIZES]
    columns = [torch.randint(k, (HEADS, TOKENS), generator=generator) for k in SIZES]
    mask = torch.rand(HEADS, TOKENS, generator=generator) < 0.6
    return x, codebooks, torch.stack(columns, -1), mask


def walked(x, codebooks, indices):
    inputs, codes, _ = ops.residual_lookup(x, codebooks, indices)
    return inputs, codes


def plainly(x, codebooks, indices, mask, weights):
    """The weighted loss of a stack in torch, differentiable: the input of a level is x minus constants."""
    residual, total = x, x.new_zeros(())
    real = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
    for q, codebook in enumerate(codebooks):
        code = torch.stack(
            [book[index] for book, index in zip(codebook, indices[..., q], strict=True)]
        )
        total = total + weights[q] * (residual - code)[real].square().mean()
        residual = residual - code
    return total


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS.keys())
@pytest.mark.parametrize("masked", [False, True])
def test_each_loss_is_the_mean_square_of_its_level(path, masked, generator):
    x, codebooks, indices, mask = make(generator)
    inputs, codes = walked(x, codebooks, indices)
    losses = path(x, inputs, codes, mask=mask if masked else None)
    assert losses.shape == (3,) and losses.dtype == torch.float32
    for loss, given, chosen in zip(losses, inputs, codes, strict=True):
        rows = given.double() - chosen.double()
        values = (rows[mask] if masked else rows).flatten().tolist()
        exact = math.fsum(value * value for value in values) / len(values)
        assert loss.item() == pytest.approx(exact, rel=1e-7)
    alone = [
        ops.commitment_loss(a, b, mask=mask if masked else None)
        for a, b in zip(inputs, codes, strict=True)
    ]
    assert torch.equal(losses, torch.stack(alone)) or path is PATHS["any"]


@pytest.mark.parametrize("masked", [False, True])
def test_the_gradient_is_that_of_the_levels_written_plainly(masked, generator):
    x, codebooks, indices, mask = make(generator, torch.float64)
    mask = mask if masked else None
    weights = torch.tensor([0.3, -1.2, 2.0], dtype=torch.float64)

    def ours(x):
        return (op(x, *walked(x, codebooks, indices), mask=mask) * weights).sum()

    x.requires_grad_()
    found = torch.autograd.grad(ours(x), x)[0]
    wanted = torch.autograd.grad(plainly(x, codebooks, indices, mask, weights), x)[0]
    torch.testing.assert_close(found, wanted, rtol=1e-13, atol=1e-15)
    # The codes are constants to autograd, and to finite differences as long as no choice changes.
    assert torch.autograd.gradcheck(ours, (x,))
    assert torch.autograd.gradgradcheck(ours, (x,))


@pytest.mark.parametrize("masked", [False, True])
def test_the_gradient_has_the_bits_of_one_loss_per_level(masked, generator):
    """Gradients are added in autograd's order: from the last level to the first."""
    x, codebooks, indices, mask = make(generator)
    mask = mask if masked else None
    weights = torch.randn(3, generator=generator)
    inputs, codes = walked(x, codebooks, indices)
    leaf = x.clone().requires_grad_()
    (op(leaf, inputs, codes, mask=mask) * weights).sum().backward()

    other = x.clone().requires_grad_()
    residual, losses = other, []
    for code in codes:
        losses.append(ops.commitment_loss(residual, code, mask=mask))
        residual = residual - code
    (torch.stack(losses) * weights).sum().backward()
    assert torch.equal(leaf.grad, other.grad)


@pytest.mark.parametrize("path", BACKWARD.values(), ids=BACKWARD.keys())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_backward_adds_from_the_last_level_to_the_first(path, dtype, generator):
    x, codebooks, indices, mask = make(generator, dtype)
    inputs, codes = walked(x, codebooks, indices)
    grads = torch.randn(3, generator=generator, dtype=dtype)
    found = path(grads, inputs, codes, mask=mask)
    scales = grads * 2 / (mask.sum() * DIM)
    for h in range(HEADS):
        for t in range(TOKENS):
            total = torch.zeros(DIM, dtype=dtype)
            for q in (2, 1, 0):
                total = (inputs[q][h, t] - codes[q][h, t]) * scales[q] + total
            assert torch.equal(found[h, t], total if mask[h, t] else torch.zeros_like(total))


def test_padding_may_hold_anything(generator):
    x, codebooks, indices, mask = make(generator)
    spoiled = x.masked_fill(~mask.unsqueeze(-1), math.nan)
    results = []
    for tokens in (x, spoiled):
        leaf = tokens.clone().requires_grad_()
        losses = op(leaf, *walked(tokens, codebooks, indices), mask=mask)
        losses.sum().backward()
        results.append((losses.detach(), leaf.grad))
    assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1], results[1][1])


def test_no_tokens_and_none_real(generator):
    x, codebooks, indices, _ = make(generator)
    nothing = torch.zeros(HEADS, TOKENS, dtype=torch.bool)
    for count, mask in ((0, None), (TOKENS, nothing)):
        leaf = x[:, :count].clone().requires_grad_()
        losses = op(leaf, *walked(leaf, codebooks, indices[:, :count]), mask=mask)
        losses.sum().backward()
        assert losses.tolist() == [0, 0, 0]
        assert torch.equal(leaf.grad, torch.zeros_like(leaf))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_the_gradient_has_the_dtype_of_the_tokens(dtype, generator):
    x, codebooks, indices, _ = make(generator, dtype)
    leaf = x.clone().requires_grad_()
    losses = op(leaf, *walked(x, codebooks, indices))
    losses.sum().backward()
    assert losses.dtype == torch.float32 and leaf.grad.dtype == dtype


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (lambda x, a, b: (x[0], a, b), ValueError, "3 dimensions"),
        (lambda x, a, b: (x[:, :-1], a, b), ValueError, "shape of x"),
        (lambda x, a, b: (x, [], b), ValueError, "at least 1 level"),
        (lambda x, a, b: (x, a, b[:2]), ValueError, "codes to have 3 levels"),
        (lambda x, a, b: (x, a, [b[0][..., :2], *b[1:]]), ValueError, "shape of inputs"),
        (lambda x, a, b: (x, [a[0], a[1].double(), a[2]], b), TypeError, "inputs to be Float"),
        (lambda x, a, b: (x, a, [b[0], b[1].half(), b[2]]), TypeError, "codes to be Float"),
        (lambda x, a, b: (x.long(), a, b), TypeError, "floating point"),
    ],
)
@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS.keys())
def test_bad_arguments_are_named(path, change, kind, message, generator):
    x, codebooks, indices, _ = make(generator)
    with pytest.raises(kind, match=f"residual_commitment_loss: .*{message}"):
        path(*change(x, *walked(x, codebooks, indices)))


@pytest.mark.parametrize("path", BACKWARD.values(), ids=BACKWARD.keys())
def test_gradients_of_losses_are_checked(path, generator):
    x, codebooks, indices, _ = make(generator)
    inputs, codes = walked(x, codebooks, indices)
    with pytest.raises(TypeError, match=r"residual_commitment_loss_backward: .*grads to be Float"):
        path(torch.ones(3, dtype=torch.float64), inputs, codes)
    with pytest.raises(ValueError, match=r"residual_commitment_loss_backward: .*levels of inputs"):
        path(torch.ones(2), inputs, codes)


def test_opcheck_and_compile(generator):
    x, codebooks, indices, mask = make(generator)
    inputs, codes = walked(x, codebooks, indices)
    x.requires_grad_()
    torch.library.opcheck(op.default, (x, inputs, codes), dict(mask=mask))
    torch.library.opcheck(
        ops.residual_commitment_loss_backward.default,
        (torch.ones(3), inputs, codes),
        dict(mask=mask),
    )
    compiled = torch.compile(
        lambda x: op(x, inputs, codes, mask=mask), fullgraph=True, backend="aot_eager"
    )
    results = []
    for run in (compiled, lambda x: op(x, inputs, codes, mask=mask)):
        losses = run(x)
        results.append((losses.detach(), torch.autograd.grad(losses.square().sum(), x)[0]))
    assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1], results[1][1])
