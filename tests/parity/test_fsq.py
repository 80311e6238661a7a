"""FSQ against the reference: the same numbers row by row, or an oracle for intended differences."""

import inspect

import pytest
import torch

from .harness import (
    assert_oracle_decides,
    assert_same_behaviour,
    assert_same_levels,
    assert_same_signature,
)
from .table_fsq import CONSTRUCTION, DIFFERENT, FORWARD, SAME, TABLE
from .test_vector_quantize import errors_of

METHODS = (
    "__init__",
    "forward",
    "bound",
    "symmetry_preserving_bound",
    "quantize",
    "codes_to_indices",
    "indices_to_codes",
    "indices_to_level_indices",
)
ATTRIBUTES = [
    "allowed_dtypes",
    "bound_hard_clamp",
    "channel_first",
    "codebook_dim",
    "codebook_size",
    "dim",
    "effective_codebook_dim",
    "force_quantization_f32",
    "has_projections",
    "keep_num_codebooks_dim",
    "noise_dropout",
    "num_codebooks",
    "orthogonal_rotation",
    "preserve_symmetry",
    "return_indices",
    "scale",
]


def by_id(row):
    return row.id


@pytest.mark.parametrize("row", SAME, ids=by_id)
def test_same_numbers_as_the_reference(row, reference, subject):
    assert_same_behaviour(TABLE, row, reference, subject)


@pytest.mark.parametrize("row", DIFFERENT, ids=by_id)
def test_right_where_the_reference_is_not(row, subject):
    assert_oracle_decides(TABLE, row, subject)


@pytest.mark.parametrize("case", CONSTRUCTION, ids=by_id)
def test_construction_is_refused(case, subject):
    with pytest.raises(errors_of(subject)):
        subject.FSQ(**{**TABLE.defaults, **case.kwargs})


@pytest.mark.parametrize("case", FORWARD, ids=by_id)
def test_forward_is_refused(case, subject):
    module = subject.FSQ(**{**TABLE.defaults, **case.kwargs})
    with pytest.raises(errors_of(subject)):
        module(case.input)


@pytest.mark.parametrize("method", METHODS)
def test_same_signature(method, reference, subject):
    assert_same_signature(getattr(reference.FSQ, method), getattr(subject.FSQ, method))


@pytest.mark.parametrize("kwargs", [{}, dict(dim=9, num_codebooks=2, preserve_symmetry=True)])
def test_same_attributes(kwargs, reference, subject):
    ours, theirs = (package.FSQ([8, 5, 5], **kwargs) for package in (subject, reference))
    for name in ATTRIBUTES:
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours._levels.tolist() == theirs._levels.tolist()
    assert ours._basis.dtype == theirs._basis.dtype
    assert ours._basis.tolist() == theirs._basis.tolist()


def test_every_keyword_has_a_row(reference):
    rows = [*SAME, *DIFFERENT]
    used = set(TABLE.defaults).union(*(row.constructor_kwargs() for row in rows))
    assert set(inspect.signature(reference.FSQ.__init__).parameters) - used - {"self"} == set()


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8], ids=str)
def test_dtype_of_levels(dtype, reference, subject):
    assert_same_levels(reference.FSQ([8, 5, 5]), subject.FSQ([8, 5, 5]), dtype)
