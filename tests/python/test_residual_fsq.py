"""Residual stacks of FSQ beyond the numbers of the reference: layouts, dropout, precision, checkpointing, compilers."""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from vector_quantize_pytorch import ResidualFSQ as Reference

import torchvq
from torchvq import GroupedResidualFSQ, ResidualFSQ
from torchvq.residual_fsq import GroupedResidualFSQ as SameGrouped
from torchvq.residual_fsq import ResidualFSQ as SameResidual

LEVELS = [8, 5, 4]
HALVES = [torch.float16, torch.bfloat16]
ROTATED: dict[str, Any] = dict(levels=[5] * 3, orthogonal_rotation=True)
CASES: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "plain": ({}, (2, 7, 3)),
    "projected": (dict(dim=6), (2, 7, 6)),
    "tanh": (dict(dim=6, bound_hard_clamp=False, soft_clamp_input_value=2.0), (2, 7, 6)),
    "maps": (dict(dim=6), (2, 3, 5, 6)),
    "image": (dict(dim=6, is_channel_first=True), (2, 6, 3, 5)),
    "vectors": (dict(dim=6), (9, 6)),
    "rotated": (ROTATED, (2, 7, 3)),
    "axis": (dict(keep_num_codebooks_dim=True, dim=6), (2, 7, 6)),
    "dropout": (dict(num_quantizers=4, quantize_dropout=True, dim=6), (2, 7, 6)),
    "noisy": (dict(noise_dropout=0.5), (2, 7, 3)),
    "noisy_dropout": (dict(num_quantizers=4, quantize_dropout=True, noise_dropout=0.5), (2, 7, 3)),
    "compatible": (dict(vqp_compat=True, num_quantizers=4, quantize_dropout=True), (2, 7, 3)),
    "groups": (dict(groups=2, dim=6), (2, 7, 6)),
    "groups_image": (dict(groups=2, dim=8, accept_image_fmap=True), (2, 8, 3, 5)),
    "groups_image_sequence": (dict(groups=2, dim=8, accept_image_fmap=True), (2, 8, 5)),
    "groups_image_volume": (dict(groups=2, dim=8, accept_image_fmap=True), (2, 8, 2, 3, 5)),
    "groups_dropout": (dict(groups=3, dim=9, quantize_dropout=True, num_quantizers=4), (2, 7, 9)),
}


def make(case: str) -> tuple[Any, torch.Tensor]:
    kwargs, shape = CASES[case]
    torch.manual_seed(3)
    cls = GroupedResidualFSQ if "groups" in kwargs else ResidualFSQ
    return cls(**{"levels": LEVELS, "num_quantizers": 3, **kwargs}), torch.randn(shape)


def is_first(case: str) -> bool:
    return "image" in case


