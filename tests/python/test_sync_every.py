"""`sync_every` on one process equals accumulating the statistics of several steps.

On several ranks: tests/distributed/test_sync_every_ranks.py.
"""

from __future__ import annotations

import pickle
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from torchvq import GroupedResidualVQ, HierarchicalVQ, ResidualVQ, VectorQuantize

DIM, EVERY = 6, 3
KINDS: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "plain": (VectorQuantize, dict(codebook_size=24)),
    "cosine": (VectorQuantize, dict(codebook_size=24, use_cosine_sim=True)),
    "heads": (
        VectorQuantize,
        dict(codebook_size=24, heads=2, codebook_dim=3, separate_codebook_per_head=True),
    ),
    "manual": (VectorQuantize, dict(codebook_size=24, manual_ema_update=True)),
    "weighted": (VectorQuantize, dict(codebook_size=24, decay=0.5)),
}


def build(kind: str = "plain", **options: Any) -> nn.Module:
    torch.manual_seed(0)
    make, own = KINDS[kind]
    return make(dim=DIM, **{**own, **options})


def tokens(step: int, count: int = 50) -> Tensor:
    return torch.randn(2, count, DIM, generator=torch.Generator().manual_seed(step))


def mask(step: int) -> Tensor:
    return torch.rand(2, 50, generator=torch.Generator().manual_seed(100 + step)) < 0.7


def train(module: nn.Module, steps: range) -> dict[str, Tensor]:
    for step in steps:
        module(tokens(step), mask=mask(step))
    return everything(module)


