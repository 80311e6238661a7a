"""SimVQ and ResidualSimVQ against the reference."""

import inspect

import pytest

from .harness import assert_oracle_decides, assert_same_behaviour, assert_same_signature
from .table_sim_vq import DIFFERENT, DIFFERENT_STACK, SAME, SAME_STACK, STACK, TABLE


def by_id(row):
    return row.id


@pytest.mark.parametrize("row", SAME, ids=by_id)
def test_same_numbers_as_the_reference(row, reference, subject):
    assert_same_behaviour(TABLE, row, reference, subject)


@pytest.mark.parametrize("row", SAME_STACK, ids=by_id)
def test_stacks_have_the_numbers_of_the_reference(row, reference, subject):
    assert_same_behaviour(STACK, row, reference, subject)


@pytest.mark.parametrize("row", DIFFERENT, ids=by_id)
def test_right_where_the_reference_is_not(row, subject):
    assert_oracle_decides(TABLE, row, subject)


@pytest.mark.parametrize("row", DIFFERENT_STACK, ids=by_id)
def test_stacks_are_right_where_the_reference_is_not(row, subject):
    assert_oracle_decides(STACK, row, subject)


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("SimVQ", "forward"),
        ("SimVQ", "indices_to_codes"),
        ("ResidualSimVQ", "forward"),
        ("ResidualSimVQ", "get_codes_from_indices"),
        ("ResidualSimVQ", "get_output_from_indices"),
    ],
)
def test_same_signature(name, method, reference, subject):
    theirs, ours = getattr(reference, name), getattr(subject, name)
    assert_same_signature(getattr(theirs, method), getattr(ours, method))


@pytest.mark.parametrize("name", ["SimVQ", "ResidualSimVQ"])
def test_same_options(name, reference, subject):
    theirs = inspect.signature(getattr(reference, name).__init__).parameters
    ours = inspect.signature(getattr(subject, name).__init__).parameters
    for option, parameter in theirs.items():
        assert ours[option].kind == parameter.kind
        # The default init_fn is the identity, a different function in each package.
        assert option == "init_fn" or ours[option].default == parameter.default


def test_enough_rows():
    assert len(SAME) + len(SAME_STACK) >= 10
