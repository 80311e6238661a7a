"""`kill -9` of one rank at each collective of a step: the others get an error in time, and keep their state."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from forwarding_group import ForwardingGroup
from ranks import Ranks, outcome
from torch import Tensor, nn

import torchvq
from torchvq import GroupedResidualVQ, ResidualVQ, VectorQuantize

DIM = 6
VICTIM = 1
# Timeout of the group; it also ends a rank that waits for one that waits for the dead rank.
TIMEOUT = timedelta(seconds=10)
LIMIT = 30.0
NAME = "observed"


class Observed(ForwardingGroup):
    """Kills the process on entering one of its collectives."""

    def __init__(self, inner: dist.ProcessGroup) -> None:
        super().__init__(inner)
        self.seen: list[str] = []
        self.last: tuple[str, int] | None = None

    def entering(self, kind: str) -> None:
        self.seen.append(kind)
        if self.last == (kind, self.seen.count(kind)):
            os.kill(os.getpid(), signal.SIGKILL)


class Phase(NamedTuple):
    """Where a rank is killed: in which collective of which step, and whether the state is unchanged then."""

    make: Callable[..., nn.Module]
    options: dict[str, Any]
    step: int
    kind: str
    number: int  # counted from 1, of this kind in this step
    says: str
    intact: bool = True
    seed_of_rank: bool = False
    act: str = "step"
    codes_far: bool = False
    tokens: int = 600


KMEANS = dict(codebook_size=16, kmeans_init=True, kmeans_iters=2)
# So many codes die that their candidates do not fit the message.
DEAD = dict(codebook_size=4096, threshold_ema_dead_code=1)
STATISTICS = "the statistics of the codes"

PHASES = {
    "handshake": Phase(VectorQuantize, KMEANS, 0, "all-gather", 1, "what it is about to do"),
    # Ranks that have received rank 0's state keep it, and fail in the next collective.
    "adopting the state of rank 0": Phase(
        VectorQuantize, KMEANS, 0, "broadcast", 1, "", intact=False, seed_of_rank=True
    ),
    "k-means, keys": Phase(VectorQuantize, KMEANS, 0, "all-gather", 2, ""),
    "k-means, rows": Phase(VectorQuantize, KMEANS, 0, "all-gather", 3, ""),
    "statistics of the first step": Phase(
        VectorQuantize, KMEANS, 0, "all-reduce", 1, STATISTICS, False
    ),
    "statistics": Phase(VectorQuantize, KMEANS, 2, "all-reduce", 1, STATISTICS),
    "statistics of a stack": Phase(
        ResidualVQ, KMEANS | dict(num_quantizers=3), 2, "all-reduce", 1, STATISTICS
    ),
    "statistics of groups": Phase(
        GroupedResidualVQ, KMEANS | dict(num_quantizers=2, groups=2), 2, "all-reduce", 1, STATISTICS
    ),
    "exponents of tokens that outgrew": Phase(
        VectorQuantize,
        dict(codebook_size=16),
        0,
        "all-reduce",
        2,
        "the exponents of tokens",
        codes_far=True,
    ),
    "statistics with those exponents": Phase(
        VectorQuantize, dict(codebook_size=16), 0, "all-reduce", 3, STATISTICS, codes_far=True
    ),
    "candidates for dead codes": Phase(
        VectorQuantize,
        DEAD,
        1,
        "all-gather",
        1,
        "candidates for dead codes",
        intact=False,
        tokens=2000,
    ),
    "diversity loss": Phase(
        VectorQuantize, KMEANS | dict(codebook_diversity_loss_weight=0.1), 2, "all-reduce", 1, ""
    ),
    "affine statistics": Phase(
        VectorQuantize,
        dict(codebook_size=16, affine_param=True, sync_affine_param=True),
        2,
        "all-reduce",
        1,
        "",
    ),
    "statistics of use": Phase(
        VectorQuantize, KMEANS, 2, "all-reduce", 1, "the use of its codes", act="stats"
    ),
    "comparison of replicas": Phase(VectorQuantize, KMEANS, 2, "all-gather", 1, "", act="verify"),
}


def tokens(rank: int, step: int, phase: Phase) -> Tensor:
    generator = torch.Generator().manual_seed(10 * step + rank)
    x = torch.randn(1, phase.tokens, DIM, generator=generator)
    return x * 1e6 if phase.codes_far else x


def work(rank: int, name: str) -> tuple[str, float, bool]:
    phase = PHASES[name]
    group = Observed(dist.new_group(timeout=TIMEOUT))
    dist.distributed_c10d._register_process_group(NAME, group)
    dist.distributed_c10d._world.pg_group_ranks[group] = {i: i for i in range(group.size())}
    torch.manual_seed(rank if phase.seed_of_rank else 0)
    module = phase.make(dim=DIM, process_group=NAME, **phase.options)
    for step in range(phase.step):
        module(tokens(rank, step, phase))
    group.seen.clear()
    if rank == VICTIM:
        group.last = (phase.kind, phase.number)
    actions: dict[str, Callable[[], Any]] = {
        "step": lambda: module(tokens(rank, phase.step, phase)),
        "stats": lambda: module.stats(synced=True),  # type: ignore[operator]
        "verify": lambda: torchvq.verify_replicas(module),
    }
    before = {key: value.clone() for key, value in module.state_dict().items()}
    start = time.monotonic()
    message = outcome(actions[phase.act])
    seconds = time.monotonic() - start
    after = module.state_dict()
    return message, seconds, all(torch.equal(after[key], value) for key, value in before.items())


@pytest.mark.parametrize("name", PHASES)
def test_a_rank_is_killed(name: str) -> None:
    phase = PHASES[name]
    # Separate ranks, because a group that has lost a rank cannot be reused.
    ranks = Ranks(3)
    try:
        ranks.start(work, name)
        for rank in {0, 1, 2} - {VICTIM}:
            message, seconds, intact = ranks.collect(range(rank, rank + 1))[0]
            assert message.startswith("DistBackendError: "), message
            assert f": rank {rank} of 3 (process group" in message
            assert "failed while sharing " + phase.says in message, message
            assert "Likely reasons" in message
            assert seconds < LIMIT
            assert intact or not phase.intact
        ranks.processes[VICTIM].join()
        assert ranks.processes[VICTIM].exitcode == -signal.SIGKILL
    finally:
        ranks.close()
