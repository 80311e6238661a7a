"""If a rank dies, lags or evaluates, the others get an error that names quantizer and step, and keep their state."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from ranks import Ranks, outcome
from shards import codebook, group_name, make_shard

ops = torch.ops.torchvq


def step(rank: int, name: str) -> tuple[str, float, bool]:
    """One training step: its error, the seconds it took, and whether the state is unchanged."""
    shard, embed = make_shard("even", rank, 3), codebook()
    state = [embed, embed * 2, torch.ones(2, 7), torch.tensor([5, 123])]
    before = [tensor.clone() for tensor in state]

    def learn() -> None:
        counts, sums, exponents = ops.synced_code_statistics(
            [shard.x],
            [shard.indices],
            [ops.code_exponents(embed)],
            mask=[],
            state=state[:3],
            rng=state[3],
            group_name=name,
            label="encoder.vq",
        )
        ops.ema_update_(
            state[2], state[1], state[0], counts[0], sums[0], exponents[0], decay=0.8, eps=1e-5
        )

    start = time.monotonic()
    message = outcome(learn)
    return message, time.monotonic() - start, all(map(torch.equal, state, before))


def check(message: str, seconds: float, intact: bool, limit: float) -> None:
    assert message.startswith("DistBackendError: encoder.vq, step 123: rank "), message
    assert "failed while sharing the statistics of the codes" in message
    assert "Likely reasons" in message
    assert seconds < limit
    assert intact


def lag(rank: int) -> tuple[str, float, bool] | None:
    group = dist.new_group(timeout=timedelta(seconds=2))
    if rank == 1:
        time.sleep(4)  # longer than the timeout of the group
        return None
    return step(rank, group.group_name)


def test_a_lagging_rank_is_an_error_after_the_timeout(ranks: Ranks):
    for answer in ranks.run(lag):
        if answer is not None:
            check(*answer, limit=10)


def evaluate(rank: int) -> tuple[str, float, bool] | str:
    group = dist.new_group(timeout=timedelta(seconds=2))
    if rank == 1:
        # As in evaluation, this rank skips the collective of the step; its next one finds no peer.
        return outcome(
            lambda: ops.replica_hashes([torch.ones(3)], group_name=group.group_name, label="other")
        )
    return step(rank, group.group_name)


def test_a_rank_in_another_collective_is_an_error_on_all(two: Ranks):
    trained, other = two.run(evaluate)
    check(*trained, limit=10)
    assert other.startswith("DistBackendError: other: rank 1 of 2")


def new_module(rank: int) -> tuple[str, float, bool] | str:
    """Rank 1 starts with a new module while rank 0 is in the middle of training."""
    group = dist.new_group(timeout=timedelta(seconds=2))
    if rank == 1:
        return outcome(
            lambda: ops.handshake_(
                [torch.tensor([5, 0])],
                handle=ops.new_handle(),
                group_name=group.group_name,
                label="encoder.vq",
            )
        )
    return step(rank, group.group_name)


def test_a_new_module_on_one_rank_is_an_error_on_all(two: Ranks):
    old, new = two.run(new_module)
    check(*old, limit=10)
    assert "its module is new while this one is not" in old[0]
    assert new.startswith("DistBackendError: encoder.vq, step 0: rank 1 of 2")


def die(rank: int) -> tuple[str, float, bool]:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(rank, group_name())


def test_a_killed_rank_is_an_error_on_the_survivors():
    # Separate ranks, because a group that has lost a rank cannot be reused.
    ranks = Ranks(3)
    try:
        ranks.start(die)
        for answer in ranks.failures({0, 2}):
            check(*answer, limit=20)
    finally:
        ranks.close()
