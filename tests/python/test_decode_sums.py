"""decode_sums (include/torchvq/ops/decode_sums.h)."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from support import any_path

PATHS = {"dispatched": torch.ops.torchvq.decode_sums, "any": any_path("decode_sums")}


@pytest.fixture(params=PATHS.values(), ids=PATHS.keys())
def decode_sums(request):
    return request.param


def nearest_float32(value: Fraction) -> float:
    """Oracle: Fraction to float is exactly rounded; float32 candidates around it are compared exactly."""
    guess = np.float32(float(value))
    candidates = [
        guess,
        np.nextafter(guess, np.float32(np.inf)),
        np.nextafter(guess, np.float32(-np.inf)),
    ]
    even = {c: int(np.float32(c).view(np.int32)) & 1 for c in candidates}
    return float(min(candidates, key=lambda c: (abs(Fraction(float(c)) - value), even[c])))


def awkward_sums() -> torch.Tensor:
    """Sums that rounding to float64 first would turn into a tie for float32."""
    base = [
        0,
        1,
        -1,
        2**24 + 1,
        2**53 + 1,
        2**61 + 2**37,
        2**61 + 2**37 + 1,
        2**61 + 2**37 - 1,
        3 * 2**60 - 1,
    ]
    return torch.tensor(base + [-b for b in base] + [2**62 - 1, -(2**62) + 1])


def test_decode_sums_to_float32_is_nearest(decode_sums):
    sums = awkward_sums()
    exponents = torch.tensor([[0, 5, -20, -110, 90]], dtype=torch.int32)
    decoded = decode_sums(sums.expand(1, 1, 5, -1), exponents, dtype=torch.float32)
    for k, e in enumerate(exponents[0].tolist()):
        exact = [Fraction(s) * Fraction(2) ** (e - 30) for s in sums.tolist()]
        assert decoded[0, k].tolist() == [nearest_float32(v) for v in exact]


def test_decode_sums_to_float64_is_nearest(decode_sums):
    sums = awkward_sums()
    rests = torch.tensor(
        [0, 1, -1, 2**31, -(2**31), 2**52 + 7, -(2**50) - 3, 12345, -99, 2**32] * 2
    )
    assert rests.shape == sums.shape
    two = torch.stack([sums, rests])[:, None, None]
    exponents = torch.tensor([[3]], dtype=torch.int32)
    decoded = decode_sums(two, exponents, dtype=torch.float64).flatten().tolist()
    exact = [
        (Fraction(s) + Fraction(r, 2**32)) * Fraction(2) ** -27
        for s, r in zip(sums.tolist(), rests.tolist(), strict=True)
    ]
    assert decoded == [float(v) for v in exact]
    one = decode_sums(sums[None, None, None], exponents, dtype=torch.float64).flatten().tolist()
    assert one == [float(Fraction(s) * Fraction(2) ** -27) for s in sums.tolist()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_decode_sums_returns_what_was_added(decode_sums, dtype, generator):
    x = torch.randn(2, 9, 3, generator=generator, dtype=dtype)
    e = torch.full((2, 9), 2, dtype=torch.int32)
    counts, sums, e = torch.ops.torchvq.code_statistics(x, torch.arange(9).expand(2, 9), e)
    bound = 2.0 ** (2 - 31) if dtype == torch.float32 else 2.0 ** (2 - 63)
    assert (decode_sums(sums, e, dtype=dtype) - x).abs().max() <= bound


def test_decode_sums_ignores_strides_and_takes_empty(decode_sums, generator):
    sums = torch.randint(-(2**40), 2**40, (1, 2, 3, 4), generator=generator)
    e = torch.zeros(2, 3, dtype=torch.int32)
    strided = decode_sums(sums.mT.contiguous().mT, e.t().contiguous().t(), dtype=torch.float32)
    assert torch.equal(strided, decode_sums(sums, e, dtype=torch.float32))
    assert decode_sums(sums[:, :0], e[:0], dtype=torch.float32).shape == (0, 3, 4)


def test_decode_sums_opcheck_and_compile(generator):
    sums = torch.randint(-(2**40), 2**40, (2, 2, 3, 4), generator=generator)
    e = torch.zeros(2, 3, dtype=torch.int32)
    op = torch.ops.torchvq.decode_sums
    torch.library.opcheck(op.default, (sums, e), {"dtype": torch.float64})
    compiled = torch.compile(
        lambda s, e: op(s, e, dtype=torch.float32), fullgraph=True, backend="aot_eager"
    )
    assert torch.equal(compiled(sums, e), op(sums, e, dtype=torch.float32))


def test_decode_sums_names_bad_arguments(decode_sums):
    sums, e = torch.zeros(1, 2, 3, 4, dtype=torch.int64), torch.zeros(2, 3, dtype=torch.int32)
    for call, error, fragment in [
        (
            lambda: decode_sums(sums[0], e, dtype=torch.float32),
            ValueError,
            "expected sums to have 4 dimensions",
        ),
        (
            lambda: decode_sums(sums.expand(3, 2, 3, 4), e, dtype=torch.float32),
            ValueError,
            "expected sums to have 1 or 2",
        ),
        (
            lambda: decode_sums(sums, e[:1], dtype=torch.float32),
            ValueError,
            "expected exponents to have size 2",
        ),
        (
            lambda: decode_sums(sums.int(), e, dtype=torch.float32),
            TypeError,
            "expected sums to be Long",
        ),
        (
            lambda: decode_sums(sums, e, dtype=torch.float16),
            TypeError,
            "expected dtype to be float32 or float64",
        ),
    ]:
        with pytest.raises(error, match=f"decode_sums: {fragment}"):
            call()