def everything(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def learnt(module: nn.Module) -> dict[str, Tensor]:
    return {n: v for n, v in everything(module).items() if ".kept_" not in n and ".rng" not in n}


def assert_same(found: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert found.keys() == right.keys()
    for name, value in right.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0, equal_nan=True)


# What it means ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_accumulation_of_updates(kind: str) -> None:
    module, accumulated = build(kind, sync_every=EVERY), build(kind)
    weight = torch.linspace(0.5, 1.5, 24) if kind == "weighted" else None
    for step in range(4 * EVERY):
        waits = (step + 1) % EVERY != 0
        module(tokens(step), mask=mask(step), ema_update_weight=weight)
        accumulated(tokens(step), mask=mask(step), ema_update_weight=weight, accum_ema_update=waits)
        assert_same(learnt(module), learnt(accumulated))


@pytest.mark.parametrize("dead", [0.0, 1.0])
def test_the_order_of_steps_has_no_part(dead: float) -> None:
    forward, backward = (build(sync_every=4, threshold_ema_dead_code=dead) for _ in range(2))
    for step in range(4):
        forward(tokens(step))
        backward(tokens(3 - step))
    assert_same(learnt(forward), learnt(backward))


def test_outgrown_codes_are_close_to_one_step() -> None:
    module, once = build(sync_every=EVERY), build()
    x = [1e5 * tokens(step) for step in range(EVERY)]
    for part in x:
        module(part)
    once(torch.cat(x, 1))
    for name, value in learnt(once).items():
        torch.testing.assert_close(learnt(module)[name], value, rtol=1e-6, atol=1e-6)


def test_an_accumulating_call_and_the_next_are_one_step() -> None:
    parts, whole = build(sync_every=2), build(sync_every=2)
    for step in range(4):
        parts(tokens(step)[:1], accum_ema_update=True)
        parts(tokens(step)[1:])
        whole(tokens(step))
        assert_same(learnt(parts), learnt(whole))


def test_updates_of_known_indices_are_steps() -> None:
    module, twin = build(sync_every=2), build(sync_every=2)
    for step in range(4):
        indices = twin(tokens(step)).indices
        module.update_ema_indices(tokens(step), indices)
        assert_same(learnt(module), learnt(twin))


def test_evaluation_and_frozen_steps_are_none() -> None:
    module, twin = build(sync_every=2), build(sync_every=2)
    for step in range(4):
        module(tokens(step))
        module(tokens(9), freeze_codebook=True)
        module.eval()(tokens(8))
        module.train()
        twin(tokens(step))
        assert_same(learnt(module), learnt(twin))


def test_noise_is_new_in_every_step() -> None:
    module = build(sync_every=4, stochastic_sample_codes=True, sample_codebook_temp=1e3)
    assert not torch.equal(module(tokens(0)).indices, module(tokens(0)).indices)


@pytest.mark.parametrize("kind", [ResidualVQ, HierarchicalVQ])
def test_stacks_take_the_option(kind: type[nn.Module]) -> None:
    own = (
        dict(num_quantizers=2, codebook_size=8)
        if kind is ResidualVQ
        else dict(scales=(1, 2), codebook_size=8, kmeans_init=False, channel_first=False)
    )
    module = kind(dim=DIM, sync_every=2, **own)
    before = learnt(module)
    module(tokens(0))
    assert_same(learnt(module), before)
    module(tokens(1))
    assert any(not torch.equal(value, before[name]) for name, value in learnt(module).items())


# State ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["state_dict", "own state_dict", "deepcopy", "pickle", "meta"])
def test_it_goes_on_in_the_middle(how: str) -> None:
    options = dict(sync_every=EVERY, threshold_ema_dead_code=1)
    original = build(**options)
    train(original, range(EVERY + 2))
    if how == "deepcopy":
        resumed = deepcopy(original)
    elif how == "pickle":
        resumed = pickle.loads(pickle.dumps(original))
    elif how == "own state_dict":  # as torch.distributed.checkpoint loads
        resumed = deepcopy(original)
        resumed.load_state_dict(resumed.state_dict())
    elif how == "meta":
        with torch.device("meta"):
            resumed = build(**options)
        resumed.to_empty(device="cpu").load_state_dict(original.state_dict())
    else:
        resumed = build(**options)
        resumed.load_state_dict(deepcopy(original.state_dict()))
    steps = range(EVERY + 2, 4 * EVERY)
    assert_same(train(resumed, steps), train(original, steps))


def test_a_module_that_learns_at_once_ignores_what_was_kept() -> None:
    keeps, plain = build(sync_every=EVERY), build()
    train(keeps, range(EVERY + 1))
    plain.load_state_dict(keeps.state_dict())
    assert_same(learnt(plain), learnt(keeps))
    assert not any(".kept_" in name for name in plain.state_dict())


def test_checkpoints_that_keep_nothing_load() -> None:
    plain, keeps = build(), build(sync_every=EVERY)
    train(plain, range(2))
    train(keeps, range(1))
    keeps.load_state_dict(plain.state_dict())
    fresh = build(sync_every=EVERY)
    fresh.load_state_dict(plain.state_dict())
    assert_same(train(keeps, range(EVERY)), train(fresh, range(EVERY)))


def test_codes_that_are_set_begin_anew() -> None:
    module, fresh = build(sync_every=EVERY), build(sync_every=EVERY)
    codes = torch.randn(24, DIM)
    module(tokens(0))
    module.codebook = fresh.codebook = codes
    train(module, range(EVERY))
    train(fresh, range(EVERY))
    assert_same(learnt(module), learnt(fresh))


SHARED: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "residual": (ResidualVQ, dict(num_quantizers=3)),
    "affine": (ResidualVQ, dict(num_quantizers=3, affine_param=True)),
    "grouped": (GroupedResidualVQ, dict(groups=2, num_quantizers=2)),
}


@pytest.mark.parametrize("dead", [0.0, 2.0])
@pytest.mark.parametrize("kind", SHARED)
def test_shared_codebooks_go_on_from_safetensors(kind: str, dead: float, tmp_path: Path) -> None:
    make, own = SHARED[kind]
    shared = dict(shared_codebook=True, sync_every=EVERY, threshold_ema_dead_code=dead)
    original, resumed = (make(dim=DIM, codebook_size=8, **shared, **own) for _ in range(2))
    for step in range(EVERY + 1):
        original(tokens(step))
    file = tmp_path / "model.safetensors"
    safetensors.torch.save_model(original, str(file))
    safetensors.torch.load_model(resumed, str(file))
    assert_same(everything(resumed), everything(original))


