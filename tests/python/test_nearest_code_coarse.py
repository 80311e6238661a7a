"""nearest_code where screening works in integers: many rows, one code each, more than a few dimensions.

From 65 dimensions on, processors with AMX use its tiles; TORCHVQ_SIMD_LEVEL=avx512 runs the other path.
"""

from __future__ import annotations

import nearest_code_oracle as oracle
import nearest_code_rows
import numpy as np
import pytest
import torch

METRICS = ["euclidean", "cosine"]


def assert_nearest(x, codes, metric="euclidean"):
    found = torch.ops.torchvq.nearest_code(x, codes, metric=metric)[0]
    np.testing.assert_array_equal(found.numpy(), oracle.nearest(x, codes, metric)[:, 0])


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    "size", [(550, 130, 37), (700, 65, 24), (600, 20, 300), (513, 150, 65), (515, 40, 128)]
)
@pytest.mark.parametrize("kind", nearest_code_rows.KINDS)
def test_nearest_code_is_exact_on_adversarial_rows(kind, size, metric, generator):
    x, codes = nearest_code_rows.KINDS[kind](*size, generator)
    assert_nearest(x, codes, metric)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dim", [24, 31, 33, 65, 130, 192])
@pytest.mark.parametrize("distance", [0.0, 1e-6, 1e-4, 1e-2])
def test_nearest_code_is_exact_where_integers_cannot_tell(distance, dim, metric, generator):
    """Rows near the midpoint of two codes, at distances below and above the rounding to integers."""
    x, codes = nearest_code_rows.normal(600, 70, dim, generator)
    x = nearest_code_rows.middles(x, codes, distance, generator)
    x[::50] *= 1e-25
    x[1::50] *= 1e14
    assert_nearest(x, codes, metric)


@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
def test_nearest_code_is_exact_when_few_or_all_rows_are_close_calls(share, generator):
    """Screening switches to float32 if integers leave many rows undecided."""
    x, codes = nearest_code_rows.normal(2000, 50, 40, generator)
    close = torch.rand(2000, generator=generator) < share
    codes[25:] = codes[:25] * (1 + 1e-6)
    x[~close] = codes[:25][torch.randint(0, 25, (int((~close).sum()),), generator=generator)]
    x[:, 0] += 1e-3
    assert_nearest(x, codes)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dim", [3, 8, 20, 40])
def test_nearest_code_is_exact_among_groups_of_codes_that_float32_cannot_tell_apart(
    dim, metric, generator
):
    """Neither integers nor float32 settle these rows, so that blocks of rows are no longer scanned for their best."""
    x, codes = nearest_code_rows.normal(900, 20, dim, generator)
    codes = codes.repeat(9, 1)
    x[-1], x[-2] = torch.nan, 1e30
    assert_nearest(x, codes * (1 + 1e-7 * torch.randn(codes.shape, generator=generator)), metric)
