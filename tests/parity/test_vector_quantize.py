"""VectorQuantize against the reference: same numbers row by row, or an oracle where we differ on purpose."""

import pytest
from .harness import assert_oracle_decides, assert_same_behaviour, assert_same_signature
from .table_vector_quantize import SAME, TABLE


@pytest.mark.parametrize("row", SAME, ids=lambda row: row.id)
def test_same_numbers_as_the_reference(row, reference, subject):
    assert_same_behaviour(TABLE, row, reference, subject)
