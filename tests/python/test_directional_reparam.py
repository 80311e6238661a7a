"""directional_reparam: DiVeQ (include/torchvq/ops/directional_reparam.h)."""

from __future__ import annotations

import pytest
import torch
from vector_quantize_pytorch import VectorQuantize

from support import any_path

ops = torch.ops.torchvq
VARIANCE = 0.3
FORWARD = {"cpu": ops.directional_reparam, "any": any_path("directional_reparam")}
BACKWARD = {
    "cpu": ops.directional_reparam_backward,
    "any": any_path("directional_reparam_backward"),
}


def make_tokens(generator, dtype=torch.float32, shape=(2, 9, 5)):
    return tuple(torch.randn(shape, generator=generator).to(dtype) for _ in range(3))


def formula(x, codes, noise, variance=VARIANCE):
    """Oracle: the formula through torch's own autograd."""
    v = codes - x + variance**0.5 * noise
    direction = (v / v.norm(dim=-1, keepdim=True)).detach()
    return x + (codes - x).norm(dim=-1, keepdim=True) * direction


def gradients(function, x, codes, noise, upstream):
    x, codes = x.clone().requires_grad_(), codes.clone().requires_grad_()
    return torch.autograd.grad(function(x, codes, noise), (x, codes), upstream)


def ours(x, codes, noise):
    return ops.directional_reparam(x, codes, noise, variance=VARIANCE)


@pytest.mark.parametrize("shape", [(2, 9, 5), (1, 1, 1), (1, 5, 67)])
@pytest.mark.parametrize("path", ["cpu", "any"])
def test_directional_reparam_matches_its_formula(path, shape, generator):
    x, codes, noise = make_tokens(generator, torch.float64, shape)
    upstream = torch.randn(shape, dtype=torch.float64, generator=generator)
    value = FORWARD[path](x, codes, noise, variance=VARIANCE)
    torch.testing.assert_close(value, formula(x, codes, noise))
    grads = BACKWARD[path](upstream, x, codes, noise, variance=VARIANCE)
    for ours_, expected in zip(grads, gradients(formula, x, codes, noise, upstream), strict=True):
        torch.testing.assert_close(ours_, expected)


def test_directional_reparam_gradient_matches_finite_differences_with_the_direction_held(generator):
    x, codes, noise = make_tokens(generator, torch.float64, (1, 3, 4))
    upstream = torch.randn(1, 3, 4, dtype=torch.float64, generator=generator)
    v = codes - x + VARIANCE**0.5 * noise
    direction = v / v.norm(dim=-1, keepdim=True)

    def objective(x, codes):
        return (upstream * (x + (codes - x).norm(dim=-1, keepdim=True) * direction)).sum()

    grads = gradients(ours, x, codes, noise, upstream)
    step = 1e-6
    for which, grad in enumerate(grads):
        for place in range(x.numel()):
            shift = torch.zeros_like(x).view(-1).index_fill(0, torch.tensor(place), step).view_as(x)
            up, down = ([x, codes], [x, codes])
            up[which], down[which] = up[which] + shift, down[which] - shift
            slope = (objective(*up) - objective(*down)) / (2 * step)
            assert abs(slope - grad.view(-1)[place]) < 1e-7


def test_directional_reparam_keeps_the_distance_to_the_token(generator):
    x, codes, noise = make_tokens(generator)
    y = ours(x, codes, noise)
    torch.testing.assert_close((y - x).norm(dim=-1), (codes - x).norm(dim=-1))


def test_directional_reparam_without_variance_is_the_code(generator):
    x, codes, noise = make_tokens(generator)
    torch.testing.assert_close(ops.directional_reparam(x, codes, noise, variance=0.0), codes)


