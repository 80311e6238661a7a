"""commitment_loss: mean squared distance to the codes (include/torchvq/ops/commitment_loss.h)."""

from __future__ import annotations

import math

import pytest
import torch
from vector_quantize_pytorch import VectorQuantize

from support import any_path

ops = torch.ops.torchvq
PATHS = {"cpu": ops.commitment_loss, "any": any_path("commitment_loss")}


def make_arguments(generator, dtype=torch.float32, shape=(2, 9, 5)):
    x, codes = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
    mask = torch.rand(shape[:2], generator=generator) < 0.6
    mask[0, :1] = True
    return x, codes, mask


def exact(x, codes, mask=None):
    """Oracle: a correctly rounded sum over Python numbers."""
    mask = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
    values = ((x.double() - codes.double())[mask] ** 2).flatten().tolist()
    return math.fsum(values) / max(len(values), 1)


def gradients(x, codes, mask=None):
    x, codes = x.clone().requires_grad_(), codes.clone().requires_grad_()
    return torch.autograd.grad(ops.commitment_loss(x, codes, mask=mask), (x, codes))


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS.keys())
@pytest.mark.parametrize("shape", [(2, 9, 5), (1, 1, 1), (3, 700, 19), (1, 3, 9000)])
def test_commitment_loss_is_the_mean_square(path, shape, generator):
    x, codes, mask = make_arguments(generator, torch.float64, shape)
    for m in (None, mask):
        assert path(x, codes, mask=m).item() == pytest.approx(exact(x, codes, m), rel=1e-13)
        single = path(x.float(), codes.float(), mask=m)
        assert single.dtype == torch.float32 and single.shape == ()
        assert single.item() == pytest.approx(exact(x.float(), codes.float(), m), rel=1e-7)


def test_commitment_loss_gradient_matches_finite_differences(generator):
    x, codes, mask = make_arguments(generator, torch.float64)
    x.requires_grad_(), codes.requires_grad_()
    assert torch.autograd.gradcheck(lambda x, c: ops.commitment_loss(x, c, mask=mask), (x, codes))
    assert torch.autograd.gradcheck(lambda x, c: ops.commitment_loss(x, c), (x, codes))
    assert torch.autograd.gradgradcheck(
        lambda x, c: ops.commitment_loss(x, c, mask=mask), (x, codes)
    )


@pytest.mark.parametrize("side", ["x", "codes"])
def test_commitment_loss_reaches_the_side_that_is_not_detached(side, generator):
    x, codes, _ = make_arguments(generator)
    both = dict(zip(("x", "codes"), gradients(x, codes), strict=True))
    leaf = {"x": x, "codes": codes}[side].requires_grad_()
    ops.commitment_loss(x, codes).backward()
    assert torch.equal(leaf.grad, both[side])
    assert (codes if side == "x" else x).grad is None


