"""code_statistics: exact, order-free counts and sums (include/torchvq/ops/code_statistics.h)."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from support import any_path

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
PATHS = {"dispatched": torch.ops.torchvq.code_statistics, "any": any_path("code_statistics")}
NAN, INF = math.nan, math.inf


@pytest.fixture(params=PATHS.values(), ids=PATHS.keys())
def code_statistics(request):
    return request.param


def make_arguments(generator, dtype=torch.float32, heads=2, tokens=41, dim=5, codes=7):
    x = torch.randn(heads, tokens, dim, generator=generator).to(dtype)
    indices = torch.randint(-1, codes, (heads, tokens), generator=generator)
    exponents = torch.randint(-2, 3, (heads, codes), generator=generator, dtype=torch.int32)
    return x, indices, exponents


def round_half_even(value: Fraction) -> int:
    return round(value)


def smallest_exponent(value: float) -> int:
    mantissa, exponent = math.frexp(abs(value))
    return -960 if value == 0 else max(-960, min(990, exponent - (mantissa == 0.5)))


def expected_statistics(x, indices, exponents, mask=None):
    """Oracle: Python integers and fractions, one token at a time."""
    wide, (heads, codes), dim = x.dtype == torch.float64, exponents.shape, x.shape[2]
    counts = [[0] * codes for _ in range(heads)]
    sums = [
        [[[0] * dim for _ in range(codes)] for _ in range(heads)] for _ in range(2 if wide else 1)
    ]
    used = exponents.tolist()
    for h in range(heads):
        groups: dict[int, list[list[float]]] = {k: [] for k in range(codes)}
        for n, k in enumerate(indices[h].tolist()):
            row, real = x[h, n].tolist(), mask is None or bool(mask.expand(indices.shape)[h, n])
            if real and k >= 0 and all(abs(v) <= 2.0**998 for v in row):
                groups[k].append(row)
        for k, rows in groups.items():
            counts[h][k] = len(rows)
            largest = max((smallest_exponent(v) for row in rows for v in row), default=-960)
            if largest > used[h][k] + 8:
                used[h][k] = largest
            for row in rows:
                for d, v in enumerate(row):
                    scaled = Fraction(v) * Fraction(2) ** (30 - used[h][k])
                    whole = round_half_even(scaled)
                    sums[0][h][k][d] += whole
                    if wide:
                        sums[1][h][k][d] += round_half_even((scaled - whole) * 2**32)
    return counts, sums, used


def check(result, expected):
    assert [t.dtype for t in result] == [torch.int64, torch.int64, torch.int32]
    assert tuple(t.tolist() for t in result) == expected


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e-3, 3e3], ids=["near", "small", "outgrown"])
def test_code_statistics_equal_integer_arithmetic(code_statistics, dtype, scale, generator):
    x, indices, exponents = make_arguments(generator, dtype)
    x *= scale
    check(code_statistics(x, indices, exponents), expected_statistics(x, indices, exponents))


def test_code_statistics_round_ties_to_even(code_statistics):
    x = torch.tensor([[[0.5], [1.5], [2.5], [-0.5], [-1.5]]]) * 2.0**-30
    _, sums, _ = code_statistics(x, torch.arange(5)[None], torch.zeros(1, 5, dtype=torch.int32))
    assert sums.flatten().tolist() == [0, 2, 2, 0, -2]


def test_code_statistics_raise_only_the_exponents_that_are_outgrown(code_statistics):
    x = torch.tensor([[[256.0], [256.1], [3.0]]])
    counts, sums, used = code_statistics(
        x, torch.tensor([[0, 1, 2]]), torch.zeros(1, 3, dtype=torch.int32)
    )
    assert used.tolist() == [[0, 9, 0]]
    assert sums.flatten().tolist() == [2**38, round(Fraction(x[0, 1, 0].item()) * 2**21), 3 * 2**30]


@pytest.mark.parametrize("mask_shape", [(2, 41), (41,)])
def test_code_statistics_mask_equals_leaving_tokens_out(code_statistics, mask_shape, generator):
    x, indices, exponents = make_arguments(generator)
    mask = torch.rand(mask_shape, generator=generator) < 0.5
    x.masked_fill_(~mask.expand(2, 41)[..., None], 1e30)
    indices.masked_fill_(~mask.expand(2, 41), 10**6)
    check(
        code_statistics(x, indices, exponents, mask=mask),
        expected_statistics(x, indices, exponents, mask),
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_code_statistics_leave_non_finite_rows_out(code_statistics, dtype, generator):
    x, indices, exponents = make_arguments(generator, dtype)
    x[0, 3, 1], x[0, 9, 0], x[1, 4, 4], x[1, 7] = NAN, INF, -INF, NAN
    check(code_statistics(x, indices, exponents), expected_statistics(x, indices, exponents))


def test_code_statistics_leave_rows_out_that_could_overflow_a_sum(code_statistics):
    x = torch.tensor([[[2.0**998], [-(2.0**997)], [1e305], [-5e304], [1e308]]], dtype=torch.float64)
    arguments = x, torch.zeros(1, 5, dtype=torch.int64), torch.zeros(1, 1, dtype=torch.int32)
    result = code_statistics(*arguments)
    check(result, expected_statistics(*arguments))
    assert result[0].item() == 2
    assert torch.ops.torchvq.decode_sums(*result[1:], dtype=torch.float64).item() == 2.0**997


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_code_statistics_do_not_depend_on_order_split_or_threads(code_statistics, dtype, generator):
    x, indices, _ = make_arguments(generator, dtype, tokens=30_000, dim=6, codes=3)
    x[:, ::7] *= 1e6
    indices[1] = 1  # one code takes all tokens of a head
    exponents = torch.zeros(2, 3, dtype=torch.int32)
    torch.set_num_threads(1)
    whole = code_statistics(x, indices, exponents)
    torch.set_num_threads(3)
    order = torch.randperm(30_000, generator=generator)
    for a, b in zip(whole, code_statistics(x[:, order], indices[:, order], exponents), strict=True):
        assert torch.equal(a, b)
    parts = [slice(0, 1), slice(1, 17_001), slice(17_001, 30_000)]
    used = torch.stack([code_statistics(x[:, p], indices[:, p], exponents)[2] for p in parts]).amax(
        0
    )
    results = [code_statistics(x[:, p], indices[:, p], used) for p in parts]
    assert torch.equal(used, whole[2])
    assert all(torch.equal(r[2], used) for r in results)
    assert torch.equal(sum(r[0] for r in results), whole[0])
    assert torch.equal(sum(r[1] for r in results), whole[1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_code_statistics_paths_agree_on_large_batches(dtype, generator):
    x, indices, exponents = make_arguments(generator, dtype, heads=3, tokens=4001, dim=33, codes=50)
    x *= torch.logspace(-6, 6, 4001)[:, None].to(dtype)
    for a, b in zip(*(path(x, indices, exponents) for path in PATHS.values()), strict=True):
        assert torch.equal(a, b)


def test_code_statistics_are_more_exact_than_float32_sums(generator):
    x = torch.randn(1, 20_000, 16, generator=generator)
    indices = torch.randint(0, 32, (1, 20_000), generator=generator)
    counts, sums, used = torch.ops.torchvq.code_statistics(
        x, indices, torch.zeros(1, 32, dtype=torch.int32)
    )
    exact = torch.zeros(32, 16, dtype=torch.float64).index_add_(0, indices[0], x[0].double())
    error = (
        (torch.ops.torchvq.decode_sums(sums, used, dtype=torch.float64)[0] - exact)
        .abs()
        .max()
        .item()
    )
    # At most 2^-31 per token, 630 tokens per code; errors of either sign add up to some 25 of them.
    assert error < 100 * 2**-31
    assert (
        error
        < (torch.zeros(32, 16).index_add_(0, indices[0], x[0]).double() - exact).abs().max().item()
        / 50
    )


@pytest.mark.parametrize("tokens", [0, 1])
def test_code_statistics_of_few_tokens(code_statistics, tokens, generator):
    x, indices, exponents = make_arguments(generator, tokens=tokens)
    check(code_statistics(x, indices, exponents), expected_statistics(x, indices, exponents))


def test_code_statistics_ignore_strides(code_statistics, generator):
    x, indices, exponents = make_arguments(generator)
    strided = code_statistics(
        x.transpose(0, 2).contiguous().transpose(0, 2),
        indices.t().contiguous().t(),
        exponents.t().contiguous().t(),
    )
    for a, b in zip(strided, code_statistics(x, indices, exponents), strict=True):
        assert torch.equal(a, b)


def test_code_statistics_clamp_wild_exponents(code_statistics):
    wild = torch.tensor([[-(2**31), 2**31 - 1]], dtype=torch.int32)
    _, sums, used = code_statistics(torch.ones(1, 2, 1), torch.tensor([[0, 1]]), wild)
    assert used.tolist() == [[0, 990]] and sums.flatten().tolist() == [2**30, 0]


def test_code_statistics_do_not_require_gradients(generator):
    x, indices, exponents = make_arguments(generator)
    result = torch.ops.torchvq.code_statistics(x.requires_grad_(), indices, exponents)
    assert not any(t.requires_grad for t in result)


def test_code_statistics_opcheck_and_compile(generator):
    x, indices, exponents = make_arguments(generator)
    op = torch.ops.torchvq.code_statistics
    torch.library.opcheck(op.default, (x.clone().requires_grad_(), indices, exponents))
    compiled = torch.compile(op, fullgraph=True, backend="aot_eager")
    for a, b in zip(compiled(x, indices, exponents), op(x, indices, exponents), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("change", "error", "fragment"),
    [
        (lambda x, i, e: (x[0], i, e), ValueError, "expected x to have 3 dimensions"),
        (lambda x, i, e: (x, i[0], e), ValueError, "expected indices to have 2 dimensions"),
        (lambda x, i, e: (x, i[:, 1:], e), ValueError, "expected indices to have size 41"),
        (lambda x, i, e: (x, i, e[:1]), ValueError, "expected exponents to have size 2"),
        (
            lambda x, i, e: (x, i, e[:, :0]),
            ValueError,
            "expected exponents to have at least 1 code",
        ),
        (lambda x, i, e: (x[..., :0], i, e), ValueError, "expected x to have at least 1 dimension"),
        (lambda x, i, e: (x.long(), i, e), TypeError, "expected x to be floating point"),
        (lambda x, i, e: (x, i.int(), e), TypeError, "expected indices to be Long"),
        (lambda x, i, e: (x, i, e.long()), TypeError, "expected exponents to be Int"),
    ],
)
def test_code_statistics_name_bad_arguments(code_statistics, change, error, fragment, generator):
    with pytest.raises(error, match=f"code_statistics: {fragment}"):
        code_statistics(*change(*make_arguments(generator)))


@pytest.mark.parametrize(
    ("mask", "error", "fragment"),
    [
        (torch.ones(2, 40, dtype=torch.bool), ValueError, "expected mask to have size 41"),
        (torch.ones(2, 41, 1, dtype=torch.bool), ValueError, "expected mask to have shape"),
        (torch.ones(2, 41), TypeError, "expected mask to be Bool"),
    ],
)
def test_code_statistics_name_bad_masks(code_statistics, mask, error, fragment, generator):
    with pytest.raises(error, match=f"code_statistics: {fragment}"):
        code_statistics(*make_arguments(generator), mask=mask)


@pytest.mark.parametrize("index", [-2, 7])
def test_code_statistics_reject_indices_out_of_range(code_statistics, index, generator):
    x, indices, exponents = make_arguments(generator)
    indices[1, 3] = index
    refusal = rf"code_statistics: expected indices to be in \[-1, 7\), but got {index}"
    with pytest.raises(IndexError, match=refusal):
        code_statistics(x, indices, exponents)
    # Padding may have any index.
    padding = torch.ones_like(indices, dtype=torch.bool)
    padding[1, 3] = False
    code_statistics(x, indices, exponents, mask=padding)
