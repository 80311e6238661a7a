"""rotation_trick: codes forward, a bounded rotation backward (include/torchvq/ops/rotation_trick.h)."""

from __future__ import annotations

import numpy
import pytest
import torch
from vector_quantize_pytorch import VectorQuantize

from support import any_path

ops = torch.ops.torchvq
GAIN_BOUND = 100.0
BACKWARD = {"cpu": ops.rotation_trick_backward, "any": any_path("rotation_trick_backward")}


def make_tokens(generator, dtype=torch.float32, shape=(2, 9, 5)):
    return tuple(torch.randn(shape, generator=generator).to(dtype) for _ in range(3))


def gradient(x, codes, upstream):
    x = x.clone().requires_grad_()
    ops.rotation_trick(x, codes).backward(upstream)
    return x.grad


def gradient_by_matrices(x, codes, upstream):
    """Oracle: the paper's matrices, one token at a time, in float64."""
    rows = []
    tokens = (t.double().flatten(0, 1).numpy() for t in (x, codes, upstream))
    for a, c, g in zip(*tokens, strict=True):
        e, q = a / numpy.linalg.norm(a), c / numpy.linalg.norm(c)
        r = (e + q) / numpy.linalg.norm(e + q)
        rotation = numpy.eye(len(a)) - 2 * numpy.outer(r, r) + 2 * numpy.outer(q, e)
        rows.append(numpy.linalg.norm(c) / numpy.linalg.norm(a) * rotation.T @ g)
    return torch.from_numpy(numpy.array(rows)).view(x.shape)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str
)
def test_rotation_trick_value_is_the_code_bit_for_bit(dtype, generator):
    x, codes, _ = make_tokens(generator, dtype)
    x[0, 0] = 0
    for op in (ops.rotation_trick, any_path("rotation_trick")):
        y = op(x, codes.mT.contiguous().mT)
        assert y.dtype == dtype and torch.equal(y, codes)


@pytest.mark.parametrize("shape", [(2, 9, 5), (1, 1, 2), (1, 33, 8), (1, 7, 67)])
@pytest.mark.parametrize("backward", BACKWARD.values(), ids=BACKWARD.keys())
def test_rotation_trick_gradient_matches_the_matrices_of_the_paper(backward, shape, generator):
    x, codes, upstream = make_tokens(generator, torch.float64, shape)
    expected = gradient_by_matrices(x, codes, upstream)
    torch.testing.assert_close(backward(upstream, x, codes), expected, rtol=1e-10, atol=1e-12)
    single = backward(upstream.float(), x.float(), codes.float())
    torch.testing.assert_close(single.double(), expected, rtol=1e-4, atol=1e-5)


def test_rotation_trick_gradient_maps_the_code_to_the_token(generator):
    """The rotation takes x to its code, so its transpose takes the code's direction back to that of x."""
    x, codes, _ = make_tokens(generator, torch.float64)
    expected = x * (codes.norm(dim=-1, keepdim=True) / x.norm(dim=-1, keepdim=True)) ** 2
    torch.testing.assert_close(gradient(x, codes, codes), expected)


