"""A module's own optimizer of the codebook (in_place_codebook_optimizer): its state in checkpoints and copies."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path

import pytest
import safetensors.torch
import torch
import vector_quantize_pytorch
from torch import Tensor
from torch.optim import Optimizer
from vector_quantize_cases import CODES, DIM, adam, assert_continues_alike, build, train

from torchvq import VectorQuantize

momentum = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
adagrad = partial(torch.optim.Adagrad, lr=0.05)


@pytest.mark.parametrize("how", ["torch", "safetensors", "deepcopy", "pickle"])
def test_the_in_place_optimizer_goes_on(how: str, tmp_path: Path) -> None:
    """Its moments are part of the checkpoint; without them, the first steps after a restart would be too long."""

    def make(seed: int) -> VectorQuantize:
        return build("learnable", seed, in_place_codebook_optimizer=adam)

    original = make(0)
    train(original, range(3))
    if how == "deepcopy":
        resumed = deepcopy(original)
    elif how == "pickle":
        resumed = pickle.loads(pickle.dumps(original))
    else:
        resumed = make(7)
        saved: dict[str, Tensor] = dict(original.state_dict())
        assert "in_place_codebook_optimizer.0.exp_avg" in saved
        if how == "safetensors":
            safetensors.torch.save_file(saved, tmp_path / "x.safetensors")
            saved = safetensors.torch.load_file(tmp_path / "x.safetensors")
        resumed.load_state_dict(deepcopy(saved), strict=True)
    assert_continues_alike(resumed, original)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("0.exp_avg", torch.zeros(3), r"expected shape \[1, .*\], but got \[3\]"),
        ("0.step", torch.zeros(3), r"expected shape \[\], but got \[3\]"),
        ("0.step", torch.tensor(math.nan), "expected a number of steps, but got nan"),
        ("0.step", torch.tensor(-1.0), "expected a number of steps, but got -1.0"),
        ("0.exp_avg", None, r"0.exp_avg: expected beside \['exp_avg_sq', 'step'\], but got none"),
        ("7.exp_avg", torch.zeros(3), "expected <parameter>.<name> of 1 parameters"),
        ("exp_avg", torch.zeros(3), "expected <parameter>.<name> of 1 parameters"),
        ("-1.exp_avg", torch.zeros(3), "expected <parameter>.<name> of 1 parameters"),
    ],
    ids=str,
)
def test_a_wrong_state_of_the_in_place_optimizer_is_refused(
    name: str, value: Tensor | None, message: str
) -> None:
    module = build("learnable", 0, in_place_codebook_optimizer=adam)
    train(module, range(2))
    before = deepcopy(module.state_dict())
    key = "in_place_codebook_optimizer."
    wrong = {n: v + 1 if n.startswith(key) else v for n, v in before.items()}
    wrong.pop(key + name, None)
    if value is not None:
        wrong[key + name] = value
    with pytest.raises(RuntimeError, match=message):
        module.load_state_dict(wrong)
    after = module.state_dict()
    assert all(torch.equal(after[name], own) for name, own in before.items())


@pytest.mark.parametrize("make", [adam, adagrad], ids=["adam", "adagrad"])
def test_in_place_optimizer_and_a_reference_checkpoint(make: Callable[..., Optimizer]) -> None:
    options = dict(learnable_codebook=True, ema_update=False, in_place_codebook_optimizer=make)
    theirs = vector_quantize_pytorch.VectorQuantize(DIM, CODES, **options)
    module = VectorQuantize(DIM, CODES, **options)
    module.load_state_dict(theirs.state_dict(), strict=True)
    assert torch.equal(module.codebook, theirs.codebook)
    train(module, range(2))


@pytest.mark.parametrize("make", [momentum, adam, adagrad], ids=["sgd", "adam", "adagrad"])
@pytest.mark.parametrize("assign", [False, True], ids=["copied", "assigned"])
def test_a_state_of_before_the_first_step_starts_anew(
    make: Callable[..., Optimizer], assign: bool
) -> None:
    """As after a search for a learning rate, which goes back to where it began."""
    original = build("learnable", 0, in_place_codebook_optimizer=make)
    start = deepcopy(original.state_dict())
    tried = deepcopy(original)
    train(tried, range(5, 8))
    tried.load_state_dict(start, assign=assign)
    assert_continues_alike(tried, original)


def test_a_part_of_a_state_leaves_the_in_place_optimizer_alone() -> None:
    module = build("learnable", 0, in_place_codebook_optimizer=adam)
    train(module, range(3))
    twin = deepcopy(module)
    module.load_state_dict({"_codebook.rng": module._codebook.rng.clone()}, strict=False)
    assert_continues_alike(module, twin)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("make", [momentum, adam], ids=["sgd", "adam"])
def test_a_module_that_is_cast_goes_on_like_one_that_loads_after_the_cast(
    make: Callable[..., Optimizer], dtype: torch.dtype
) -> None:
    """A cast reaches the moments, which torch's optimizers refuse, or round otherwise, in another dtype; and so does a
    move to another device, as after a load on the CPU."""
    original = build("learnable", 0, in_place_codebook_optimizer=make)
    train(original, range(3))
    resumed = build("learnable", 7, in_place_codebook_optimizer=make).to(dtype)
    resumed.load_state_dict(deepcopy(original.state_dict()))
    original.to(dtype)
    assert_continues_alike(resumed, original)
    state = original.to("meta").state_dict()
    assert all(value.is_meta for name, value in state.items() if not name.endswith("step"))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_loaded_state_gets_the_dtype_of_its_parameter(dtype: torch.dtype) -> None:
    """As torch's optimizers load it: Adam's step takes moments of its gradient's dtype alone."""
    original = build("learnable", 0, in_place_codebook_optimizer=adam)
    train(original, range(2))
    resumed = build("learnable", 7, in_place_codebook_optimizer=adam).to(dtype)
    resumed.load_state_dict(deepcopy(original.state_dict()))
    saved = resumed.state_dict()
    assert saved["in_place_codebook_optimizer.0.exp_avg"].dtype == dtype
    assert saved["in_place_codebook_optimizer.0.step"].dtype == torch.float32
    train(resumed, range(2, 4))


