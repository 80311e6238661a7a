"""LFQ against the reference: the same numbers row by row, or an oracle for intended differences."""

import importlib
import inspect
import math

import pytest
import torch

import torchvq

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


def test_batch_entropy_of_the_reference_on_ranks(reference, monkeypatch):
    """It is of the rank's own probabilities divided by the number of ranks; docs/migrating.md says how to get its
    gradient with the switch. Here it believes that it is one of four ranks: it drops what it adds up over ranks."""
    ranks, gamma, found = 4, 2.0, {}
    options = dict(dim=4, codebook_size=2**4, entropy_loss_weight=0.1)
    theirs = importlib.import_module("vector_quantize_pytorch.lookup_free_quantization")
    monkeypatch.setattr(theirs, "is_distributed", lambda: True)
    monkeypatch.setattr(theirs.dist, "get_world_size", lambda: ranks)
    monkeypatch.setattr(theirs.dist_nn, "all_reduce", torch.clone)
    for name, module in {
        "theirs": reference.LFQ(**options, diversity_gamma=gamma),
        "switched": torchvq.LFQ(**options, diversity_gamma=gamma / ranks, vqp_compat=True),
    }.items():
        x = torch.randn(2, 50, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
        result, parts = module.train()(x, inv_temperature=1.0, return_loss_breakdown=True)
        found[name] = parts.batch_entropy, torch.autograd.grad(result[2], x)[0]
    entropy, gradient = found["switched"]
    torch.testing.assert_close(found["theirs"][0], (entropy + math.log(ranks)) / ranks)
    torch.testing.assert_close(found["theirs"][1], gradient)
