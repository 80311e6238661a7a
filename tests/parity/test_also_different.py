"""The sections "Where names are" and "Also different" of docs/migrating.md, checked on both packages."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
import vector_quantize_pytorch as reference
from torch import nn

import torchvq

PAGE = Path(__file__).parents[2] / "docs/migrating.md"
STACK = dict(dim=4, codebook_size=16, num_quantizers=8)
SCALARS = dict(levels=[4] * 4, num_quantizers=8)


def tokens() -> torch.Tensor:
    return torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(1))


def calls(module: nn.Module, inner: nn.Module, x: torch.Tensor) -> int:
    """How often a forward of the module calls the inner one."""
    found: list[int] = []
    inner.register_forward_hook(lambda *_: found.append(1))
    module(x)
    return len(found)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ResidualVQ", STACK),
        ("ResidualLFQ", STACK),
        ("ResidualSimVQ", STACK),
        ("ResidualFSQ", SCALARS),
    ],
)
def test_inner_modules_are_not_called(name: str, options: dict[str, object]) -> None:
    for package, expected in ((reference, 1), (torchvq, 0)):
        stack = getattr(package, name)(**options)
        assert calls(stack, stack.layers[1], tokens()) == expected
    own = getattr(torchvq, name)(**options)
    assert calls(own, own, tokens()) == 1


def test_the_quantizer_of_scales_and_the_codebook_are_not_called() -> None:
    options = dict(dim=4, codebook_size=16, scales=(2, 6), kmeans_init=False)
    for package, expected in ((reference, 2), (torchvq, 0)):
        hvq = package.HierarchicalVQ(**options)
        assert calls(hvq, hvq.vq, tokens().transpose(1, 2)) == expected
    reference.VectorQuantize(4, 16)._codebook(tokens())
    with pytest.raises(NotImplementedError, match="call the quantizer; distances to the codes"):
        torchvq.VectorQuantize(4, 16)._codebook(tokens())


@pytest.mark.parametrize(("name", "options"), [("ResidualLFQ", STACK), ("ResidualFSQ", SCALARS)])
def test_levels_are_dropped_without_gradient_too(name: str, options: dict[str, object]) -> None:
    for package, expected in ((reference, False), (torchvq, True)):
        stack = getattr(package, name)(**options, quantize_dropout=True)
        with torch.no_grad():
            drops = [bool(stack(tokens())[1].lt(0).any()) for _ in range(30)]
        assert any(drops) == expected


def test_second_derivatives() -> None:
    def twice(package) -> None:
        x = tokens().requires_grad_()
        quantized = package.FSQ([4] * 4)(x)[0]
        (gradient,) = torch.autograd.grad(quantized.square().sum(), x, create_graph=True)
        gradient.square().sum().backward()

    twice(reference)
    with pytest.raises(NotImplementedError, match="create_graph"):
        twice(torchvq)


def test_fitness_is_computed_in_evaluation() -> None:
    for package, expected in ((reference, True), (torchvq, False)):
        evo = package.EvoLFQ(nn.Linear(6, 8), nn.Linear(8, 6), dim=8, codebook_size=256)
        modes: list[bool] = []

        def fitness(decoded, bits, evo=evo, modes=modes):
            modes.append(evo.training)
            return decoded.flatten(1).sum(1)

        evo.step(evo.init_random_population(3, (5, 8)), fitness)
        assert modes == [expected]


@pytest.mark.parametrize("compat", [False, True])
def test_a_function_of_accumulated_statistics_gets_those_of_all_calls(compat: bool) -> None:
    codes = torch.tensor([[0.0, 0.0], [5.0, 5.0]])
    given = []
    for package, options in ((torchvq, dict(vqp_compat=compat)), (reference, {})):
        vq = package.VectorQuantize(dim=2, codebook_size=2, **options)
        vq._codebook.embed.copy_(codes[None])
        counts: list[list[float]] = []

        def weight(sums, size, counts=counts):
            counts.append(size.flatten().tolist())
            return (size > 0).float()

        vq(codes[None], accum_ema_update=True, ema_update_weight=weight)
        vq(codes[None, :1], ema_update_weight=weight)
        given.append(counts)
    assert given == [[[2, 1]], [[1, 1], [1, 0]]]


def test_affine_statistics_of_a_shared_codebook_are_those_of_the_first_level() -> None:
    x = tokens() + 10
    means = []
    for package in (torchvq, reference):
        torch.manual_seed(0)
        options = dict(num_quantizers=3, shared_codebook=True, affine_param=True)
        stack = package.ResidualVQ(dim=4, codebook_size=16, **options)
        stack(x)
        means.append(stack.layers[0]._codebook.batch_mean.flatten())
    torch.testing.assert_close(means[0], x.mean((0, 1)))
    assert (means[1] - x.mean((0, 1))).abs().max() > 1e-3


@pytest.mark.parametrize("compat", [False, True])
def test_own_optimizers_count_affine_statistics_once_or_as_the_reference(compat: bool) -> None:
    options = dict(affine_param=True, learnable_codebook=True, ema_update=False)
    options |= dict(in_place_codebook_optimizer=lambda own: torch.optim.SGD(list(own), lr=0.1))
    ours = torchvq.VectorQuantize(dim=4, codebook_size=7, vqp_compat=compat, **options)
    theirs = reference.VectorQuantize(dim=4, codebook_size=7, **options)
    theirs.load_state_dict(ours.state_dict(), strict=False)
    for step in range(3):
        found, expected = ours(tokens() + step), theirs(tokens() + step)
        if compat:
            torch.testing.assert_close(tuple(found), tuple(expected))
    decay = 0.99**2 if compat else 0.99
    mean = tokens().mean((0, 1))
    second = mean * decay + (mean + 1) * (1 - decay)
    last = second * decay + (mean + 2) * (1 - decay)
    torch.testing.assert_close(ours._codebook.batch_mean.flatten(), last)


@pytest.mark.parametrize(
    "module",
    ["vector_quantize_pytorch", "finite_scalar_quantization", "lookup_free_quantization"],
)
def test_names_of_modules_are_here_or_lead_to_the_page(module: str) -> None:
    theirs = importlib.import_module(f"vector_quantize_pytorch.{module}")
    ours = importlib.import_module(f"torchvq.{module}")
    lacking = []
    for name, value in vars(theirs).items():
        own = getattr(value, "__module__", None) == theirs.__name__
        if own and not name.startswith("__") and name not in vars(ours):
            lacking.append(name)
            with pytest.raises(ImportError, match=f'but got {name}, .* docs/migrating.md, "Where'):
                exec(f"from torchvq.{module} import {name}")
    assert len(lacking) > 5 and "## Where names are" in PAGE.read_text()
    with pytest.raises(AttributeError, match="has no attribute 'nosuch'"):
        ours.nosuch
    with pytest.raises(ImportError, match="cannot import name 'nosuch'"):
        exec(f"from torchvq.{module} import nosuch")


def test_what_the_page_gives_for_functions_is_the_same() -> None:
    theirs = importlib.import_module("vector_quantize_pytorch.vector_quantize_pytorch")
    scalar = importlib.import_module("vector_quantize_pytorch.finite_scalar_quantization")
    x, target = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 8)
    counts, p, lens = (
        torch.tensor([[3.0, 0, 5]]),
        torch.rand(4, 5).softmax(-1),
        torch.tensor([2, 0]),
    )
    pairs: list[tuple[str, dict[str, Any], torch.Tensor]] = [
        (
            "rotation_trick(x.flatten(0, -2)[None], target.flatten(0, -2)[None]).view_as(x)",
            dict(x=x, target=target, rotation_trick=torch.ops.torchvq.rotation_trick),
            theirs.rotate_to(x, target),
        ),
        ("x + (y - x).detach()", dict(x=x, y=x.round()), scalar.round_ste(x)),
        ("torch.nn.functional.normalize(x, dim=-1)", dict(x=x), theirs.l2norm(x)),
        ("torch.cdist(x, y)", dict(x=x[0], y=target[0]), theirs.cdist(x[0], target[0])),
        ("torch.arange(n) < lens[:, None]", dict(n=4, lens=lens), theirs.lens_to_mask(lens, 4)),
        ("torch.special.entr(p).sum(-1)", dict(p=p), theirs.entropy(p)),
        ("x.clamp(min=eps).log()", dict(x=counts, eps=1e-20), theirs.log(counts)),
        (
            "(x + eps) / (x.sum(-1, keepdim=True) + n * eps)",
            dict(x=counts, eps=1e-5, n=3),
            theirs.laplace_smoothing(counts, 3),
        ),
    ]
    for text, given, expected in pairs:
        assert f"`{text}`" in PAGE.read_text(), text
        found = eval(text, dict(torch=torch), given)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    old, new = torch.ones(3), torch.zeros(3)
    theirs.ema_inplace(old, new, 0.9)
    torch.testing.assert_close(torch.ones(3).lerp_(new, 1 - 0.9), old)
    assert torchvq.vector_quantize_pytorch.kmeans is torchvq.kmeans


@pytest.mark.parametrize(
    "name", [*vars(reference.vector_quantize_pytorch.Codebook), "transform_input", "gumbel_sample"]
)
def test_methods_of_codebooks_are_here_or_say_what_to_use(name: str) -> None:
    theirs, ours = (package.VectorQuantize(4, 16)._codebook for package in (reference, torchvq))
    if name.startswith("__") or name in ("update_ema", "update_affine"):
        return
    assert callable(getattr(theirs, name))
    with pytest.raises(NotImplementedError, match=f"Codebook: .* but got {name}, .* has; "):
        getattr(ours, name)(tokens(), some=1)


def test_replaced_projections_of_another_width_need_dim() -> None:
    x = torch.randn(2, 5, 12)
    for name, more in (("VectorQuantize", {}), ("ResidualVQ", dict(num_quantizers=2))):
        theirs = getattr(reference, name)(dim=8, codebook_size=16, codebook_dim=4, **more)
        ours = getattr(torchvq, name)(dim=8, codebook_size=16, codebook_dim=4, **more)
        ours.load_state_dict(theirs.state_dict())
        projections = nn.Linear(12, 4), nn.Linear(4, 12)
        for module in (theirs, ours):
            module.project_in, module.project_out = projections
        with pytest.raises(ValueError, match="expected x to have 8 features"):
            ours(x)
        ours.dim = 12
        for found, expected in zip(ours.eval()(x)[:2], theirs.eval()(x)[:2], strict=True):
            torch.testing.assert_close(found, expected)


def test_levels_called_one_by_one_are_straight_through() -> None:
    """Gradient of the sum of the levels' outputs: with straight-through only that of the first level remains."""
    state = reference.ResidualVQ(**STACK).state_dict()
    gradients = {}
    for own, options in (("ours", {}), ("switched", dict(vqp_compat=True)), ("theirs", {})):
        stack = (reference if own == "theirs" else torchvq).ResidualVQ(**STACK, **options)
        stack.load_state_dict(state)
        x = tokens().requires_grad_()
        residual, total = x, torch.zeros(())
        for level in stack.layers:
            quantized = level(residual)[0]
            residual, total = residual - quantized.detach(), total + quantized.sum()
        (gradients[own],) = torch.autograd.grad(total, x)
    torch.testing.assert_close(gradients["switched"], gradients["theirs"], rtol=1e-4, atol=1e-4)
    assert torch.equal(gradients["ours"], torch.full_like(gradients["ours"], 8.0))
    assert (gradients["theirs"] - 8).abs().max() > 0.1


