"""ResidualVQ and GroupedResidualVQ against the reference: the same numbers row by row, or an oracle for intended
differences.
"""

import inspect

import pytest

from .differences_residual_vq import DIFFERENT, DIFFERENT_GROUPED, RANDOM, RANDOM_GROUPED
from .errors_residual_vq import CONSTRUCTION, DECODING, FORWARD, GROUPED_CONSTRUCTION
from .harness import assert_oracle_decides, assert_same_behaviour, assert_same_signature
from .setup_residual_vq import GROUPED, RESIDUAL
from .table_residual_vq import GROUPED_SAME, SAME
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


@in_tables(RANDOM, RANDOM_GROUPED)
def test_random_options_have_the_stated_distribution(table, row, subject):
    assert_oracle_decides(table, row, subject)


@in_tables(DIFFERENT, DIFFERENT_GROUPED)
def test_right_where_the_reference_is_not(table, row, subject):
    assert_oracle_decides(table, row, subject)


@pytest.mark.parametrize("case", CONSTRUCTION, ids=by_id)
def test_construction_is_refused(case, subject):
    with pytest.raises(errors_of(subject)):
        subject.ResidualVQ(**{**RESIDUAL.defaults, **case.kwargs})


@pytest.mark.parametrize("case", GROUPED_CONSTRUCTION, ids=by_id)
def test_construction_of_groups_is_refused(case, subject):
    with pytest.raises(errors_of(subject)):
        subject.GroupedResidualVQ(**{**GROUPED.defaults, **case.kwargs})


@pytest.mark.parametrize("case", FORWARD, ids=by_id)
def test_forward_is_refused(case, subject):
    module = subject.ResidualVQ(**{**RESIDUAL.defaults, **case.kwargs})
    with pytest.raises(errors_of(subject)):
        module(case.input, **case.forward)


@pytest.mark.parametrize("case", DECODING, ids=by_id)
def test_decoding_is_refused(case, subject):
    module = subject.ResidualVQ(**{**RESIDUAL.defaults, **case.kwargs})
    with pytest.raises(errors_of(subject)):
        module.get_output_from_indices(case.input)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["ResidualVQ", "GroupedResidualVQ"])
def test_same_signature(name, method, reference, subject):
    assert_same_signature(
        getattr(getattr(reference, name), method), getattr(getattr(subject, name), method)
    )


def test_every_keyword_has_a_row(reference):
    """A keyword of the reference that no row sets would never be compared; beams have rows of their own."""
    rows = [*SAME, *RANDOM, *DIFFERENT]
    beam = {"beam_size", "eval_beam_size", "beam_score_quantizer_weights"}
    used = set(RESIDUAL.defaults).union(*(row.constructor_kwargs() for row in rows))
    constructor = set(inspect.signature(reference.ResidualVQ.__init__).parameters)
    assert constructor - used - beam - {"self", "vq_kwargs"} == set()
    called = set().union(*(row.forward_kwargs(step) for row in rows for step in range(2)))
    arguments = set(inspect.signature(reference.ResidualVQ.forward).parameters)
    assert arguments - called - beam - {"self", "x"} == set()
