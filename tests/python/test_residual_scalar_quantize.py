"""residual_scalar_quantize (include/torchvq/ops/residual_scalar_quantize.h)."""

from __future__ import annotations

import math

import pytest
import torch

import torchvq  # noqa: F401
from support import any_path

ops = torch.ops.torchvq
BOUNDS = ["symmetric_tanh", "symmetric_clamp"]


def scales_of(levels: list[int], quantizers: int) -> torch.Tensor:
    return torch.tensor([[float(n) ** -q for n in levels] for q in range(quantizers)])


def oracle(x, levels, scales, bound):
    """Float64: the sum of the codes, the indices, the gain, and the distance from the edge of a level."""
    n, left = torch.tensor(levels, dtype=torch.float64), x.double()
    basis = torch.tensor([math.prod(levels[:j]) for j in range(len(levels))])
    total, closed = torch.zeros_like(left), torch.ones_like(left)
    edge, indices = torch.full(x.shape[:-1], math.inf, dtype=torch.float64), []
    for scale in scales.double():
        z = left / scale
        bounded = z.tanh() if bound.endswith("tanh") else z.clamp(-1, 1)
        inner = (bounded + 1) * (n - 1) / 2
        closed *= 1 - (1 - bounded**2 if bound.endswith("tanh") else (z.abs() <= 1).double())
        digits = (inner + 0.5).floor()
        off = ((inner + 0.5) - (inner + 0.5).round()).abs()
        inside = (z.abs() < 1.5) | torch.tensor(bound.endswith("tanh"))
        edge = torch.minimum(edge, torch.where(inside, off, 1.0).amin(-1))
        indices.append((digits.long() * basis).sum(-1))
        codes = (2 * digits / (n - 1) - 1) * scale
        total, left = total + codes, left - codes
    return total, torch.stack(indices, -1), 1 - closed, edge


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("levels", [[8, 5, 5, 5], [3], [2, 7, 4], [64, 33], [200, 3]], ids=str)
@pytest.mark.parametrize("quantizers", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_residual_scalar_quantize_walks_the_levels(levels, quantizers, bound, dtype, generator):
    x = (torch.randn(3, 133, len(levels), generator=generator) * 0.7).to(dtype).requires_grad_()
    if max(levels) > 60:
        # float32 does not resolve more levels.
        quantizers = min(quantizers, 2 if max(levels) < 100 else 1)
    scales = scales_of(levels, quantizers)
    quantized, indices = ops.residual_scalar_quantize(x, levels, scales, bound=bound)
    assert quantized.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert indices.shape == (3, 133, quantizers) and not indices.requires_grad
    total, expected, gain, edge = oracle(x.detach(), levels, scales, bound)
    clear = edge > (1e-2 if dtype != torch.float64 else 1e-4)
    assert clear.double().mean() > 0.2
    assert torch.equal(indices[clear], expected[clear])
    torch.testing.assert_close(quantized.double()[clear], total[clear], rtol=0, atol=1e-6)
    weight = torch.randn(x.shape, generator=generator)
    (quantized * weight).sum().backward()
    tolerance = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 2e-2}[dtype]
    expected_grad = (gain * weight)[clear]
    found_grad = x.grad.double()[clear]
    torch.testing.assert_close(found_grad, expected_grad, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("bound", BOUNDS)
def test_residual_scalar_quantize_is_scalar_quantize_level_by_level(bound, generator):
    levels, scales = [8, 5, 4], scales_of([8, 5, 4], 5)
    x = torch.randn(2, 700, 3, generator=generator)
    quantized, indices = ops.residual_scalar_quantize(x, levels, scales, bound=bound)
    left, total = x, torch.zeros_like(x)
    for q, scale in enumerate(scales):
        codes, index = ops.scalar_quantize(left / scale, levels, bound=bound)
        total, left = total + codes * scale, left - codes * scale
        assert torch.equal(indices[..., q], index)
    assert torch.equal(quantized, total)


@pytest.mark.parametrize("bound", BOUNDS)
def test_residual_scalar_quantize_paths_agree_to_the_bit(bound, generator):
    for levels in ([8, 5, 4], [3, 3, 3], [9]):
        scales = scales_of(levels, 4)
        x = torch.randn(7, 133, len(levels), generator=generator) * 1.5
        x[0, :3] = torch.tensor([math.nan, math.inf, -math.inf]).unsqueeze(-1)
        for tokens in (x, x.half(), x.transpose(0, 1), x[:, :1].expand(-1, 9, -1)):
            found = ops.residual_scalar_quantize(tokens, levels, scales, bound=bound)
            other = any_path("residual_scalar_quantize")(tokens, levels, scales, bound=bound)
            assert torch.equal(found[1], other[1])
            torch.testing.assert_close(found[0], other[0], rtol=0, atol=0, equal_nan=True)
        assert found[0].dtype == torch.float32
        grad = torch.randn(x.shape, generator=generator)
        clean = x.nan_to_num(0, 3, -3)
        arguments = (grad, clean, levels, scales, bound)
        torch.testing.assert_close(
            ops.residual_scalar_quantize_backward(*arguments),
            any_path("residual_scalar_quantize_backward")(*arguments),
            rtol=1e-5,
            atol=1e-6,
        )


def test_residual_scalar_quantize_does_not_depend_on_threads_or_blocks(generator):
    x = torch.randn(9001, 4, generator=generator)
    levels, scales = [8, 5, 5, 5], scales_of([8, 5, 5, 5], 4)
    whole = ops.residual_scalar_quantize(x, levels, scales)
    parts = [ops.residual_scalar_quantize(part, levels, scales) for part in x.split(77)]
    for i in range(2):
        assert torch.equal(whole[i], torch.cat([part[i] for part in parts]))
    torch.set_num_threads(2)
    assert torch.equal(whole[1], ops.residual_scalar_quantize(x, levels, scales)[1])


def test_residual_scalar_quantize_marks_rows_that_are_not_finite():
    x = torch.tensor([[0.1, math.nan], [math.inf, 0.2], [0.3, 0.4]])
    for tokens in (x, x.double()):
        quantized, indices = ops.residual_scalar_quantize(tokens, [5, 3], scales_of([5, 3], 3))
        assert quantized[:2].isnan().all() and indices[:2].eq(0).all()
        assert quantized[2].isfinite().all()


@pytest.mark.parametrize("bound", BOUNDS)
def test_residual_scalar_quantize_gradient_looks_at_features_alone(bound):
    backward = any_path("residual_scalar_quantize_backward")
    x, scales = torch.tensor([[1.1, math.nan], [0.3, math.inf], [1.1, 0.2]]), scales_of([5, 5], 2)
    for own in (scales, scales * torch.tensor([1.0, 0.0])):
        arguments = torch.ones(3, 2), x, [5, 5], own, bound
        wide = [t.double() if isinstance(t, torch.Tensor) else t for t in arguments]
        found = ops.residual_scalar_quantize_backward(*arguments)
        alone = ops.residual_scalar_quantize_backward(
            found[:, :1] * 0 + 1, x[:, :1], [5], own[:, :1], bound
        )
        assert torch.equal(found[:, :1], alone)
        for other in (backward(*arguments), ops.residual_scalar_quantize_backward(*wide).float()):
            torch.testing.assert_close(other, found, rtol=1e-5, atol=1e-6, equal_nan=True)


def test_residual_scalar_quantize_of_nothing():
    for shape in ((0, 2), (3, 0, 2)):
        quantized, indices = ops.residual_scalar_quantize(
            torch.zeros(shape), [5, 3], scales_of([5, 3], 4)
        )
        assert quantized.shape == shape and indices.shape == (*shape[:-1], 4)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (dict(x=torch.zeros(3, 3)), ValueError, "2 features"),
        (dict(x=torch.zeros(3, 2, dtype=torch.long)), TypeError, "floating"),
        (dict(levels=[1, 5]), ValueError, "levels"),
        (dict(scales=torch.ones(2, 3)), ValueError, "scales to have shape"),
        (dict(scales=torch.ones(0, 2)), ValueError, "scales to have shape"),
        (dict(scales=torch.ones(2, 2, dtype=torch.long)), TypeError, "scales"),
        (dict(bound="tanh"), ValueError, "symmetric_tanh or symmetric_clamp"),
    ],
)
def test_residual_scalar_quantize_bad_arguments(change, error, text):
    arguments = dict(x=torch.zeros(3, 2), levels=[5, 3], scales=torch.ones(2, 2), bound=BOUNDS[0])
    with pytest.raises(error, match=text):
        ops.residual_scalar_quantize(**{**arguments, **change})