def test_rotation_trick_gradient_equals_the_reference(generator):
    torch.manual_seed(0)
    module = VectorQuantize(
        dim=8, codebook_size=16, rotation_trick=True, freeze_codebook=True, commitment_weight=0.0
    )
    x = torch.randn(2, 50, 8, generator=generator).requires_grad_()
    upstream = torch.randn(2, 50, 8, generator=generator)
    quantized, indices, _ = module(x)
    (expected,) = torch.autograd.grad(quantized, x, upstream)
    codes = module._codebook.embed.detach()[0][indices]
    torch.testing.assert_close(
        gradient(x.detach(), codes, upstream), expected, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("backward", BACKWARD.values(), ids=BACKWARD.keys())
@pytest.mark.parametrize(
    "x_scale", [0.0, 1e-38, 1e-30, 1e-13, 1e-6, 1e-3, 1.0, 1e3, 1e18, 1e30, float("inf")]
)
@pytest.mark.parametrize("code_scale", [0.0, 1e-30, 1e-6, 1.0, 1e30])
def test_rotation_trick_gradient_is_bounded(backward, x_scale, code_scale, generator):
    x, codes, upstream = make_tokens(generator)
    grad = backward(upstream, x * x_scale, codes * code_scale)
    assert grad.isfinite().all()
    assert (grad.norm(dim=-1) <= 3 * GAIN_BOUND * upstream.norm(dim=-1)).all()


@pytest.mark.parametrize("backward", BACKWARD.values(), ids=BACKWARD.keys())
def test_rotation_trick_falls_back_to_straight_through(backward, generator):
    x, codes, upstream = make_tokens(generator)
    x[0, 0] = 0
    codes[0, 1] = 0
    x[0, 2, 1] = float("nan")
    x[0, 3, 0] = float("inf")
    codes[0, 4, 2] = float("nan")
    grad = backward(upstream, x, codes)
    assert torch.equal(grad[0, :5], upstream[0, :5])
    assert not torch.isclose(grad[0, 5:], upstream[0, 5:]).all(-1).any()


@pytest.mark.parametrize("backward", BACKWARD.values(), ids=BACKWARD.keys())
@pytest.mark.parametrize("tilt", [0.0, 1e-5])
def test_rotation_trick_reflects_opposite_directions(backward, tilt, generator):
    """There the gradient is dx = |c| / |x| (dy + 2 (dy.q) e), as in the reference without tilt."""
    x, _, upstream = make_tokens(generator, torch.float64)
    codes = -2 * (x + tilt * upstream)
    e, q = x / x.norm(dim=-1, keepdim=True), codes / codes.norm(dim=-1, keepdim=True)
    gain = codes.norm(dim=-1, keepdim=True) / x.norm(dim=-1, keepdim=True)
    expected = gain * (upstream + 2 * (upstream * q).sum(-1, keepdim=True) * e)
    torch.testing.assert_close(backward(upstream, x, codes), expected)


@pytest.mark.parametrize("backward", BACKWARD.values(), ids=BACKWARD.keys())
@pytest.mark.parametrize("value", [0.5, -0.5])
def test_rotation_trick_of_one_feature_keeps_or_flips_the_sign(backward, value):
    x, code, upstream = (torch.full((1, 1, 1), v) for v in (value, 1.0, 3.0))
    assert backward(upstream, x, code).item() == pytest.approx(3.0 * 2.0 * (1 if value > 0 else -1))


@pytest.mark.parametrize("backward", BACKWARD.values(), ids=BACKWARD.keys())
def test_rotation_trick_clamps_the_gain(backward):
    x, code = torch.tensor([[[1e-4, 0.0]]]), torch.tensor([[[0.0, 1.0]]])
    grad = backward(torch.tensor([[[0.0, 1.0]]]), x, code)
    torch.testing.assert_close(grad, torch.tensor([[[GAIN_BOUND, 0.0]]]))


def test_rotation_trick_any_path_agrees_with_cpu(generator):
    x, codes, upstream = make_tokens(generator, shape=(2, 100, 19))
    torch.testing.assert_close(
        BACKWARD["any"](upstream, x, codes),
        BACKWARD["cpu"](upstream, x, codes),
        rtol=1e-6,
        atol=1e-7,
    )


def test_rotation_trick_does_not_depend_on_threads_or_strides(generator):
    x, codes, upstream = make_tokens(generator, shape=(1, 3000, 17))
    expected = gradient(x, codes, upstream)
    torch.set_num_threads(2)
    try:
        assert torch.equal(gradient(x, codes, upstream), expected)
    finally:
        torch.set_num_threads(1)
    strided = (t.mT.contiguous().mT for t in (x, codes, upstream))
    assert torch.equal(gradient(*strided), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_rotation_trick_accepts_half_tokens_and_float_codes(dtype, generator):
    x, codes, upstream = make_tokens(generator)
    grad = gradient(x.to(dtype), codes, upstream)
    assert grad.dtype == dtype
    expected = gradient_by_matrices(x.to(dtype), codes, upstream)
    torch.testing.assert_close(grad.double(), expected, rtol=1e-2, atol=1e-2)


def test_rotation_trick_of_no_tokens():
    x = torch.zeros(1, 0, 4, requires_grad=True)
    ops.rotation_trick(x, torch.zeros(1, 0, 4)).sum().backward()
    assert x.grad.shape == (1, 0, 4)


def test_rotation_trick_refuses_a_second_derivative(generator):
    x, codes, _ = make_tokens(generator)
    y = ops.rotation_trick(x.requires_grad_(), codes)
    with pytest.raises(
        NotImplementedError,
        match="rotation_trick: expected backward to run with create_graph=False",
    ):
        torch.autograd.grad(y.sum(), x, create_graph=True)


def test_rotation_trick_compiled_gradient_uses_the_codes_of_the_forward(generator, compiler):
    x, codebook, upstream = make_tokens(generator, shape=(1, 9, 5))
    indices = torch.randint(0, 9, (1, 9), generator=generator)

    def step(x, codebook):
        y = ops.rotation_trick(x, ops.lookup_codes(codebook, indices))
        codebook.mul_(-3)
        return y

    expected = gradient(x, ops.lookup_codes(codebook, indices), upstream)
    leaf = x.clone().requires_grad_()
    torch.compile(step, fullgraph=True, backend=compiler)(leaf, codebook).backward(upstream)
    assert torch.equal(leaf.grad, expected)


def test_rotation_trick_passes_opcheck(generator):
    x, codes, upstream = make_tokens(generator)
    torch.library.opcheck(ops.rotation_trick.default, (x.clone().requires_grad_(), codes))
    torch.library.opcheck(ops.rotation_trick_backward.default, (upstream, x, codes))


@pytest.mark.parametrize(
    ("change", "error", "fragment"),
    [
        (lambda x, c: (x, c[..., :3]), ValueError, "expected codes to have the shape of x"),
        (lambda x, c: (x[0], c), ValueError, "expected x to have 3 dimensions"),
        (lambda x, c: (x, c.int()), TypeError, "expected codes to be floating point"),
    ],
)
def test_rotation_trick_names_bad_arguments(change, error, fragment, generator):
    x, codes, _ = make_tokens(generator)
    for op in (ops.rotation_trick, any_path("rotation_trick")):
        with pytest.raises(error, match=f"rotation_trick: {fragment}"):
            op(*change(x, codes))
