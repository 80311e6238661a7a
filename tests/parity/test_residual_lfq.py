"""ResidualLFQ and GroupedResidualLFQ against the reference."""

import inspect

import pytest

from .harness import assert_oracle_decides, assert_same_behaviour, assert_same_signature
from .table_residual_lfq import DIFFERENT, GROUPED, SAME, SAME_GROUPED, TABLE


def by_id(row):
    return row.id


@pytest.mark.parametrize("row", SAME, ids=by_id)
def test_same_numbers_as_the_reference(row, reference, subject):
    assert_same_behaviour(TABLE, row, reference, subject)


@pytest.mark.parametrize("row", SAME_GROUPED, ids=by_id)
def test_groups_have_the_numbers_of_the_reference(row, reference, subject):
    assert_same_behaviour(GROUPED, row, reference, subject)


@pytest.mark.parametrize("row", DIFFERENT, ids=by_id)
def test_right_where_the_reference_is_not(row, subject):
    assert_oracle_decides(TABLE, row, subject)


@pytest.mark.parametrize("name", ["ResidualLFQ", "GroupedResidualLFQ"])
@pytest.mark.parametrize("method", ["forward", "get_codes_from_indices", "get_output_from_indices"])
def test_same_signature(name, method, reference, subject):
    theirs, ours = getattr(reference, name), getattr(subject, name)
    assert_same_signature(getattr(theirs, method), getattr(ours, method))


@pytest.mark.parametrize("name", ["ResidualLFQ", "GroupedResidualLFQ"])
def test_same_options(name, reference, subject):
    theirs = inspect.signature(getattr(reference, name).__init__).parameters
    ours = inspect.signature(getattr(subject, name).__init__).parameters
    for option, parameter in theirs.items():
        assert ours[option].default == parameter.default and ours[option].kind == parameter.kind


def test_enough_rows():
    assert len(SAME) + len(SAME_GROUPED) >= 10
