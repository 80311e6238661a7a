"""LatentQuantize against the reference."""

import pytest

from .harness import assert_oracle_decides, assert_same_behaviour, assert_same_signature
from .table_latent_quantize import DIFFERENT, SAME, TABLE

METHODS = (
    "__init__",
    "forward",
    "quantize",
    "codes_to_indices",
    "indices_to_codes",
    "quantization_loss",
    "commitment_loss",
)


def by_id(row):
    return row.id


@pytest.mark.parametrize("row", SAME, ids=by_id)
def test_same_numbers_as_the_reference(row, reference, subject):
    assert_same_behaviour(TABLE, row, reference, subject)


@pytest.mark.parametrize("row", DIFFERENT, ids=by_id)
def test_right_where_the_reference_is_not(row, subject):
    assert_oracle_decides(TABLE, row, subject)


@pytest.mark.parametrize("method", METHODS)
def test_signature_is_the_reference_s(method, reference, subject):
    assert_same_signature(
        getattr(reference.LatentQuantize, method), getattr(subject.LatentQuantize, method)
    )
