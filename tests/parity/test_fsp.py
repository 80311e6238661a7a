"""FSP against the reference."""

import pytest
import torch

from .harness import (
    assert_oracle_decides,
    assert_same_behaviour,
    assert_same_levels,
    assert_same_signature,
)
from .table_fsp import DIFFERENT, RANDOM, SAME, TABLE

# The reference computes the variance of a single token.
pytestmark = pytest.mark.filterwarnings("ignore:var_mean")

METHODS = (
    "__init__",
    "forward",
    "indices_to_codes",
    "indices_to_act_value",
    "indices_to_level_indices",
    "level_indices_to_indices",
)


def by_id(row):
    return row.id


@pytest.mark.parametrize("row", SAME, ids=by_id)
def test_same_numbers_as_the_reference(row, reference, subject):
    assert_same_behaviour(TABLE, row, reference, subject)


@pytest.mark.parametrize("row", RANDOM + DIFFERENT, ids=by_id)
def test_oracle_decides(row, subject):
    assert_oracle_decides(TABLE, row, subject)


@pytest.mark.parametrize("method", METHODS)
def test_signature_is_the_reference_s(method, reference, subject):
    assert_same_signature(getattr(reference.FSP, method), getattr(subject.FSP, method))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8], ids=str)
def test_dtype_of_levels(dtype, reference, subject):
    assert_same_levels(reference.FSP([8, 5, 5]), subject.FSP([8, 5, 5]), dtype)
