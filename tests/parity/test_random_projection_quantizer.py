"""RandomProjectionQuantizer and Sequential against the reference."""

import copy

import pytest
import torch
from torch import nn

import torchvq

from .harness import assert_oracle_decides, assert_same_behaviour, assert_same_signature
from .table_random_projection_quantizer import DIFFERENT, RIGHT, SAME, SCORED, TABLE


def by_id(row):
    return row.id


@pytest.mark.parametrize("row", SAME + SCORED, ids=by_id)
def test_same_numbers_as_the_reference(row, reference, subject):
    assert_same_behaviour(TABLE, row, reference, subject)


@pytest.mark.parametrize("row", RIGHT + DIFFERENT, ids=by_id)
def test_right_where_the_reference_is_not(row, subject):
    assert_oracle_decides(TABLE, row, subject)


@pytest.mark.parametrize("method", ["__init__", "forward"])
def test_same_signature(method, reference, subject):
    theirs, ours = reference.RandomProjectionQuantizer, subject.RandomProjectionQuantizer
    assert_same_signature(getattr(theirs, method), getattr(ours, method))


@pytest.mark.parametrize("codebooks", [2, 5])
def test_several_codebooks(codebooks, reference, subject):
    """The same numbers; only the layers of the reference learn, ours do not."""
    options = dict(dim=6, codebook_size=16, codebook_dim=4, num_codebooks=codebooks)
    theirs = reference.RandomProjectionQuantizer(**options)
    ours = subject.RandomProjectionQuantizer(**options)
    ours.load_state_dict(copy.deepcopy(theirs.state_dict()), strict=True)
    x = torch.randn(2, 7, 6, generator=torch.Generator().manual_seed(1))
    expected = theirs(x)
    assert torch.equal(ours(x), expected)
    y, z = x.clone().requires_grad_(), x.clone().requires_grad_()
    found, right = ours(y, indices=expected.flip(0)), theirs(z, indices=expected.flip(0))
    torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-6)
    found.backward(), right.backward()
    torch.testing.assert_close(y.grad, z.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("codebooks", [1, 3])
def test_projections_and_layers_are_drawn_as_in_the_reference(codebooks, reference):
    """From the same seed; the codes of the two are drawn in different ways."""
    options = dict(dim=16, codebook_size=8, codebook_dim=4, num_codebooks=codebooks)
    torch.manual_seed(0)
    theirs = reference.RandomProjectionQuantizer(**options).state_dict()
    torch.manual_seed(0)
    ours = torchvq.RandomProjectionQuantizer(**options, vqp_compat=True).state_dict()
    for name in theirs.keys() - {"vq._codebook.embed", "vq._codebook.embed_avg"}:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-6, atol=1e-7)


# Sequential ----------------------------------------------------------------------------------------------------------


QUANTIZERS = {
    "VectorQuantize": (dict(dim=8, codebook_size=16), dict(freeze_codebook=True)),
    "ResidualVQ": (dict(dim=8, codebook_size=16, num_quantizers=2), dict(return_all_codes=True)),
    "SimVQ": (dict(dim=8, codebook_size=16), {}),
    "FSQ": (dict(levels=[5, 5, 3], dim=8), {}),
    "LFQ": (dict(dim=8, codebook_size=256, commitment_loss_weight=0.25), {}),
}


def around(package, name, options):
    torch.manual_seed(0)
    quantizer = getattr(package, name)(**options)
    return package.Sequential(nn.Linear(6, 8), nn.Tanh(), quantizer, nn.Linear(8, 5))


@pytest.mark.parametrize("name", QUANTIZERS)
def test_sequences_return_what_the_reference_returns(name, reference, subject):
    options, keywords = QUANTIZERS[name]
    theirs, ours = around(reference, name, options), around(subject, name, options)
    ours.load_state_dict(copy.deepcopy(theirs.state_dict()), strict=True)
    x = torch.randn(2, 7, 6, generator=torch.Generator().manual_seed(1))
    found, expected = ours.eval()(x, **keywords), theirs.eval()(x, **keywords)
    assert len(found) == len(expected)
    torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=1e-6)
    assert torch.equal(found[1].long(), expected[1].long())


def test_what_is_no_sequence_with_one_quantizer_is_refused(reference, subject):
    quantizer = subject.FSQ([5, 5])
    for fns in ([nn.Identity()], [quantizer, subject.FSQ([5, 5])], []):
        with pytest.raises((ValueError, AssertionError)):
            subject.Sequential(*fns)
