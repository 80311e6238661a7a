"""Every adapted quantizer against the package's own: tokens, values, state, training."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from quantizers import CASES, FACTORISED, PLAIN, Case, gaps, same
from torch import Tensor, nn

from torchvq import adapters


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]()


def pair(case: Case, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, nn.Module]:
    original, other = case.build().to(dtype), case.build().to(dtype)
    other.load_state_dict(original.state_dict())
    return original, adapters.adapt(other)


def tensors(value: Any) -> list[Tensor]:
    """All tensors of a nested output."""
    if isinstance(value, Tensor):
        return [value]
    if hasattr(value, "__dict__") and not isinstance(value, tuple):
        value = tuple(vars(value).values())
    return [t for part in value for t in tensors(part)] if isinstance(value, tuple | list) else []


@torch.no_grad()
@pytest.mark.parametrize("frames", [4, 8, 24, 100])
def test_tokens_and_outputs_in_float64_are_the_originals(case: Case, frames: int) -> None:
    original, adapted = pair(case, torch.float64)
    x = case.latents(frames).double()
    tokens = case.encode(original, x)
    if (
        "Mimi" in type(original).__name__
    ):  # Mimi compares float32 copies even in float64, so near ties of float32 may differ
        assert all(
            bool((gap <= bound).all()) for gap, bound in map(gaps, case.stacks(original, x, tokens))
        )
    assert same(case.encode(adapted, x), tokens)
    if case.decode is not None:
        assert torch.equal(case.decode(adapted, tokens), case.decode(original, tokens))


@torch.no_grad()
@pytest.mark.parametrize("offset", [0.0, 300.0], ids=["centred", "far"])
def test_tokens_in_float32_are_exact_and_the_originals_but_for_near_ties(
    case: Case, offset: float, record_property: Any, request: pytest.FixtureRequest
) -> None:
    original = case.build()
    for name, tensor in [*original.named_buffers(), *original.named_parameters()]:
        if name.endswith(("embed", "codebook.weight", "embedding.weight")):
            tensor.data.add_(offset)
    adapted = adapters.adapt(copy.deepcopy(original))
    x = case.latents(400) + offset
    ours, theirs = case.encode(adapted, x), case.encode(original, x)
    for stack in case.stacks(original, x, ours):
        if case.compared is not None:
            stack.compared = case.compared(adapted, x)
        assert bool((gaps(stack)[0] == 0).all())
    near = 0
    for stack in case.stacks(original, x, theirs):
        gap, bound = gaps(stack)
        assert bool((gap <= bound).all())
        near += int((gap > 0).sum())
    record_property("near_ties", near)
    record_property("differ", sum(int((a != b).sum()) for a, b in zip(ours, theirs, strict=True)))
    # Only near ties make tokens differ.
    assert near > 0 or same(ours, theirs)
    # Far from the origin there are near ties, so the error bound is really tested.
    assert near > 0 or not (offset and request.node.callspec.params["case"] in PLAIN)


@torch.no_grad()
def test_outputs_in_float32_are_the_originals(case: Case) -> None:
    original, adapted = pair(case)
    x = case.latents(24)
    tokens = case.encode(original, x)
    assert same(case.encode(adapted, x), tokens)
    if case.decode is not None:
        ours, theirs = case.decode(adapted, tokens), case.decode(original, tokens)
        assert (
            torch.equal(ours, theirs)
            and ours.dtype == theirs.dtype
            and ours.stride() == theirs.stride()
        )
    else:
        inputs = x[:, None] if "Emu3" in type(original).__name__ else x
        for ours, theirs in zip(tensors(adapted(inputs)), tensors(original(inputs)), strict=True):
            assert (
                torch.equal(ours, theirs)
                and ours.dtype == theirs.dtype
                and ours.stride() == theirs.stride()
            )


@torch.no_grad()
@pytest.mark.parametrize("name", PLAIN)
def test_tokens_in_bfloat16_are_those_of_float32_latents(name: str) -> None:
    case = CASES[name]()
    half, adapted = pair(case, torch.bfloat16)
    x = case.latents(100).bfloat16()
    for stack in case.stacks(copy.deepcopy(half).float(), x.float(), case.encode(adapted, x)):
        assert bool((gaps(stack)[0] == 0).all())
    if case.decode is not None:
        tokens = case.encode(adapted, x)
        ours, theirs = case.decode(adapted, tokens), case.decode(half, tokens)
        assert ours.dtype == theirs.dtype == torch.bfloat16
        exact = case.decode(copy.deepcopy(half).double(), tokens)
        assert (ours - exact).abs().max() <= (theirs - exact).abs().max()


@torch.no_grad()
@pytest.mark.parametrize("name", FACTORISED)
def test_factorised_levels_in_bfloat16_choose_as_in_float32(name: str) -> None:
    level = adapters.adapt(CASES[name]().build().bfloat16()).quantizers[0]
    latents = torch.randn(2, 8, 100, dtype=torch.bfloat16)
    codes = level.codebook.weight.float()
    x, chosen = latents.float().transpose(1, 2), level.decode_latents(latents)[1]
    unit = torch.nn.functional.normalize(codes.double(), dim=-1)
    assert torch.equal(chosen, (x.double() @ unit.T).argmax(-1))


@torch.no_grad()
@pytest.mark.parametrize("name", FACTORISED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_codes_of_zeros_stand_where_the_package_has_them(name: str, dtype: torch.dtype) -> None:
    original, adapted = pair(CASES[name](), dtype)
    latents = torch.randn(4, 8, 100, dtype=dtype)
    for model in (original, adapted):
        model.quantizers[0].codebook.weight.data[3:].zero_()
    ours, theirs = (m.quantizers[0].decode_latents(latents)[1] for m in (adapted, original))
    assert torch.equal(ours, theirs)
    assert bool((ours == 3).any()) and bool((ours < 3).any())


def alike(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> None:
    """Equal tokens; sums, latents and losses in float64 up to the order of additions."""
    assert torch.equal(ours[1], theirs[1])
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13)


@torch.no_grad()
@pytest.mark.parametrize("name", ["dac", "dac_package"])
@pytest.mark.parametrize("levels", [None, 1, 3])
def test_a_stack_of_factorised_levels_is_one_call(name: str, levels: int | None) -> None:
    """Equal tokens, and sums, latents and losses up to rounding, without calling a level."""
    case = CASES[name]()
    original, adapted = pair(case, torch.float64)
    for level in adapted.quantizers:
        level.decode_latents = None  # calling it would fail
    x = case.latents(24).double()
    ours, theirs = adapted(x, levels), original(x, levels)
    assert len(ours) == len(theirs) == 5
    alike(ours, theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert one.shape == other.shape and one.stride() == other.stride()
    assert ours[3].data_ptr() != ours[4].data_ptr()


@torch.no_grad()
@pytest.mark.parametrize("name", ["dac", "dac_package"])
def test_normed_weights_are_those_of_the_moment(name: str) -> None:
    original, adapted = pair(CASES[name](), torch.float64)
    for model in (original, adapted):
        for level in model.quantizers:
            level.decode_latents = None if model is adapted else level.decode_latents
            for conv in (level.in_proj, level.out_proj):
                if name == "dac":
                    nn.utils.parametrizations.weight_norm(conv)
                for norm in (
                    p for n, p in conv.named_parameters() if n.endswith(("_g", "original0"))
                ):
                    norm.mul_(1.5)
    x = CASES[name]().latents(24).double()
    alike(adapted(x), original(x))


@torch.no_grad()
@pytest.mark.parametrize("name", ["dac", "dac_package"])
def test_reduced_precision_goes_the_packages_way(name: str) -> None:
    """Level by level, as with gradients: the package's products and sums, and our search."""
    for dtype in (torch.bfloat16, torch.float32):
        adapted = adapters.adapt(CASES[name]().build().to(dtype))
        x = CASES[name]().latents(24).to(dtype)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.float32):
            found = adapted(x)
            with torch.enable_grad():
                expected = adapted(x)
        for one, other in zip(found[:3], expected[:3], strict=True):
            assert torch.equal(one, other) and one.dtype == other.dtype


