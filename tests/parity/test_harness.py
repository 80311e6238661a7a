"""The harness itself: it accepts the reference, and notices every kind of wrong number that it should find."""

from types import SimpleNamespace

import pytest
import torch

from .harness import Row, assert_same_behaviour
from .setup_vector_quantize import STRAIGHT, TABLE, spread_codes

ROW = Row("row", STRAIGHT, steps=2, forward=dict(return_loss_breakdown=True))


class ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 1.001


def mutant(reference, change=None, **kwargs):
    """The reference with one fault, as a package that the harness accepts."""

    class VectorQuantize(reference.VectorQuantize):
        def __init__(self, **given):
            super().__init__(**{**given, **kwargs})

        def forward(self, x, **given):
            call = super().forward
            return call(x, **given) if change is None else change(self, call, x, given)

    return SimpleNamespace(__name__="mutant", VectorQuantize=VectorQuantize)


def replace(returned, position, value):
    returned = list(returned)
    returned[position] = value
    return tuple(returned)


def scaled_output(module, call, x, given):
    returned = call(x, **given)
    return replace(returned, 0, returned[0] * 1.0001)


def scaled_eval_output(module, call, x, given):
    returned = call(x, **given)
    return returned if module.training else replace(returned, 0, returned[0] * 1.0001)


def added_loss(module, call, x, given):
    returned = call(x, **given)
    return replace(returned, 2, returned[2] + 1e-3)


def vector_loss(module, call, x, given):
    returned = call(x, **given)
    return replace(returned, 2, returned[2][None])


def wrong_breakdown(module, call, x, given):
    returned = call(x, **given)
    return replace(returned, 3, returned[3]._replace(commitment=returned[3].commitment * 1.001))


def other_index(module, call, x, given):
    returned = call(x, **given)
    indices = returned[1].clone()
    indices[0, 0] = (indices[0, 0] + 1) % 16
    return replace(returned, 1, indices)


def short_index(module, call, x, given):
    returned = call(x, **given)
    return replace(returned, 1, returned[1].int())


def wrong_gradient(module, call, x, given):
    return call(ScaledGradient.apply(x), **given)


def no_update(module, call, x, given):
    return call(x, **{**given, "freeze_codebook": True})


FAULTS = [
    scaled_output,
    scaled_eval_output,
    added_loss,
    vector_loss,
    wrong_breakdown,
    other_index,
    short_index,
    wrong_gradient,
    no_update,
]


def test_the_reference_equals_itself(reference):
    assert_same_behaviour(TABLE, ROW, reference, mutant(reference))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found(fault, reference):
    with pytest.raises(AssertionError):
        assert_same_behaviour(TABLE, ROW, reference, mutant(reference, fault))


@pytest.mark.parametrize(
    "kwargs", [dict(decay=0.8001), dict(eps=1e-3), dict(commitment_weight=1.001)], ids=str
)
def test_a_wrong_constant_is_found(kwargs, reference):
    with pytest.raises(AssertionError):
        assert_same_behaviour(TABLE, ROW, reference, mutant(reference, **kwargs))


def test_a_parameter_that_became_a_buffer_is_found(reference):
    row = Row("row", dict(orthogonal_reg_weight=1.0))
    with pytest.raises(AssertionError):
        assert_same_behaviour(TABLE, row, reference, mutant(reference, orthogonal_reg_weight=0.0))


def test_a_wrong_parameter_gradient_is_found(reference):
    row = Row("row", dict(codebook_dim=4, **STRAIGHT), steps=1)
    with pytest.raises(AssertionError):
        assert_same_behaviour(
            TABLE, row, reference, mutant(reference, wrong_gradient_inside, codebook_dim=4)
        )


def wrong_gradient_inside(module, call, x, given):
    module.project_in.bias.register_hook(lambda gradient: gradient * 1.001)
    return call(x, **given)


def test_a_tie_is_no_fault(reference):
    """With two equal codes either index is right, and a warning says that the row was compared up to the tie."""

    def twin_codes(module):
        spread_codes(module)
        module._codebook.embed[0, 8:] = module._codebook.embed[0, :8]

    def other_twin(module, call, x, given):
        returned = call(x, **given)
        return replace(returned, 1, (returned[1] + 8) % 16)

    row = Row("row", STRAIGHT, prepare=twin_codes)
    with pytest.warns(UserWarning, match="tie"):
        assert_same_behaviour(TABLE, row, reference, mutant(reference, other_twin))
