"""Parts of a quantizer in evaluation mode inside a module that trains: their codes stay, as in the reference."""

from __future__ import annotations

import copy

import pytest
import torch
import vector_quantize_pytorch as reference
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchvq

SIZES = dict(dim=8, codebook_size=16)
STACKS = {
    "plain": dict(num_quantizers=3),
    "projected": dict(num_quantizers=3, codebook_dim=4),
    "shared": dict(num_quantizers=3, shared_codebook=True),
    "beam": dict(num_quantizers=3, beam_size=2),
    "dropout": dict(num_quantizers=3, quantize_dropout=True),
    "dead": dict(num_quantizers=3, threshold_ema_dead_code=2),
    "compat": dict(num_quantizers=3, shared_codebook=True, vqp_compat=True),
}

GROUPS = {
    "GroupedResidualVQ": dict(codebook_size=8),
    "GroupedResidualLFQ": dict(codebook_size=16),
    "GroupedResidualFSQ": dict(levels=[4, 4, 4, 4]),
}


def steps(module: nn.Module, generator, count: int = 4) -> None:
    for _ in range(count):
        module(torch.randn(4, 24, 8, generator=generator))


def moved(module: nn.Module, before: nn.Module) -> list[bool]:
    """Whether the codes of each VectorQuantize have changed."""
    kinds = (torchvq.VectorQuantize, reference.VectorQuantize)
    pairs = zip(module.modules(), before.modules(), strict=True)
    return [not torch.equal(a.codebook, b.codebook) for a, b in pairs if isinstance(a, kinds)]


@pytest.mark.parametrize("options", STACKS.values(), ids=STACKS.keys())
def test_levels_in_evaluation_keep_their_codes(options, generator):
    module = torchvq.ResidualVQ(**SIZES, **options)
    module.layers.eval()
    before = copy.deepcopy(module)
    steps(module, generator)
    assert not any(moved(module, before))


@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_one_level_in_evaluation_alone_keeps_its_codes(frozen, generator):
    module, theirs = (
        library.ResidualVQ(**SIZES, num_quantizers=3) for library in (torchvq, reference)
    )
    for own in (module, theirs):
        own.layers[frozen].eval()
        before = copy.deepcopy(own)
        steps(own, generator)
        assert moved(own, before) == [level != frozen for level in range(3)]


def test_the_other_levels_learn_as_if_all_did(generator):
    module = torchvq.ResidualVQ(**SIZES, num_quantizers=2)
    whole = copy.deepcopy(module)
    module.layers[1].eval()
    x = torch.randn(4, 24, 8, generator=generator)
    _, indices, loss = module(x)
    _, expected, losses = whole(x)
    assert torch.equal(indices, expected)
    assert torch.equal(module.layers[0].codebook, whole.layers[0].codebook)
    assert loss[1] == 0 and loss[0] == losses[0]


@pytest.mark.parametrize("kind", ["VectorQuantize", "ResidualVQ"])
def test_a_codebook_in_evaluation_keeps_its_codes(kind, generator):
    options = dict(num_quantizers=2) if kind == "ResidualVQ" else {}
    module = getattr(torchvq, kind)(**SIZES, **options)
    for part in module.modules():
        if isinstance(part, torchvq.VectorQuantize):
            part._codebook.eval()
    before = copy.deepcopy(module)
    steps(module, generator)
    assert not any(moved(module, before))
    module.train()
    steps(module, generator)
    assert all(moved(module, before))


def test_groups_and_scales(generator):
    grouped = torchvq.GroupedResidualVQ(**SIZES, groups=2, num_quantizers=2)
    grouped.rvqs[0].layers.eval()
    before = copy.deepcopy(grouped)
    steps(grouped, generator)
    assert moved(grouped, before) == [False, False, True, True]
    scales = torchvq.HierarchicalVQ(
        **SIZES, scales=(1, 2, 4), channel_first=False, kmeans_init=False
    )
    scales.vq._codebook.eval()
    before = copy.deepcopy(scales)
    steps(scales, generator)
    assert not any(moved(scales, before))


@pytest.mark.parametrize("evaluating", [0, 1])
@pytest.mark.parametrize("kind", GROUPS)
def test_groups_drop_levels_by_their_own_mode(kind, evaluating, generator):
    options = GROUPS[kind] | dict(dim=8, groups=2, num_quantizers=4, quantize_dropout=True)
    grouped = getattr(torchvq, kind)(**options)
    grouped.rvqs[evaluating].eval()
    depths = {0: set(), 1: set()}
    for seed in [None] * 12 + list(range(12)):
        x = torch.randn(1, 2, 8, generator=generator)
        indices = grouped(x, rand_quantize_dropout_fixed_seed=seed).indices
        for group, own in enumerate(indices[:, 0, 0]):
            depths[group].add(int(own.ge(0).sum()))
    assert depths[evaluating] == {4}
    assert depths[1 - evaluating] == {1, 2, 3, 4}


def test_all_groups_that_train_drop_the_same_levels(generator):
    grouped = torchvq.GroupedResidualVQ(**SIZES, groups=4, num_quantizers=4, quantize_dropout=True)
    for group in (0, 2):
        grouped.rvqs[group].eval()
    for _ in range(8):
        used = grouped(torch.randn(1, 2, 8, generator=generator)).indices.ge(0)
        assert torch.equal(used[1], used[3])


@pytest.mark.parametrize("evaluating", [0, 1])
def test_a_recomputed_group_learns_once_beside_one_in_evaluation(evaluating, generator):
    plain = torchvq.GroupedResidualVQ(**SIZES, groups=2, num_quantizers=2, affine_param=True)
    plain.rvqs[evaluating].eval()
    again = copy.deepcopy(plain)
    x = torch.randn(2, 12, 8, generator=generator, requires_grad=True)
    plain(x, return_all_codes=True)
    output = checkpoint(again, x, return_all_codes=True, use_reentrant=False)
    output[0].sum().backward()
    for name, value in again.state_dict().items():
        assert torch.equal(value, plain.state_dict()[name]), name


def test_options_that_are_set_on_a_level_hold_for_it(generator):
    """Each level against a stack all of whose levels have its options."""
    module = torchvq.ResidualVQ(**SIZES, num_quantizers=2)
    slow, fast = copy.deepcopy(module), copy.deepcopy(module)
    for own, decays in ((module, (0.8, 0.99)), (slow, (0.99, 0.99)), (fast, (0.8, 0.8))):
        for level, decay in zip(own.layers, decays, strict=True):
            level._codebook.decay = decay
    x = torch.randn(4, 24, 8, generator=generator)
    for own in (module, slow, fast):
        own(x)
    assert torch.equal(module.layers[0].codebook, fast.layers[0].codebook)
    assert torch.equal(module.layers[1].codebook, slow.layers[1].codebook)
    assert not torch.equal(module.layers[1].codebook, fast.layers[1].codebook)
    module.layers[1].has_commitment_loss = False
    assert module(x).loss.ne(0).tolist() == [True, False]


def test_evaluation_with_codes_that_learn_can_be_mapped_over_tokens(generator):
    module = torchvq.ResidualVQ(
        **SIZES, num_quantizers=2, learnable_codebook=True, ema_update=False
    ).eval()
    x = torch.randn(3, 2, 5, 8, generator=generator)
    mapped = torch.vmap(lambda x: module(x)[0])(x)
    torch.testing.assert_close(mapped, torch.stack([module(part)[0] for part in x]))