def test_residual_scalar_quantize_opcheck(generator):
    x = torch.randn(3, 5, 2, generator=generator, requires_grad=True)
    scales = scales_of([5, 4], 3)
    torch.library.opcheck(ops.residual_scalar_quantize.default, (x, [5, 4], scales))


def test_residual_scalar_quantize_second_derivative_is_refused():
    x = torch.randn(4, 1, requires_grad=True)
    quantized, _ = ops.residual_scalar_quantize(x, [5], scales_of([5], 2))
    with pytest.raises(NotImplementedError, match="create_graph"):
        torch.autograd.grad(quantized.sum(), x, create_graph=True)


def test_residual_scalar_quantize_compiles(generator, compiler):
    def step(x):
        quantized, indices = ops.residual_scalar_quantize(x, [8, 5], scales)
        return quantized * 2, indices

    scales = scales_of([8, 5], 3)
    x = torch.randn(6, 2, generator=generator)
    eager, compiled = x.clone().requires_grad_(), x.clone().requires_grad_()
    expected, found = step(eager), torch.compile(step, fullgraph=True, backend=compiler)(compiled)
    assert torch.equal(expected[0], found[0]) and torch.equal(expected[1], found[1])
    expected[0].sum().backward()
    found[0].sum().backward()
    assert torch.equal(eager.grad, compiled.grad)
