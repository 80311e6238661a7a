"""HierarchicalVQ (python/torchvq/hierarchical_vq.py) beyond parity."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from hierarchical_vq_cases import CODES, DIM, SHAPES, build, data, half_mask
from scales_oracle import expected_walk
from torch import nn

import torchvq
from support import assert_close_to_rounding
from torchvq import HierarchicalVQ, VectorQuantize


def learning_options() -> dict[str, dict[str, object]]:
    return {
        "plain": {},
        "own": dict(shared_codebook=False),
        "phis": dict(share_quant_resi=2, quant_resi=0.9),
        "rotation": dict(rotation_trick=True),
        "cosine": dict(use_cosine_sim=True),
        "compatible": dict(vqp_compat=True),
        "dropout": dict(nested_dropout=0.7),
    }


every_option = pytest.mark.parametrize("name", learning_options())


# The walk ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_is_the_walk_by_plain_loops(axes, masked, training, own):
    for full in SHAPES[axes]:
        module = build(axes, shared_codebook=not own, share_quant_resi=2).train(training)
        x, mask = data(3, DIM, *full), half_mask(3, *full) if masked else None
        expected = copy.deepcopy(module)
        found = module(x, mask=mask)
        indices, output, _ = expected_walk(expected, x, mask)
        assert all(torch.equal(a, b) for a, b in zip(found.indices, indices, strict=True))
        torch.testing.assert_close(found.quantized.double(), output, rtol=1e-5, atol=1e-5)


def test_channel_last_is_the_same_with_other_axes():
    x, mask = data(2, DIM, 5, 4), half_mask(2, 5, 4)
    first = build(2)(x, mask=mask)
    last = build(2, channel_first=False)(x.movedim(1, -1), mask=mask)
    assert torch.equal(first.quantized.movedim(1, -1), last.quantized)
    assert all(torch.equal(a, b) for a, b in zip(first.indices, last.indices, strict=True))
    assert torch.equal(first.loss, last.loss)
    decoded = build(2, channel_first=False).get_output_from_indices(last.indices, (5, 4), mask=mask)
    assert torch.equal(decoded, last.quantized)


def test_lens_are_a_mask():
    x, lens = data(3, DIM, 7), torch.tensor([7, 2, 0])
    mask = torch.arange(7) < lens[:, None]
    a, b = build()(x, lens=lens), build()(x, mask=mask)
    assert torch.equal(a.quantized, b.quantized) and torch.equal(a.loss, b.loss)


# Options of single scales --------------------------------------------------------------------------------------------


def freeze(vq: VectorQuantize) -> None:
    vq.freeze_codebook = True


def leave_averages(vq: VectorQuantize) -> None:
    vq._codebook.ema_update = False


@pytest.mark.parametrize("changed", range(3))
@pytest.mark.parametrize("change", [VectorQuantize.eval, freeze, leave_averages])
@pytest.mark.parametrize("options", [{}, {"sync_every": 2}, {"vqp_compat": True}], ids=str)
def test_exactly_that_scale_stops(change, changed, options):
    own = dict(shared_codebook=False, decay=0.5, threshold_ema_dead_code=0)
    modules = [build(**own, **options) for _ in range(2)]
    change(modules[1].vqs[changed])
    start = modules[1].vqs[changed].codebook.clone()
    # One update of the codes, so that both search the same ones.
    for step in range(options.get("sync_every", 1)):
        for module in modules:
            module(data(2, DIM, 5, seed=step))
    for scale, (learnt, own) in enumerate(zip(modules[0].vqs, modules[1].vqs, strict=True)):
        expected = start if scale == changed else learnt.codebook
        assert torch.equal(own.codebook, expected)
        assert not torch.equal(learnt.codebook, start)


@pytest.mark.parametrize("asked", [None, False, True])
def test_a_call_freezes_all_scales_or_none(asked):
    module = build(shared_codebook=False)
    freeze(module.vqs[1])
    before = [vq.codebook.clone() for vq in module.vqs]
    module(data(2, DIM, 5), freeze_codebook=asked)
    moved = [not torch.equal(vq.codebook, old) for vq, old in zip(module.vqs, before, strict=True)]
    assert moved == {None: [True, False, True], False: [True] * 3, True: [False] * 3}[asked]


def test_a_frozen_scale_draws_in_every_step():
    module = build(shared_codebook=False, stochastic_sample_codes=True)
    freeze(module.vqs[1])
    for step in range(1, 4):
        module(data(2, DIM, 5))
        assert [int(vq._codebook.rng[1]) for vq in module.vqs] == [step] * 3


# Decoding ------------------------------------------------------------------------------------------------------------


@every_option
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_decoding_is_the_output(name, axes):
    """For every size, mask and depth, bit for bit; in training with the codes before the update."""
    for full in SHAPES[axes]:
        for mask in (None, half_mask(3, *full)):
            options = learning_options()[name]
            # In training, the reference's dropped scales have indices that its output does not include.
            for training in (False, True):
                module = build(axes, **options).train(training)
                before = copy.deepcopy(module).eval()
                found = module(data(3, DIM, *full), mask=mask)
                if name in ("rotation", "compatible") and training:
                    # With "compatible", scales search codes that have moved; with "rotation", the output is the code
                    # only up to rounding.
                    continue
                decoded = before.get_output_from_indices(found.indices, full, mask=mask)
                assert torch.equal(decoded, found.quantized)


def test_decoding_without_a_size_is_that_of_the_last_scale():
    module = build(2, scales=((1, 1), (3, 5))).eval()
    found = module(data(2, DIM, 3, 5))
    assert torch.equal(module.get_output_from_indices(found.indices), found.quantized)


def test_absent_scales_add_nothing():
    module = build().eval()
    found = module(data(2, DIM, 4))
    absent = [torch.full_like(indices, -1) for indices in found.indices]
    assert module.get_output_from_indices(absent).eq(0).all()
    one = module.get_output_from_indices([found.indices[0], *absent[1:]])
    codes = module.vq.codebook[found.indices[0]]
    assert torch.equal(one, module.phi_shared(codes, (1,), (4,)))


# Learning ------------------------------------------------------------------------------------------------------------


def test_one_update_from_the_tokens_of_all_scales():
    """The update is that of a VectorQuantize on the tokens of all scales as one batch, decayed once per scale."""
    module = build(2, threshold_ema_dead_code=0)
    decay = 0.99**module.num_levels
    expected = VectorQuantize(
        DIM, CODES, decay=decay, rotation_trick=False, threshold_ema_dead_code=0
    )
    expected.codebook = module.vq.codebook
    for step in range(3):
        x = data(2, DIM, 5, 4, seed=step)
        mask = half_mask(2, 5, 4, seed=step) if step == 2 else None
        _, _, tokens = expected_walk(module, x, mask)
        module(x, mask=mask)
        expected(torch.cat(tokens).float().unsqueeze(0))
        for name in ("cluster_size", "embed_avg", "embed"):
            torch.testing.assert_close(
                getattr(module.vq._codebook, name), getattr(expected._codebook, name)
            )


def test_own_codebooks_learn_from_their_own_scale():
    module = build(shared_codebook=False, codebook_size=(8, 12, 16), threshold_ema_dead_code=0)
    expected = [VectorQuantize(DIM, size, decay=0.99, rotation_trick=False) for size in (8, 12, 16)]
    for vq, own in zip(expected, module.levels, strict=True):
        vq.codebook = own.codebook
    x = data(3, DIM, 5)
    _, _, tokens = expected_walk(module, x)
    module(x)
    for vq, own, part in zip(expected, module.levels, tokens, strict=True):
        vq(part.float().unsqueeze(0))
        torch.testing.assert_close(own._codebook.embed, vq._codebook.embed)
    assert [stats.tokens for stats in module.stats()] == [3, 6, 12]


def test_loss_is_the_mean_of_the_distances():
    module = build(commitment_weight=0.3)
    x = data(2, DIM, 6)
    indices, _, tokens = expected_walk(module, x)
    codes = module.vq.codebook.double()
    each = [
        (part - codes[found.flatten()]).square().mean()
        for part, found in zip(tokens, indices, strict=True)
    ]
    torch.testing.assert_close(module(x).loss.double(), 0.3 * sum(each) / 3)
    assert module.eval()(x).loss == 0 and not module(x).loss.requires_grad


def test_gradient_is_that_of_the_walk_without_codes():
    """Straight-through: the gradient is that of the forward with each code replaced by its token, which is linear."""
    module = build(2, share_quant_resi=0)
    x = data(2, DIM, 5, 4).requires_grad_()
    weight = data(2, DIM, 5, 4, seed=9)
    (module(x).quantized * weight).sum().backward()
    y = x.detach().clone().requires_grad_()
    residual, output = y, torch.zeros_like(y)
    for n, shape in enumerate(module.level_shapes):
        grid = nn.functional.adaptive_avg_pool2d(residual, shape)
        taken = module.upsample_to_full(grid, (5, 4), n)
        output, residual = output + taken, residual - taken
    (output * weight).sum().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-5)


def test_kmeans_sees_all_scales():
    """Two images have two tokens of the coarsest scale, too few for distinct codes."""
    module = build(2, codes=False, threshold_ema_dead_code=0)
    module(data(2, DIM, 4, 4))
    codes = module.vq.codebook
    assert module.vq._codebook.initted and codes.unique(dim=0).shape[0] == CODES
    compatible = build(2, codes=False, threshold_ema_dead_code=0, vqp_compat=True)
    compatible(data(2, DIM, 4, 4))
    assert compatible.vq.codebook.unique(dim=0).shape[0] < CODES


@pytest.mark.parametrize("own", [False, True])
def test_a_codebook_that_trains_alone_learns_once_from_all_scales(own):
    module, trained = (build(1, shared_codebook=not own, threshold_ema_dead_code=0) for _ in "ab")
    module.eval()
    for level in module.levels:
        level.train()
    for _ in range(2):
        x = data(3, DIM, 8)
        module(x)
        trained(x)
    for level, expected in zip(module.levels, trained.levels, strict=True):
        found, other = level._codebook.state_dict(), expected._codebook.state_dict()
        assert all(torch.equal(found[n], other[n]) for n in ("embed", "embed_avg", "cluster_size"))


def test_frozen_codes_stay():
    for options, call in (({"freeze_codebook": True}, {}), ({}, {"freeze_codebook": True})):
        module = build(**options)
        before = copy.deepcopy(module.state_dict())
        module(data(3, DIM, 6), **call)
        for name, value in module.state_dict().items():
            assert "rng" in name or torch.equal(value, before[name])


def test_dead_codes_are_replaced_by_tokens_of_any_scale():
    module = build(dead_code_threshold_fraction=0.5, threshold_ema_dead_code=0, decay=0.0)
    with torch.no_grad():
        far = module.vq.codebook.clone()
        far[3:] = 1000.0
    module.vq.codebook = far
    for _ in range(4):  # a quarter of the 28 tokens of a step
        module(data(4, DIM, 6))
        stats = module.stats()
        assert all(scale.replaced == stats[0].replaced > 0 for scale in stats)
    assert module.vq.codebook.abs().max() < 100


# Targets -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [False, True])
def test_targets_are_scored_by_cross_entropy(training):
    module = build().train(training)
    x = data(2, DIM, 6)
    _, output, tokens = expected_walk(module, x)
    targets = [torch.randint(-1, CODES, (2, *shape)) for shape in module.level_shapes]
    codes = module.vq.codebook.double()
    each = [
        nn.functional.cross_entropy(-torch.cdist(part, codes), target.flatten(), ignore_index=-1)
        for part, target in zip(tokens, targets, strict=True)
    ]
    quantized, loss = module(x, indices=targets)
    torch.testing.assert_close(loss.double(), sum(each) / 3, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(quantized.double(), output, rtol=1e-5, atol=1e-5)


# Dropout -------------------------------------------------------------------------------------------------------------


def test_the_share_of_each_depth():
    module = build(scales=(1, 2, 3, 4), nested_dropout=0.6, nested_dropout_min_levels=2)
    counts = {}
    for _ in range(2000):
        cutoff = module.sample_nested_cutoff()
        counts[cutoff] = counts.get(cutoff, 0) + 1
        torch.ops.torchvq.advance_rng_(module.vq._codebook.rng)
    assert counts.keys() == {None, 1, 2}
    # Within four standard deviations.
    for cutoff, share in ((None, 0.4), (1, 0.3), (2, 0.3)):
        assert abs(counts[cutoff] / 2000 - share) < 4 * math.sqrt(share * (1 - share) / 2000)


@pytest.mark.parametrize("own", [False, True])
def test_dropped_scales_are_absent(own):
    for seed in range(6):
        options = dict(shared_codebook=not own, share_quant_resi=0)
        module = build(nested_dropout=1.0, decay=0.25, **options)
        module.levels[0]._codebook.rng[0] = seed
        before = copy.deepcopy(module)
        expected = module.sample_nested_cutoff()
        x = data(3, DIM, 6)
        found = module(x, return_cutoff=True)
        assert found.cutoff == expected is not None
        kept = found.cutoff + 1
        for n, indices in enumerate(found.indices):
            assert indices.ge(0).all() == (n < kept) == bool(indices.ne(-1).any())
        # The same as a module without the dropped scales, but that a shared codebook decays for them, too.
        decay = 0.25 if own else 0.25 ** (3 / kept)
        fewer = build(scales=(1, 2, 4)[:kept], decay=decay, **options)
        fewer.load_state_dict(
            {
                name: value
                for name, value in before.state_dict().items()
                if name in fewer.state_dict()
            }
        )
        alone = fewer(x)
        assert torch.equal(found.quantized, alone.quantized)
        assert_close_to_rounding(found.loss, alone.loss)
        assert [s.tokens for s in module.stats()] == [3, 6, 12][:kept] + [0] * (3 - kept)
        for name, value in fewer.state_dict().items():
            assert torch.equal(module.state_dict()[name], value), name


def test_dropped_scales_have_gradients_of_zero():
    module = build(nested_dropout=1.0, share_quant_resi=0)
    found = module(data(3, DIM, 6), return_cutoff=True)
    (found.loss + found.quantized.sum()).backward()
    for n, phi in enumerate(module.phi_levels):
        assert (phi.conv.weight.grad.abs().sum() > 0) == (n <= found.cutoff)


def test_evaluation_drops_nothing():
    found = build(nested_dropout=1.0).eval()(data(3, DIM, 6), return_cutoff=True)
    assert found.cutoff is None and all(indices.ge(0).all() for indices in found.indices)


# Nothing, and what is not a number ----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(0, DIM, 5), (2, DIM, 0), (0, DIM, 0)], ids=str)
@pytest.mark.parametrize("name", [name for name in learning_options() if name != "compatible"])
def test_nothing_teaches_nothing(shape, name):
    module = build(**learning_options()[name])
    before = copy.deepcopy(module.state_dict())
    x = data(*shape).requires_grad_()
    found = module(x)
    assert found.quantized.shape == x.shape and found.loss == 0
    assert module.get_output_from_indices(found.indices, shape[2:]).shape == x.shape
    assert all(indices.eq(-1).all() for indices in found.indices)
    (found.quantized.sum() + found.loss).backward()
    for key, value in module.state_dict().items():
        assert torch.equal(value, before[key]), key


def test_padding_may_hold_anything():
    x, mask = data(3, DIM, 7), half_mask(3, 7)
    hostile = torch.where(mask.unsqueeze(1), x, math.nan).requires_grad_()
    plain = x.clone().requires_grad_()
    a, b = build()(plain, mask=mask), build()(hostile, mask=mask)
    assert torch.equal(a.quantized, b.quantized) and torch.equal(a.loss, b.loss)
    (a.quantized.sum() + a.loss).backward()
    (b.quantized.sum() + b.loss).backward()
    assert torch.equal(plain.grad, hostile.grad)
    assert a.quantized.movedim(1, -1)[~mask].eq(0).all()


def test_a_sample_that_is_not_finite_is_alone():
    module, plain = build(), build()
    x = data(3, DIM, 6)
    hostile = x.clone()
    hostile[1, :, 2] = math.inf
    found, expected = module(hostile), plain(x[[0, 2]])
    assert_close_to_rounding(found.quantized[[0, 2]], expected.quantized)
    assert not found.quantized[1].isfinite().all()
    assert module.vq.codebook.isfinite().all()


# Statistics, parts, errors --------------------------------------------------------------------------------------------


def test_statistics_of_each_scale():
    module = build(2)
    found = module(data(2, DIM, 4, 4))
    for stats, indices in zip(module.stats(), found.indices, strict=True):
        assert stats.tokens == indices.numel()
        assert stats.usage == pytest.approx(indices.unique().numel() / CODES)
    every = torch.cat([indices.flatten() for indices in found.indices])
    assert module.vq.stats().tokens == every.numel()
    assert module.vq.stats().usage == pytest.approx(every.unique().numel() / CODES)
    module.load_state_dict(copy.deepcopy(module.state_dict()))
    assert [stats.tokens for stats in module.stats()] == [0, 0, 0]
    assert not any("counts" in name for name in module.state_dict())


def test_parts_by_the_reference_s_names():
    module = build(2, scales=((1, 2), 4), share_quant_resi=3)
    assert module.scales == ((1, 2), 4) and module.level_shapes == ((1, 2), (4, 4))
    assert module.num_levels == 2 and module.codebook_sizes == (CODES, CODES)
    assert module.get_vq(1) is module.vq and module.choose_phi(1) is module.phi_levels[1]
    pooled, real = module.pool_residual(data(2, DIM, 6, 4), (1, 2), half_mask(2, 6, 4))
    assert pooled.shape == (2, DIM, 1, 2) and real.shape == (2, 1, 2)


BAD = {
    "scales": [(), (0, 1), (2, 1), ((1, 2),), 4],
    "codebook_size": [0, (4, 4), (4, 4, 5)],
    "nested_dropout": [-0.1, 1.1, math.nan],
    "nested_dropout_min_levels": [0],
    "quant_resi": [math.inf, math.nan],
    "dim": [0],
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, vs in BAD.items() for v in vs], ids=str)
def test_options_out_of_range(name, value):
    own = dict(dim=DIM, codebook_size=CODES, scales=(1, 2, 4)) | {name: value}
    kind = TypeError if value == 4 else ValueError
    with pytest.raises(kind, match=f": expected {name} to be "):
        HierarchicalVQ(**own)


def test_options_that_exclude_each_other():
    with pytest.raises(ValueError, match="HierarchicalVQ: expected at most one of"):
        HierarchicalVQ(
            dim=6, codebook_size=4, scales=(1,), accept_image_fmap=True, accept_3d_fmap=True
        )


def test_errors_of_calls():
    module, x = build(), data(2, DIM, 5)
    with pytest.raises(ValueError, match="HierarchicalVQ: expected x to have 1 axes of positions"):
        module(data(2, DIM, 5, 4))
    with pytest.raises(ValueError, match="HierarchicalVQ: expected x to have 6 features"):
        module(data(2, 5, DIM))
    with pytest.raises(TypeError, match="HierarchicalVQ: expected x to be a floating-point"):
        module(torch.zeros(2, DIM, 5, dtype=torch.long))
    with pytest.raises(ValueError, match="HierarchicalVQ: expected mask to have shape"):
        module(x, mask=half_mask(2, 4))
    with pytest.raises(ValueError, match="HierarchicalVQ: expected mask or lens to be given"):
        module(x, mask=half_mask(2, 5), lens=torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="HierarchicalVQ: expected indices to be tensors"):
        module(x, indices=[torch.zeros(2, 1, dtype=torch.long)])
    found = module(x).indices
    with pytest.raises(ValueError, match="HierarchicalVQ: expected full_shape to be 1 numbers"):
        module.get_output_from_indices(found, (4, 4))
    with pytest.raises(ValueError, match="HierarchicalVQ: expected mask to have shape"):
        module.get_output_from_indices(found, (5,), mask=half_mask(2, 4))
    with pytest.raises(IndexError):
        module.get_output_from_indices([scale + CODES for scale in found])
    with pytest.raises(IndexError):
        module(x, indices=[scale + CODES for scale in found])


def test_is_exported_by_the_package():
    assert torchvq.HierarchicalVQ is HierarchicalVQ


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kmeans", [False, True])
def test_a_scale_that_fails_in_turn_leaves_what_earlier_scales_learnt_undone(
    shared: bool, kmeans: bool
) -> None:
    module = HierarchicalVQ(
        dim=6,
        codebook_size=16,
        scales=[1, 2, 4],
        vqp_compat=True,
        shared_codebook=shared,
        kmeans_init=kmeans,
    )
    x = torch.randn(2, 6, 4)
    calls = iter([None, ZeroDivisionError])

    def second_fails(*_: Any) -> None:
        error = next(calls, None)
        if error is not None:
            raise error

    for part in module.modules():
        if isinstance(part, nn.Conv1d):
            part.register_forward_pre_hook(second_fails)
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(ZeroDivisionError):
        module(x)
    assert all(torch.equal(own, before[name]) for name, own in module.state_dict().items())
    module(x)
