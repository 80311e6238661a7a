"""Methods that a derived class, or the caller, replaces are called where the reference calls them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
import vector_quantize_pytorch as reference
from torch import Tensor, nn

import torchvq

Bound = Callable[..., Tensor]


def sigmoid_bound(self: Any, z: Tensor, eps: float = 1e-3, hard_clamp: bool = False) -> Tensor:
    """Another bound than tanh: iFSQ."""
    half = (self._levels - 1) / 2
    y = (2 * torch.sigmoid(1.6 * z) - 1) * half
    return (y + (y.round() - y).detach()) / (self._levels // 2)


def scaled(self: Any, z: Tensor) -> Tensor:
    return self.bound(z * 0.5)


def wider_bound(self: Any, z: Tensor, hard_clamp: bool = False) -> Tensor:
    steps = (self._levels - 1) / 2
    y = (2 * z).tanh() * steps
    return (y + ((y + steps).round() - steps - y).detach()) / steps


REPLACED: dict[str, dict[str, Callable[..., Tensor]]] = {
    "bound": {"bound": sigmoid_bound},
    "quantize": {"quantize": scaled},
    "symmetric": {"symmetry_preserving_bound": wider_bound},
    "indices": {"codes_to_indices": lambda self, zhat: zhat.sum(-1).round().int()},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": dict(levels=[5, 5, 5]),
    "projected": dict(levels=[8, 5, 5], dim=16),
    "codebooks": dict(levels=[5, 5], num_codebooks=3),
    "rotation": dict(levels=[5, 5, 5], orthogonal_rotation=True),
}


def derived(package: ModuleType, replaced: str, options: str) -> nn.Module:
    kind = type("Own", (package.FSQ,), REPLACED[replaced])
    module: nn.Module = kind(**OPTIONS[options], preserve_symmetry=replaced == "symmetric")
    return module


@pytest.mark.parametrize("compiles", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("replaced", REPLACED)
def test_fsq_calls_the_steps_of_a_derived_class(
    replaced: str, options: str, compiles: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    ours, theirs = derived(torchvq, replaced, options), derived(reference, replaced, options)
    theirs.load_state_dict(ours.state_dict(), strict=False)
    call = torch.compile(ours, backend="aot_eager", fullgraph=True) if compiles else ours
    x = torch.randn(2, 9, ours.dim, generator=generator)
    found = []
    for module in (call, theirs):
        own = x.clone().requires_grad_()
        quantized, indices = module(own)
        quantized.square().sum().backward()
        found.append((quantized.detach(), indices.long(), own.grad))
    torch.testing.assert_close(found[0], found[1])
    plain = torchvq.FSQ(**OPTIONS[options], preserve_symmetry=replaced == "symmetric")
    plain.load_state_dict(ours.state_dict(), strict=False)
    results = zip(plain(x), found[0], strict=False)
    assert not all(torch.equal(one, two) for one, two in results)


def test_a_step_replaced_on_the_module_or_in_a_stack_is_called() -> None:
    generator = torch.Generator().manual_seed(0)
    fsq = torchvq.FSQ([5, 5, 5])
    x = torch.randn(2, 9, 3, generator=generator)
    mask = torch.arange(9) < torch.tensor([[4], [9]])
    fsq.quantize = lambda z: fsq.bound(z) * 0  # type: ignore[method-assign]
    quantized, indices = fsq(x + 3, mask=mask)
    assert (quantized == 0).all() and ((indices == -1) == ~mask).all()
    assert (indices[mask] == 62).all()
    stack = torchvq.ResidualFSQ(levels=[5, 5, 5], num_quantizers=2).eval()
    before = stack(x)
    stack.layers[1].quantize = lambda z: z * 0
    after = stack(x)
    assert torch.equal(before.indices[..., 0], after.indices[..., 0])
    assert (after.indices[..., 1] == 62).all()


def test_noise_needs_the_own_bound() -> None:
    kind = type("Own", (torchvq.FSQ,), {"symmetry_preserving_bound": wider_bound})
    with pytest.raises(ValueError, match="noise_dropout to be 0 where the bound is replaced"):
        kind([5, 5, 5], noise_dropout=0.5, preserve_symmetry=True)(torch.randn(1, 4, 3))


STACK = dict(dim=8, num_quantizers=2)
DECODERS: dict[str, dict[str, Any]] = {
    "VectorQuantize": dict(dim=8, codebook_size=32),
    "ResidualVQ": STACK | dict(codebook_size=32),
    "ResidualFSQ": STACK | dict(levels=[8, 5, 5]),
    "ResidualLFQ": STACK | dict(codebook_size=16),
    "ResidualSimVQ": STACK | dict(codebook_size=32),
}


@pytest.mark.parametrize("name", DECODERS)
def test_output_of_indices_is_made_of_the_codes_of_a_derived_class(name: str) -> None:
    kind: Any = getattr(torchvq, name)
    own = type(
        "Own",
        (kind,),
        {"get_codes_from_indices": lambda s, i: 2 * kind.get_codes_from_indices(s, i)},
    )
    torch.manual_seed(0)
    module = own(**DECODERS[name]).eval()
    plain = kind(**DECODERS[name]).eval()
    plain.load_state_dict(module.state_dict())
    indices = module(torch.randn(1, 4, 8))[1]
    bias = getattr(module.project_out, "bias", None) if hasattr(module, "project_out") else None
    bias = 0 if bias is None else bias
    found, expected = (m.get_output_from_indices(indices) - bias for m in (module, plain))
    torch.testing.assert_close(found, 2 * expected)


def test_simvq_searches_the_codebook_of_a_derived_class() -> None:
    kind = type(
        "Own",
        (torchvq.SimVQ,),
        {"codebook": property(lambda s: 3 * torchvq.SimVQ.codebook.fget(s))},
    )
    module = kind(dim=4, codebook_size=16)
    for training in (True, False):
        quantized, indices, _ = module.train(training)(torch.randn(1, 9, 4))
        expected = 3 * module.code_transform(module.frozen_codebook)[indices]
        torch.testing.assert_close(quantized, expected)


@pytest.mark.parametrize(
    ("name", "options", "method"),
    [
        ("LatentQuantize", dict(levels=[5, 5], dim=2), "quantize"),
        ("LatentQuantize", dict(levels=[5, 5], dim=2), "commitment_loss"),
        ("FSP", dict(levels=[5, 5]), "quantize_act_value"),
    ],
)
def test_methods_that_are_not_called_are_named(
    name: str, options: dict[str, Any], method: str
) -> None:
    kind = type("Own", (getattr(torchvq, name),), {method: lambda *_: None})
    with pytest.warns(UserWarning, match=f"Own: forward does not call {method}"):
        kind(**options)


def test_levels_that_are_appended_are_used() -> None:
    x = torch.randn(2, 5, 8)
    for package in (reference, torchvq):
        stack = package.ResidualVQ(dim=8, codebook_size=16, num_quantizers=2).eval()
        stack.layers.append(package.VectorQuantize(dim=8, codebook_size=16).eval())
        assert stack(x)[1].shape == (2, 5, 3)
    stack.num_quantizers = 3
    assert torch.equal(stack.get_output_from_indices(stack(x)[1]), stack(x)[0])
    with pytest.raises(ValueError, match="num_quantizers to be that of layers, but got 2"):
        stack.num_quantizers = 2
    stack.layers = stack.layers[:2]
    assert stack(x)[1].shape == (2, 5, 2) and stack.num_quantizers == 2


STACKS: dict[str, dict[str, Any]] = {
    "ResidualVQ": dict(codebook_size=16),
    "ResidualFSQ": dict(levels=[5] * 4),
    "ResidualLFQ": dict(codebook_size=16),
    "ResidualSimVQ": dict(codebook_size=16),
}
GROUPED = {f"Grouped{name}": own for name, own in STACKS.items() if name != "ResidualSimVQ"}


def shortened(package: ModuleType, name: str, levels: int = 4, **options: Any) -> nn.Module:
    torch.manual_seed(1)
    grouped = name in GROUPED
    options |= dict(dim=8, groups=2) if grouped else dict(dim=4)
    kind = getattr(package, name)
    stack: nn.Module = kind(**options, **(STACKS | GROUPED)[name], num_quantizers=levels).eval()
    for own in stack.rvqs if grouped else [stack]:
        own.layers = own.layers[:2]
    return stack


@pytest.mark.parametrize("name", [*STACKS, *GROUPED])
def test_levels_that_are_removed_are_not_used(name: str) -> None:
    """They are those of a stack with fewer from the beginning, and of the reference with these parameters."""
    x = torch.randn(2, 40, 8 if name in GROUPED else 4)
    ours, fewer = shortened(torchvq, name), shortened(torchvq, name, levels=2)
    theirs = shortened(reference, name)
    for other in (fewer, theirs):
        other.load_state_dict(ours.state_dict(), strict=other is fewer)
    quantized, indices = ours(x)[:2]
    assert torch.equal(quantized, fewer(x)[0]) and torch.equal(indices, fewer(x)[1])
    assert torch.equal(indices, theirs(x)[1]) and indices.shape[-3:] == (2, 40, 2)
    torch.testing.assert_close(quantized, theirs(x)[0])
    for method in ("get_codes_from_indices", "get_output_from_indices"):
        assert torch.equal(getattr(ours, method)(indices), getattr(fewer, method)(indices))
    results, expected = ours(x, return_all_codes=True), fewer(x, return_all_codes=True)
    for result, own in zip(results, expected, strict=True):
        torch.testing.assert_close(result, own)
    assert ours.codebooks.shape == fewer.codebooks.shape
    assert ours.train()(x)[1].shape == indices.shape


@pytest.mark.parametrize("name", STACKS)
def test_a_number_of_levels_that_is_stored_does_not_count(name: str) -> None:
    """Modules that were saved with an attribute of their own, or that are given one."""
    stack = shortened(torchvq, name)
    vars(stack)["num_quantizers"] = 4
    loaded = pickle.loads(pickle.dumps(copy.deepcopy(stack)))
    assert loaded.num_quantizers == 2 and loaded(torch.randn(2, 5, 4))[1].shape == (2, 5, 2)
    with pytest.raises(ValueError, match=f"{name}: expected num_quantizers to be that of layers"):
        loaded.num_quantizers = 4


@pytest.mark.parametrize("name", STACKS)
def test_removed_levels_are_not_compiled(name: str) -> None:
    stack, x = shortened(torchvq, name), torch.randn(2, 5, 4)
    compiled = torch.compile(stack, fullgraph=True, backend="aot_eager")
    exported = torch.export.export(stack, (x,)).module()
    for found in (compiled(x), exported(x)):
        assert torch.equal(found[0], stack(x)[0]) and torch.equal(found[1], stack(x)[1])


def test_levels_without_a_scale_are_refused() -> None:
    stack = torchvq.ResidualFSQ(levels=[5, 5], num_quantizers=2)
    stack.layers.append(torchvq.FSQ([5, 5]))
    with pytest.raises(ValueError, match=r"expected layers to be at most 2, .*, but got 3"):
        stack(torch.randn(2, 5, 2))


@pytest.mark.parametrize("number", [20, 12])
@pytest.mark.parametrize("name", ["VectorQuantize", "ResidualVQ"])
def test_codes_of_another_number_train(name: str, number: int) -> None:
    """Pruned and grown codebooks: state of ours that the reference does not have follows."""
    found = []
    for package in (torchvq, reference):
        own = dict(num_quantizers=2) if name == "ResidualVQ" else {}
        compat = dict(vqp_compat=True) if package is torchvq else {}
        module = getattr(package, name)(dim=8, codebook_size=16, **own, **compat)
        for layer in module.layers if own else [module]:
            codes = torch.randn(1, number, 8, generator=torch.Generator().manual_seed(1))
            codebook = layer._codebook
            codebook.embed, codebook.embed_avg = codes, codes.clone()
            codebook.cluster_size = torch.ones(1, number)
            layer.codebook_size = codebook.codebook_size = number
        generator = torch.Generator().manual_seed(2)
        found.append([module(torch.randn(1, 50, 8, generator=generator))[:2] for _ in range(3)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(tuple(ours), tuple(theirs))


def test_dead_codes_of_a_grown_codebook_are_replaced_and_counted() -> None:
    vq = torchvq.VectorQuantize(dim=8, codebook_size=16, threshold_ema_dead_code=2)
    codebook = vq._codebook
    codebook.embed = torch.randn(1, 20, 8)
    codebook.embed_avg, codebook.cluster_size = codebook.embed.clone(), torch.ones(1, 20)
    vq(torch.randn(1, 50, 8))
    stats = vq.stats()
    assert stats.tokens == 50 and stats.replaced > 0
    other = torchvq.VectorQuantize(dim=8, codebook_size=20)
    other.load_state_dict(vq.state_dict())


SEPARATE = dict(heads=2, codebook_dim=4, separate_codebook_per_head=True)
MODES: dict[str, dict[str, Any]] = {
    "evaluation": {},
    "averages": {},
    "frozen": {},
    "gradient": dict(learnable_codebook=True, ema_update=False),
    "decoding": {},
}


def with_codes(
    package: ModuleType, name: str, shape: tuple[int, ...], mode: str, **options: Any
) -> Any:
    own = dict(num_quantizers=2) if name == "ResidualVQ" else {}
    module = getattr(package, name)(dim=8, codebook_size=16, **own, **options, **MODES[mode])
    for layer in module.layers if own else [module]:
        codes = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        layer._codebook.embed.data = codes
    return module.train(mode not in ("evaluation", "decoding"))


def result(module: Any, name: str, mode: str, heads: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    if mode == "decoding":
        shape = (2, 5, *([heads] if heads > 1 else []), *([2] if name == "ResidualVQ" else []))
        return module.get_output_from_indices(torch.randint(7, shape, generator=generator))
    x = torch.randn(2, 5, 8, generator=generator)
    return module(x, freeze_codebook=mode == "frozen")[1]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["VectorQuantize", "ResidualVQ"])
@pytest.mark.parametrize(
    ("options", "shape"),
    [({}, (16, 8)), ({}, (2, 16, 8)), (SEPARATE, (16, 4)), (SEPARATE, (1, 16, 4))],
    ids=["two axes", "two codebooks", "two axes for heads", "one codebook for heads"],
)
def test_codes_of_other_axes_are_refused(
    options: dict[str, Any], shape: tuple[int, ...], name: str, mode: str
) -> None:
    module = with_codes(torchvq, name, shape, mode, **options)
    layers = module.layers if name == "ResidualVQ" else [module]
    wanted = [options.get("heads", 1), 16, options.get("codebook_dim", 8)]
    before = {key: value.clone() for key, value in module.state_dict().items()}
    for _ in range(2):
        with pytest.raises(ValueError) as caught:
            result(module, name, mode, wanted[0])
        assert str(caught.value) == (
            f"VectorQuantize: expected embed to have the shape (heads, codebook_size, dim), {wanted}, but got "
            f"{list(shape)}; assign vq.codebook to replace codes"
        )
    for key, value in module.state_dict().items():
        assert torch.equal(value, before[key]), key
    for layer in layers:  # as the message says
        layer.codebook = torch.ones(wanted)
        assert layer._codebook.embed.shape == tuple(wanted)
    result(module, name, mode, wanted[0])


@pytest.mark.parametrize("number", [32, 7])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["VectorQuantize", "ResidualVQ"])
def test_another_number_of_codes_without_their_averages(name: str, mode: str, number: int) -> None:
    """They are searched and decoded; only averages cannot learn from them."""
    ours, theirs = (with_codes(own, name, (1, number, 8), mode) for own in (torchvq, reference))
    if mode != "averages":
        for _ in range(2):
            torch.testing.assert_close(result(ours, name, mode), result(theirs, name, mode))
        return
    with pytest.raises(RuntimeError):
        result(theirs, name, mode)
    before = {key: value.clone() for key, value in ours.state_dict().items()}
    shapes = rf"\[1, 16, 8\], but got \[1, {number}, 8\]; assign vq.codebook"
    with pytest.raises(ValueError, match=f"VectorQuantize: expected embed to have .*{shapes}"):
        result(ours, name, mode)
    for key, value in ours.state_dict().items():
        assert torch.equal(value, before[key]), key


def test_codes_of_other_axes_are_refused_outside_of_forward() -> None:
    x, found = torch.randn(1, 9, 8), torch.zeros(1, 9).long()
    calls: list[Callable[[Any], object]] = [
        lambda vq: vq.update_ema_indices(x, found),
        lambda vq: vq.expire_codes_(x),
        lambda vq: vq._codebook.update_ema(),
        lambda vq: vq.codebook,
    ]
    for call in calls:
        vq = torchvq.VectorQuantize(dim=8, codebook_size=16, threshold_ema_dead_code=2)
        vq._codebook.embed.data = torch.randn(16, 8)
        with pytest.raises(ValueError, match=r"expected embed to have .*, but got \[16, 8\]"):
            call(vq)


def test_codes_of_other_axes_are_refused_before_statistics() -> None:
    """Statistics of the affine map and k-means come before the search."""
    for options in (dict(affine_param=True), dict(kmeans_init=True)):
        vq = torchvq.VectorQuantize(dim=8, codebook_size=16, **options)
        vq._codebook.embed.data = torch.randn(16, 8)
        before = {key: value.clone() for key, value in vq.state_dict().items()}
        with pytest.raises(ValueError, match=r"expected embed to have .*, but got \[16, 8\]"):
            vq(torch.randn(2, 20, 8))
        for key, value in vq.state_dict().items():
            assert torch.equal(value, before[key]), key


def test_noise_of_levels() -> None:
    x = torch.randn(1, 9, 8)
    late = torchvq.ResidualFSQ(levels=[8, 5, 5], dim=8, num_quantizers=2)
    late.layers[1].noise_dropout = 0.5
    with pytest.raises(ValueError, match="ResidualFSQ: expected noise_dropout to be given to the"):
        late(x)
    stack = torchvq.ResidualFSQ(levels=[8, 5, 5], dim=8, num_quantizers=2, noise_dropout=0.5)
    expected = stack.eval()(x)
    stack.train()
    assert not torch.equal(stack(x).quantized, expected.quantized)
    for level in stack.layers:
        level.eval()
    assert torch.equal(stack(x).quantized, expected.quantized)


NOT_REPLACED = (
    "gumbel_sample replace expire_codes_ init_embed_ sample_fn replace_sample_fn all_reduce_fn"
)


@pytest.mark.parametrize("name", [*NOT_REPLACED.split(), "kmeans_all_reduce_fn"])
def test_methods_of_codebooks_that_nothing_calls_cannot_be_replaced(name: str) -> None:
    """A replacement that is silently left out would be taken for one that works."""
    theirs, ours = (package.VectorQuantize(4, 16)._codebook for package in (reference, torchvq))
    setattr(theirs, name, torch.relu)
    assert getattr(theirs, name) is torch.relu
    expected = f"^Codebook: expected a method of torchvq to be replaced, but got {name}, .* has; "
    with pytest.raises(NotImplementedError, match=expected):
        setattr(ours, name, torch.relu)
    assert name not in vars(ours) and getattr(ours, name).__name__ == name


def test_forward_of_a_codebook_may_be_wrapped() -> None:
    """As frameworks do that wrap the forward of every module."""
    vq = torchvq.VectorQuantize(4, 16)
    for module in vq.modules():
        module.forward = module.forward  # type: ignore[method-assign]
    assert vq(torch.randn(2, 3, 4))[0].shape == (2, 3, 4)