def test_state_loaded_in_inference_mode_goes_on() -> None:
    original = build("learnable", 0, in_place_codebook_optimizer=adam)
    train(original, range(2))
    resumed = build("learnable", 7, in_place_codebook_optimizer=adam)
    with torch.inference_mode():
        resumed.load_state_dict(original.state_dict())
    assert_continues_alike(resumed, original)


def test_assigned_state_keeps_the_dtype_it_shares_with_the_assigned_codes() -> None:
    original = build("learnable", 0, in_place_codebook_optimizer=adam).double()
    train(original, range(2))
    resumed = build("learnable", 7, in_place_codebook_optimizer=adam)
    resumed.load_state_dict(deepcopy(original.state_dict()), assign=True)
    assert resumed.codebook.dtype == torch.float64
    assert_continues_alike(resumed, original)


def test_the_centred_average_of_rmsprop_has_the_shape_of_the_codes() -> None:
    rmsprop = partial(torch.optim.RMSprop, lr=0.01, centered=True)
    original = build("learnable", 0, in_place_codebook_optimizer=rmsprop)
    train(original, range(2))
    wrong = deepcopy(original.state_dict())
    wrong["in_place_codebook_optimizer.0.grad_avg"] = torch.zeros(3)
    fresh = build("learnable", 7, in_place_codebook_optimizer=rmsprop)
    with pytest.raises(RuntimeError, match=r"grad_avg: expected shape \[1, .*\], but got \[3\]"):
        fresh.load_state_dict(wrong)


def test_an_optimizer_may_be_taken_away() -> None:
    """The codes then learn by their other rules, and checkpoints have no state of it."""
    vq = build("learnable", 0, in_place_codebook_optimizer=adam)
    train(vq, range(1))
    vq.in_place_codebook_optimizer = None
    train(vq, range(1))
    state = vq.state_dict()
    assert not any("in_place_codebook_optimizer" in key for key in state)
    other = build("learnable", 1)
    other.load_state_dict(state, strict=True)
    torch.testing.assert_close(other.codebook, vq.codebook, rtol=0, atol=0)
    vq.load_state_dict(other.state_dict(), strict=True)


# The order of a step --------------------------------------------------------------------------------------------


def _own_optimizer(**options: object) -> VectorQuantize:
    torch.manual_seed(0)
    return VectorQuantize(
        dim=DIM,
        codebook_size=CODES,
        in_place_codebook_optimizer=partial(torch.optim.SGD, lr=0.5),
        **options,
    ).train()


@pytest.mark.parametrize(
    "options",
    [
        dict(learnable_codebook=True, ema_update=False, threshold_ema_dead_code=0.9),
        dict(orthogonal_reg_weight=1.0),
        dict(orthogonal_reg_weight=1.0, threshold_ema_dead_code=0.9),
        dict(orthogonal_reg_weight=1.0, threshold_ema_dead_code=0.9, sync_every=2),
        dict(orthogonal_reg_weight=1.0, threshold_ema_dead_code=0.9, use_cosine_sim=True),
    ],
    ids=str,
)
def test_the_output_is_of_the_codes_after_the_whole_step(options: dict[str, object]) -> None:
    """Replaced codes among them: the encoder gets its gradient from the codes that stay."""
    vq, replaced = _own_optimizer(**options), 0
    for step in range(6):
        x = torch.randn(2, 5, DIM, generator=torch.Generator().manual_seed(step))
        before = vq.codebook.detach().clone()
        quantized, indices, _ = vq(x)
        assert not torch.equal(before, vq.codebook.detach())
        codes = vq.codebook.detach()
        torch.testing.assert_close(quantized, codes[indices], rtol=0, atol=1e-6)
        compared = torch.nn.functional.normalize(x, dim=-1) if vq.use_cosine_sim else x
        nearest = torch.cdist(compared.double().flatten(0, 1), codes.double()).argmin(-1)
        assert torch.equal(indices.flatten(), nearest)
        replaced += vq.stats().replaced
        assert vq.stats().tokens == 10
    assert (replaced > 0) == ("threshold_ema_dead_code" in options)


@pytest.mark.parametrize("call", [{}, dict(accum_ema_update=True)], ids=str)
def test_a_search_that_fails_after_the_step_takes_back_what_was_learnt(
    call: dict[str, bool],
) -> None:
    vq = _own_optimizer(orthogonal_reg_weight=1.0, threshold_ema_dead_code=0.9)
    calls = 0

    def codes_of_tokens(codes: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise RuntimeError("no codes")
        return codes[:, None, None].expand(-1, 2, 5, -1, -1)

    before = deepcopy(vq.state_dict())
    with pytest.raises(RuntimeError, match="no codes"):
        vq(torch.randn(2, 5, DIM), codebook_transform_fn=codes_of_tokens, **call)
    assert calls == 2
    torch.testing.assert_close(vq.state_dict(), before, rtol=0, atol=0)
    assert not vq._codebook.has_pending
