"""nearest_code of up to nine rows, which are compared with the codes as they lie; ten take another way."""

from __future__ import annotations

import nearest_code_oracle as oracle
import nearest_code_rows
import numpy as np
import pytest
import torch

METRICS = ["euclidean", "cosine"]
# Dimensions around every length of a vector; codes that fill no block, the last ones shorter than a vector.
SIZES = [
    (1, 1, 1),
    (1, 70, 3),
    (2, 9, 5),
    (3, 7, 8),
    (4, 129, 9),
    (5, 64, 15),
    (6, 65, 16),
    (7, 200, 17),
    (8, 33, 31),
    (9, 1025, 64),
    (10, 300, 7),
    (9, 40, 515),
]


def assert_nearest(x, codes, metric, bias=None, k=1):
    found = torch.ops.torchvq.nearest_code(x, codes, metric=metric, bias=bias, topk=k)[0]
    np.testing.assert_array_equal(found.numpy(), oracle.nearest(x, codes, metric, bias, k))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", nearest_code_rows.KINDS)
def test_few_rows_are_exact_on_adversarial_rows(kind, size, metric, generator):
    x, codes = nearest_code_rows.KINDS[kind](*size, generator)
    assert_nearest(x, codes, metric)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dim", [2, 8, 19, 130])
@pytest.mark.parametrize("distance", [0.0, 1e-8, 1e-7, 1e-6, 1e-5])
@pytest.mark.parametrize("shift", [0.0, 30.0])
def test_few_rows_are_exact_where_float32_cannot_tell(shift, distance, dim, metric, generator):
    x, codes = nearest_code_rows.normal(6, 300, dim, generator)
    close = nearest_code_rows.middles(x, codes, distance, generator)
    assert_nearest(close + shift, codes + shift, metric)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dim", [3, 32])
def test_the_best_codes_of_few_rows_come_in_order(dim, metric, generator):
    x, codes = nearest_code_rows.normal(5, 200, dim, generator)
    codes[100:110] = codes[3]
    x[0] = codes[3]
    for k in (1, 4, 16, 200):
        assert_nearest(x, codes, metric, k=k)


@pytest.mark.parametrize("metric", METRICS)
def test_bias_counts_for_few_rows(metric, generator):
    x, codes = nearest_code_rows.normal(6, 500, 20, generator)
    x[2] = 0
    bias = torch.randn(500, generator=generator)
    for values in (bias, bias * 1e-3, bias * 1e4, bias * 1e37):
        assert_nearest(x, codes, metric, values)
        assert_nearest(x, codes, metric, values, k=3)
    for value in (torch.inf, -torch.inf, torch.nan):
        excluded = torch.zeros(500).index_fill_(0, torch.tensor([3]), value)
        assert_nearest(x, codes, metric, excluded)
        assert_nearest(x, codes, metric, excluded, k=2)


@pytest.mark.parametrize("metric", METRICS)
def test_a_row_of_zeros_takes_the_lowest_indices(metric, generator):
    x, codes = torch.zeros(4, 24), torch.randn(90, 24, generator=generator)
    x[1] = codes[40]
    assert_nearest(x, codes, metric)
    assert_nearest(x, codes, metric, k=7)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("scale", [1e-44, 1e-30, 1e-20, 1e-12, 1e10, 1e17, 1e18, 1e20, 1e30])
def test_few_rows_of_any_scale_are_exact(scale, metric, generator):
    x, codes = nearest_code_rows.normal(5, 100, 24, generator)
    for rows_scale, codes_scale in ((scale, 1.0), (1.0, scale), (scale, scale)):
        assert_nearest(x * rows_scale, codes * codes_scale, metric)
    codes[::3] *= scale
    assert_nearest(x, codes, metric)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3e38, 0.0])
def test_few_rows_with_numbers_beyond_a_scan(value, metric, generator):
    x, codes = nearest_code_rows.normal(5, 100, 24, generator)
    x[3, 2] = value
    assert_nearest(x, codes, metric)
    x = torch.randn(5, 24, generator=generator)
    codes[11, 5] = value
    assert_nearest(x, codes, metric)
    assert_nearest(x, codes, metric, k=100)
    codes[:] = value
    codes[50] = 1.0
    assert_nearest(x, codes, metric)


@pytest.mark.parametrize("metric", METRICS)
def test_few_rows_do_not_depend_on_those_beside_them(metric, generator):
    """The same indices from one row, from nine, and from the packed search of many."""
    x, codes = nearest_code_rows.midpoints(64, 700, 33, generator)
    search = torch.ops.torchvq.nearest_code
    together = search(x, codes, metric=metric)[0]
    for rows in (1, 4, 9):
        apart = torch.cat([search(part, codes, metric=metric)[0] for part in x.split(rows)])
        torch.testing.assert_close(apart, together, rtol=0, atol=0)
