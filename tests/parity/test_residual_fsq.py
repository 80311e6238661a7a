"""ResidualFSQ and GroupedResidualFSQ against the reference: the same numbers row by row, or an oracle for intended
differences.
"""

import inspect

import pytest
import torch

import torchvq

from .harness import assert_oracle_decides, assert_same_behaviour, assert_same_signature
from .table_residual_fsq import (
    CONSTRUCTION,
    DIFFERENT,
    DIFFERENT_GROUPED,
    FORWARD,
    GROUPED,
    GROUPED_SAME,
    RESIDUAL,
    SAME,
)
from .test_vector_quantize import errors_of

METHODS = ("__init__", "forward", "get_codes_from_indices", "get_output_from_indices")


def by_id(row):
    return row.id


def in_tables(residual, grouped):
    rows = [(RESIDUAL, row) for row in residual] + [(GROUPED, row) for row in grouped]
    return pytest.mark.parametrize(("table", "row"), rows, ids=[row.id for _, row in rows])


@in_tables(SAME, GROUPED_SAME)
def test_same_numbers_as_the_reference(table, row, reference, subject):
    assert_same_behaviour(table, row, reference, subject)


@in_tables(DIFFERENT, DIFFERENT_GROUPED)
def test_right_where_the_reference_is_not(table, row, subject):
    assert_oracle_decides(table, row, subject)


@pytest.mark.parametrize("case", CONSTRUCTION, ids=by_id)
def test_construction_is_refused(case, subject):
    with pytest.raises(errors_of(subject)):
        subject.ResidualFSQ(**{**RESIDUAL.defaults, **case.kwargs})(case.input)


@pytest.mark.parametrize("case", FORWARD, ids=by_id)
def test_forward_is_refused(case, subject):
    module = subject.ResidualFSQ(**{**RESIDUAL.defaults, **case.kwargs})
    with pytest.raises(errors_of(subject)):
        module(case.input)


@pytest.mark.parametrize("height", [3, 4])
def test_maps_with_features_last(height, reference):
    """The reference takes axis 1 for the features, so it needs as many rows as there are levels."""
    torch.manual_seed(0)
    x = torch.randn(2, height, 5, 3)
    ours, theirs = (
        package.ResidualFSQ(**RESIDUAL.defaults).eval() for package in (torchvq, reference)
    )
    quantized, indices = ours(x)
    assert indices.shape == (2, height, 5, 3)
    if height == 3:
        found = theirs(x)
        assert not torch.allclose(found[0], quantized) and found[1].shape == (2, 5, 3, 3)
        return
    with pytest.raises(AssertionError, match="expected dimension of 3"):
        theirs(x)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["ResidualFSQ", "GroupedResidualFSQ"])
def test_same_signature(name, method, reference, subject):
    ours, theirs = getattr(subject, name), getattr(reference, name)
    assert_same_signature(getattr(theirs, method), getattr(ours, method))


def test_every_keyword_has_a_row(reference):
    rows = [*SAME, *DIFFERENT]
    used = set(RESIDUAL.defaults).union(*(row.constructor_kwargs() for row in rows))
    constructor = set(inspect.signature(reference.ResidualFSQ.__init__).parameters)
    assert constructor - used - {"self", "kwargs"} == set()
    called = set().union(*(row.forward_kwargs(step) for row in rows for step in range(2)))
    arguments = set(inspect.signature(reference.ResidualFSQ.forward).parameters)
    assert arguments - called - {"self", "x"} == set()
