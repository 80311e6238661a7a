"""Learning outside of forward on several ranks: what one process learns from all tokens, in evaluation, too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ranks import Ranks, outcome
from torch import Tensor

from torchvq import VectorQuantize

DIM, CODES = 6, 16
STEPS = 4
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "dead_codes": dict(threshold_ema_dead_code=2),
    "cosine": dict(use_cosine_sim=True),
    "sync_every": dict(sync_every=2, threshold_ema_dead_code=2),
    "float": dict(reduction="float"),
}


def batch(step: int, size: int) -> tuple[list[Tensor], list[Tensor]]:
    """Tokens and indices of each rank, in unequal numbers."""
    generator = torch.Generator().manual_seed(step)
    shares = [(7 * (step + rank)) % 19 for rank in range(size)]
    x = torch.randn(1, sum(shares), DIM, generator=generator)
    indices = torch.randint(0, CODES, (1, sum(shares)), generator=generator)
    return list(torch.split(x, shares, 1)), list(torch.split(indices, shares, 1))


def states(rank: int | None, size: int, case: str, trains: bool) -> list[dict[str, Tensor]]:
    """The state after each step; rank None is one process with all tokens."""
    torch.manual_seed(0)
    sync = False if rank is None else None
    vq = VectorQuantize(DIM, CODES, sync_codebook=sync, **OPTIONS[case]).train(trains)
    found = []
    for step in range(STEPS):
        x, indices = batch(step, size)
        if rank is None:
            vq.update_ema_indices(torch.cat(x, 1), torch.cat(indices, 1))
        else:
            vq.update_ema_indices(x[rank], indices[rank])
        # What is kept for the n-th step belongs to a rank.
        state = vq.state_dict().items()
        found.append({name: value.clone() for name, value in state if "kept_" not in name})
    return found


@pytest.mark.parametrize("trains", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("case", OPTIONS)
def test_ranks_learn_what_one_process_learns(ranks: Ranks, case: str, trains: bool) -> None:
    answers = ranks.run(states, ranks.size, case, trains)
    expected = states(None, ranks.size, case, trains)
    close = dict(rtol=1e-5, atol=1e-6) if case == "float" else dict(rtol=0, atol=0)
    for found in answers:
        for state, right, first in zip(found, expected, answers[0], strict=True):
            for name, value in right.items():
                torch.testing.assert_close(state[name], value, **close)
                assert torch.equal(state[name], first[name])


def one_rank_evaluates(rank: int) -> str:
    torch.manual_seed(0)
    vq = VectorQuantize(DIM, CODES, threshold_ema_dead_code=2).train(rank == 0)
    x, indices = batch(1, 2)
    return outcome(vq.update_ema_indices, x[rank], indices[rank])


def test_one_rank_in_evaluation_is_told(two: Ranks) -> None:
    """It sends no candidates for dead codes; the messages of unequal size would end a process of Gloo."""
    for message in two.run(one_rank_evaluates):
        assert message.startswith("ValueError: "), message
        assert "rank 0: sharing statistics; rank 1: sharing statistics alone" in message


def expired(rank: int | None, size: int) -> dict[str, Tensor]:
    """The state after codes were replaced before the first forward, by ranks that were seeded differently."""
    torch.manual_seed(rank or 0)
    vq = VectorQuantize(
        DIM, CODES, threshold_ema_dead_code=2, sync_codebook=False if rank is None else None
    )
    used = torch.arange(CODES).roll(rank or 0) % 3
    vq._codebook.cluster_size.copy_(used)
    x = batch(1, size)[0]
    vq.expire_codes_(torch.cat(x, 1) if rank is None else x[rank])
    return dict(vq.state_dict())


def test_ranks_replace_the_codes_of_rank_0(ranks: Ranks) -> None:
    expected = expired(None, ranks.size)
    for state in ranks.run(expired, ranks.size):
        for name, value in expected.items():
            assert torch.equal(state[name], value), name


def expire_in_another_size(rank: int) -> str:
    vq = VectorQuantize(DIM, CODES + rank, threshold_ema_dead_code=2)
    return outcome(vq.expire_codes_, batch(1, 2)[0][rank])


def test_ranks_that_replace_codes_compare_their_quantizers(two: Ranks) -> None:
    """Messages of unequal size would end a process of Gloo."""
    for message in two.run(expire_in_another_size):
        assert message.startswith("ValueError: "), message
        assert f"of {CODES} codes" in message and f"of {CODES + 1} codes" in message
