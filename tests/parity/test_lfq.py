"""LFQ against the reference: the same numbers row by row, or an oracle for intended differences."""

import inspect

import pytest

from .harness import assert_oracle_decides, assert_same_behaviour, assert_same_signature
from .table_lfq import DIFFERENT, RANDOM, SAME, TABLE


def by_id(row):
    return row.id


@pytest.mark.parametrize("row", SAME, ids=by_id)
def test_same_numbers_as_the_reference(row, reference, subject):
    assert_same_behaviour(TABLE, row, reference, subject)


@pytest.mark.parametrize("row", RANDOM + DIFFERENT, ids=by_id)
def test_right_by_an_oracle(row, subject):
    assert_oracle_decides(TABLE, row, subject)


@pytest.mark.parametrize("method", ["forward", "indices_to_codes", "bits_to_codes"])
def test_same_signature(method, reference, subject):
    assert_same_signature(getattr(reference.LFQ, method), getattr(subject.LFQ, method))


def test_same_options(reference, subject):
    theirs = inspect.signature(reference.LFQ.__init__).parameters
    ours = inspect.signature(subject.LFQ.__init__).parameters
    assert list(ours)[: len(theirs)] == list(theirs)
    for name, parameter in theirs.items():
        # The identity is the default activation in both, as a module in one package and as None in the other.
        if name != "straight_through_activation":
            assert ours[name].default == parameter.default
            assert ours[name].kind == parameter.kind


def test_every_keyword_has_a_row(reference):
    """A keyword of the reference that no row sets would never be compared."""
    rows = SAME + RANDOM + DIFFERENT
    used = set(TABLE.defaults).union(*(row.constructor_kwargs() for row in rows))
    options = set(inspect.signature(reference.LFQ.__init__).parameters) - {"self"}
    assert options - used == set()
    assert len(SAME) >= 25


@pytest.mark.parametrize(
    "options",
    [
        dict(dim=None, codebook_size=None),
        dict(codebook_size=100),
        dict(keep_num_codebooks_dim=False, num_codebooks=2, codebook_size=16),
        dict(frac_per_sample_entropy=0.0),
        dict(frac_per_sample_entropy=1.5),
        dict(soft_clamp_input_value=0.5),
        dict(codebook_size=0),
    ],
    ids=str,
)
def test_construction_is_refused(options, subject):
    expected = (ValueError,) if subject.__name__ == "torchvq" else (Exception,)
    with pytest.raises(expected):
        subject.LFQ(**{**TABLE.defaults, **options})
