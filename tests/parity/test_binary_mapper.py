"""BinaryMapper against the reference."""

import pytest

from .harness import assert_oracle_decides, assert_same_behaviour, assert_same_signature
from .table_binary_mapper import DIFFERENT, RANDOM, SAME, TABLE


def by_id(row):
    return row.id


@pytest.mark.parametrize("row", SAME, ids=by_id)
def test_same_numbers_as_the_reference(row, reference, subject):
    assert_same_behaviour(TABLE, row, reference, subject)


@pytest.mark.parametrize("row", RANDOM + DIFFERENT, ids=by_id)
def test_oracle_decides(row, subject):
    assert_oracle_decides(TABLE, row, subject)


@pytest.mark.parametrize(
    "method", ["__init__", "forward", "binary_entropy", "calc_aux_loss", "log_prob"]
)
def test_signature_is_the_reference_s(method, reference, subject):
    assert_same_signature(
        getattr(reference.BinaryMapper, method), getattr(subject.BinaryMapper, method)
    )
