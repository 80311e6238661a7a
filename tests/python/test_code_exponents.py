"""code_exponents (include/torchvq/ops/code_exponents.h)."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from support import any_path

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
PATHS = {"dispatched": torch.ops.torchvq.code_exponents, "any": any_path("code_exponents")}


@pytest.fixture(params=PATHS.values(), ids=PATHS.keys())
def code_exponents(request):
    return request.param


def smallest_exponent(value: float) -> int:
    """Oracle: rational arithmetic."""
    value, e = abs(Fraction(value)), -1100
    while value > Fraction(2) ** e:
        e += 1
    return max(-960, min(990, e))


def expected_exponents(head: list[list[float]]) -> list[int]:
    own = []
    for row in head:
        largest = max(abs(v) if math.isfinite(v) else math.inf for v in row)
        own.append(smallest_exponent(largest) if 0 < largest < math.inf else None)
    known = [e for e in own if e is not None]
    mean = math.floor(Fraction(sum(known), len(known))) if known else 0
    return [mean if e is None else max(e, mean) for e in own]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_code_exponents_equal_rational_arithmetic(code_exponents, dtype, generator):
    scale = 2.0 ** torch.randint(-9, 9, (2, 7, 1), generator=generator)
    codebook = (torch.randn(2, 7, 3, generator=generator) * scale).to(dtype)
    codebook[0, 1], codebook[1, 2, 0], codebook[1, 3, 1] = 0, math.inf, math.nan
    codebook[0, 2] = torch.tensor([0.25, -0.5, 0.5])
    exponents = code_exponents(codebook)
    assert exponents.dtype == torch.int32
    assert exponents.tolist() == [expected_exponents(head) for head in codebook.tolist()]


def test_code_exponents_of_extreme_codebooks(code_exponents):
    extremes = torch.tensor([[[5e-324], [1e308], [2.0**-126], [1.0]]], dtype=torch.float64)
    assert code_exponents(extremes).tolist() == [expected_exponents(extremes[0].tolist())]
    nothing = torch.tensor([[[0.0], [math.nan]]])
    assert code_exponents(nothing).tolist() == [[0, 0]]


def test_code_exponents_ignore_strides_and_gradients(code_exponents, generator):
    codebook = torch.randn(2, 5, 3, generator=generator)
    strided = codebook.mT.contiguous().mT
    assert torch.equal(code_exponents(strided), code_exponents(codebook))
    assert not torch.ops.torchvq.code_exponents(codebook.requires_grad_()).requires_grad


def test_code_exponents_opcheck_and_compile(generator):
    codebook = torch.randn(2, 5, 3, generator=generator)
    torch.library.opcheck(
        torch.ops.torchvq.code_exponents.default, (codebook.clone().requires_grad_(),)
    )
    compiled = torch.compile(torch.ops.torchvq.code_exponents, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(codebook), torch.ops.torchvq.code_exponents(codebook))


@pytest.mark.parametrize(
    ("codebook", "error", "fragment"),
    [
        (torch.zeros(2, 3), ValueError, r"expected codebook to have 3 dimensions \(H, K, D\)"),
        (torch.zeros(1, 0, 3), ValueError, "expected codebook to have at least 1 code"),
        (torch.zeros(1, 2, 3).long(), TypeError, "expected codebook to be floating point"),
    ],
)
def test_code_exponents_name_bad_arguments(code_exponents, codebook, error, fragment):
    with pytest.raises(error, match=f"code_exponents: {fragment}"):
        code_exponents(codebook)
