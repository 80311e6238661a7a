"""scalar_quantize and its decoding (include/torchvq/ops/scalar_quantize.h, scalar_decode.h)."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from vector_quantize_pytorch import FSQ as Reference

import torchvq  # noqa: F401
from support import any_path, bit_for_bit

ops = torch.ops.torchvq
BOUNDS = ["tanh", "clamp", "symmetric_tanh", "symmetric_clamp"]
LEVELS = [[8, 5, 5, 5], [3], [7, 4, 3], [16, 9], [64, 65], [200, 3]]


def bounded(x, levels, bound):
    """Oracle: the header's formulas in float64; the bounded value before rounding, and its gradient."""
    n = torch.tensor(levels, dtype=torch.float64)
    z = x.double()
    if bound.startswith("symmetric"):
        squashed = z.tanh() if bound.endswith("tanh") else z.clamp(-1, 1)
        return (n - 1) / 2 * (squashed + 1), (n - 1) / 2
    half, offset = 1.001 * (n - 1) / 2, torch.where(n % 2 == 0, 0.5, 0.0).double()
    if bound == "tanh":
        squashed = (z + (offset / half).atanh()).tanh()
    else:
        squashed = (z + offset / half).clamp(-1, 1)
    return half * squashed - offset + n.div(2, rounding_mode="floor"), n.div(2).floor()


def expected(x, levels, bound):
    inner, divisor = bounded(x, levels, bound)
    digits = (inner + 0.5).floor()
    return digits, digits / divisor - 1, inner, divisor


def index_of(digits, levels):
    basis = torch.tensor([math.prod(levels[:j]) for j in range(len(levels))])
    return (digits.long() * basis).sum(-1)


