"""nearest_code of float64: rounded to float32 for the screen, decided in float64, and what float32 cannot screen."""

from __future__ import annotations

import math

import nearest_code_oracle as oracle
import nearest_code_rows
import numpy as np
import pytest
import torch

from support import any_path

METRICS = ["euclidean", "cosine"]
# N, K, D: rows that are compared with codes as they lie, one more, screens in float32 and in integers, groups of codes;
# dimensions around every length of a vector.
SIZES = [
    (1, 1, 1),
    (1, 70, 3),
    (3, 7, 8),
    (9, 129, 9),
    (10, 300, 7),
    (16, 90, 15),
    (17, 90, 15),
    (13, 33, 17),
    (97, 130, 33),
    (131, 700, 8),
    (210, 150, 37),
    (300, 65, 70),
]
SCALES = [1e-320, 1e-300, 1e-200, 1e-161, 1e-150, 1e-100, 1e-44, 1e-30, 1e-12]
SCALES += [1e12, 1e18, 1e20, 1e38, 1e100, 1e150, 1e155, 1e200, 1e300]


def wide(problem):
    """The same rows and codes with digits that float32 has no room for."""
    return [values.double() * math.pi for values in problem]


def assert_nearest(x, codes, metric="euclidean", bias=None, k=1, search=None):
    search = search or torch.ops.torchvq.nearest_code
    found = search(x, codes, metric=metric, bias=bias, topk=k)[0]
    np.testing.assert_array_equal(found.numpy(), oracle.nearest(x, codes, metric, bias, k))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", nearest_code_rows.KINDS)
def test_float64_is_exact_on_adversarial_rows(kind, size, metric, generator):
    x, codes = wide(nearest_code_rows.KINDS[kind](*size, generator))
    assert_nearest(x, codes, metric)
    assert_nearest(x, codes, metric, k=min(3, len(codes)))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("size", [(6, 300, 19), (60, 300, 8), (250, 100, 40), (250, 100, 70)])
@pytest.mark.parametrize("distance", [0.0, 1e-16, 1e-12, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-3])
@pytest.mark.parametrize("shift", [0.0, 30.0, 1e6])
def test_float64_is_exact_where_float32_cannot_tell(shift, distance, size, metric, generator):
    x, codes = wide(nearest_code_rows.normal(*size, generator))
    close = nearest_code_rows.middles(x, codes, distance, generator)
    assert_nearest(close + shift, codes + shift, metric)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("rows", [5, 60, 400])
@pytest.mark.parametrize("spread", [1e-15, 1e-12, 1e-9, 1e-6])
def test_codes_that_float32_cannot_tell_apart(spread, rows, metric, generator):
    x, codes = wide(nearest_code_rows.normal(rows, 20, 30, generator))
    noise = torch.randn(180, 30, dtype=torch.float64, generator=generator)
    assert_nearest(x, codes.repeat(9, 1) * (1 + spread * noise), metric)
    assert_nearest(x, codes[:1] * (1 + spread * noise), metric)
    assert_nearest(x, codes[:1] * (1 + spread * noise), metric, k=4)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("rows", [5, 40, 250])
@pytest.mark.parametrize("scale", SCALES)
def test_float64_of_any_scale_is_exact(scale, rows, metric, generator):
    x, codes = wide(nearest_code_rows.normal(rows, 100, 24, generator))
    codes[90:] = codes[:10]
    for rows_scale, codes_scale in ((scale, 1.0), (1.0, scale), (scale, scale)):
        assert_nearest(x * rows_scale, codes * codes_scale, metric)
    codes[::3] *= scale
    assert_nearest(x, codes, metric)
    x[::4] *= scale
    assert_nearest(x, codes, metric)
    assert_nearest(x, codes, metric, k=80)
    codes[:, ::2] *= scale
    assert_nearest(x, codes, metric)


@pytest.mark.parametrize("metric", METRICS)
def test_unit_codes_whose_norm_underflow_has_shortened(metric, generator):
    """Their squares round to zero or to the smallest number, so that a unit vector may be many times too long."""
    x, codes = wide(nearest_code_rows.normal(40, 100, 300, generator))
    codes[30] = 1.5e-162
    codes[30, 0] = 2e-162
    x[::3] = torch.where(x[::3] > 0, 1.5e-162, -2e-162)
    x[1::3] = 1 + 0.1 * x[1::3]  # the contract's cosine of the long code is eleven
    bias = torch.zeros(100, dtype=torch.float64).index_fill_(0, torch.tensor([5]), -3.0)
    for rows in (x, x[:4]):
        assert_nearest(rows, codes, metric)
        assert_nearest(rows, codes, metric, bias)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("rows", [5, 40, 250])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1.7e308, 3.5e38, 0.0, -0.0])
def test_float64_with_numbers_beyond_a_screen(value, rows, metric, generator):
    x, codes = wide(nearest_code_rows.normal(rows, 100, 24, generator))
    x[3, 2] = value
    assert_nearest(x, codes, metric)
    x[3, 2] = 1.0
    codes[11, 5] = value
    assert_nearest(x, codes, metric)
    assert_nearest(x, codes, metric, k=100)
    codes[:] = value
    assert_nearest(x, codes, metric)
    codes[50] = 1.0
    codes[:20:3] = 1e200
    assert_nearest(x, codes, metric)
    assert_nearest(x, codes, metric, k=60)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("rows", [6, 60])
def test_bias_counts_in_float64(rows, metric, generator):
    x, codes = wide(nearest_code_rows.normal(rows, 500, 20, generator))
    x[2] = 0
    bias = torch.randn(500, dtype=torch.float64, generator=generator)
    for scale in (1.0, 1e-14, 1e-3, 1e4, 1e37, 1e200, 1e308):
        assert_nearest(x, codes, metric, bias * scale)
        assert_nearest(x, codes, metric, bias * scale, k=3)
    for value in (torch.inf, -torch.inf, torch.nan, 1e308, -1e308):
        assert_nearest(x, codes, metric, bias.index_fill(0, torch.tensor([3, 70]), value))


@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("far", [False, True])
def test_float64_is_exact_when_few_or_all_rows_are_close_calls(far, share, generator):
    """The search gives up screening if it leaves many rows, and goes on in another block as it did before otherwise."""
    x, codes = wide(nearest_code_rows.normal(700, 50, 40, generator))
    close = torch.rand(700, generator=generator) < share
    x[close] = x[close] * 1e19 if far else codes[:1] * (1 + 1e-13 * x[close])
    codes[25:] = codes[:25] * (1 + 1e-13)
    assert_nearest(x, codes)
    codes[:] = codes[:1] + 1e-13 * codes
    assert_nearest(x, codes)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("scale", [1e-200, 1e-160, 1.0, 1e19, 1e160])
def test_the_other_path_and_other_batches_find_the_same(scale, metric, generator):
    x, codes = wide(nearest_code_rows.midpoints(64, 90, 33, generator))
    x[::5], codes[::7] = x[::5] * scale, codes[::7] * scale
    search = torch.ops.torchvq.nearest_code
    together = search(x, codes, metric=metric)[0]
    assert_nearest(x, codes, metric, search=any_path("nearest_code"))
    for rows in (1, 9, 10, 64):
        apart = torch.cat([search(part, codes, metric=metric)[0] for part in x.split(rows)])
        torch.testing.assert_close(apart, together, rtol=0, atol=0)