def in_turn(stack: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """A loop of a user's own over the levels of a stack: the sum of their codes, and their indices."""
    residual, total, found = x, torch.zeros(()), []
    for level in stack.layers:
        quantized, indices, _ = level(residual)
        residual, total = residual - quantized.detach(), total + quantized.detach()
        found.append(indices)
    return [total, torch.stack(found, -1)]


@pytest.mark.parametrize("compat", [False, True])
def test_levels_of_a_shared_codebook_called_one_by_one_wait_if_asked(compat: bool) -> None:
    options = dict(STACK, num_quantizers=3, shared_codebook=True)
    theirs = reference.ResidualVQ(**options)
    moving, waiting = (torchvq.ResidualVQ(**options, vqp_compat=compat) for _ in range(2))
    for stack in (moving, waiting):
        stack.load_state_dict(theirs.state_dict())
    waiting.layers[0]._codebook.manual_ema_update = True
    for scale in (1.0, 2.0):
        found = []
        for stack in (theirs, moving, waiting):
            codes = stack.layers[0].codebook.clone()
            total, indices = in_turn(stack, tokens() * scale)
            found.append((total, torch.allclose(codes[indices].sum(-2), total, atol=1e-5)))
        assert [decodes for _, decodes in found] == [True, False, True]
        torch.testing.assert_close(found[2][0], found[0][0])
        for stack in (theirs, waiting):
            stack.layers[0]._codebook.update_ema()
        torch.testing.assert_close(waiting.layers[0].codebook, theirs.layers[0].codebook)


@pytest.mark.parametrize("compat", [False, True])
def test_levels_that_share_by_assignment_search_the_same_codes(compat: bool) -> None:
    options = dict(STACK, num_quantizers=3)
    theirs, ours = reference.ResidualVQ(**options), torchvq.ResidualVQ(**options, vqp_compat=compat)
    ours.load_state_dict(theirs.state_dict())
    decodes = []
    for stack in (theirs, ours):
        for level in stack.layers[1:]:
            level._codebook = stack.layers[0]._codebook
        before = stack.layers[0].codebook.clone()
        total, indices, _ = stack.train()(tokens())
        decodes.append(torch.allclose(before[indices].sum(-2), total, atol=1e-5))
    assert decodes == [False, True]
    residual, averages = tokens(), {"cluster_size": torch.ones(16), "embed_avg": before.clone()}
    for level in indices.unbind(-1):
        chosen = nn.functional.one_hot(level, 16).float().flatten(0, -2)
        averages["cluster_size"].lerp_(chosen.sum(0), 0.2)
        averages["embed_avg"].lerp_(chosen.T @ residual.flatten(0, -2), 0.2)
        residual = residual - before[level]
    for name, expected in averages.items():
        torch.testing.assert_close(getattr(ours.layers[0]._codebook, name)[0], expected)


def test_levels_of_a_shared_codebook_have_no_optimizer_of_their_own() -> None:
    options = dict(STACK, shared_codebook=True, learnable_codebook=True, ema_update=False)
    moved = []
    for package in (reference, torchvq):
        stack = package.ResidualVQ(
            **options, in_place_codebook_optimizer=lambda codes: torch.optim.SGD(codes, lr=1.0)
        )
        before = stack.layers[0].codebook.detach().clone()
        in_turn(stack, tokens().requires_grad_())
        stack.layers[0].update_in_place_optimizer()
        moved.append(not torch.equal(stack.layers[0].codebook, before))
    assert moved == [True, False]


@pytest.mark.parametrize("name", ["VectorQuantize", "ResidualVQ"])
def test_parts_do_not_learn_in_evaluation(name: str) -> None:
    more = dict(num_quantizers=2) if name == "ResidualVQ" else {}
    learnt = []
    for package in (reference, torchvq):
        for part_in_training in (True, False):
            module = getattr(package, name)(dim=4, codebook_size=16, **more)
            level = module.layers[0] if more else module
            module.train(not part_in_training)
            (level if more else level._codebook).train(part_in_training)
            before = level.codebook.clone()
            module(tokens())
            learnt.append(not torch.equal(level.codebook, before))
    assert learnt == [True, False, False, False]


@pytest.mark.parametrize("compat", [False, True])
def test_a_threshold_set_later_replaces_codes(compat: bool) -> None:
    for package, options in ((reference, {}), (torchvq, dict(vqp_compat=compat))):
        vq = package.VectorQuantize(dim=4, codebook_size=16, **options)
        vq.codebook = torch.full((16, 4), 50.0) + torch.arange(16)[:, None]
        vq._codebook.embed_avg.copy_(vq._codebook.embed)
        vq._codebook.threshold_ema_dead_code = 5
        vq._codebook.reset_cluster_size = 5
        vq(tokens())
        near = (vq.codebook.norm(dim=-1) < 20).sum()
        assert (near > 1) == (package is torchvq)


def test_averages_of_buffers_leave_integers_out() -> None:
    vq = torchvq.VectorQuantize(dim=4, codebook_size=16)
    integers = {name for name, own in vq.named_buffers() if own.dtype == torch.int64}
    stored = {name for name in integers if name in vq.state_dict()}
    assert stored == {"_codebook.rng"}
    assert integers - stored == {"step_counts", "_codebook.replaced"}


def test_flags_of_affine_statistics_are_all_that_the_reference_does_not_know() -> None:
    options = dict(dim=4, codebook_size=16, affine_param=True)
    theirs = reference.VectorQuantize(**options)
    theirs(tokens())
    found = theirs.load_state_dict(torchvq.VectorQuantize(**options).state_dict(), strict=False)
    assert not found.missing_keys
    flags = {"_codebook.batch_mean_needs_init", "_codebook.batch_variance_needs_init"}
    assert set(found.unexpected_keys) == flags | {"_codebook.rng"}
    assert all(PAGE.read_text().count(f"`{key}`") == 2 for key in flags)


@pytest.mark.parametrize("compat", [False, True])
def test_a_level_that_is_frozen_later_stays(compat: bool) -> None:
    for package, own in ((reference, {}), (torchvq, dict(vqp_compat=compat))):
        stack = package.ResidualVQ(**STACK, **own)
        stack.layers[1].freeze_codebook = True
        before = [level._codebook.embed.clone() for level in stack.layers]
        stack(tokens())
        same = [
            torch.equal(level._codebook.embed, old)
            for level, old in zip(stack.layers, before, strict=True)
        ]
        assert same == [index == 1 and package is torchvq for index in range(8)]


@pytest.mark.parametrize("compat", [False, True])
def test_equal_tokens_replace_one_dead_code(compat: bool) -> None:
    for package, own, replaced in ((reference, {}, 4), (torchvq, dict(vqp_compat=compat), 1)):
        vq = package.VectorQuantize(4, 8, threshold_ema_dead_code=0.5, **own)
        vq._codebook.cluster_size[0, :4] = 0.1
        vq._codebook.cluster_size[0, 4:] = 100
        vq._codebook.embed[0, 7] = 1.0  # the nearest code, which lives
        vq._codebook.embed_avg.copy_(vq._codebook.embed * vq._codebook.cluster_size[..., None])
        vq(torch.full((1, 8, 4), 3.0))
        assert int((vq._codebook.embed - 3).abs().amax(-1).lt(1e-3).sum()) == replaced


def test_seeds_of_generators_move_what_is_built_after_them() -> None:
    found = []
    for package in (reference, torchvq):
        torch.manual_seed(0)
        stack = package.ResidualVQ(dim=4, codebook_size=16, num_quantizers=2)
        found.append(stack.codebooks)
    assert torch.equal(found[0][0], found[1][0]) and not torch.equal(found[0][1], found[1][1])
    options = dict(dim=4, codebook_size=16, kmeans_init=True)
    assert not reference.VectorQuantize(**options).codebook.any()
    assert torchvq.VectorQuantize(**options).codebook.any()


READ_IN_BACKWARD: list[tuple[str, dict[str, Any]]] = [
    ("VectorQuantize", dict(dim=4, codebook_size=16)),
    ("FSQ", dict(levels=[5] * 4)),
    ("LFQ", dict(dim=4, codebook_size=16)),
    ("SimVQ", dict(dim=4, codebook_size=16)),
    ("LatentQuantize", dict(levels=[5] * 6, dim=6)),
    ("BinaryMapper", dict(bits=4)),
    ("FSP", dict(levels=[5] * 4)),
]


@pytest.mark.parametrize(("name", "options"), READ_IN_BACKWARD)
def test_inputs_are_read_in_backward(name: str, options: dict[str, Any]) -> None:
    def backward(package) -> None:
        x = tokens().requires_grad_() * 1
        output = getattr(package, name)(**options)(x)[0]
        x.mul_(2)
        output.sum().backward()

    backward(reference)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        backward(torchvq)


@pytest.mark.parametrize(
    ("name", "options", "parameter"),
    [
        ("VectorQuantize", dict(learnable_codebook=True, ema_update=False), "_codebook.embed"),
        ("SimVQ", {}, "code_transform.weight"),
    ],
)
def test_hooks_of_codes_are_called_with_none(
    name: str, options: dict[str, Any], parameter: str
) -> None:
    for package, expected in ((reference, []), (torchvq, [None])):
        vq = getattr(package, name)(dim=4, codebook_size=16, **options)
        seen: list[torch.Tensor | None] = []
        vq.get_parameter(parameter).register_hook(seen.append)
        vq(tokens().requires_grad_())[0].sum().backward()
        assert seen == expected and vq.get_parameter(parameter).grad is None


def test_attributes_of_another_type() -> None:
    def types(package) -> list[type]:
        return [
            type(package.ResidualFSQ(levels=[5, 5], num_quantizers=2).levels),
            type(package.LatentQuantize([5, 5], 2).commitment_loss_weight),
            type(package.LatentQuantize([5, 5], 2).quantization_loss_weight),
            type(package.RandomProjectionQuantizer(dim=4, codebook_size=8, codebook_dim=4).norm),
            type(package.FSP([5, 4]).vector_norm),
        ]

    theirs, ours = types(reference), types(torchvq)
    assert ours == [tuple, float, float, bool, str]
    assert theirs[:4] == [list, torch.Tensor, torch.Tensor, nn.LayerNorm]
    assert issubclass(theirs[4], nn.Module)


def test_options_of_construction_are_no_attributes_of_parts() -> None:
    def gradient_of_codes(package) -> bool:
        vq = package.VectorQuantize(4, 16, learnable_codebook=True, ema_update=False)
        vq._codebook.learnable_codebook = False
        loss = vq(tokens().requires_grad_())[2]
        return torch.autograd.grad(loss, vq._codebook.embed, allow_unused=True)[0] is not None

    assert [gradient_of_codes(package) for package in (reference, torchvq)] == [False, True]


def test_codes_in_a_graph_that_a_step_moves() -> None:
    def gradient_of(package, codes_of) -> torch.Tensor:
        torch.manual_seed(0)
        vq = package.VectorQuantize(4, 16)
        vq.codebook = torch.linspace(-1, 1, 64).view(16, 4)
        x = tokens().requires_grad_()
        logits = x @ codes_of(vq).t()
        vq(x.detach())
        return torch.autograd.grad(logits.square().sum(), x)[0]

    codes = torch.linspace(-1, 1, 64).view(16, 4)
    exact = 2 * tokens() @ codes.t() @ codes
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradient_of(torchvq, lambda vq: vq.codebook)
    assert not torch.allclose(gradient_of(reference, lambda vq: vq.codebook), exact)
    torch.testing.assert_close(gradient_of(torchvq, lambda vq: vq.codebook.clone()), exact)