@pytest.mark.parametrize("levels", LEVELS, ids=str)
@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str
)
def test_scalar_quantize_rounds_to_the_nearest_level(levels, bound, dtype, generator):
    x = (torch.randn(3, 211, len(levels), generator=generator) * 1.5).to(dtype)
    codes, indices = ops.scalar_quantize(x, levels, bound=bound)
    digits, values, inner, _ = expected(x, levels, bound)
    clear = ((inner + 0.5) - (inner + 0.5).round()).abs().amin(-1) > 1e-12
    assert clear.float().mean() > 0.9
    assert codes.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.equal(indices[clear], index_of(digits, levels)[clear])
    torch.testing.assert_close(codes[clear], values[clear].to(codes.dtype), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("bound", BOUNDS)
def test_scalar_quantize_uses_every_level_and_keeps_order(bound):
    for count in (3, 4, 5, 6, 7, 8, 16, 33, 300):
        x = torch.linspace(-9, 9, 40001).unsqueeze(-1)
        codes, indices = ops.scalar_quantize(x, [count], bound=bound)
        assert torch.equal(indices.unique(), torch.arange(count))
        assert (codes.diff(dim=0) >= 0).all() and (indices.diff() >= 0).all()
        if bound.startswith("symmetric"):
            even = torch.linspace(-1, 1, count, dtype=torch.float64)
            torch.testing.assert_close(codes.unique().double(), even, rtol=0, atol=1e-7)


@pytest.mark.parametrize("bound", BOUNDS)
def test_scalar_quantize_equals_the_reference(bound, generator):
    levels = [8, 5, 4, 3]
    kw = dict(preserve_symmetry="symmetric" in bound, bound_hard_clamp="clamp" in bound)
    x = torch.randn(2, 400, 4, generator=generator)
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    weight = torch.randn(2, 400, 4, generator=generator)
    codes, indices = ops.scalar_quantize(mine, levels, bound=bound)
    quantized, numbers = Reference(levels, **kw)(theirs)
    assert torch.equal(indices, numbers.long())
    torch.testing.assert_close(codes, quantized)
    (codes * weight).sum().backward()
    (quantized * weight).sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
def test_scalar_quantize_gradient_is_that_of_the_bound(bound, dtype, generator):
    levels = [8, 5, 3]
    x = torch.randn(50, 3, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(50, 3, generator=generator).to(dtype)
    codes, indices = ops.scalar_quantize(x, levels, bound=bound)
    assert not indices.requires_grad
    (codes * weight).sum().backward()
    twin = x.detach().double().requires_grad_()
    inner, divisor = bounded(twin, levels, bound)
    (inner / divisor * weight).sum().backward()
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3}[dtype]
    torch.testing.assert_close(x.grad.double(), twin.grad, rtol=tolerance, atol=tolerance)


def test_scalar_quantize_gradient_far_out_is_zero_and_finite():
    x = torch.tensor([[-1e30, -50.0, 0.0, 50.0, math.inf]]).T.requires_grad_()
    codes, _ = ops.scalar_quantize(x, [5])
    codes.sum().backward()
    assert x.grad[[0, 1, 3, 4]].abs().max() < 1e-15 and x.grad[2] > 0.9


def test_scalar_quantize_second_derivative_is_refused():
    x = torch.randn(4, 1, requires_grad=True)
    codes, _ = ops.scalar_quantize(x, [5])
    with pytest.raises(NotImplementedError, match="create_graph"):
        torch.autograd.grad(codes.sum(), x, create_graph=True)


@pytest.mark.parametrize("bound", BOUNDS)
def test_scalar_quantize_paths_agree_to_the_bit(bound, generator):
    for levels in LEVELS:
        x = torch.randn(7, 133, len(levels), generator=generator) * 2
        x[0, :3] = torch.tensor([math.nan, math.inf, -math.inf]).unsqueeze(-1)
        for tokens in (x, x.double(), x.half(), x.transpose(0, 1), x[:, :1].expand(-1, 9, -1)):
            found = ops.scalar_quantize(tokens, levels, bound=bound)
            other = any_path("scalar_quantize")(tokens, levels, bound=bound)
            assert torch.equal(found[1], other[1])
            torch.testing.assert_close(found[0], other[0], rtol=0, atol=0, equal_nan=True)
        wide = ops.scalar_quantize(x.double(), levels, bound=bound)[1]
        assert torch.equal(ops.scalar_quantize(x, levels, bound=bound)[1], wide)


def test_scalar_quantize_bits_do_not_depend_on_threads_or_blocks(generator):
    x = torch.randn(9001, 4, generator=generator)
    whole = ops.scalar_quantize(x, [8, 5, 5, 5])
    parts = [ops.scalar_quantize(part, [8, 5, 5, 5]) for part in x.split(77)]
    assert torch.equal(whole[0], torch.cat([p[0] for p in parts]))
    assert torch.equal(whole[1], torch.cat([p[1] for p in parts]))
    torch.set_num_threads(2)
    assert torch.equal(whole[1], ops.scalar_quantize(x, [8, 5, 5, 5])[1])


def test_scalar_quantize_zero_goes_up_between_two_levels():
    for count in (4, 6, 8):
        codes, indices = ops.scalar_quantize(torch.zeros(1, 1), [count], bound="symmetric_tanh")
        assert indices.item() == count // 2 and codes.item() > 0


def test_scalar_quantize_not_finite():
    x = torch.tensor([[math.nan, 0.0], [9.0, -9.0], [math.inf, 1.0], [1.0, -math.inf]])
    for tokens in (x, x.double()):
        for levels in ([5, 3], [5, 70]):
            codes, indices = ops.scalar_quantize(tokens, levels)
            assert codes[[0, 2, 3]].isnan().all() and indices[[0, 2, 3]].eq(0).all()
            assert codes[1].tolist() == [1, -1] and indices[1] == 4


def test_scalar_quantize_of_nothing():
    for shape in ((0, 2), (3, 0, 2)):
        codes, indices = ops.scalar_quantize(torch.zeros(shape), [5, 3])
        assert codes.shape == shape and indices.shape == shape[:-1]


@pytest.mark.parametrize(
    "levels", [[17] * 6, [5] * 11, [8] * 12, [65536] * 3 + [16384], [2] * 62], ids=str
)
def test_scalar_indices_round_trip_exactly(levels, generator):
    digits = torch.stack([torch.randint(n, (10**5,), generator=generator) for n in levels], -1)
    digits[0], digits[1] = torch.tensor(levels) - 1, 0
    indices = ops.scalar_indices(digits, levels)
    assert indices[0] == math.prod(levels) - 1 and indices[1] == 0
    assert torch.equal(ops.scalar_level_indices(indices, levels), digits)
    assert torch.equal(any_path("scalar_indices")(digits, levels), indices)
    assert torch.equal(any_path("scalar_level_indices")(indices, levels), digits)


@pytest.mark.parametrize("bound", BOUNDS)
def test_scalar_decode_gives_the_codes_of_scalar_quantize(bound):
    levels, symmetric = [5, 4, 7], bound.startswith("symmetric")
    every = torch.tensor(list(itertools.product(*(range(n) for n in reversed(levels))))).flip(-1)
    assert torch.equal(ops.scalar_indices(every, levels), torch.arange(140))
    x = torch.randn(4000, 3)
    for dtype in (torch.float32, torch.float64):
        codes, indices = ops.scalar_quantize(x.to(dtype), levels, bound=bound)
        assert torch.equal(
            ops.scalar_decode(indices, levels, symmetric=symmetric, dtype=dtype), codes
        )
    assert torch.equal(ops.scalar_decode(torch.tensor([-1]), levels), torch.zeros(1, 3))
    assert ops.scalar_level_indices(torch.tensor([-1]), levels).tolist() == [[-1, -1, -1]]
    assert ops.scalar_indices(torch.tensor([[0, -1, 0]]), levels).tolist() == [-1]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: ops.scalar_quantize(torch.zeros(3, 2), [5]), ValueError, "x to have 1 features"),
        (
            lambda: ops.scalar_quantize(torch.zeros(3, 2, dtype=torch.long), [5, 5]),
            TypeError,
            "floating",
        ),
        (lambda: ops.scalar_quantize(torch.zeros(3, 1), [2]), ValueError, r"levels to be in \[3"),
        (
            lambda: ops.scalar_quantize(torch.zeros(3, 1), [65537]),
            ValueError,
            r"levels to be in \[3",
        ),
        (lambda: ops.scalar_quantize(torch.zeros(3, 0), []), ValueError, "at least one"),
        (lambda: ops.scalar_quantize(torch.zeros(3, 4), [65536] * 4), ValueError, r"at most 2\^62"),
        (
            lambda: ops.scalar_quantize(torch.zeros(3, 1), [5], bound="sin"),
            ValueError,
            "bound to be tanh",
        ),
        (
            lambda: ops.scalar_level_indices(torch.tensor([15]), [5, 3]),
            IndexError,
            r"\[-1, 15\), but got 15",
        ),
        (lambda: ops.scalar_level_indices(torch.tensor([-2]), [5, 3]), IndexError, "but got -2"),
        (lambda: ops.scalar_level_indices(torch.tensor([1.0]), [5, 3]), TypeError, "int64|Long"),
        (lambda: ops.scalar_indices(torch.tensor([[5, 0]]), [5, 3]), IndexError, "but got 5"),
        (lambda: ops.scalar_indices(torch.tensor([[1]]), [5, 3]), ValueError, "to have 2 features"),
        (
            lambda: ops.scalar_decode(torch.tensor([1]), [5], dtype=torch.half),
            TypeError,
            "float32 or float64",
        ),
    ],
)
def test_scalar_quantize_bad_arguments(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_scalar_quantize_opcheck(generator):
    x = torch.randn(3, 5, 2, generator=generator, requires_grad=True)
    torch.library.opcheck(ops.scalar_quantize.default, (x, [5, 4]), {"bound": "symmetric_tanh"})
    torch.library.opcheck(ops.scalar_level_indices.default, (torch.arange(15), [5, 3]))
    torch.library.opcheck(ops.scalar_decode.default, (torch.arange(15), [5, 3]))
    torch.library.opcheck(ops.scalar_indices.default, (torch.zeros(4, 2, dtype=torch.long), [5, 3]))


def test_scalar_quantize_compiles(generator, compiler):
    def step(x):
        codes, indices = ops.scalar_quantize(x, [8, 5])
        return codes * 2, ops.scalar_decode(indices, [8, 5])

    x = torch.randn(6, 2, generator=generator)
    eager, compiled = x.clone().requires_grad_(), x.clone().requires_grad_()
    expected_codes, decoded = step(eager)
    found, decoded_too = torch.compile(step, fullgraph=True, backend=compiler)(compiled)
    assert torch.equal(expected_codes, found) and torch.equal(decoded, decoded_too)
    expected_codes.sum().backward()
    found.sum().backward()
    assert torch.equal(eager.grad, compiled.grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "levels", [[8, 5, 5, 5], [3, 2, 65536], [65536, 32768], [65535, 32769], [65536, 65536, 7], [2] * 31]
)  # fmt: skip
def test_scalar_decode_has_the_bits_of_the_any_device_path(levels, dtype):
    size = math.prod(levels)
    ends = [-1, 0, 1, size - 2, size - 1]
    indices = torch.cat([torch.tensor(ends), torch.randint(-1, size, (500,))])
    decode = any_path("scalar_decode")
    for symmetric in (False, True):
        codes = ops.scalar_decode(indices, levels, symmetric=symmetric, dtype=dtype)
        bit_for_bit(codes, decode(indices, levels, symmetric=symmetric, dtype=dtype))
    for index in (-2, size):
        with pytest.raises(IndexError, match=f"in .-1, {size}"):
            ops.scalar_decode(torch.tensor([index]), levels)
