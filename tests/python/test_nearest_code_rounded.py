"""nearest_code where codes are rounded to 8 bits for the call: up to 511 rows of 32 dimensions and more, and any number
of rows of 64 dimensions, or of as many codes as 8192.

Processors without byte multiplication search the same rows in float32.
"""

from __future__ import annotations

import nearest_code_oracle as oracle
import nearest_code_rows
import numpy as np
import pytest
import torch

# Numbers of rows with every remainder of a tile; codes that fill no panel, block or range; dimensions that fill no
# vector.
SIZES = [(6, 37, 32), (7, 300, 64), (13, 1, 40), (33, 520, 65), (50, 97, 128), (191, 1700, 33),
         (100, 4500, 37), (300, 200, 70), (511, 130, 32)]  # fmt: skip
# Rows in blocks: a part of one, several, and of the few dimensions for which only many codes are rounded.
MANY = [(512, 513, 64), (700, 1030, 100), (1000, 260, 130), (580, 8200, 33)]


def assert_nearest(x, codes, bias=None):
    found = torch.ops.torchvq.nearest_code(x, codes, bias=bias)[0]
    np.testing.assert_array_equal(found.numpy(), oracle.nearest(x, codes, "euclidean", bias)[:, 0])


@pytest.mark.parametrize("size", [*SIZES, *MANY])
@pytest.mark.parametrize("kind", nearest_code_rows.KINDS)
def test_adversarial_rows_find_the_nearest_code(kind, size, generator):
    assert_nearest(*nearest_code_rows.KINDS[kind](*size, generator))


@pytest.mark.parametrize("dim", [32, 64, 130])
@pytest.mark.parametrize("distance", [0.0, 1e-7, 1e-5, 1e-3, 1e-2, 0.1])
@pytest.mark.parametrize("shift", [0.0, 30.0])
def test_rows_between_two_codes_find_the_nearer(shift, distance, dim, generator):
    """At distances below and above the rounding of 8 bits and of float32; tiny and huge rows are among them."""
    x, codes = nearest_code_rows.normal(60, 300, dim, generator)
    close = nearest_code_rows.middles(x, codes, distance, generator)
    close[3], close[7] = close[3] * 1e-14, close[7] * 1e9
    assert_nearest(close + shift, codes + shift)


@pytest.mark.parametrize("distance", [0.0, 1e-7, 1e-5, 1e-3, 1e-2, 0.1])
def test_many_rows_between_two_codes_find_the_nearer(distance, generator):
    x, codes = nearest_code_rows.normal(600, 400, 97, generator)
    close = nearest_code_rows.middles(x, codes, distance, generator)
    close[3], close[7] = close[3] * 1e-14, close[7] * 1e9
    assert_nearest(close + 3, codes + 3)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30, 0.0])
@pytest.mark.parametrize("row", [0, 400, 949])
def test_a_block_that_bytes_cannot_hold_is_searched_all_the_same(row, value, generator):
    """And those before and behind it."""
    x, codes = nearest_code_rows.normal(950, 350, 100, generator)
    x[row] = value
    assert_nearest(x, codes)


@pytest.mark.parametrize("spread", [1.0, 1e-1, 1e-2, 1e-3])
def test_many_rows_among_clusters(spread, generator):
    x, codes = nearest_code_rows.normal(600, 1000, 64, generator)
    centers = torch.randn(20, 64, generator=generator)
    at = [torch.randint(0, 20, (len(part),), generator=generator) for part in (x, codes)]
    assert_nearest(centers[at[0]] + spread * x, centers[at[1]] + spread * codes)


def test_many_rows_among_codes_that_are_equal(generator):
    x, codes = nearest_code_rows.normal(600, 512, 100, generator)
    assert_nearest(x, codes[:8].repeat(64, 1))
    assert_nearest(x, codes[:300].repeat(2, 1))
    # Close together in the middle of the rows only: bytes settle the first block and not the second.
    x[192:384] = codes[:192]
    assert_nearest(x, torch.cat([codes, codes + 1e-6]))


