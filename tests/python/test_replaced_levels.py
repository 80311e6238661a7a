"""Levels of stacks that their owner replaces: compiled ones work as in the reference, others are refused."""

from __future__ import annotations

import copy

import pytest
import torch
import vector_quantize_pytorch as reference
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import torchvq

DIM = 8
CODES = dict(dim=DIM, codebook_size=16)
STACKS = {
    "ResidualVQ": dict(**CODES, num_quantizers=3),
    "ResidualFSQ": dict(levels=[5] * DIM, num_quantizers=3),
    "ResidualLFQ": dict(dim=DIM, codebook_size=2**DIM, num_quantizers=3, spherical=True),
    "ResidualSimVQ": dict(**CODES, num_quantizers=3),
}
GROUPS = {
    "GroupedResidualVQ": dict(dim=DIM, codebook_size=8, num_quantizers=2, groups=2),
    "GroupedResidualFSQ": dict(dim=DIM, levels=[4] * 4, num_quantizers=2, groups=2),
    "GroupedResidualLFQ": dict(
        dim=DIM, codebook_size=16, num_quantizers=2, groups=2, spherical=True
    ),
}
AROUND = {
    "compiled": lambda level: torch.compile(level, backend="eager"),
    "checkpointed": checkpoint_wrapper,
    "both": lambda level: torch.compile(checkpoint_wrapper(level), backend="eager"),
}


def hierarchical(shared: bool, package=torchvq) -> nn.Module:
    options = dict(scales=(1, 2, 10), kmeans_init=False, threshold_ema_dead_code=0)
    return package.HierarchicalVQ(**CODES, **options, channel_first=False, shared_codebook=shared)


def inputs(generator) -> torch.Tensor:
    return torch.randn(4, 10, DIM, generator=generator)


def tensors(module: nn.Module) -> list[torch.Tensor]:
    return [tensor.detach().clone() for tensor in module.state_dict().values()]


def assert_alike(wrapped: nn.Module, plain: nn.Module, generator) -> None:
    for step in range(3):
        if step == 2:
            wrapped.eval(), plain.eval()
        x = inputs(generator)
        found, expected = wrapped(x), plain(x)
        assert torch.equal(found[0], expected[0])
        kept = zip(tensors(wrapped), tensors(plain), strict=True)
        assert all(torch.equal(a, b) for a, b in kept)
    torch.testing.assert_close(wrapped.get_output_from_indices(found[1]), expected[0])


def assert_refused(module: nn.Module, error: type[Exception], message: str, generator) -> None:
    before = tensors(module)
    with pytest.raises(error, match=message):
        module(inputs(generator))
    assert all(torch.equal(a, b) for a, b in zip(tensors(module), before, strict=True))


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("name", STACKS)
def test_what_compiles_a_level_changes_nothing(name, around, generator):
    plain = getattr(torchvq, name)(**STACKS[name])
    wrapped = copy.deepcopy(plain)
    wrapped.layers[1] = AROUND[around](wrapped.layers[1])
    assert_alike(wrapped, plain, generator)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("around", AROUND)
def test_what_compiles_a_scale_changes_nothing(around, shared, generator):
    plain = hierarchical(shared)
    wrapped = copy.deepcopy(plain)
    if shared:
        wrapped.vq = AROUND[around](wrapped.vq)
    else:
        wrapped.vqs[1] = AROUND[around](wrapped.vqs[1])
    assert_alike(wrapped, plain, generator)


def test_a_compiled_level_as_in_the_reference(generator):
    theirs = reference.ResidualVQ(**STACKS["ResidualVQ"])
    ours = torchvq.ResidualVQ(**STACKS["ResidualVQ"], vqp_compat=True)
    for module in (theirs, ours):
        module.layers[1] = torch.compile(module.layers[1], backend="eager")
    ours.load_state_dict(theirs.state_dict())
    x = inputs(generator)
    (quantized, indices, _), expected = ours(x), theirs(x)
    assert torch.equal(indices, expected[1])
    torch.testing.assert_close(quantized, expected[0], rtol=1e-5, atol=1e-5)
    state = ours.state_dict()
    for key, value in theirs.state_dict().items():
        torch.testing.assert_close(state[key], value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("around", [False, True], ids=["bare", "compiled"])
@pytest.mark.parametrize("name", STACKS)
def test_levels_of_other_classes_are_refused(name, around, generator):
    module = getattr(torchvq, name)(**STACKS[name])
    kind = {"ResidualVQ": "VectorQuantize"}.get(name, name.removeprefix("Residual"))
    module.layers[1] = torch.compile(nn.Identity()) if around else nn.Identity()
    got = "OptimizedModule" if around else "Identity"
    message = rf"^{name}: expected layers to be {kind}, but got {got}$"
    assert_refused(module, TypeError, message, generator)


@pytest.mark.parametrize("name", STACKS)
def test_stacks_without_levels_are_refused(name, generator):
    module = getattr(torchvq, name)(**STACKS[name])
    del module.layers[:]
    assert module.num_quantizers == 0
    message = rf"^{name}: expected layers to be at least one module, but got 0$"
    assert_refused(module, ValueError, message, generator)


@pytest.mark.parametrize("name", GROUPS)
def test_groups_of_unequal_depth_are_refused_before_any_learns(name, generator):
    module = getattr(torchvq, name)(**GROUPS[name])
    del module.rvqs[1].layers[-1]
    message = rf"^{name}: expected rvqs to be 2 stacks of equally many layers, but got stacks of \[2, 1\]$"
    assert_refused(module, ValueError, message, generator)
    del module.rvqs[0].layers[-1]
    assert module(inputs(generator))[1].shape == (2, 4, 10, 1)
    del module.rvqs[0]
    assert_refused(module, ValueError, r"but got stacks of \[1\]$", generator)


def test_scales_without_a_quantizer_are_refused(generator):
    module = hierarchical(False)
    del module.vqs[-1]
    message = "^HierarchicalVQ: expected vqs to be 3 modules, but got 2$"
    assert_refused(module, ValueError, message, generator)


@pytest.mark.parametrize("size", [16, 30])
def test_a_level_with_codes_of_its_own_does_not_move_shared_ones(size, generator):
    module = torchvq.ResidualVQ(**STACKS["ResidualVQ"], shared_codebook=True)
    module.layers[1] = torchvq.VectorQuantize(dim=DIM, codebook_size=size)
    message = r"expected layers to be levels of one codebook, with shared_codebook, but got another in levels \[1\]$"
    assert_refused(module, ValueError, message, generator)
    quantized, indices, _ = module.eval()(inputs(generator))
    torch.testing.assert_close(module.get_output_from_indices(indices), quantized)
