"""Frozen stacks give the tokens of other adapted stacks, and changes of their codes are noticed all the same."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from quantizers import CASES, Case, same
from torch import Tensor, nn

from torchvq import adapters
from torchvq.adapters import _frozen
from torchvq.adapters._residual import EncodecPackageStack, MoshiStack, _embeds

STACKS = ("encodec", "mimi", "xcodec", "encodec_package", "moshi_package")


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=STACKS)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]()


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Records the codes of which copies are made."""
    made: list[Tensor] = []
    original = _frozen._prepare

    def prepare(codes: Tensor) -> Tensor:
        made.append(codes.clone())
        result: Tensor = original(codes)
        assert result.numel() > 0
        return result

    monkeypatch.setattr(_frozen, "_prepare", prepare)
    return made


def pair(case: Case) -> tuple[Any, Any]:
    """The same model twice: adapted, and adapted with frozen=True."""
    model = case.build()
    return adapters.adapt(copy.deepcopy(model)), adapters.adapt(model, frozen=True)


def codes_of(model: nn.Module) -> list[Tensor]:
    """The codes of all levels of the model's stacks, as their searches read them."""
    found: list[Tensor] = []
    for module in model.modules():
        if isinstance(module, EncodecPackageStack | MoshiStack):
            found += module.codes_of_levels() or []
        elif isinstance(module, adapters.Adapter) and not _is_codebook(module):
            found += _embeds(getattr(module, "layers", None) or module.quantizers)
    return found


def _is_codebook(module: nn.Module) -> bool:
    return type(module).__name__.endswith("Codebook")


def few(case: Case, frames: int = 2) -> Tensor:
    return case.latents(400)[:2, ..., :frames]


@torch.no_grad()
def test_tokens_are_those_of_the_others_and_copies_are_made_once(
    case: Case, prepared: list[Tensor]
) -> None:
    adapted, frozen = pair(case)
    assert not prepared
    x = case.latents(400)
    for frames in (1, 2, 16, 1, 7):
        part = x[:2, ..., :frames]
        assert same(case.encode(frozen, part), case.encode(adapted, part))
        assert len(prepared) == len(codes_of(frozen)) > 0
    for part in x[:1].split(1, dim=-1):
        assert same(case.encode(frozen, part), case.encode(adapted, part))
    assert len(prepared) == len(codes_of(frozen))
    assert all(map(torch.equal, prepared, codes_of(frozen)))


@torch.no_grad()
def test_many_frames_and_other_dtypes_need_no_copies(case: Case, prepared: list[Tensor]) -> None:
    adapted, frozen = pair(case)
    x = case.latents(100)
    assert same(case.encode(frozen, x), case.encode(adapted, x))
    assert not prepared
    x = few(case)
    for dtype in (torch.float64, torch.bfloat16):
        ours, theirs = (case.encode(model.to(dtype), x.to(dtype)) for model in (frozen, adapted))
        assert same(ours, theirs)


def write(codes: Tensor, new: Tensor) -> None:
    codes.copy_(new)


def write_in_inference_mode(codes: Tensor, new: Tensor) -> None:
    with torch.inference_mode():
        codes.copy_(new)


def move(codes: Tensor, new: Tensor) -> None:
    codes.data = new.clone()


def move_twice(codes: Tensor, new: Tensor) -> None:
    """The new codes get the address of the old ones, if nothing holds that memory."""
    codes.data = torch.zeros_like(codes)
    codes.data = new.clone()


@torch.no_grad()
@pytest.mark.parametrize("change", [write, write_in_inference_mode, move, move_twice])
def test_codes_that_change_are_noticed(
    case: Case, change: Callable[[Tensor, Tensor], None], prepared: list[Tensor]
) -> None:
    adapted, frozen = pair(case)
    x = few(case)
    before = case.encode(frozen, x), case.encode(adapted, x)
    for level in (0, -1):
        for model in (frozen, adapted):
            codes = codes_of(model)[level]
            change(codes, -codes.clone())
        assert same(case.encode(frozen, x), case.encode(adapted, x))
    assert not same(case.encode(frozen, x), before[0])
    assert torch.equal(prepared[-1], codes_of(frozen)[-1])


def exchange(model: nn.Module, codes: Tensor, new: Tensor) -> None:
    for module in model.modules():
        for name in ("embed", "_embed", "_embedding"):
            if vars(module).get(name, module._buffers.get(name)) is codes:
                setattr(module, name, new)
                return
    raise AssertionError("no module has these codes")


