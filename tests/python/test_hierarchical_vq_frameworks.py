"""HierarchicalVQ under casts, checkpoints of activations and compilers."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.utils.prune
from hierarchical_vq_cases import CODES, DIM, build, data, half_mask
from torch.utils.checkpoint import checkpoint

from support import assert_close_to_rounding

# Casts ---------------------------------------------------------------------------------------------------------------


def test_half_precision_is_computed_in_float32():
    x = data(2, DIM, 6).bfloat16()
    wide = build().eval()
    expected = wide(x.float())
    found = build().eval()(x)
    assert found.quantized.dtype == torch.bfloat16
    assert torch.equal(found.quantized, expected.quantized.bfloat16())
    assert all(torch.equal(a, b) for a, b in zip(found.indices, expected.indices, strict=True))


def test_autocast_changes_nothing():
    x = data(2, DIM, 6)
    expected = build()(x)
    with torch.autocast("cpu", torch.bfloat16):
        found = build()(x)
    assert torch.equal(found.quantized, expected.quantized)
    assert torch.equal(found.loss, expected.loss)


# Checkpoints of activations, compilers ------------------------------------------------------------------------------


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        dict(nested_dropout=0.7),
        dict(nested_dropout=0.7, shared_codebook=False),
        dict(stochastic_sample_codes=True),
        dict(orthogonal_reg_weight=0.5),
        dict(vqp_compat=True),
        dict(vqp_compat=True, orthogonal_reg_weight=0.5),
        dict(vqp_compat=True, orthogonal_reg_weight=0.5, nested_dropout=0.7),
    ],
    ids=str,
)
def test_recomputed_is_plain(options, reentrant):
    """From the first step on, which initialises the codes."""
    plain = build(codes=False, **options)
    module = copy.deepcopy(plain)

    def forward(x):
        found = module(x)
        return found.quantized, found.loss

    for step in range(4):
        x, y = (data(3, DIM, 6, seed=step).requires_grad_() for _ in range(2))
        expected = plain(x)
        quantized, loss = checkpoint(forward, y, use_reentrant=reentrant)
        (expected.quantized.square().sum() + expected.loss).backward()
        (quantized.square().sum() + loss).backward()
        assert torch.equal(quantized, expected.quantized) and torch.equal(loss, expected.loss)
        assert torch.equal(y.grad, x.grad)
        for name, value in plain.state_dict().items():
            assert torch.equal(module.state_dict()[name], value), name
        for a, b in zip(module.parameters(), plain.parameters(), strict=True):
            assert (a.grad is None and b.grad is None) or torch.equal(a.grad, b.grad)


@pytest.mark.parametrize(
    "options",
    [
        dict(codes=False),
        dict(nested_dropout=0.7),
        dict(nested_dropout=0.7, vqp_compat=True),
        dict(nested_dropout=0.7, shared_codebook=False, share_quant_resi=0),
    ],
    ids=["kmeans", "dropout", "compatible", "own"],
)
@pytest.mark.parametrize("masked", [False, True])
def test_compiled_is_eager(options, masked):
    """Graphs compute dropped scales, too, and mask them."""
    eager = build(**options)
    module = copy.deepcopy(eager)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    for step in range(6):
        mask = half_mask(3, 6, seed=step) if masked else None
        x, y = (data(3, DIM, 6, seed=step).requires_grad_() for _ in range(2))
        expected, found = eager(x, mask=mask), compiled(y, mask=mask)
        (expected.quantized.square().sum() + expected.loss).backward()
        (found.quantized.square().sum() + found.loss).backward()
        assert all(torch.equal(a, b) for a, b in zip(found.indices, expected.indices, strict=True))
        assert torch.equal(found.quantized, expected.quantized)
        assert_close_to_rounding(found.loss, expected.loss)
        assert_close_to_rounding(y.grad, x.grad)
        for name, value in eager.state_dict().items():
            assert torch.equal(module.state_dict()[name], value), name
        for a, b in zip(module.parameters(), eager.parameters(), strict=True):
            assert_close_to_rounding(a.grad, b.grad)


# Its convolutions as modules ------------------------------------------------------------------------------------------


def test_a_pruned_checkpoint_is_what_was_pruned():
    original, resumed = build().train(), build().train()
    for module in (original, resumed):
        for number, part in enumerate(module.modules()):
            if isinstance(part, torch.nn.Conv1d):
                torch.nn.init.normal_(part.weight, generator=torch.Generator().manual_seed(number))
                torch.nn.utils.prune.random_unstructured(part, "weight", 0.5)
    resumed.load_state_dict(copy.deepcopy(original.state_dict()))
    x = data(2, DIM, 6)
    assert torch.equal(original.eval()(x).quantized, resumed.eval()(x).quantized)
    for _ in range(2):  # a second step finds no freed graph
        found = resumed.train()(x.requires_grad_())
        (found.quantized.square().sum() + found.loss).backward()


def test_hooks_of_the_convolutions_see_and_change_their_maps():
    module = build().eval()
    x = data(2, DIM, 6)
    expected = module(x).quantized
    seen = []
    convolutions = [part for part in module.modules() if isinstance(part, torch.nn.Conv1d)]
    hooks = [own.register_forward_hook(lambda *_: seen.append(1)) for own in convolutions]
    assert_close_to_rounding(module(x).quantized, expected)
    assert len(seen) >= len(convolutions)
    for hook in hooks:
        hook.remove()
    convolutions[0].register_forward_hook(lambda _conv, _x, output: output * 0)
    assert not torch.allclose(module(x).quantized, expected)


@pytest.mark.parametrize("options", [{}, dict(nested_dropout=0.5)], ids=str)
def test_a_frozen_forward_that_draws_nothing_leaves_the_generators(options):
    module = build(**options).train()
    before = {name: own.clone() for name, own in module.state_dict().items()}
    module(data(2, DIM, 6), freeze_codebook=True)
    moved = [
        name for name, own in module.state_dict().items() if not torch.equal(own, before[name])
    ]
    assert bool(moved) == bool(options) and all(name.endswith("rng") for name in moved)


@pytest.mark.parametrize("averages", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_codes_in_another_number_are_searched_counted_and_learnt(shared, averages):
    module = build(shared_codebook=shared, kmeans_init=False, threshold_ema_dead_code=0)
    quantizers = [module.vq] if shared else list(module.vqs)
    for vq in quantizers:
        codebook = vq._codebook
        codebook.embed = torch.randn(1, 3 * CODES, DIM)
        if averages:
            codebook.embed_avg = codebook.embed.clone()
            codebook.cluster_size = torch.ones(1, 3 * CODES)
    before = [vq._codebook.embed.clone() for vq in quantizers]
    x = data(4, DIM, 16)
    found = module(x, freeze_codebook=True)
    assert max(int(scale.max()) for scale in found.indices) >= CODES
    if not averages:
        return
    found = module(x)
    for vq, codes in zip(quantizers, before, strict=True):
        assert not torch.equal(vq._codebook.embed, codes)
    for stats, indices in zip(module.stats(), found.indices, strict=True):
        assert stats.tokens == indices.numel()
        assert stats.usage == pytest.approx(indices.unique().numel() / (3 * CODES))
