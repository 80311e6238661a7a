"""Ranks that begin with different modules: copies, and modules for which one rank has loaded a checkpoint."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ranks import Ranks, outcome
from torch import Tensor, nn

from torchvq import LFQ, LatentQuantize, ResidualSimVQ, ResidualVQ, SimVQ, VectorQuantize

DIM = 6


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, 0.05)


BY_GRADIENT: dict[str, Any] = dict(learnable_codebook=True, ema_update=False)
OWN: dict[str, Any] = dict(in_place_codebook_optimizer=adam)
KINDS: dict[str, Callable[[], nn.Module]] = {
    "averages": lambda: VectorQuantize(DIM, 8),
    "affine": lambda: VectorQuantize(DIM, 8, affine_param=True, sync_affine_param=True),
    "gradient": lambda: VectorQuantize(DIM, 8, **BY_GRADIENT),
    "stack": lambda: ResidualVQ(dim=DIM, codebook_size=8, num_quantizers=2),
    "frozen": lambda: SimVQ(DIM, 8),
    "frozen stack": lambda: ResidualSimVQ(dim=DIM, codebook_size=8, num_quantizers=2),
    "signs": lambda: LFQ(dim=DIM, codebook_size=64, frac_per_sample_entropy=0.5),
}
WITH_OPTIMIZERS: dict[str, Callable[[], nn.Module]] = {
    "codes": lambda: VectorQuantize(DIM, 8, **BY_GRADIENT, **OWN),
    "levels": lambda: ResidualVQ(
        dim=DIM, codebook_size=8, num_quantizers=2, shared_codebook=True, **BY_GRADIENT, **OWN
    ),
    "values": lambda: LatentQuantize([4, 4], DIM, channel_first=False, **OWN),
}


def tokens(step: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(1, 5 + 3 * rank, DIM, generator=generator)


def learnt(module: nn.Module, rank: int) -> tuple[list[str], dict[str, Tensor]]:
    """Messages of three steps, and the state but for transforms, which wrappers keep alike."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        said = [outcome(module, tokens(step, rank)) for step in range(3)]
    state = module.state_dict()
    return said, {n: v.clone() for n, v in state.items() if "code_transform" not in n}


def copies(rank: int, kind: str, by_file: bool) -> list[tuple[list[str], dict[str, Tensor]]]:
    torch.manual_seed(rank)
    template = KINDS[kind]()
    file = pickle.dumps(template) if by_file else b""
    runs = []
    for _ in range(2):
        own = pickle.loads(file) if by_file else copy.deepcopy(template)
        runs.append(learnt(own, rank))
    return runs


@pytest.mark.parametrize("by_file", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_each_copy_takes_the_state_of_rank_0(two: Ranks, kind: str, by_file: bool) -> None:
    for (said, state), (other, same) in zip(*two.run(copies, kind, by_file), strict=True):
        assert said == other == ["nothing"] * 3
        assert all(torch.equal(state[name], same[name]) for name in state), kind


def loaded_by(rank: int, kind: str, loads: tuple[int, ...]) -> tuple[str, bool]:
    torch.manual_seed(0)
    module = WITH_OPTIMIZERS[kind]()
    torch.manual_seed(0)
    trained = WITH_OPTIMIZERS[kind]()
    for part in trained.modules():
        if hasattr(part, "sync_codebook"):
            part.sync_codebook = False
    outcome(trained, tokens(0, 0))
    if rank in loads:
        module.load_state_dict(trained.state_dict())
    before = {name: value.clone() for name, value in module.state_dict().items()}
    message = outcome(module, tokens(1, rank))
    state = module.state_dict()
    return message, all(torch.equal(state[name], value) for name, value in before.items())


@pytest.mark.parametrize("kind", WITH_OPTIMIZERS)
def test_the_state_of_an_own_optimizer_is_loaded_on_all_ranks_or_none(
    two: Ranks, kind: str
) -> None:
    for loads in ((0,), (1,)):
        for message, intact in two.run(loaded_by, kind, loads):
            assert message.startswith("ValueError") and intact
            assert f"rank {loads[0]}: own optimizer Adam of rate 0.05 with loaded state" in message
    for loads in ((), (0, 1)):
        for message, intact in two.run(loaded_by, kind, loads):
            assert message == "nothing" and not intact