@pytest.mark.parametrize("codes", [400, 600])
def test_stacks_of_many_rows_take_the_nearest_code_of_what_is_left(codes, generator):
    x = torch.randn(1, 450, 100, generator=generator)
    books = [torch.randn(1, codes, 100, generator=generator) * 0.7**n for n in range(4)]
    books[2][0, 5:20] = books[2][0, 4]
    x[0, 300] = torch.nan
    indices = torch.ops.torchvq.residual_encode(x, books)[1][0]
    left = x[0].clone()
    for book, found in zip(books, indices.T, strict=True):
        np.testing.assert_array_equal(found, oracle.nearest(left, book[0], "euclidean")[:, 0])
        left = left - book[0, found]


@pytest.mark.parametrize("dim", [32, 100])
def test_the_rounding_of_rows_counts(dim, generator):
    """These codes round without error (integers up to 127, of mean zero), so only the rounding of rows matters."""
    half = torch.randint(-126, 127, (90, dim), generator=generator).float()
    half[:, 0] = 127
    codes = torch.cat([half, -half]) / 64
    for _ in range(10):
        x = nearest_code_rows.middles(
            torch.randn(40, dim, generator=generator), codes, 1e-6, generator
        )
        assert_nearest(x, codes)


@pytest.mark.parametrize("dim", [32, 100])
def test_the_rounding_of_codes_counts(dim, generator):
    """These rows (integers up to 127) round without error; only codes are rounded. All codes make the mean."""
    for _ in range(40):
        x = torch.randint(-126, 127, (15, dim), generator=generator).float()
        x[:, 0] = 127
        away = torch.randn(15, dim, generator=generator) * 16
        assert_nearest(x, torch.cat([x + away, x - 1.01 * away, -x - away, -x + 1.01 * away]))


def test_rows_with_one_large_feature(generator):
    """Beside it, the features that distinguish their codes round to nothing."""
    x, codes = nearest_code_rows.normal(50, 400, 64, generator)
    x[::2, 5] = 3e4
    assert_nearest(x, codes)
    codes[::3, 5] = 3e4
    assert_nearest(x, codes)


def test_codes_in_clusters_far_from_each_other(generator):
    x, codes = nearest_code_rows.normal(150, 1000, 64, generator)
    for spread in (1e-1, 1e-2, 1e-3):
        centers = torch.randn(20, 64, generator=generator)
        near = [
            centers[torch.randint(0, 20, (len(part),), generator=generator)] for part in (x, codes)
        ]
        assert_nearest(near[0] + spread * x, near[1] + spread * codes)


@pytest.mark.parametrize("scale", [1.0, 1e4, 1e30])
def test_bias_counts(scale, generator):
    x, codes = nearest_code_rows.normal(40, 500, 48, generator)
    bias = torch.randn(500, generator=generator)
    assert_nearest(x, codes, bias * scale)
    assert_nearest(x, codes, torch.zeros(500).index_fill_(0, torch.tensor([3]), torch.inf))
    # A bias of almost the squared distance to the second-nearest code.
    first = oracle.nearest(x, codes)[:, 0]
    bias = torch.zeros(500).index_fill_(0, torch.from_numpy(first[:20]), 40.0)
    assert_nearest(x, codes, bias)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e13, 1e30, 3e38, 1e-30, 1e-44, 0.0])
def test_numbers_that_bytes_cannot_hold_are_searched_all_the_same(value, generator):
    x, codes = nearest_code_rows.normal(40, 200, 40, generator)
    for rows in (x.clone(), x.clone().mul_(0).add_(value)):
        rows[7] = value
        assert_nearest(rows, codes)
    codes[11] = value
    assert_nearest(x, codes)
    codes[:] = value
    codes[50] = 1.0
    assert_nearest(x, codes)
    codes[:] = value
    assert_nearest(x, codes)


def test_threads_do_not_matter(generator):
    x, codes = nearest_code_rows.normal(90, 3000, 70, generator)
    x = nearest_code_rows.middles(x, codes, 0.01, generator)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3, 16):
            torch.set_num_threads(threads)
            assert_nearest(x, codes)
            assert_nearest(x.repeat(11, 1)[:, :64].repeat(1, 2), codes[:, :64].repeat(1, 2))
    finally:
        torch.set_num_threads(before)
