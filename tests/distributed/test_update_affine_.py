"""Running mean and variance of all ranks' tokens. Oracle: numpy in float64, and one process with the whole batch."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from ranks import Ranks
from shards import SPLITS, concatenated, group_name, make_shard, traffic_of

ops = torch.ops.torchvq


def update(rank: int, size: int, split: str, steps: int):
    state = [torch.zeros(2, 1, 5), torch.ones(2, 1, 5), torch.tensor(True), torch.tensor(True)]
    tokens, sent = [], []
    for step in range(steps):
        shard = concatenated(
            [make_shard(split, r, 2, seed=step, loud=1) for r in ([rank] if size == 2 else [0, 1])]
        )
        name = group_name() if size == 2 else ""
        number, traffic = traffic_of(
            partial(
                ops.update_affine_, *state, shard.x, mask=shard.mask, decay=0.9, group_name=name
            )
        )
        tokens.append(number)
        sent.append(traffic[:3])
    return state, tokens, sent


@pytest.mark.parametrize("split", SPLITS)
def test_affine_statistics_are_those_of_one_process(two: Ranks, split: str):
    wanted, number, sent = update(0, 1, split, 3)
    assert sent == [(0, 0, 0)] * 3
    for state, tokens, traffic in two.run(update, 2, split, 3):
        for a, b in zip(state, wanted, strict=True):
            assert torch.equal(a, b)
        assert all(map(torch.equal, tokens, number))
        assert all(one[1:] == (0, 0) and one[0] in (1, 3) for one in traffic)


def test_affine_statistics_are_mean_and_variance():
    batch = concatenated([make_shard("ragged", r, 2) for r in range(2)])
    offset = torch.tensor([0.0, 1e3, -1e4, 10.0, 0.0])
    batch.x += offset
    state = [torch.zeros(2, 1, 5), torch.ones(2, 1, 5), torch.tensor(True), torch.tensor(True)]
    counts = ops.update_affine_(*state, batch.x, mask=batch.mask, decay=0.9)
    for head in range(2):
        rows = batch.x[head][batch.mask[head] & batch.x[head].isfinite().all(-1)].double().numpy()
        assert counts[head].item() == len(rows)
        np.testing.assert_allclose(state[0][head, 0].numpy(), rows.mean(0), rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(state[1][head, 0].numpy(), rows.var(0), rtol=1e-5)