@torch.no_grad()
@pytest.mark.parametrize("name", ["dac", "dac_package"])
def test_projections_that_do_more_are_called(name: str) -> None:
    wholes = (
        lambda conv: nn.Sequential(conv, nn.Tanh()),
        lambda conv: nn.Conv1d(conv.in_channels, conv.out_channels, 1, bias=False).double(),
        lambda conv: nn.Conv1d(conv.in_channels, conv.out_channels, 3, padding=1).double(),
    )
    x = CASES[name]().latents(24).double()
    for replace in wholes:
        original, adapted = pair(CASES[name](), torch.float64)
        for model in (original, adapted):
            torch.manual_seed(1)
            model.quantizers[2].in_proj = replace(model.quantizers[2].in_proj)
        ours, theirs = adapted(x), original(x)
        assert all(map(torch.equal, ours[:3], theirs[:3]))


@torch.no_grad()
def test_levels_of_several_widths_go_the_packages_way() -> None:
    from dac.nn.quantize import ResidualVectorQuantize

    original = ResidualVectorQuantize(24, 3, 32, [8, 4, 8]).double().eval()
    adapted = adapters.adapt(copy.deepcopy(original))
    x = torch.randn(2, 24, 100, dtype=torch.float64)
    assert all(map(torch.equal, adapted(x), original(x)))


