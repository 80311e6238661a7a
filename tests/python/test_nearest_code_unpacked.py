"""nearest_code where codes are not packed: up to some hundred rows, one code each, 16 dimensions and more."""

from __future__ import annotations

import nearest_code_oracle as oracle
import nearest_code_rows
import numpy as np
import pytest
import torch

METRICS = ["euclidean", "cosine"]
# Numbers of rows with every number of vectors in the last panel; codes that fill no tile, block or range.
SIZES = [(10, 37, 16), (33, 200, 19), (50, 97, 64), (100, 1, 24), (129, 70, 33), (191, 1700, 17)]


def assert_nearest(x, codes, metric="euclidean", bias=None):
    found = torch.ops.torchvq.nearest_code(x, codes, metric=metric, bias=bias)[0]
    np.testing.assert_array_equal(found.numpy(), oracle.nearest(x, codes, metric, bias)[:, 0])


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", nearest_code_rows.KINDS)
def test_nearest_code_is_exact_on_adversarial_rows(kind, size, metric, generator):
    x, codes = nearest_code_rows.KINDS[kind](*size, generator)
    assert_nearest(x, codes, metric)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dim", [16, 31, 130])
@pytest.mark.parametrize("distance", [0.0, 1e-8, 1e-7, 1e-6, 1e-5, 1e-3])
@pytest.mark.parametrize("shift", [0.0, 30.0])
def test_nearest_code_is_exact_where_float32_cannot_tell(shift, distance, dim, metric, generator):
    """Rows (all, or one in twenty) near the midpoint of two codes, at distances below and above the rounding error."""
    x, codes = nearest_code_rows.normal(60, 300, dim, generator)
    close = nearest_code_rows.middles(x, codes, distance, generator)
    assert_nearest(close + shift, codes + shift, metric)
    close[torch.arange(60) % 20 != 3] = x[torch.arange(60) % 20 != 3]
    assert_nearest(close + shift, codes + shift, metric)


@pytest.mark.parametrize("metric", METRICS)
def test_the_rivals_of_a_row_may_stand_in_one_range_of_codes_or_in_several(metric, generator):
    x, codes = nearest_code_rows.normal(64, 3000, 20, generator)
    codes[1:4] = codes[0] * (1 + 2e-7)  # neighbours
    codes[2999] = codes[100] * (1 - 2e-7)  # far apart in the codebook
    x[5], x[17] = codes[0] * (1 + 1e-7), codes[100]
    assert_nearest(x, codes, metric)


@pytest.mark.parametrize("metric", METRICS)
def test_bias_counts(metric, generator):
    x, codes = nearest_code_rows.normal(40, 500, 32, generator)
    bias = torch.randn(500, generator=generator)
    assert_nearest(x, codes, metric, bias)
    assert_nearest(x, codes, metric, bias * 1e4)
    assert_nearest(x, codes, metric, torch.zeros(500).index_fill_(0, torch.tensor([3]), torch.inf))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30, 3e38, 1e-30, 1e-44, 0.0])
def test_numbers_out_of_the_range_of_a_scan_are_searched_all_the_same(value, metric, generator):
    x, codes = nearest_code_rows.normal(40, 200, 32, generator)
    for rows in (x.clone(), x.clone().mul_(0).add_(value)):
        rows[7] = value
        assert_nearest(rows, codes, metric)
    codes[11] = value
    assert_nearest(x, codes, metric)
    codes[:] = value
    codes[50] = 1.0
    assert_nearest(x, codes, metric)
