"""Calls that work in the reference and did not here: each beside the reference."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import vector_quantize_pytorch
import vector_quantize_pytorch.residual_vq

import torchvq

SIGNS = dict(dim=4, codebook_size=16, num_quantizers=2, commitment_loss_weight=0.25)


def both(name: str, **options: Any) -> tuple[torch.nn.Module, torch.nn.Module]:
    """The class here and in the reference, with the same state."""
    ours = getattr(torchvq, name)(**options)
    theirs = getattr(vector_quantize_pytorch, name)(**options)
    ours.load_state_dict(theirs.state_dict(), strict=False)
    return ours, theirs


@pytest.mark.parametrize(
    "shape", [(2, 4, 3, 3), (2, 4, 2, 3, 5), (2, 4, 3, 4), (2, 4, 4, 4)], ids=str
)
def test_residual_lfq_takes_images_and_volumes(shape: tuple[int, ...]) -> None:
    ours, theirs = both("ResidualLFQ", **SIGNS)
    x = torch.randn(shape)
    found = ours.eval()(x, return_all_codes=True)
    expected = theirs.eval()(x, return_all_codes=True)
    for own, their in zip(found, expected, strict=True):
        torch.testing.assert_close(own, their.to(own.dtype))


def test_residual_lfq_takes_channel_first() -> None:
    ours, theirs = both("ResidualLFQ", **SIGNS, channel_first=True)
    x = torch.randn(2, 4, 5)
    for own, their in zip(ours.eval()(x), theirs.eval()(x), strict=True):
        torch.testing.assert_close(own, their.to(own.dtype))


def test_groups_of_lfq_keep_their_layout() -> None:
    module = torchvq.GroupedResidualLFQ(**SIGNS | dict(dim=8), groups=2).eval()
    x = torch.randn(2, 4, 3, 8)
    flat = module(x.flatten(1, 2))
    found = module(x)
    assert torch.equal(found.quantized, flat.quantized.reshape(x.shape))
    assert torch.equal(found.indices.flatten(2, 3), flat.indices)


@pytest.mark.parametrize("garbage", [1e20, 1.9e24, float("nan"), float("inf"), -3.0])
@pytest.mark.parametrize("vqp_compat", [False, True])
def test_affine_statistics_of_a_fresh_checkpoint_are_read_by_none(
    garbage: float, vqp_compat: bool
) -> None:
    """Those of the codes are uninitialised memory in the reference until its first step."""
    options = dict(dim=4, codebook_size=8, affine_param=True)
    theirs = vector_quantize_pytorch.VectorQuantize(**options)
    state = theirs.state_dict()
    for name in ("codebook_mean", "codebook_variance"):
        state[f"_codebook.{name}"] = torch.full_like(state[f"_codebook.{name}"], garbage)
    found = []
    for own in (state, theirs.state_dict() | _plain(theirs)):
        module = torchvq.VectorQuantize(**options, vqp_compat=vqp_compat)
        module.load_state_dict(own)
        x = torch.randn(2, 20, 4, generator=torch.Generator().manual_seed(0))
        module(x)
        found.append(module.eval()(x))
        assert all(value.isfinite().all() for value in module.state_dict().values())
    assert torch.equal(found[0].quantized, found[1].quantized)


def _plain(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    state = module.state_dict()
    mean, variance = "_codebook.codebook_mean", "_codebook.codebook_variance"
    return {mean: torch.zeros_like(state[mean]), variance: torch.ones_like(state[variance])}


@pytest.mark.parametrize("name", ["ResidualVQ", "ResidualFSQ", "ResidualLFQ", "ResidualSimVQ"])
@pytest.mark.parametrize(
    "dropout",
    [
        dict(num_quantizers=2, quantize_dropout_cutoff_index=4),
        dict(num_quantizers=1, quantize_dropout=True, quantize_dropout_cutoff_index=1),
    ],
    ids=["off", "one level"],
)
def test_a_cutoff_without_effect_is_taken(name: str, dropout: dict[str, Any]) -> None:
    codes = dict(levels=[5, 5]) if name == "ResidualFSQ" else dict(codebook_size=16)
    kind = dict(commitment_loss_weight=0.25) if name == "ResidualLFQ" else {}
    for module in both(name, dim=4, **codes, **kind, **dropout):
        assert module(torch.randn(1, 9, 4))[0].shape == (1, 9, 4)
    wrong = dict(num_quantizers=2, quantize_dropout=True, quantize_dropout_cutoff_index=2)
    with pytest.raises(ValueError, match="quantize_dropout_cutoff_index"):
        getattr(torchvq, name)(dim=4, **codes, **kind, **wrong)


def test_lfq_takes_a_mask_of_flat_positions() -> None:
    module = torchvq.LFQ(dim=4, commitment_loss_weight=0.25)
    x, mask = torch.randn(2, 4, 3, 3), torch.rand(2, 9) > 0.4
    for flat, grid in zip(module(x, mask=mask), module(x, mask=mask.reshape(2, 3, 3)), strict=True):
        assert torch.equal(flat, grid)
    assert vector_quantize_pytorch.LFQ(dim=4)(x, mask=mask)[0].shape == x.shape


def test_names_that_users_read() -> None:
    ours, theirs = both("BinaryMapper", bits=3)
    assert torch.equal(ours.codes, theirs.codes)
    for options in ({}, dict(learnable_codebook=True, ema_update=False)):
        stacks = both("ResidualVQ", dim=4, codebook_size=8, num_quantizers=2, **options)
        assert stacks[0].vq_is_ema_updating == stacks[1].vq_is_ema_updating


def test_residual_lfq_takes_no_text_for_channel_first() -> None:
    with pytest.raises(TypeError, match="is_channel_first"):
        torchvq.ResidualLFQ(**SIGNS, channel_first="False")


@pytest.mark.parametrize("name", ["VectorQuantize", "ResidualVQ"])
def test_options_that_users_set_on_codebooks(name: str) -> None:
    stack = dict(num_quantizers=2) if name == "ResidualVQ" else {}
    options = dict(dim=4, codebook_size=8, stochastic_sample_codes=True)
    x = torch.randn(1, 60, 4)
    for module in both(name, **options, **stack):
        before = module.state_dict()
        levels = [part for part in module.modules() if hasattr(part, "_codebook")]
        nearest = module.eval()(x)[1]
        for level in levels:
            level._codebook.ema_update = False
            level._codebook.sample_codebook_temp = 1e-6
        assert torch.equal(module.train()(x)[1], nearest)
        for key, value in module.state_dict().items():
            assert key.endswith("rng") or torch.equal(value, before[key]), key


def test_options_of_codebooks_are_those_of_the_quantizer() -> None:
    module = torchvq.VectorQuantize(dim=4, codebook_size=8)
    module.sample_codebook_temp, module.ema_update = 0.5, False
    assert module._codebook.sample_codebook_temp == 0.5 and module._codebook.ema_update is False
    assert copy.deepcopy(module).ema_update is False


def without_rotation(module: torch.nn.Module, levels: int) -> torch.nn.Module:
    rotated = [part for part in module.modules() if "orthogonal_rotation" in vars(part)]
    for part in rotated[:levels]:
        part.orthogonal_rotation = False
    return module


@pytest.mark.parametrize(
    ("name", "options", "levels"),
    [
        ("FSQ", dict(levels=[8, 8]), 1),
        ("LFQ", dict(codebook_size=16), 1),
        ("LFQ", dict(codebook_size=16, straight_through_activation=torch.nn.Tanh()), 1),
        ("ResidualFSQ", dict(levels=[8, 8], num_quantizers=3, dim=2), 1),
        ("ResidualFSQ", dict(levels=[8, 8], num_quantizers=3, dim=2), 3),
        ("ResidualLFQ", SIGNS, 2),
    ],
)
@pytest.mark.parametrize("training", [False, True])
def test_a_rotation_is_switched_off(
    name: str, options: dict[str, Any], levels: int, training: bool
) -> None:
    ours, theirs = (
        without_rotation(module, levels).train(training)
        for module in both(name, **options, orthogonal_rotation=True)
    )
    width = 2 if "levels" in options else 4
    x = torch.randn(2, 5, width, generator=torch.Generator().manual_seed(0))
    found, expected = ours(x), theirs(x)
    torch.testing.assert_close(found[0], expected[0])
    assert torch.equal(found[1], expected[1].long())
    decode = getattr(ours, "get_output_from_indices", None) or ours.indices_to_codes
    torch.testing.assert_close(decode(found[1]), found[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (torchvq.LFQ(dim=4, commitment_loss_weight=0.25), "frac_per_sample_entropy"),
        (torchvq.FSQ([5] * 4), "noise_dropout"),
    ],
)
def test_options_that_draw_are_given_at_construction(module: torch.nn.Module, name: str) -> None:
    setattr(module, name, 0.5)
    module.eval()(torch.randn(1, 6, 4))
    with pytest.raises(ValueError, match=f"{name} to be given to the constructor"):
        module.train()(torch.randn(1, 6, 4))


@pytest.mark.parametrize("options", [{}, dict(dim_hidden=6, depth=2, l2norm_output=True)], ids=str)
@pytest.mark.parametrize("codes", [(5, 4), (1, 5, 4), (2, 5, 4)], ids=str)
@pytest.mark.parametrize("condition", [(3, 4), (2, 3, 4), (1, 2, 3, 4)], ids=str)
def test_networks_of_implicit_codebooks(
    codes: tuple[int, ...], condition: tuple[int, ...], options: dict[str, Any]
) -> None:
    theirs = vector_quantize_pytorch.residual_vq.MLP(4, **options)
    ours = torchvq.residual_vq.MLP(4, **options)
    ours.load_state_dict(theirs.state_dict())
    base, given = torch.randn(codes), torch.randn(condition)
    expected = theirs(base, condition=given)
    torch.testing.assert_close(ours(base, condition=given), expected)
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(base, condition=given), expected)


@pytest.mark.parametrize(
    ("codes", "condition", "name"), [((4,), (3, 4), "codes"), ((5, 4), (4,), "condition")]
)
def test_networks_of_implicit_codebooks_name_wrong_shapes(
    codes: tuple[int, ...], condition: tuple[int, ...], name: str
) -> None:
    network = torchvq.residual_vq.MLP(4)
    with pytest.raises(ValueError, match=f"MLP: expected {name} to be"):
        network(torch.randn(codes), condition=torch.randn(condition))
