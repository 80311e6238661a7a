"""A run saved on two ranks continues with the same bits on one, two or three ranks; large unequal batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import Ranks
from test_modules import DIM, batch, build, shares_of
from torch import Tensor

from torchvq import VectorQuantize

SAVED, STEPS = 6, 14
CASES = [
    "dead_codes",
    "separate_heads",
    "residual",
    "residual_dropout",
    "residual_shared",
    "grouped",
]


def train(module: torch.nn.Module, rank: int | None, size: int, steps: range) -> dict[str, Tensor]:
    """Training on a rank's share of each batch; rank None is one process with all tokens."""
    for step in steps:
        # The same tokens and padding for any number of ranks.
        x, mask = (torch.cat(parts, 1) for parts in batch(step, shares_of(step, 3)))
        if rank is not None:
            x, mask = (whole.split(shares_of(step, size), 1)[rank] for whole in (x, mask))
        module(x, mask=mask)
    return {name: value.clone() for name, value in module.state_dict().items()}


def save(rank: int, case: str, path: str) -> dict[str, Tensor]:
    module = build(case, 100 + rank)
    state = train(module, rank, 2, range(SAVED))
    if rank == 0:
        torch.save(state, path)
    return train(module, rank, 2, range(SAVED, STEPS))


def resume(rank: int | None, size: int, case: str, path: str, options: Any) -> dict[str, Tensor]:
    module = build(case, 200 + (rank or 0), **options)
    module.load_state_dict(torch.load(path))
    return train(module, rank, size, range(SAVED, STEPS))


@pytest.mark.parametrize("case", CASES)
def test_saved_on_two_ranks_resumed_on_one_two_and_three(
    pool: Any, tmp_path: Path, case: str
) -> None:
    path = str(tmp_path / "checkpoint.pt")
    without_a_stop = pool(2).run(save, case, path)
    expected = train(build(case, 100, sync_codebook=False), None, 3, range(STEPS))
    answers = [
        *without_a_stop,
        resume(None, 3, case, path, {"sync_codebook": False}),
        *pool(2).run(resume, 2, case, path, {}),
        *pool(3).run(resume, 3, case, path, {}),
    ]
    for number, state in enumerate(answers):
        for name, value in expected.items():
            assert torch.equal(state[name], value), (number, name)


# Large ragged batches ------------------------------------------------------------------------------------------

LARGE_STEPS = 4
# 9330 and 9331 tokens in turn, split unequally over the ranks.
LARGE = [(3110, 3109, 3111), (9331, 0, 0), (1, 9000, 329), (4000, 1331, 4000)]


def large(rank: int | None) -> tuple[dict[str, Tensor], list[Any]]:
    torch.manual_seed(rank or 0)
    vq = VectorQuantize(
        DIM,
        4096,
        kmeans_init=True,
        kmeans_iters=2,
        threshold_ema_dead_code=2,
        sync_codebook=None if rank is not None else False,
    )
    seen = []
    for step in range(LARGE_STEPS):
        generator = torch.Generator().manual_seed(step)
        parts = torch.randn(1, sum(LARGE[step]), DIM, generator=generator).split(LARGE[step], 1)
        vq(torch.cat(parts, 1) if rank is None else parts[rank])
        seen.append(vq.stats(synced=rank is not None))
    return dict(vq.state_dict()), seen


def test_4096_codes_with_threshold_2_on_three_ranks(pool: Any) -> None:
    """About two tokens per code, so codes die and are replaced in every step."""
    expected, seen = large(None)
    assert sum(stats.replaced for stats in seen) > 1000
    for state, stats in pool(3).run(large):
        assert stats == seen
        for name, value in expected.items():
            assert torch.equal(state[name], value), name


def test_saved_states_are_those_of_every_rank(two: Ranks, tmp_path: Path) -> None:
    first, second = two.run(save, "residual", str(tmp_path / "checkpoint.pt"))
    assert all(torch.equal(first[name], second[name]) for name in first)