def train_step(forward: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x = x.clone().requires_grad_()
    quantized, indices = forward(x)[:2]
    weight = torch.linspace(1, 2, quantized.numel()).view(quantized.shape)
    (quantized.double() * weight).sum().backward()
    return quantized.detach(), indices, x.grad


def test_names_and_places():
    assert SameResidual is ResidualFSQ is torchvq.ResidualFSQ
    assert SameGrouped is GroupedResidualFSQ is torchvq.GroupedResidualFSQ


@pytest.mark.parametrize("case", CASES)
def test_decode_is_the_output_of_evaluation(case):
    module, x = make(case)
    quantized, indices = module.eval()(x)
    dtype = torch.int32 if case == "compatible" else torch.int64
    assert quantized.shape == x.shape and indices.dtype == dtype
    decoded = module.get_output_from_indices(indices)
    torch.testing.assert_close(decoded, quantized, rtol=1e-5, atol=1e-6)
    if case == "plain":
        assert torch.equal(decoded, quantized)
    again = module(x, return_all_codes=True)
    assert torch.equal(again.quantized, quantized) and torch.equal(again.indices, indices)
    codes = again.all_codes
    codes = torch.stack(codes) if isinstance(codes, tuple) else codes
    torch.testing.assert_close(module.get_codes_from_indices(indices), codes, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", [case for case in CASES if "nois" not in case])
def test_mask_is_selection(case):
    module, x = make(case)
    module.train()
    positions = x.shape[:1] + (x.shape[2:] if is_first(case) else x.shape[1:-1])
    mask = torch.rand(positions) < 0.6
    place = mask.unsqueeze(1 if is_first(case) else -1)
    padded = torch.where(place, x, torch.nan)
    seed = dict(rand_quantize_dropout_fixed_seed=5)
    found = train_step(lambda z: module(z, mask=mask, **seed), padded)
    expected = train_step(lambda z: module(z, **seed), x)
    torch.testing.assert_close(found[0], expected[0] * place, rtol=1e-6, atol=1e-6)
    absent = ~mask.unsqueeze(-1) if case != "axis" else ~mask[..., None, None]
    assert torch.equal(found[1], expected[1].masked_fill(absent, -1))
    torch.testing.assert_close(found[2], expected[2] * place, rtol=1e-5, atol=1e-6)
    decoded = module.get_output_from_indices(found[1])
    torch.testing.assert_close(decoded, found[0], rtol=1e-5, atol=1e-6)


def test_nothing_to_quantize():
    module, x = make("projected")
    quantized, indices = module(x, mask=torch.zeros(2, 7, dtype=torch.bool))
    assert quantized.eq(0).all() and indices.eq(-1).all()
    quantized, indices = module(x[:, :0])
    assert quantized.shape == (2, 0, 6) and indices.shape == (2, 0, 3)
    quantized.sum().backward()


@pytest.mark.parametrize(("levels", "depth"), [([8, 5], 60), ([65536], 12), ([3, 3], 140)])
def test_levels_below_the_smallest_number_add_nothing(levels: list[int], depth: int):
    torch.manual_seed(0)
    x = torch.randn(2, 50, len(levels))
    deep = ResidualFSQ(levels=levels, num_quantizers=depth)
    quantized, indices = deep(x.requires_grad_())
    assert torch.equal(deep.get_output_from_indices(indices), quantized)
    limit = 1 + 1 / (torch.tensor(levels) - 1)
    torch.testing.assert_close(quantized, (x / limit).tanh() * limit, rtol=0, atol=1e-6)
    quantized.sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()


def test_tokens_that_are_not_finite_are_seen():
    module = ResidualFSQ(levels=LEVELS, num_quantizers=3)
    x = torch.zeros(1, 3, 3)
    x[0, 0, 1], x[0, 1, 2] = torch.nan, torch.inf
    quantized, indices = module(x)
    assert quantized[0, :2].isnan().all() and indices[0, :2].eq(0).all()
    assert quantized[0, 2].isfinite().all()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_half_precision(case, dtype):
    module, x = make(case)
    x = x.to(dtype)
    expected = module.eval()(x.float())
    found = module(x)
    assert found.quantized.dtype == dtype and torch.equal(found.indices, expected.indices)
    module.train().to(dtype)
    quantized, indices, gradient = train_step(module, x)
    assert quantized.dtype == gradient.dtype == dtype and gradient.isfinite().all()
    quantized, indices = module.eval()(x)
    assert torch.equal(module.get_output_from_indices(indices).to(dtype), quantized)


def test_sixteen_bit_inputs_keep_their_residual_in_float32():
    """Every level of a bfloat16 input quantizes the residual itself, not its rounding to bfloat16."""
    module = ResidualFSQ(levels=LEVELS, num_quantizers=5).bfloat16()
    x = torch.randn(4, 200, 3).bfloat16()
    limit = module.soft_clamp_input_value
    assert limit.dtype == module.scales.dtype == torch.float32
    codes = module(x, return_all_codes=True).all_codes
    left = limit * (x.float() / limit).tanh() - codes.sum(0)
    levels = torch.tensor(LEVELS, dtype=torch.float32)
    assert (left.abs() <= levels**-4 / (levels - 1) + 1e-6).all()


def test_autocast_changes_no_quantization():
    for case in ("plain", "tanh", "rotated"):
        module, x = make(case)
        expected = module.eval()(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = module(x)
        if not module.has_projections:
            assert torch.equal(found.indices, expected.indices)
            assert torch.equal(found.quantized, expected.quantized)


# Dropout and noise ---------------------------------------------------------------------------------------------


def test_depths_are_uniform_and_those_of_the_step():
    module, other = (
        ResidualFSQ(levels=LEVELS, num_quantizers=4, quantize_dropout=True) for _ in range(2)
    )
    assert module.rng[0] != other.rng[0]
    depths = []
    for _ in range(400):
        indices = module(torch.randn(1, 2, 3)).indices
        depth = (indices >= 0).sum(-1).unique()
        assert depth == (other(torch.randn(1, 5, 3)).indices >= 0).sum(-1).unique()
        depths.append(int(depth))
    share = torch.bincount(torch.tensor(depths), minlength=5)[1:] / 400
    assert (share - 0.25).abs().max() < 0.08
    assert module.rng[1] == 400
    module.eval()(torch.randn(1, 2, 3))
    assert module.rng[1] == 400
    assert (module(torch.randn(1, 2, 3)).indices >= 0).all()


def test_fewer_levels_decode_after_dropout():
    module, x = make("dropout")
    indices = module.eval()(x).indices
    fewer = module.get_output_from_indices(indices[..., :2])
    padded = torch.nn.functional.pad(indices[..., :2], (0, 2), value=-1)
    assert torch.equal(fewer, module.get_output_from_indices(padded))
    assert module.get_codes_from_indices(indices[..., :2])[2:].eq(0).all()


def test_noise_differs_between_levels_and_is_none_in_evaluation():
    module, x = make("noisy")
    x = torch.randn(2, 500, 3)
    _, indices, codes = module(x, return_all_codes=True)
    exact = module.get_codes_from_indices(indices)
    half = module.scales[:, None, None] / (torch.tensor(LEVELS) - 1.0)
    relative = (codes - exact) / half
    assert relative.abs().max() <= 1 + 1e-3
    assert ((relative != 0).float().mean((1, 2)) - 0.5).abs().max() < 0.05
    assert torch.corrcoef(relative.flatten(1)).fill_diagonal_(0).abs().max() < 0.1
    module.eval()
    assert torch.equal(module(x).quantized, module.get_output_from_indices(module(x).indices))


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("case", ["dropout", "noisy", "noisy_dropout", "groups_dropout", "tanh"])
def test_checkpointed_steps_are_plain_steps(case, reentrant):
    plain, x = make(case)
    module = copy.deepcopy(plain)

    def forward(z: torch.Tensor) -> Any:
        return checkpoint(lambda z: tuple(module(z)), z, use_reentrant=reentrant)

    for _ in range(4):
        for found, expected in zip(train_step(forward, x), train_step(plain, x), strict=True):
            assert torch.equal(found, expected)
        for name, value in plain.state_dict().items():
            assert torch.equal(module.state_dict()[name], value), name


# Compilers and state -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["projected", "image", "noisy_dropout", "groups_dropout"])
def test_compiles_in_one_graph(case, compiler):
    module, x = make(case)
    twin = copy.deepcopy(module)
    compiled = torch.compile(twin, fullgraph=True, backend=compiler)
    for _ in range(3):
        for found, expected in zip(train_step(compiled, x), train_step(module, x), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        for name, value in module.state_dict().items():
            assert torch.equal(twin.state_dict()[name], value), name


@pytest.mark.parametrize("case", ["image"])  # the other cases are rows of tests/matrix
def test_exports(case):
    module, x = make(case)
    exported = torch.export.export(module.eval(), (x,)).module()
    found, expected = exported(x), module(x)
    assert torch.equal(found.indices, expected.indices)
    torch.testing.assert_close(found.quantized, expected.quantized)


def test_state_of_the_reference_loads_and_steps_resume():
    kwargs = dict(levels=[5] * 3, num_quantizers=4, dim=6, quantize_dropout=True)
    theirs = Reference(**kwargs, orthogonal_rotation=True)
    module = ResidualFSQ(**kwargs, orthogonal_rotation=True)
    module.load_state_dict(theirs.state_dict(), strict=True)
    x = torch.randn(2, 7, 6)
    for _ in range(3):
        module(x)
    fresh = ResidualFSQ(**kwargs, orthogonal_rotation=True)
    fresh.load_state_dict(module.state_dict())
    twins = [fresh, copy.deepcopy(module), pickle.loads(pickle.dumps(module))]
    expected = module(x)
    for twin in twins:
        found = twin(x)
        assert torch.equal(found.quantized, expected.quantized)
        assert torch.equal(found.indices, expected.indices)


BOUNDS = dict(bound_hard_clamp=False, preserve_symmetry=False)


def set_apart(module: Any, changed: list[int], names: tuple[str, ...]) -> Any:
    for index in changed:
        for name in names:
            setattr(module.layers[index], name, BOUNDS[name])
    return module


def chained(module: ResidualFSQ, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The levels of a stack called by hand, each on what those before leave, on its scale."""
    residual = total = module.prepare_inputs(x)
    found = []
    for level, scale in zip(module.layers, module.scales, strict=True):
        codes, indices = level(residual / scale)
        residual = residual - codes * scale
        found.append(indices)
    return total - residual, torch.stack(found, -1)


@pytest.mark.parametrize("names", [*((name,) for name in BOUNDS), tuple(BOUNDS)])
@pytest.mark.parametrize("changed", [[0], [1], [2], [0, 1, 2]])
@pytest.mark.parametrize("training", [False, True])
def test_each_level_has_its_own_bound(changed, names, training):
    kwargs = dict(levels=[5, 4, 8], num_quantizers=3)
    module = set_apart(ResidualFSQ(**kwargs), changed, names).train(training)
    theirs = set_apart(Reference(**kwargs), changed, names).train(training)
    x = torch.randn(2, 50, 3, requires_grad=True)
    found, expected = module(x), chained(module, x)
    assert torch.equal(found.indices, expected[1])
    assert torch.equal(found.indices, theirs(x)[1].long())
    torch.testing.assert_close(found.quantized, expected[0])
    torch.testing.assert_close(found.quantized, theirs(x)[0])
    decoded = module.get_output_from_indices(found.indices)
    torch.testing.assert_close(decoded, found.quantized)
    gradients = [
        torch.autograd.grad(result[0].square().sum(), x)[0] for result in (found, expected)
    ]
    torch.testing.assert_close(*gradients)


def test_levels_in_evaluation_draw_no_noise():
    module = ResidualFSQ(levels=[5, 4, 8], num_quantizers=3, noise_dropout=0.5)
    x = torch.randn(2, 50, 3)
    expected = module.eval()(x).quantized
    assert not torch.equal(module.train()(x).quantized, expected)
    for level in module.quantizers:
        level.eval()
    torch.testing.assert_close(module(x).quantized, expected)


# Hostile input -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kwargs", "error", "text"),
    [
        (dict(levels=[]), ValueError, "levels"),
        (dict(levels=[1]), ValueError, "levels"),
        (dict(num_quantizers=0), ValueError, "num_quantizers"),
        (dict(dim=0), ValueError, "dim"),
        (dict(quantize_dropout=True, quantize_dropout_cutoff_index=3), ValueError, "cutoff"),
        (dict(quantize_dropout_multiple_of=0), ValueError, "multiple"),
        (dict(soft_clamp_input_value=1.0), ValueError, "bound_hard_clamp"),
        (dict(bound_hard_clamp=False, soft_clamp_input_value=-1.0), ValueError, "positive"),
        (dict(bound_hard_clamp=False, soft_clamp_input_value=[1.0, 2.0]), ValueError, "3 of them"),
        (dict(num_codebooks=2), ValueError, "num_codebooks"),
        (dict(channel_first=True), ValueError, "is_channel_first"),
        (dict(return_indices=False), ValueError, "return_indices"),
        (dict(noise_dropout=2.0), ValueError, "noise_dropout"),
        (dict(no_such_option=1), TypeError, "no_such_option"),
    ],
)
def test_bad_options(kwargs, error, text):
    with pytest.raises(error, match=text):
        ResidualFSQ(**{"levels": LEVELS, "num_quantizers": 3, **kwargs})


def test_bad_groups_and_calls():
    for kwargs in (dict(dim=7, groups=2), dict(dim=6, groups=0)):
        with pytest.raises(ValueError, match="groups"):
            GroupedResidualFSQ(levels=LEVELS, num_quantizers=3, **kwargs)
    module, x = make("dropout")
    groups, wide = make("groups_image")
    for call, error in [
        (lambda: module(x.long()), TypeError),
        (lambda: module(None), TypeError),
        (lambda: module(x[..., :5]), ValueError),
        (lambda: module(x, mask=torch.ones(2, 6, dtype=torch.bool)), ValueError),
        (lambda: module.get_output_from_indices(torch.zeros(2, 7, 5).long()), ValueError),
        (lambda: module.get_output_from_indices(torch.full((2, 7, 4), 160)), IndexError),
        (lambda: groups(wide[:, :6]), ValueError),
        (lambda: groups.get_output_from_indices(torch.zeros(3, 2, 3, 5, 3).long()), ValueError),
    ]:
        with pytest.raises(error):
            call()
    assert module.rng[1] == 0


@pytest.mark.parametrize("case", ["plain", "groups"])
@pytest.mark.parametrize("move", [lambda m: m.to("cpu"), nn.Module.float, nn.Module.half])
def test_a_move_that_changes_nothing_leaves_backward_intact(case, move):
    module, x = make(case)
    x = x.clone().requires_grad_()
    quantized = module(x)[0]
    move(module)
    quantized.sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("levels", [[5, 3], [4, 4], [8, 2], [7]])
def test_no_path_through_the_levels_is_nearer_than_the_greedy_one(levels: list[int]) -> None:
    """With the hard clamp a beam cannot improve on greedy search; the test enumerates all paths."""
    module = ResidualFSQ(levels=levels, num_quantizers=2).eval()
    x = torch.randn(1, 500, len(levels))
    clamped = module.prepare_inputs(x)[0].double()
    codes = range(module.codebook_size)
    paths = torch.tensor(list(itertools.product(codes, codes)))
    outputs = module.get_output_from_indices(paths.unsqueeze(0))[0].double()
    nearest = torch.cdist(clamped, outputs).min(1).values
    found = (module(x).quantized[0].double() - clamped).norm(dim=-1)
    torch.testing.assert_close(found, nearest, rtol=0, atol=1e-6)