@pytest.mark.parametrize(
    "options", [{}, {"learnable_codebook": True, "ema_update": False}, {"use_cosine_sim": True}]
)
def test_commitment_loss_equals_the_reference(options, generator):
    torch.manual_seed(0)
    module = VectorQuantize(dim=4, codebook_size=6, **options)
    codebook = module._codebook.embed.detach().clone()
    x = torch.randn(2, 5, 4, generator=generator).requires_grad_()
    _, indices, loss = module(x)
    loss.backward()

    token, leaf = (
        x.detach().requires_grad_(),
        codebook.requires_grad_("learnable_codebook" in options),
    )
    tokens = token.view(1, 10, 4)
    if "use_cosine_sim" in options:
        tokens = torch.nn.functional.normalize(tokens, dim=-1)
    ours = ops.commitment_loss(tokens, ops.lookup_codes(leaf, indices.view(1, -1)))
    ours.backward()
    torch.testing.assert_close(ours, loss, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(token.grad, x.grad, rtol=1e-5, atol=1e-6)
    if leaf.requires_grad:
        torch.testing.assert_close(leaf.grad, module._codebook.embed.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("garbage", [1e6, float("nan"), float("inf")])
@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS.keys())
def test_commitment_loss_ignores_padding(path, garbage, generator):
    x, codes, mask = make_arguments(generator, shape=(1, 50, 5))
    kept = (x[mask][None], codes[mask][None])
    expected, grads = path(*kept), gradients(*kept)
    x[~mask], codes[~mask] = garbage, -garbage
    torch.testing.assert_close(path(x, codes, mask=mask), expected, rtol=1e-6, atol=0)
    for ours, grad in zip(gradients(x, codes, mask), grads, strict=True):
        torch.testing.assert_close(ours[mask][None], grad)
        assert ours[~mask].eq(0).all()


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS.keys())
@pytest.mark.parametrize("shape", [(2, 0, 5), (0, 3, 5), (1, 3, 0)])
def test_commitment_loss_of_nothing_is_zero(path, shape):
    assert path(torch.zeros(shape), torch.zeros(shape)).item() == 0
    assert (
        path(
            torch.zeros(shape), torch.zeros(shape), mask=torch.ones(shape[:2], dtype=torch.bool)
        ).item()
        == 0
    )
    assert all(grad.shape == shape for grad in gradients(torch.zeros(shape), torch.zeros(shape)))


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS.keys())
def test_commitment_loss_with_all_tokens_masked_is_zero_with_zero_gradient(path, generator):
    x, codes, mask = make_arguments(generator)
    x[0, 0, 0] = float("nan")
    assert path(x, codes, mask=mask & False).item() == 0
    assert all(grad.eq(0).all() for grad in gradients(x, codes, mask & False))


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS.keys())
def test_commitment_loss_reports_an_unmasked_nan(path, generator):
    x, codes, mask = make_arguments(generator)
    x[0, 0, 2] = float("nan")
    assert path(x, codes, mask=mask).isnan() and path(x, codes).isnan()


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-18, 1e15])
def test_commitment_loss_gradient_is_finite_for_hostile_norms(scale, generator):
    x, codes, mask = make_arguments(generator)
    for arguments in ((x * scale, codes), (x, codes * scale), (x * scale, codes * scale)):
        assert all(grad.isfinite().all() for grad in gradients(*arguments, mask))
        assert ops.commitment_loss(*arguments).item() == pytest.approx(exact(*arguments), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_commitment_loss_of_half_tokens_is_float32(dtype, generator):
    x, codes, mask = make_arguments(generator, dtype)
    loss = ops.commitment_loss(x, codes, mask=mask)
    assert loss.dtype == torch.float32 and loss.item() == pytest.approx(
        exact(x, codes, mask), rel=1e-6
    )
    grad_x, grad_codes = gradients(x, codes.float(), mask)
    assert grad_x.dtype == dtype and grad_codes.dtype == torch.float32


def test_commitment_loss_does_not_depend_on_threads_or_strides(generator):
    x, codes, mask = make_arguments(generator, shape=(2, 20000, 7))
    expected = ops.commitment_loss(x, codes, mask=mask)
    torch.set_num_threads(2)
    try:
        assert torch.equal(ops.commitment_loss(x, codes, mask=mask), expected)
    finally:
        torch.set_num_threads(1)
    strided = [t.mT.contiguous().mT for t in (x, codes)]
    assert torch.equal(
        ops.commitment_loss(*strided, mask=mask.repeat_interleave(2, 1)[:, ::2]), expected
    )


def test_commitment_loss_compiled_gradient_uses_the_codes_of_the_forward(generator, compiler):
    x, codebook, mask = make_arguments(generator, shape=(1, 9, 5))
    indices = torch.randint(0, 9, (1, 9), generator=generator)

    def step(x, codebook, mask):
        loss = ops.commitment_loss(x, ops.lookup_codes(codebook, indices), mask=mask)
        codebook.mul_(-3)
        return loss

    for m in (None, mask):
        expected, _ = gradients(x, ops.lookup_codes(codebook, indices), m)
        leaf = x.clone().requires_grad_()
        torch.compile(step, fullgraph=True, backend=compiler)(leaf, codebook.clone(), m).backward()
        torch.testing.assert_close(leaf.grad, expected)


def test_commitment_loss_passes_opcheck(generator):
    x, codes, mask = make_arguments(generator)
    x.requires_grad_(), codes.requires_grad_()
    torch.library.opcheck(ops.commitment_loss.default, (x, codes))
    torch.library.opcheck(ops.commitment_loss.default, (x, codes), {"mask": mask})


@pytest.mark.parametrize(
    ("change", "error", "fragment"),
    [
        (lambda x, c, m: (x, c[:, :3], m), ValueError, "expected codes to have the shape of x"),
        (lambda x, c, m: (x, c, m[:1]), ValueError, "expected mask to have size 2"),
        (lambda x, c, m: (x, c, m[0]), ValueError, "expected mask to have 2 dimensions"),
        (lambda x, c, m: (x, c, m.int()), TypeError, "expected mask to be Bool"),
    ],
)
@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS.keys())
def test_commitment_loss_names_bad_arguments(path, change, error, fragment, generator):
    x, codes, mask = change(*make_arguments(generator))
    with pytest.raises(error, match=f"commitment_loss: {fragment}"):
        path(x, codes, mask=mask)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    "path",
    [ops.commitment_loss_backward, any_path("commitment_loss_backward")],
    ids=["cpu", "any"],
)
def test_commitment_loss_backward_is_its_gradient(path, masked, generator):
    x, codes = torch.randn(2, 2, 9, 5, generator=generator).unbind(0)
    mask = torch.rand(2, 9, generator=generator) < 0.6 if masked else None
    grad = torch.tensor(0.3)
    leaf = x.clone().requires_grad_()
    (ops.commitment_loss(leaf, codes, mask=mask) * grad).backward()
    found = path(grad, x, codes, mask=mask)
    assert torch.equal(found, leaf.grad)
    count = (mask.sum() if masked else torch.tensor(18)) * 5
    exact = (x.double() - codes.double()) * grad.double() * 2 / count
    if masked:
        exact = exact.masked_fill(~mask.unsqueeze(-1), 0)
    torch.testing.assert_close(found.double(), exact, rtol=1e-6, atol=1e-8)
    with pytest.raises(TypeError, match="commitment_loss_backward: expected grad to be Float"):
        path(grad.double(), x, codes)
    with pytest.raises(ValueError, match=r"commitment_loss_backward: .*scalar"):
        path(grad.reshape(1), x, codes)


def test_transforms_may_map_the_gradient_or_the_mask_alone(generator):
    x, codes, mask = make_arguments(generator, torch.float64)
    (expected,) = torch.autograd.grad(
        ops.commitment_loss(leaf := x.clone().requires_grad_(), codes), leaf
    )
    torch.testing.assert_close(
        torch.func.jacrev(lambda x: ops.commitment_loss(x, codes))(x), expected
    )
    masks = torch.stack([mask, mask.logical_not(), torch.ones_like(mask)])
    gradient = torch.func.grad(lambda x, mask: ops.commitment_loss(x, codes, mask=mask))
    found = torch.func.vmap(gradient, (None, 0))(x, masks)
    torch.testing.assert_close(found, torch.stack([gradient(x, own) for own in masks]))