@pytest.mark.parametrize("variance", [0.005, 0.5])
def test_directional_reparam_equals_the_reference(variance, generator):
    torch.manual_seed(0)
    module = VectorQuantize(
        dim=4, codebook_size=6, directional_reparam=True, directional_reparam_variance=variance,
        threshold_ema_dead_code=1e-9,
    )  # fmt: skip
    x = torch.randn(2, 5, 4, generator=generator).requires_grad_()
    upstream = torch.randn(2, 5, 4, generator=generator)
    torch.manual_seed(5)
    quantized, indices, _ = module(x)
    quantized.backward(upstream)
    torch.manual_seed(5)
    noise = torch.randn(2, 5, 4)

    token, codebook = x.detach().requires_grad_(), module._codebook.embed.detach().requires_grad_()
    codes = ops.lookup_codes(codebook, indices.view(1, -1)).view_as(x)
    y = ops.directional_reparam(token, codes, noise, variance=variance)
    y.backward(upstream)
    torch.testing.assert_close(y, quantized, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(token.grad, x.grad, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(codebook.grad, module._codebook.embed.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("path", ["cpu", "any"])
def test_directional_reparam_of_a_token_on_its_code(path, generator):
    x, _, noise = make_tokens(generator)
    upstream = torch.randn(x.shape, generator=generator)
    for variance in (0.0, VARIANCE):
        assert torch.equal(FORWARD[path](x, x, noise, variance=variance), x)
        grad_x, grad_codes = BACKWARD[path](upstream, x, x, noise, variance=variance)
        assert torch.equal(grad_x, upstream) and grad_codes.eq(0).all()


@pytest.mark.parametrize("path", ["cpu", "any"])
@pytest.mark.parametrize("scale", [1e-38, 1e-30, 1e-8, 1e8, 1e30])
def test_directional_reparam_is_finite_for_hostile_norms(path, scale, generator):
    x, codes, noise = make_tokens(generator)
    for x_scale, code_scale in ((scale, 1.0), (1.0, scale), (scale, scale)):
        arguments = (x * x_scale, codes * code_scale, noise)
        assert FORWARD[path](*arguments, variance=VARIANCE).isfinite().all()
        for grad in BACKWARD[path](noise, *arguments, variance=VARIANCE):
            assert grad.isfinite().all()


def test_directional_reparam_any_path_agrees_with_cpu(generator):
    x, codes, noise = make_tokens(generator)
    args = (x, codes, noise)
    torch.testing.assert_close(
        FORWARD["any"](*args, variance=VARIANCE),
        FORWARD["cpu"](*args, variance=VARIANCE),
        rtol=1e-6,
        atol=1e-7,
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_directional_reparam_accepts_half_tokens_and_float_codes(dtype, generator):
    x, codes, noise = make_tokens(generator)
    x = x.to(dtype).requires_grad_()
    codes.requires_grad_()
    y = ops.directional_reparam(x, codes, noise, variance=VARIANCE)
    y.sum().backward()
    assert y.dtype == dtype and x.grad.dtype == dtype and codes.grad.dtype == torch.float32
    torch.testing.assert_close(
        y.float(), formula(x.detach().float(), codes, noise), rtol=1e-2, atol=1e-2
    )


def test_directional_reparam_propagates_nan_to_its_token_alone(generator):
    x, codes, noise = make_tokens(generator)
    x[0, 3, 1] = float("nan")
    y = ours(x, codes, noise)
    assert y[0, 3].isnan().all() and y.isnan().sum() == y.size(2)


def test_directional_reparam_of_no_tokens():
    x, codes = (torch.zeros(1, 0, 4, requires_grad=True) for _ in range(2))
    ours(x, codes, torch.zeros(1, 0, 4)).sum().backward()
    assert x.grad.shape == codes.grad.shape == (1, 0, 4)


def test_directional_reparam_compiled_gradient_uses_the_codes_of_the_forward(generator, compiler):
    x, codebook, noise = make_tokens(generator, shape=(1, 9, 5))
    indices = torch.randint(0, 9, (1, 9), generator=generator)

    def step(x, codebook):
        y = ours(x, ops.lookup_codes(codebook, indices), noise)
        codebook.mul_(-3)
        return y

    expected, _ = gradients(ours, x, ops.lookup_codes(codebook, indices), noise, torch.ones_like(x))
    leaf = x.clone().requires_grad_()
    torch.compile(step, fullgraph=True, backend=compiler)(leaf, codebook).sum().backward()
    assert torch.equal(leaf.grad, expected)


def test_directional_reparam_passes_opcheck(generator):
    x, codes, noise = make_tokens(generator)
    leaves = (x.clone().requires_grad_(), codes.clone().requires_grad_(), noise)
    torch.library.opcheck(ops.directional_reparam.default, leaves, {"variance": VARIANCE})
    torch.library.opcheck(
        ops.directional_reparam_backward.default, (x, x, codes, noise), {"variance": VARIANCE}
    )


@pytest.mark.parametrize(
    ("change", "error", "fragment"),
    [
        (
            lambda x, c, n: ((x, c[:, :3], n), VARIANCE),
            ValueError,
            "expected codes to have the shape of x",
        ),
        (
            lambda x, c, n: ((x, c, n[:, :3]), VARIANCE),
            ValueError,
            "expected noise to have the shape of x",
        ),
        (
            lambda x, c, n: ((x, c, n.int()), VARIANCE),
            TypeError,
            "expected noise to be floating point",
        ),
        (
            lambda x, c, n: ((x, c, n), -1.0),
            ValueError,
            "expected variance to be finite and non-negative",
        ),
        (lambda x, c, n: ((x, c, n), float("nan")), ValueError, "expected variance to be finite"),
    ],
)
def test_directional_reparam_names_bad_arguments(change, error, fragment, generator):
    arguments, variance = change(*make_tokens(generator))
    for op in FORWARD.values():
        with pytest.raises(error, match=f"directional_reparam: {fragment}"):
            op(*arguments, variance=variance)