@torch.no_grad()
@pytest.mark.parametrize("name", ["dac", "dac_package"])
def test_a_stack_whose_levels_are_watched_calls_them(name: str) -> None:
    case = CASES[name]()
    x = case.latents(8).double()
    for place in ("", "codebook", "in_proj", "out_proj"):
        for register in ("register_forward_hook", "register_forward_pre_hook"):
            found = []
            for model in pair(case, torch.float64):
                calls: list[int] = []
                getattr(model.quantizers[1].get_submodule(place), register)(
                    lambda *_, calls=calls: calls.append(1)
                )
                found.append((model(x), len(calls)))
            (theirs, expected), (ours, count) = found
            # The package descript-audio-codec looks codes up without calling the module.
            assert count == expected == (0 if (name, place) == ("dac_package", "codebook") else 1)
            assert all(map(torch.equal, ours[:3], theirs[:3]))


@torch.no_grad()
def test_codes_of_zeros_stand_where_the_package_has_them_in_a_stack() -> None:
    for name in ("dac", "dac_package"):
        original, adapted = pair(CASES[name](), torch.float64)
        for model in (original, adapted):
            model.quantizers[0].codebook.weight.data[1:].zero_()
        x = CASES[name]().latents(100).double()
        ours, theirs = adapted(x), original(x)
        alike(ours, theirs)
        assert ours[1][:, 0].unique().tolist() == [0, 1]


@torch.no_grad()
def test_codes_of_zeros_of_unit_vectors_stand_where_the_package_has_them() -> None:
    original, adapted = pair(CASES["glm_image"](), torch.float64)
    for model in (original, adapted):
        model.embedding.weight.data[3:].zero_()
    x = CASES["glm_image"]().latents(100).double()
    ours, theirs = adapted(x), original(x)
    assert all(map(torch.equal, ours, theirs))
    assert bool((ours[2] == 3).any()) and bool((ours[2] < 3).any())


@torch.no_grad()
@pytest.mark.parametrize("frames", range(1, 9))
@pytest.mark.parametrize("name", [n for n in CASES if n != "snac_package"])
def test_frame_by_frame_is_the_whole(name: str, frames: int) -> None:
    case = CASES[name]()
    original, adapted = pair(case, torch.float64)
    x = case.latents(24).double()
    parts = [case.encode(adapted, part) for part in x.split(frames, dim=2)]
    theirs = [case.encode(original, part) for part in x.split(frames, dim=2)]
    assert all(map(same, parts, theirs))


@torch.no_grad()
def test_fewer_levels() -> None:
    for name, call in {
        "encodec": lambda q, x: q.encode(x, 1.0),
        "xcodec": lambda q, x: q.encode(x, 0.5),
        "mimi": lambda q, x: q.encode(x, 3),
        "encodec_package": lambda q, x: q.encode(x, 75, 1.0),
        "dac": lambda q, x: q(x, 2)[1],
        "dac_package": lambda q, x: q(x, 2)[1],
    }.items():
        case = CASES[name]()
        original, adapted = pair(case, torch.float64)
        x = case.latents(8).double()
        found = call(adapted, x)
        assert torch.equal(found, call(original, x)), name
        if case.decode is not None and name in ("encodec", "mimi"):
            fewer = list(found)
            assert torch.equal(case.decode(adapted, fewer), case.decode(original, fewer)), name