@torch.no_grad()
@pytest.mark.parametrize("shared", [False, True], ids=["its own memory", "the same memory"])
def test_other_tensors_are_noticed(case: Case, shared: bool, prepared: list[Tensor]) -> None:
    """A new tensor that shares the old one's memory counts writes from 0, as the old one did."""
    adapted, frozen = pair(case)
    x = few(case)
    before = case.encode(frozen, x)
    case.encode(adapted, x)
    for model in (frozen, adapted):
        codes = codes_of(model)[0]
        new = codes.neg_().data if shared else -codes
        assert new._version == 0 and (new.data_ptr() == codes.data_ptr()) is shared
        exchange(model, codes, new)
        assert codes_of(model)[0] is new
    assert same(case.encode(frozen, x), case.encode(adapted, x))
    assert not same(case.encode(frozen, x), before)


@torch.no_grad()
def test_fewer_codes_in_the_same_place_are_noticed(case: Case, prepared: list[Tensor]) -> None:
    adapted, frozen = pair(case)
    x = few(case)
    for model in (frozen, adapted):
        case.encode(model, x)
        codes = codes_of(model)[0]
        codes.data = codes.data[:20]
    assert same(case.encode(frozen, x), case.encode(adapted, x))


@torch.no_grad()
@pytest.mark.parametrize("assign", [False, True])
def test_another_state_is_noticed(case: Case, assign: bool, prepared: list[Tensor]) -> None:
    adapted, frozen = pair(case)
    x, other = few(case), case.build()
    before = case.encode(frozen, x)
    case.encode(adapted, x)
    for model in (frozen, adapted):
        model.load_state_dict(copy.deepcopy(other.state_dict()), strict=True, assign=assign)
        for module in model.modules():
            # Caches that the packages fill at the first use, and do not clear on loading.
            for cache in ("_embed", "_embedding"):
                if hasattr(module, cache):
                    setattr(module, cache, None)
    theirs = case.encode(adapters.adapt(other), x)
    assert same(case.encode(frozen, x), theirs) and same(case.encode(adapted, x), theirs)
    assert not same(theirs, before)


@torch.no_grad()
@pytest.mark.parametrize("whose", ["model", "levels"])
def test_training_drops_the_copies(case: Case, whose: str, prepared: list[Tensor]) -> None:
    """In training, packages write through `.data`, which no version counter notices."""
    adapted, frozen = pair(case)
    x = few(case)
    before = case.encode(frozen, x)
    case.encode(adapted, x)
    for model in (frozen, adapted):
        parts = [model] if whose == "model" else [m for m in model.modules() if _is_codebook(m)]
        for part in parts:
            part.train()
        if whose == "levels":
            case.encode(model, x)  # while only the levels are in training
        for codes in codes_of(model):
            codes.data.neg_()
        for part in parts:
            part.eval()
    assert same(case.encode(frozen, x), case.encode(adapted, x))
    assert not same(case.encode(frozen, x), before)


@torch.no_grad()
def test_a_call_in_training_drops_the_copies(case: Case, prepared: list[Tensor]) -> None:
    """Code that sets the attribute `training` bypasses train()."""
    adapted, frozen = pair(case)
    x = few(case)
    before = case.encode(frozen, x)
    case.encode(adapted, x)
    for model in (frozen, adapted):
        for training in (True, False):
            for module in model.modules():
                module.training = training
            if training:
                case.encode(model, x)
                for codes in codes_of(model):
                    codes.data.neg_()
    assert same(case.encode(frozen, x), case.encode(adapted, x))
    assert not same(case.encode(frozen, x), before)


@torch.no_grad()
def test_evaluation_of_what_is_in_evaluation_keeps_them(case: Case, prepared: list[Tensor]) -> None:
    _, frozen = pair(case)
    case.encode(frozen, few(case))
    count = len(prepared)
    frozen.eval()
    case.encode(frozen, few(case))
    assert len(prepared) == count


@torch.no_grad()
def test_states_pickles_and_copies_have_none(case: Case, prepared: list[Tensor]) -> None:
    adapted, frozen = pair(case)
    for model in (adapted, frozen):
        case.encode(model, few(case))
    count = len(prepared)
    assert list(frozen.state_dict()) == list(adapted.state_dict())
    assert [set(vars(m)) for m in frozen.modules()] == [set(vars(m)) for m in adapted.modules()]
    assert len(pickle.dumps(frozen)) == len(pickle.dumps(adapted))
    x = few(case)
    for other in (copy.deepcopy(frozen), pickle.loads(pickle.dumps(frozen))):
        assert all(row.adapted for row in adapters.describe(other))
        assert same(case.encode(other, x), case.encode(frozen, x))
    assert len(prepared) == count


