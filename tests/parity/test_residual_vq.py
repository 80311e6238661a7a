"""ResidualVQ and GroupedResidualVQ against the reference."""

import pytest

from .harness import assert_same_behaviour
from .setup_residual_vq import GROUPED, RESIDUAL
from .table_residual_vq import GROUPED_SAME, SAME


def by_id(row):
    return row.id


@pytest.mark.parametrize("row", SAME, ids=by_id)
def test_same_numbers_as_the_reference(row, reference, subject):
    assert_same_behaviour(RESIDUAL, row, reference, subject)


@pytest.mark.parametrize("row", GROUPED_SAME, ids=by_id)
def test_same_numbers_as_the_reference_in_groups(row, reference, subject):
    assert_same_behaviour(GROUPED, row, reference, subject)
