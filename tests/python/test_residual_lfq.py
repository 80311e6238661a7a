"""ResidualLFQ and GroupedResidualLFQ (python/torchvq/residual_lfq.py) beyond parity."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
import vector_quantize_pytorch
from lookup_free_oracle import entropies
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from support import assert_close_to_rounding, bit_for_bit
from torchvq import (
    LFQ,
    GroupedResidualFSQ,
    GroupedResidualLFQ,
    ResidualFSQ,
    ResidualLFQ,
    ResidualSimVQ,
)

BASE = dict(dim=4, codebook_size=16, num_quantizers=3, commitment_loss_weight=0.25)
CASES = {
    "plain": {},
    "projected": dict(dim=7),
    "spherical": dict(spherical=True),
    "rotated": dict(orthogonal_rotation=True),
    "clamped": dict(soft_clamp_input_value=1.5),
    "subset": dict(frac_per_sample_entropy=0.5),
    "dropout": dict(quantize_dropout=True),
}


def build(case="plain", **options):
    torch.manual_seed(1)
    return ResidualLFQ(**{**BASE, **CASES[case], **options})


def grouped(**options):
    torch.manual_seed(1)
    return GroupedResidualLFQ(**{**BASE, "dim": 8, "groups": 2, **options})


def data(shape, scale=0.7, seed=2):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


@pytest.mark.parametrize("activation", [None, nn.Tanh()], ids=["", "tanh"])
@pytest.mark.parametrize("case", ["plain", "spherical", "clamped"])
@pytest.mark.parametrize("seed", [None, 0, 1, 2, 3], ids=["all levels", "0", "1", "2", "3"])
def test_the_gradient_goes_through_norm_clamp_and_activation_of_the_levels(case, activation, seed):
    """Oracle: the reference, whose gradient of the output is the sum over the levels in use."""
    options = dict(entropy_loss_weight=0.0, quantize_dropout=seed is not None)
    if activation is not None:
        options["straight_through_activation"] = activation
    theirs = vector_quantize_pytorch.ResidualLFQ(**BASE, **CASES[case], **options)
    gradients = []
    for module in (build(case, **options), theirs):
        x = data((2, 5, 4)).requires_grad_()
        output, _, losses = module(x, rand_quantize_dropout_fixed_seed=seed)
        loss = (output**3).sum() + 20 * losses.sum()
        gradients.append(torch.autograd.grad(loss, x)[0])
    torch.testing.assert_close(gradients[0] * BASE["num_quantizers"], gradients[1])


@pytest.mark.parametrize("shape", [(5,), (2, 5), (2, 3, 4), (1, 2, 3, 2)], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_indices_decode_to_the_output(case, shape):
    stack = build(case).eval()
    x = data((*shape, stack.dim))
    quantized, indices, losses, codes = stack(x, return_all_codes=True)
    assert indices.shape == (*shape, 3) and losses.tolist() == [0, 0, 0]
    torch.testing.assert_close(stack.get_output_from_indices(indices), quantized)
    torch.testing.assert_close(stack.get_codes_from_indices(indices), codes)


def test_by_hand():
    x = data((2, 50, 4))
    residual, total = x.double(), 0
    quantized, indices, _ = build().eval()(x)
    for level in range(3):
        codes = torch.where(residual > 0, 2.0**-level, -(2.0**-level))
        bits = (residual > 0).long() @ torch.tensor([8, 4, 2, 1])
        assert torch.equal(bits, indices[..., level])
        residual, total = residual - codes, total + codes
    assert torch.equal(quantized.double(), total)
    inside = x.abs() < 2
    assert (quantized - x)[inside].abs().max() <= 2.0**-2 + 1e-6


def test_losses_of_levels_by_enumeration():
    x = data((1, 20, 4), 0.01).double().requires_grad_()
    stack = build(entropy_loss_weight=0.7)
    losses = stack(x)[2]
    wide = x.detach().requires_grad_()
    residual, right = wide, []
    for level in range(3):
        scale = 2.0**-level
        codes = torch.where(residual > 0, scale, -scale).double()
        per_sample, batch = entropies(residual, 400.0 * scale)
        right.append(0.7 * (per_sample - batch) + 0.25 * (residual - codes).square().mean())
        residual = residual - codes
    torch.testing.assert_close(losses, torch.stack(right))
    losses.sum().backward()
    torch.stack(right).sum().backward()
    # Divided by the number of levels, the gain of the output with one estimator per level.
    torch.testing.assert_close(x.grad, wide.grad / 3, rtol=1e-7, atol=1e-10)


def test_losses_and_output_have_the_balance_of_one_estimator_per_level():
    """Oracle: ``vqp_compat``, whose gradients are longer by the number of levels, and parallel."""
    gradients = []
    for compatible in (False, True):
        # Without entropies, because vqp_compat clamps their logarithms.
        stack = build(entropy_loss_weight=0.0, vqp_compat=compatible)
        x = data((1, 20, 4)).requires_grad_()
        quantized, _, losses = stack(x)
        (quantized.square().sum() + 50 * losses.sum()).backward()
        gradients.append(x.grad)
    torch.testing.assert_close(gradients[0] * 3, gradients[1])


def test_gain_is_one():
    for module in (build(entropy_loss_weight=0.0), grouped(entropy_loss_weight=0.0)):
        x = data((2, 5, module.dim)).requires_grad_()
        module(x)[0].sum().backward()
        assert torch.equal(x.grad, torch.ones_like(x))


@pytest.mark.parametrize("case", CASES)
def test_masked_is_absent(case):
    stack, again = build(case), build(case)
    x = data((2, 6, stack.dim))
    mask = torch.rand(2, 6, generator=torch.Generator().manual_seed(4)) < 0.6
    x[~mask] = float("nan")
    quantized, indices, losses = stack(x, mask)
    rest = again(x[mask].unsqueeze(0))
    torch.testing.assert_close(losses, rest[2], rtol=1e-5, atol=1e-7)
    assert torch.equal(indices[mask], rest[1][0])
    assert quantized[~mask].eq(0).all() and indices[~mask].eq(-1).all()


@pytest.mark.parametrize("spherical", [False, True])
def test_clamps_below_the_smallest_number_have_a_gradient(spherical: bool):
    module = build("clamped", num_quantizers=160, spherical=spherical, entropy_loss_weight=0.1)
    x = torch.randn(2, 5, 4, requires_grad=True)
    quantized, indices, losses = module(x)
    (quantized.sum() + losses.sum()).backward()
    assert x.grad is not None and x.grad.isfinite().all() and x.grad.abs().sum() > 0
    assert torch.equal(module.get_output_from_indices(indices), quantized)


def test_no_tokens():
    nothing = torch.zeros(2, 6, dtype=torch.bool)
    for x, mask in ((torch.empty(2, 0, 4), None), (data((2, 6, 4)), nothing)):
        assert build()(x, mask)[2].tolist() == [0, 0, 0]


def test_dropout_drops_the_same_levels_in_all_groups():
    module = grouped(quantize_dropout=True, num_quantizers=6)
    depths = set()
    for _ in range(30):
        _, indices, losses = module(data((1, 3, 8)))
        used = indices.ge(0).all(2).all(1)
        assert torch.equal(used[0], used[1]) and losses[~used].eq(0).all()
        depths.add(int(used[0].sum()))
    assert len(depths) > 3
    assert module.eval()(data((1, 3, 8)))[1].ge(0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("case", CASES)
def test_precision(case, dtype):
    x = data((2, 9, build(case).dim)).to(dtype)
    stack = build(case)
    quantized, indices, _ = stack(x)
    assert quantized.dtype == dtype
    assert torch.equal(indices, build(case)(x.float())[1])
    cast = build(case).to(dtype)
    leaf = x.clone().requires_grad_()
    quantized, _, losses = cast(leaf)
    (quantized.float().sum() + losses.sum()).backward()
    assert quantized.dtype == dtype and leaf.grad.isfinite().all() and losses.isfinite().all()


# The other cases are rows of tests/matrix.
@pytest.mark.parametrize("case", ["spherical", "rotated", "clamped", "subset"])
def test_compiles(case):
    torch._dynamo.reset()
    eager, module = build(case), build(case)
    step = torch.compile(module, fullgraph=True, backend="aot_eager")
    for seed in (1, 2):
        a, b = (data((2, 5, eager.dim), seed=seed).requires_grad_() for _ in range(2))
        right, found = eager(a), step(b)
        # A rotation is a matrix product of torch, to which a compiler may pass another layout.
        same = assert_close_to_rounding if case == "rotated" else bit_for_bit
        for one, other in zip(found, right, strict=True):
            same(one, other)
        (right[0].sum() + right[2].sum()).backward()
        (found[0].sum() + found[2].sum()).backward()
        torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("case", ["subset", "dropout"])
def test_checkpointing(case):
    plain, again = build(case), build(case)
    a, b = (data((2, 9, 4)).requires_grad_() for _ in range(2))
    right = plain(a)
    found = checkpoint(again, b, use_reentrant=False)
    (right[0].sum() + right[2].sum()).backward()
    (found[0].sum() + found[2].sum()).backward()
    assert torch.equal(a.grad, b.grad) and torch.equal(plain.rng, again.rng)


@pytest.mark.parametrize("positions", [(5,), (3, 4), (2, 3, 4)])
def test_images_of_groups(positions):
    module = grouped(accept_image_fmap=True)
    x = data((2, 8, *positions))
    quantized, indices, losses = module(x)
    assert quantized.shape == x.shape and indices.shape == (2, 2, *positions, 3)
    assert losses.shape == (2, 3)
    torch.testing.assert_close(module.get_output_from_indices(indices), quantized)
    first = build(is_channel_first=True)(x[:, :4])
    assert first[0].shape == (2, 4, *positions)


def test_state_of_the_reference_and_copies():
    from vector_quantize_pytorch import ResidualLFQ as Reference

    reference = Reference(**{**BASE, "dim": 7})
    for case in ("projected", "subset"):
        stack = build(case, dim=7)
        stack.load_state_dict(reference.state_dict(), strict=True)
    x = data((1, 5, 7))
    assert torch.equal(
        build("projected").eval()(x)[1], copy.deepcopy(build("projected")).eval()(x)[1]
    )
    assert isinstance(stack.layers[1], LFQ)


@pytest.mark.parametrize("shape", [(5,), (2, 5), (2, 3, 4)], ids=str)
def test_the_axis_of_the_codebook_is_kept(shape):
    for make, dim in ((build, 4), (grouped, 8)):
        plain, kept = make(), make(keep_num_codebooks_dim=True)
        x = data((*shape, dim))
        expected, found = plain(x, return_all_codes=True), kept(x, return_all_codes=True)
        assert found.indices.equal(expected.indices.unsqueeze(-2))
        assert all(map(torch.equal, found[::2], expected[::2]))
        for name in ("get_codes_from_indices", "get_output_from_indices"):
            decoded = getattr(kept, name)(found.indices)
            assert decoded.equal(getattr(plain, name)(expected.indices))
            with pytest.raises(ValueError, match="one codebook on the axis before the last"):
                getattr(kept, name)(found.indices.repeat_interleave(2, -2))


def test_module_path_of_the_reference():
    from torchvq import residual_lfq

    assert residual_lfq.GroupedResidualLFQ is GroupedResidualLFQ


def test_one_warning_for_a_stack(caplog):
    with caplog.at_level("WARNING", "torchvq"):
        ResidualLFQ(dim=4, codebook_size=16, num_quantizers=5)
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(codebook_size=10), "power of 2"),
        (dict(num_codebooks=2), "num_codebooks"),
        (dict(codebook_scale=2.0), r"codebook_scale to be left out \(each level halves it\), but"),
        (dict(num_quantizers=0), "num_quantizers"),
        (dict(quantize_dropout=True, quantize_dropout_cutoff_index=3), "cutoff"),
        (dict(quantize_dropout_cutoff_index=-1), "cutoff"),
        (dict(soft_clamp_input_value=0.5), "soft_clamp"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        build(**options)


def test_calls_are_checked():
    stack = build()
    with pytest.raises(ValueError, match="features"):
        stack(torch.zeros(2, 3, 5))
    with pytest.raises(IndexError, match="expected indices"):
        stack.get_output_from_indices(torch.full((1, 2, 3), 16))
    with pytest.raises(ValueError, match="levels on the last axis"):
        stack.get_output_from_indices(torch.zeros(1, 2, 4, dtype=torch.long))


def test_no_path_through_the_levels_is_nearer_than_the_greedy_one() -> None:
    """Signs of residuals are a binary expansion, which no beam improves; the test enumerates all paths."""
    module = ResidualLFQ(
        dim=3, codebook_size=8, num_quantizers=3, commitment_loss_weight=0.25
    ).eval()
    x = torch.randn(1, 500, 3)
    paths = torch.tensor(list(itertools.product(range(8), repeat=3)))
    outputs = module.get_output_from_indices(paths.unsqueeze(0))[0].double()
    nearest = torch.cdist(x[0].double(), outputs).min(1).values
    found = (module(x).quantized[0].double() - x[0].double()).norm(dim=-1)
    torch.testing.assert_close(found, nearest, rtol=0, atol=1e-6)


@pytest.mark.parametrize("shape", [(3, 5, 4), (3, 2, 5, 4)])
def test_a_mask_per_item_covers_its_positions(shape):
    x, mask = data(shape), torch.tensor([True, False, True])
    per_position = mask.view(-1, *[1] * (len(shape) - 2)).expand(shape[:-1])
    stacks = [
        lambda: build(),
        lambda: grouped(dim=4, codebook_size=4),
        lambda: ResidualFSQ(levels=[4] * 4, num_quantizers=3),
        lambda: GroupedResidualFSQ(dim=4, groups=2, levels=[4, 4], num_quantizers=3),
        lambda: ResidualSimVQ(dim=4, codebook_size=16, num_quantizers=3),
    ]
    for make in stacks:
        torch.manual_seed(1)
        stack = make()
        again = copy.deepcopy(stack)
        for found, right in zip(stack(x, mask=mask), again(x, mask=per_position), strict=True):
            assert torch.equal(found, right)
    with pytest.raises(ValueError, match="expected mask to have shape"):
        build()(x, mask=torch.ones(2, dtype=torch.bool))


@pytest.mark.parametrize("masked", [False, True])
def test_exported_images_may_have_any_size(masked: bool) -> None:
    """A mask of flat positions is told from one of rows and columns without fixing the sizes."""
    module = ResidualLFQ(dim=4, num_quantizers=2, codebook_size=16, channel_first=True).eval()
    free = dict.fromkeys((0, 2, 3), torch.export.Dim.DYNAMIC)
    arguments = (torch.randn(2, 4, 3, 5), torch.ones(2, 3, 5, dtype=torch.bool))
    dynamic = (free, dict.fromkeys((0, 1, 2), torch.export.Dim.DYNAMIC))
    count = 2 if masked else 1
    exported = torch.export.export(module, arguments[:count], dynamic_shapes=dynamic[:count])
    others = (torch.randn(3, 4, 6, 2), torch.rand(3, 6, 2) > 0.3)[:count]
    assert torch.equal(exported.module()(*others).indices, module(*others).indices)


CLAMPED = {
    "one": build,
    "grouped": grouped,
    "clamped": lambda: build("clamped"),
    "scalars": lambda: ResidualFSQ(levels=[5, 3], num_quantizers=2, dim=2),
}


@pytest.mark.parametrize("name", CLAMPED)
@pytest.mark.parametrize("how", ["batched", "watched"])
def test_a_checkpoint_may_be_recomputed_under_a_mode(name, how):
    """A mode, or vmap over gradients, that is there in backward alone."""
    stack = CLAMPED[name]()
    x = data((2, 5, stack.dim)).requires_grad_()

    def losses(x):
        quantized, _, *losses = stack(x)
        return quantized.sum() + sum(loss.sum() for loss in losses)

    (right,) = torch.autograd.grad(losses(x), x)
    loss = checkpoint(losses, x, use_reentrant=False)
    if how == "watched":
        with FlopCounterMode(display=False):
            loss.backward()
        assert torch.equal(x.grad, right)
    else:
        weights = torch.tensor([1.0, 2.0])
        (ours,) = torch.autograd.grad(loss, x, weights, is_grads_batched=True)
        torch.testing.assert_close(ours, torch.stack([right, 2 * right]))


def test_outputs_made_without_a_gradient_can_be_written_to():
    stack, weight = build().eval(), torch.ones(4, requires_grad=True)
    with torch.no_grad():
        quantized = stack(data((2, 5, 4))).quantized
    quantized.mul_(weight).sum().backward()
    assert weight.grad is not None


def test_codes_of_levels_are_float32_under_autocast_and_transforms():
    stack = build("rotated")
    x = data((2, 5, 4))

    def codes(x):
        with torch.autocast("cpu", torch.bfloat16):
            return stack(x, return_all_codes=True).all_codes

    assert torch.func.vjp(codes, x)[0].dtype == torch.float32