def test_a_name_that_a_checkpoint_lacks_is_missing() -> None:
    module = build(sync_every=EVERY, threshold_ema_dead_code=1)
    missing, _ = module.load_state_dict({}, strict=False)
    assert set(missing) == set(module.state_dict())


def test_casts_leave_the_candidates_wide() -> None:
    module = build(sync_every=EVERY, threshold_ema_dead_code=1)
    module(tokens(0))
    twin = deepcopy(module)
    module.half().float()
    assert_same(everything(module), everything(twin))
    module.double()
    assert module._codebook.state()[-1].dtype == torch.float64


# Errors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(sync_every=0), "VectorQuantize: expected sync_every to be at least 1, but got 0"),
        (dict(sync_every=2, vqp_compat=True), "at most one of vqp_compat and sync_every above 1"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VectorQuantize(DIM, 8, **options)
    with pytest.raises(ValueError, match=message):
        ResidualVQ(dim=DIM, num_quantizers=2, codebook_size=8, **options)


def test_a_weight_that_is_a_function_is_refused() -> None:
    module = build(sync_every=2)
    before = everything(module)
    with pytest.raises(ValueError, match="expected ema_update_weight to be a tensor or a number"):
        module(tokens(0), ema_update_weight=lambda sums, counts: counts)
    assert_same(everything(module), before)


def test_the_operator_checks_what_it_is_given() -> None:
    state = build(sync_every=2)._codebook.state()
    x, indices = tokens(0)[:1], torch.zeros(1, 50, dtype=torch.long)
    rng = torch.tensor([1, 2])
    arguments = dict(mask=[], state=[], step=rng, rng=[rng], cluster_size=[state[1]])
    keep = torch.ops.torchvq.keep_statistics_
    exponents = torch.zeros(1, 24, dtype=torch.int32)
    found = [state[5].clone(), state[6].clone(), exponents.clone(), state[8][..., 1:].clone()]
    with pytest.raises(ValueError, match="expected every to be 0 or at least 2, but got 1"):
        keep(state[4:], found, [x], [indices], [exponents], every=1, **arguments)
    with pytest.raises(ValueError, match="for 1 codebooks, but got 0"):
        keep([], [], [x], [indices], [exponents], every=2, **arguments)
    with pytest.raises(ValueError, match="kept sums"):
        keep(state[4:], found, [x[..., :2]], [indices], [exponents], every=2, **arguments)
    with pytest.raises(ValueError, match="to keep statistics with sync_every 2, but got 0"):
        torch.ops.torchvq.learn_codebooks_(
            state[:4], [rng], [x], [indices], mask=[], statistics=[], sync_every=2
        )


def learn(state: list[Tensor], step: int, **options: Any) -> None:
    x, indices = tokens(step)[:1], torch.arange(50).remainder(24)[None]
    torch.ops.torchvq.learn_codebooks_(
        state,
        [torch.tensor([1, 2])],
        [x],
        [indices],
        mask=[],
        statistics=[],
        sync_every=2,
        **options,
    )


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (dict(weight=torch.ones(23)), "weight to broadcast to"),
        (dict(weight=torch.full((24,), float("inf"))), "weight to be finite"),
        (dict(decay=1.5), "decay to be in"),
        (dict(eps=-1.0), "eps to be"),
    ],
)
def test_a_refused_step_keeps_the_statistics(option: dict[str, Any], message: str) -> None:
    state = build(sync_every=2)._codebook.state()
    learn(state, 0)
    before = [tensor.clone() for tensor in state]
    assert before[5].any()
    with pytest.raises(ValueError, match=f"learn_codebooks_: expected {message}"):
        learn(state, 1, **option)
    assert all(map(torch.equal, state, before))


def test_kept_steps_may_have_strides() -> None:
    state, strided = (build(sync_every=2)._codebook.state() for _ in range(2))
    strided[4] = torch.full((4, 2), -7)[:, 0]
    strided[4].zero_()
    for step in range(3):
        learn(state, step)
        learn(strided, step)
    assert all(map(torch.equal, state, strided))