def test_state_goes_both_ways(case: Case) -> None:
    original, adapted = pair(case)
    theirs, ours = original.state_dict(), adapted.state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[n], theirs[n]) and ours[n].dtype == theirs[n].dtype for n in theirs)
    x = case.latents(8)
    for source, target in ((case.build(), adapted), (adapters.adapt(case.build()), original)):
        with torch.no_grad():
            for tensor in source.state_dict().values():
                tensor.add_(torch.rand_like(tensor))
            target.load_state_dict(source.state_dict(), strict=True)
            # Mimi caches the codes of its first use and does not clear them on loading.
            for module in target.modules():
                for cache in ("_embed", "_embedding"):
                    if hasattr(module, cache):
                        setattr(module, cache, None)
            assert same(case.encode(target, x), case.encode(source, x))


def test_training_is_the_originals(case: Case) -> None:
    original, adapted = pair(case)
    inputs = case.latents(16)
    outputs, gradients = [], []
    for model in (original, adapted):
        model.train()
        torch.manual_seed(1)
        x = inputs.clone().requires_grad_()
        output = tensors(_forward(model, x))
        outputs.append(output)
        loss = sum((t.float() ** 2).sum() for t in output if t.requires_grad)
        if isinstance(loss, Tensor):
            loss.backward()
        gradients.append([x.grad, *(p.grad for p in model.parameters())])
    assert all(map(torch.equal, *outputs)) and len(outputs[0]) == len(outputs[1]) > 0
    for one, other in zip(*gradients, strict=True):
        assert (one is None) == (other is None) and (one is None or torch.equal(one, other))
    for one, other in zip(
        original.state_dict().values(), adapted.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other)


def _forward(model: Any, x: Tensor) -> Any:
    """The forward of a quantizer, or encode if it has none: those packages train elsewhere."""
    name = type(model).__name__
    if name in ("ResidualVectorQuantizer", "SplitResidualVectorQuantizer"):
        return model(x, 75)
    if name.startswith(("Encodec", "Xcodec", "Mimi", "Higgs")):
        return model.encode(x)
    return model(x[:, None] if name.startswith("Emu3") else x)


def test_gradients_in_evaluation_are_the_originals(case: Case) -> None:
    original, adapted = pair(case, torch.float64)
    inputs = case.latents(8).double()
    found = []
    for model in (original, adapted):
        x = inputs.clone().requires_grad_()
        parts = [t for t in tensors(_forward(model, x)) if t.requires_grad]
        if parts:
            sum((t**2).sum() for t in parts).backward()
        found.append([x.grad, *(p.grad for p in model.parameters())])
    for one, other in zip(*found, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.allclose(one, other, rtol=1e-12, atol=1e-12)


def test_describe_adapt_restore(case: Case) -> None:
    original = case.build()
    classes = [type(m) for m in original.modules()]
    found = adapters.describe(original)
    assert len(found) == case.adapted and not any(row.adapted for row in found)
    assert [type(m) for m in original.modules()] == classes
    assert adapters.adapt(original) is original and adapters.adapt(original) is original
    again = adapters.describe(original)
    assert all(row.adapted for row in again) and [row[:3] for row in again] == [
        row[:3] for row in found
    ]
    assert all(isinstance(m, c) for m, c in zip(original.modules(), classes, strict=True))
    assert adapters.restore(original) is original
    assert [type(m) for m in original.modules()] == classes


@torch.no_grad()
def test_copies_and_pickles(case: Case) -> None:
    adapted = adapters.adapt(case.build())
    others = [copy.deepcopy(adapted)]
    if (
        "snac" not in type(adapted).__module__
    ):  # torch does not pickle parametrized modules, adapted or not
        file = io.BytesIO()
        torch.save(adapted, file)
        file.seek(0)
        others.append(torch.load(file, weights_only=False))
    x = case.latents(8)
    for other in others:
        assert [type(m) for m in other.modules()] == [type(m) for m in adapted.modules()]
        assert same(case.encode(other, x), case.encode(adapted, x))


@torch.no_grad()
def test_compiles_to_one_graph(case: Case) -> None:
    adapted = adapters.adapt(case.build())
    x = case.latents(8)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: case.encode(adapted, x), backend="eager", fullgraph=True)
    assert same(compiled(x), case.encode(adapted, x))
