"""VectorQuantize against the reference: the same numbers row by row, or an oracle for intended differences."""

import math

import pytest
import torch

from .differences_vector_quantize import COMPATIBLE, DIFFERENT, RANDOM
from .errors_vector_quantize import CONSTRUCTION, FORWARD
from .harness import (
    assert_oracle_decides,
    assert_same_behaviour,
    assert_same_signature,
    is_reference,
)
from .setup_vector_quantize import TABLE
from .table_vector_quantize import SAME

# The reference warns of broadcasting before it raises the errors that the rows expect.
pytestmark = pytest.mark.filterwarnings("ignore:Using a target size")

METHODS = (
    "__init__",
    "forward",
    "get_codes_from_indices",
    "get_output_from_indices",
    "update_ema_indices",
    "update_indices",
    "expire_codes_",
    "update_in_place_optimizer",
    "maybe_split_heads_from_input",
)


def by_id(row):
    return row.id


@pytest.mark.parametrize("row", SAME + COMPATIBLE, ids=by_id)
def test_same_numbers_as_the_reference(row, reference, subject):
    assert_same_behaviour(TABLE, row, reference, subject)


@pytest.mark.parametrize("row", RANDOM, ids=by_id)
def test_random_options_have_the_stated_distribution(row, subject):
    assert_oracle_decides(TABLE, row, subject)


@pytest.mark.parametrize("row", DIFFERENT, ids=by_id)
def test_right_where_the_reference_is_not(row, subject):
    assert_oracle_decides(TABLE, row, subject)


def errors_of(subject):
    # AssertionError and AttributeError are accidents of the reference, not messages to users.
    return Exception if is_reference(subject) else (ValueError, TypeError, IndexError, RuntimeError)


@pytest.mark.parametrize("case", CONSTRUCTION, ids=by_id)
def test_construction_is_refused(case, subject):
    with pytest.raises(errors_of(subject)):
        subject.VectorQuantize(**{**TABLE.defaults, **case.kwargs})


@pytest.mark.parametrize("case", FORWARD, ids=by_id)
def test_forward_is_refused(case, subject):
    module = subject.VectorQuantize(**{**TABLE.defaults, **case.kwargs})
    with pytest.raises(errors_of(subject)):
        module(case.input, **case.forward)


@pytest.mark.parametrize("method", METHODS)
def test_same_signature(method, reference, subject):
    assert_same_signature(
        getattr(reference.VectorQuantize, method), getattr(subject.VectorQuantize, method)
    )


@pytest.mark.parametrize("shape", [(2, 3, 8), (0, 3, 8), (2, 0, 8)], ids=str)
@pytest.mark.parametrize("separate", [False, True])
def test_same_split_of_heads(separate, shape, reference, subject):
    options = dict(
        dim=8, codebook_dim=4, codebook_size=4, heads=2, separate_codebook_per_head=separate
    )
    x = torch.arange(math.prod(shape)).view(shape).float()
    theirs, ours = (
        package.VectorQuantize(**options).maybe_split_heads_from_input(x)
        for package in (reference, subject)
    )
    assert torch.equal(ours, theirs)


def test_every_keyword_has_a_row(reference):
    """A keyword of the reference that no row sets would never be compared."""
    import inspect

    rows = SAME + COMPATIBLE + RANDOM + DIFFERENT
    used = set(TABLE.defaults).union(*(row.constructor_kwargs() for row in rows))
    constructor = set(inspect.signature(reference.VectorQuantize.__init__).parameters) - {"self"}
    assert constructor - used == set()
    called = set().union(*(row.forward_kwargs(step) for row in rows for step in range(2)))
    arguments = set(inspect.signature(reference.VectorQuantize.forward).parameters) - {"self", "x"}
    assert arguments - called == set()
