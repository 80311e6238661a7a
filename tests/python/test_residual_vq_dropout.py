"""Quantizer dropout: which levels a training step uses; the others do not change."""

from __future__ import annotations

import copy

import pytest
import torch
from residual_vq_cases import STACKS, assert_same_state, build, data, state, train_step
from torch.utils.checkpoint import checkpoint

import torchvq
from torchvq._residual import dropout as _residual_dropout

RULES = [(8, 0, 1), (8, 3, 1), (8, 0, 3), (8, 2, 4), (5, 2, 2), (3, 2, 1), (3, 0, 9)]


def allowed(levels: int, cutoff: int, multiple: int) -> set[int]:
    """Every depth above the cutoff, rounded up to the multiple, at most all levels."""
    rounded = {-(-depth // multiple) * multiple for depth in range(cutoff + 1, levels + 1)}
    return {min(depth, levels) for depth in rounded}


@pytest.mark.parametrize("rule", RULES)
def test_depths_follow_the_rule(rule: tuple[int, int, int]) -> None:
    rng = torch.tensor([12345, 0])
    drawn, seeded = set(), set()
    for step in range(200):
        rng[1] = step
        drawn.add(_residual_dropout.drawn_depth(rng, *rule))
        seeded.add(_residual_dropout.seeded_depth(step, *rule))
    assert drawn == seeded == allowed(*rule)


def used_levels(stack, x, **kwargs) -> int:
    used = (stack(x, **kwargs)[1] >= 0).sum(-1)
    assert (used == used.flatten()[0]).all()
    return int(used.flatten()[0])


def test_equal_generators_draw_equal_depths() -> None:
    # Ranks rely on this: the depth does not depend on the data.
    a, b = build("dropout"), build("dropout")
    depths = [
        (used_levels(a, data(a, step)), used_levels(b, data(b, 50 + step))) for step in range(30)
    ]
    assert all(x == y for x, y in depths)
    assert {x for x, _ in depths} == {1, 2, 3}


@pytest.mark.parametrize("case", ["dropout", "groups_dropout"])
def test_dropped_levels_are_left_alone(case: str) -> None:
    stack = build(case)
    before = state(stack)
    seed = next(s for s in range(99) if _residual_dropout.seeded_depth(s, 3, 0, 1) == 1)
    kwargs = dict(rand_quantize_dropout_fixed_seed=seed)
    quantized, indices, loss, codes = stack(data(stack), return_all_codes=True, **kwargs)
    assert (indices[..., 1:] == -1).all()
    assert (loss[..., 1:] == 0).all()
    changed = {
        name for name, value in stack.state_dict().items() if not torch.equal(value, before[name])
    }
    assert changed
    assert not [name for name in changed if "layers.1" in name or "layers.2" in name]
    assert all((part[1:] == 0).all() for part in (codes if isinstance(codes, tuple) else [codes]))


def test_evaluation_uses_all_levels() -> None:
    stack = build("dropout").eval()
    assert used_levels(stack, data(stack), rand_quantize_dropout_fixed_seed=0) == 3


DROPPED = sorted(
    STACKS.keys()
    - {"one_level", "eight_levels", "orthogonal", "dropout", "groups_dropout", "compatible_shared"}
)


@pytest.mark.parametrize("case", DROPPED)
def test_a_depth_that_only_the_device_knows_gives_the_same(case: str, monkeypatch) -> None:
    """Compilers and GPUs compute all levels and mask the dropped ones, with the same numbers and state."""
    known, masked = build(case, quantize_dropout=True), build(case, quantize_dropout=True)
    number = _residual_dropout.drawn_depth
    for step in range(3):
        x = data(known, step)
        expected, expected_gradient = train_step(known, x)
        monkeypatch.setattr(
            "torchvq._residual.dropout.drawn_depth", lambda *args: torch.tensor(number(*args))
        )
        result, gradient = train_step(masked, x)
        monkeypatch.undo()
        assert torch.equal(result[1], expected[1])
        torch.testing.assert_close(result[0], expected[0], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(result[2], expected[2], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-5, atol=1e-6)
    assert_same_state(masked, state(known), tolerance=1e-6)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("alike", [True, False], ids=["at once", "level by level"])
def test_a_masked_level_has_the_losses_of_the_reference(
    alike: bool, masked: bool, monkeypatch
) -> None:
    """The reference's losses with the caller's mask are others than without one; a dropped level is no such mask."""
    options = dict(use_cosine_sim=True, vqp_compat=True, quantize_dropout=True)
    torch.manual_seed(0)
    known = torchvq.ResidualVQ(dim=8, codebook_size=16, num_quantizers=3, **options)
    if not alike:
        known.layers[1].commitment_weight = 0.5
    device = copy.deepcopy(known)
    call = dict(mask=torch.ones(3, 7, dtype=torch.bool)) if masked else {}
    number = _residual_dropout.drawn_depth
    for _ in range(3):
        x = torch.randn(3, 7, 8)
        expected = known(x, **call)
        monkeypatch.setattr(
            "torchvq._residual.dropout.drawn_depth", lambda *args: torch.tensor(number(*args))
        )
        result = device(x, **call)
        monkeypatch.undo()
        assert torch.equal(result[1], expected[1])
        torch.testing.assert_close(result[2], expected[2], rtol=1e-6, atol=1e-7)


def test_a_checkpointed_step_that_drops_levels_with_kept_statistics_and_affine_maps() -> None:
    torch.manual_seed(0)
    plain = torchvq.ResidualVQ(
        dim=8,
        codebook_size=16,
        num_quantizers=3,
        quantize_dropout=True,
        affine_param=True,
        sync_every=2,
    )
    recomputed = copy.deepcopy(plain)
    for _ in range(4):
        x, y = (torch.randn(3, 7, 8, generator=torch.Generator().manual_seed(1)) for _ in range(2))
        x.requires_grad_(), y.requires_grad_()
        quantized, _, losses = plain(x)
        (quantized.square().sum() + losses.sum()).backward()
        quantized, _, losses = checkpoint(lambda z: tuple(recomputed(z)), y, use_reentrant=False)
        (quantized.square().sum() + losses.sum()).backward()
        assert torch.equal(x.grad, y.grad)
        assert_same_state(recomputed, state(plain))


@pytest.mark.parametrize("call", [{}, dict(rand_quantize_dropout_fixed_seed=1)])
@pytest.mark.parametrize("name", ["ResidualVQ", "ResidualFSQ"])
def test_layers_cut_to_less_than_the_cutoff_are_refused(name: str, call: dict[str, int]) -> None:
    options = dict(codebook_size=8) if name == "ResidualVQ" else dict(levels=[5, 4])
    stack = getattr(torchvq, name)(
        dim=4, num_quantizers=4, quantize_dropout=True, quantize_dropout_cutoff_index=2, **options
    )
    del stack.layers[2:]
    before = copy.deepcopy(stack.state_dict())
    with pytest.raises(
        ValueError, match=r"quantize_dropout_cutoff_index to be in \[0, 2\), but got 2"
    ):
        stack(torch.randn(1, 9, 4), **call)
    assert all(torch.equal(value, before[key]) for key, value in stack.state_dict().items())


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="quantize_dropout_cutoff_index to be in"):
        build("dropout", quantize_dropout_cutoff_index=3)
    with pytest.raises(ValueError, match="quantize_dropout_multiple_of to be at least 1"):
        build("dropout", quantize_dropout_multiple_of=0)


@pytest.mark.parametrize("name", ["ResidualVQ", "ResidualFSQ", "ResidualLFQ"])
def test_a_seeded_depth_is_a_constant_of_the_graph(name: str) -> None:
    own = {
        "ResidualVQ": dict(dim=4, codebook_size=16),
        "ResidualFSQ": dict(levels=[4, 4, 4, 4]),
        "ResidualLFQ": dict(dim=4, codebook_size=16, spherical=True),
    }
    stack = getattr(torchvq, name)(num_quantizers=8, quantize_dropout=True, **own[name])
    compiled = torch.compile(stack, fullgraph=True, backend="eager")
    x = torch.randn(2, 5, 4)
    # A second seed makes the first compiler symbol, which must not become a depth.
    for seed in (1, 5, 11, 5):
        found = compiled(x, rand_quantize_dropout_fixed_seed=seed)[1]
        depth = _residual_dropout.seeded_depth(seed, 8, 0, 1)
        assert found[0, 0].ge(0).sum() == depth


def test_seeded_depths_are_those_of_the_reference() -> None:
    from vector_quantize_pytorch import ResidualVQ

    theirs = ResidualVQ(dim=4, codebook_size=16, num_quantizers=8, quantize_dropout=True)
    for seed in range(12):
        right = theirs(torch.randn(1, 5, 4), rand_quantize_dropout_fixed_seed=seed)[1]
        assert right[0, 0].ge(0).sum() == _residual_dropout.seeded_depth(seed, 8, 0, 1)


@pytest.mark.parametrize("name", ["ResidualFSQ", "ResidualLFQ"])
def test_dropout_set_after_construction_says_what_is_missing(name: str) -> None:
    own = {
        "ResidualFSQ": dict(levels=[4, 4]),
        "ResidualLFQ": dict(dim=2, codebook_size=4, spherical=True),
    }
    stack = getattr(torchvq, name)(num_quantizers=3, **own[name])
    stack.quantize_dropout = True
    x = torch.randn(1, 5, 2)
    with pytest.raises(
        ValueError, match=f"{name}: expected quantize_dropout to be given to the constructor"
    ):
        stack(x)
    stack(x, rand_quantize_dropout_fixed_seed=1)


@pytest.mark.parametrize("name", ["ResidualVQ", "HierarchicalVQ"])
@pytest.mark.parametrize("masked", [False, True])
def test_compiled_steps_that_keep_statistics_leave_dropped_levels_alone(
    name: str, masked: bool
) -> None:
    """A compiled step computes all levels, and must draw the numbers of an eager one ever after."""
    own: dict[str, dict[str, object]] = {
        "ResidualVQ": dict(num_quantizers=4, quantize_dropout=True),
        "HierarchicalVQ": dict(
            scales=(1, 2, 4), shared_codebook=False, nested_dropout=0.7, channel_first=False
        ),
    }
    torch.manual_seed(0)
    options: dict[str, object] = dict(codebook_size=8, sync_every=3, threshold_ema_dead_code=1)
    eager = getattr(torchvq, name)(dim=4, kmeans_init=False, **options, **own[name])
    copied = copy.deepcopy(eager)
    compiled = torch.compile(copied, fullgraph=True, backend="aot_eager")
    dropped = False
    for _ in range(8):
        x = torch.randn(3, 4, 4)
        mask = torch.rand(3, 4) < 0.7 if masked else None
        found = eager(x, mask=mask)[1]
        compiled(x, mask=mask)
        levels = found if isinstance(found, tuple) else found.unbind(-1)
        dropped |= any(bool((level < 0).all()) for level in levels)
        for (key, value), other in zip(
            eager.state_dict().items(), copied.state_dict().values(), strict=True
        ):
            assert torch.equal(value, other), key
    assert dropped