@torch.no_grad()
@pytest.mark.parametrize("end", [adapters.restore, adapters.adapt])
def test_restore_and_adapt_end_it(
    case: Case, end: Callable[[Any], Any], prepared: list[Tensor]
) -> None:
    _, frozen = pair(case)
    case.encode(frozen, few(case))
    count = len(prepared)
    end(frozen)
    assert not any(module in _frozen._frozen for module in frozen.modules())
    adapters.adapt(frozen)
    case.encode(frozen, few(case))
    assert len(prepared) == count


@torch.no_grad()
def test_a_model_that_goes_takes_them_along(case: Case) -> None:
    _, frozen = pair(case)
    case.encode(frozen, few(case))
    kept = [
        weakref.ref(tensor)
        for module in frozen.modules()
        for copies in _frozen._frozen.get(module, _frozen._FrozenModel()).stacks.values()
        for tensor in (*copies.prepared, *copies.codes)
    ]
    assert kept and all(tensor() is not None for tensor in kept)
    del frozen
    gc.collect()
    assert all(tensor() is None for tensor in kept)


def test_inference_mode(case: Case, prepared: list[Tensor]) -> None:
    """Tensors created in inference mode have no version counter."""
    adapted, frozen = pair(case)
    x = few(case)
    with torch.inference_mode():
        for _ in range(3):
            assert same(case.encode(frozen, x), case.encode(adapted, x))
    assert len(prepared) == len(codes_of(frozen))
    with torch.no_grad():
        assert same(case.encode(frozen, x), case.encode(adapted, x))
    assert len(prepared) == len(codes_of(frozen))


@torch.no_grad()
def test_fewer_levels_and_more(prepared: list[Tensor]) -> None:
    for name, call in {
        "encodec": lambda q, x, n: q.encode(x, n / 4 * 3.0),
        "mimi": lambda q, x, n: q.encode(x, n),
        "encodec_package": lambda q, x, n: q.vq.encode(x, n),
    }.items():
        case = CASES[name]()
        adapted, frozen = pair(case)
        x = few(case)
        made = []
        for levels in (2, 4, 3, 1):
            before = len(prepared)
            assert torch.equal(call(frozen, x, levels), call(adapted, x, levels)), name
            made.append(len(prepared) - before)
        assert made[0] > 0 and made[1] > 0 and made[2:] == [0, 0]


@torch.no_grad()
def test_threads(case: Case, prepared: list[Tensor]) -> None:
    adapted, frozen = pair(case)
    parts = [few(case, frames) for frames in (1, 2, 3, 4)]
    wanted = [case.encode(adapted, x) for x in parts]
    failed: list[int] = []
    begin = threading.Barrier(len(parts))

    def run(number: int) -> None:
        begin.wait()
        for step in range(20):
            which = (number + step) % len(parts)
            with torch.no_grad():
                if not same(case.encode(frozen, parts[which]), wanted[which]):
                    failed.append(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


@torch.no_grad()
def test_a_traced_call_keeps_nothing(case: Case, prepared: list[Tensor]) -> None:
    frozen = pair(case)[1].requires_grad_(False)
    x = few(case)
    traced = torch.jit.trace(lambda x: torch.stack(case.encode(frozen, x)), x, check_trace=False)
    assert not prepared
    assert torch.equal(traced(x), torch.stack(case.encode(frozen, x)))
    assert prepared


@torch.no_grad()
def test_a_compiled_call_is_one_graph_and_keeps_nothing(case: Case, prepared: list[Tensor]) -> None:
    adapted, frozen = pair(case)
    x = few(case)
    wanted = case.encode(adapted, x)
    codes_of(frozen)  # Mimi computes its codes at the first use
    compiled = torch.compile(lambda x: case.encode(frozen, x), backend="eager", fullgraph=True)
    assert same(compiled(x), wanted)
    assert not prepared


@torch.no_grad()
def test_quantizers_without_a_stack_may_be_frozen(prepared: list[Tensor]) -> None:
    for name in sorted(set(CASES) - set(STACKS)):
        case = CASES[name]()
        adapted, frozen = pair(case)
        x = case.latents(8)
        assert same(case.encode(frozen, x), case.encode(adapted, x)), name
    assert not prepared
