"""Inputs of residual stacks with a scaled gradient, and the generators of their levels and of ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

ops = torch.ops.torchvq

Call = tuple[tuple[Any, ...], dict[str, Any]]
# The arguments after the inputs, and the gain of the gradient.
GAINS: dict[str, tuple[str, Call, float]] = {
    "three levels": ("balanced_inputs", ((3,), {}), 1 / 3),
    "halves handed on": ("balanced_inputs", ((3,), dict(ratio=0.5)), 1 / 1.75),
    "one level": ("balanced_inputs", ((1,), {}), 1.0),
    "nothing handed on": ("balanced_inputs", ((4,), dict(ratio=0.0)), 1.0),
    "no level": ("balanced_inputs", ((0,), {}), 1.0),
    "depth": ("balanced_inputs", ((0,), dict(depth=torch.tensor(4))), 1 / 4),
    "depth, halves": ("balanced_inputs", ((0,), dict(depth=torch.tensor(2), ratio=0.5)), 1 / 1.5),
    "depth of 0": ("balanced_inputs", ((0,), dict(depth=torch.tensor(0))), 1.0),
    "taken back": ("undivided_inputs", ((3,), dict(ratio=0.5)), 1.75),
    "taken back, depth": ("undivided_inputs", ((0,), dict(depth=torch.tensor(3))), 3.0),
    "share": ("weighted_inputs", ((1, 4), {}), 0.25),
    "whole": ("weighted_inputs", ((4, 4), {}), 1.0),
    "share of a depth": ("weighted_inputs", ((4, 4), dict(depth=torch.tensor(3))), 0.75),
}


class Watched(TorchDispatchMode):
    """A mode under which values are not read, so that the graph is the longer one."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def inputs(generator: torch.Generator, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(2, 5, 3, generator=generator, dtype=torch.float64).to(dtype)


def call(case: str, x: Tensor) -> Tensor:
    name, (arguments, options), _ = GAINS[case]
    return getattr(ops, name)(x, *arguments, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("watched", [False, True], ids=["", "watched"])
@pytest.mark.parametrize("case", GAINS)
def test_values_stay_and_gradients_are_scaled(case, watched, dtype, generator):
    x = inputs(generator, dtype).requires_grad_()
    if watched:
        with Watched():
            output = call(case, x)
    else:
        output = call(case, x)
    assert torch.equal(output, x)
    (gradient,) = torch.autograd.grad((output**3).sum(), x, create_graph=True)
    torch.testing.assert_close(gradient, 3 * x**2 * GAINS[case][2])
    (second,) = torch.autograd.grad(gradient.sum(), x)
    # Autograd derives 3 output^2 * gain, and the output has the gain in its gradient once more.
    torch.testing.assert_close(second, 6 * x * GAINS[case][2] ** 2)


@pytest.mark.parametrize("case", GAINS)
def test_both_graphs_have_the_same_bits(case, generator):
    x = inputs(generator, torch.float32).requires_grad_()
    weights = torch.rand(x.shape, generator=generator)
    (short,) = torch.autograd.grad((call(case, x) * weights).sum(), x)
    with Watched():
        output = call(case, x)
    (long,) = torch.autograd.grad((output * weights).sum(), x)
    assert torch.equal(short, long)


def test_inputs_without_a_gradient_stay_as_they_are(generator):
    x = inputs(generator)
    for case in GAINS:
        output = call(case, x)
        assert torch.equal(output, x) and not output.requires_grad
        # Levels save it, and callers may write to theirs.
        assert GAINS[case][2] == 1 or output.data_ptr() != x.data_ptr()


def test_levels_of_one_codebook_and_ranks_draw_from_generators_of_their_own():
    rng = torch.tensor([5, 2])
    assert torch.equal(ops.level_rng(rng, 3, True), torch.tensor([8, 2]))
    for level, shared in ((0, True), (3, False)):
        assert torch.equal(ops.level_rng(rng, level, shared), rng)
    own = ops.noise_rng(rng, group_name="", label="one process")
    assert torch.equal(own, rng) and own.data_ptr() != rng.data_ptr()
    with pytest.raises(ValueError, match=r"noise_rng: expected rng to .* but got"):
        ops.noise_rng(torch.arange(3), group_name="", label="one process")
    with pytest.raises(Exception, match="no such group"):
        ops.noise_rng(rng, group_name="no such group", label="a rank")


def test_opcheck(generator):
    x = inputs(generator, torch.float32).requires_grad_()
    for name, (arguments, options), _ in GAINS.values():
        torch.library.opcheck(getattr(ops, name).default, (x, *arguments), options)
    rng = torch.tensor([5, 2])
    torch.library.opcheck(ops.level_rng.default, (rng, 2, True))
    torch.library.opcheck(ops.noise_rng.default, (rng,), dict(group_name="", label="test"))
    assert {name for name, _, _ in GAINS.values()} == {
        "balanced_inputs",
        "undivided_inputs",
        "weighted_inputs",
    }
