"""If a rank dies, lags, evaluates or differs, every other rank gets an error in time, with its state intact."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks, outcome
from torch import Tensor, nn

from torchvq import GroupedResidualVQ, ResidualVQ, VectorQuantize

DIM = 6
TIMEOUT = timedelta(seconds=2)
KINDS = {
    "VectorQuantize": lambda **o: VectorQuantize(DIM, 16, **o),
    "ResidualVQ": lambda **o: ResidualVQ(
        dim=DIM, num_quantizers=3, codebook_size=16, quantize_dropout=True, **o
    ),
    "GroupedResidualVQ": lambda **o: GroupedResidualVQ(
        dim=DIM, groups=2, num_quantizers=2, codebook_size=16, **o
    ),
}
OWNERS = {
    "VectorQuantize": f"VectorQuantize(dim={DIM}, codebook_size=16)",
    "ResidualVQ": f"ResidualVQ(dim={DIM}, codebook_size=16)",
    # A group learns as a separate stack.
    "GroupedResidualVQ": f"ResidualVQ(dim={DIM // 2}, codebook_size=16)",
}


def tokens(rank: int, step: int) -> Tensor:
    return torch.randn(1, 30, DIM, generator=torch.Generator().manual_seed(10 * step + rank))


def attempt(module: nn.Module, x: Tensor) -> tuple[str, float, bool]:
    """The error of a step, the seconds it took, and whether the state is unchanged."""
    before = {name: value.clone() for name, value in module.state_dict().items()}
    start = time.monotonic()
    message = outcome(module, x)
    seconds = time.monotonic() - start
    after = module.state_dict()
    return message, seconds, all(torch.equal(after[n], value) for n, value in before.items())


def check(kind: str, answer: tuple[str, float, bool], limit: float) -> None:
    message, seconds, intact = answer
    assert message.startswith(f"DistBackendError: {OWNERS[kind]}, step 2: rank "), message
    assert "failed while sharing the statistics of the codes" in message
    assert "Likely reasons" in message
    assert seconds < limit and intact


def trained(kind: str, rank: int, **options: Any) -> nn.Module:
    """A module after two steps on all ranks."""
    torch.manual_seed(0)
    module = KINDS[kind](kmeans_init=True, threshold_ema_dead_code=1, **options)
    for step in range(2):
        module(tokens(rank, step))
    return module


def evaluate_or_train(rank: int, kind: str, every: int) -> Any:
    group = dist.new_group(timeout=TIMEOUT)
    module = trained(kind, rank, process_group=group, sync_every=every)
    if rank == 1:
        module.eval()
    return attempt(module, tokens(rank, 2))


# With sync_every=3, the third step is the first that sends.
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_one_rank_in_evaluation(ranks: Ranks, kind: str, every: int) -> None:
    for rank, answer in enumerate(ranks.run(evaluate_or_train, kind, every)):
        if rank == 1:
            assert answer[0] == "nothing" and answer[2]
        else:
            check(kind, answer, limit=10)


def evaluate_a_part(rank: int, kind: str, part: str) -> tuple[str, float, bool]:
    group = dist.new_group(timeout=TIMEOUT)
    module = trained(kind, rank, process_group=group)
    if rank == 1:
        module.get_submodule(part).eval()
    return attempt(module, tokens(rank, 2))


# In a message of another size, the part would end a process of Gloo, or nobody would notice.
@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("GroupedResidualVQ", "rvqs.1"),
        ("GroupedResidualVQ", "rvqs.1.layers.1"),
        ("ResidualVQ", "layers.1"),
    ],
)
def test_one_rank_evaluates_a_part(two: Ranks, kind: str, part: str) -> None:
    for message, seconds, intact in two.run(evaluate_a_part, kind, part):
        assert message.startswith(f"DistBackendError: {OWNERS[kind]}, step 2: rank "), message
        assert seconds < 10 and intact


def read_or_train(rank: int, kind: str) -> Any:
    group = dist.new_group(timeout=TIMEOUT)
    module: Any = trained(kind, rank, process_group=group)
    if rank == 1:
        return outcome(lambda: module.stats(synced=True))
    return attempt(module, tokens(rank, 2))


@pytest.mark.parametrize("kind", KINDS)
def test_one_rank_asks_for_the_use_of_all(two: Ranks, kind: str) -> None:
    """The message of another size would end a process of Gloo."""
    answer, other = two.run(read_or_train, kind)
    check(kind, answer, limit=10)
    assert "failed while sharing the number of its codes" in other


def freeze_or_train(rank: int, kind: str) -> Any:
    group = dist.new_group(timeout=TIMEOUT)
    module = trained(kind, rank, process_group=group)
    if rank == 1:
        time.sleep(4)  # longer than the timeout of the group
        return None
    return attempt(module, tokens(rank, 2))


@pytest.mark.parametrize("kind", ["VectorQuantize", "ResidualVQ"])
def test_one_rank_lags(two: Ranks, kind: str) -> None:
    check(kind, two.run(freeze_or_train, kind)[0], limit=10)


def die(rank: int, kind: str) -> Any:
    module = trained(kind, rank)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return attempt(module, tokens(rank, 2))


@pytest.mark.parametrize("kind", KINDS)
def test_one_rank_is_killed(kind: str) -> None:
    # Separate ranks, because a group that has lost a rank cannot be reused.
    ranks = Ranks(3)
    try:
        ranks.start(die, kind)
        for answer in ranks.failures({0, 2}):
            check(kind, answer, limit=20)
    finally:
        ranks.close()


def other_options(rank: int, kind: str, options: dict[str, Any]) -> tuple[str, float, bool]:
    torch.manual_seed(0)
    module = {
        "VectorQuantize": lambda **o: VectorQuantize(DIM, **{"codebook_size": 16, **o}),
        "ResidualVQ": lambda **o: ResidualVQ(
            dim=DIM, **{"num_quantizers": 3, "codebook_size": 16, **o}
        ),
    }[kind](**(options if rank == 1 else {}))
    return attempt(module, tokens(rank, 0))


@pytest.mark.parametrize(
    ("kind", "options", "fragments"),
    [
        ("VectorQuantize", {"codebook_size": 48}, ("of 16 codes", "of 48 codes")),
        ("VectorQuantize", {"decay": 0.9}, ("decay 0.8", "decay 0.9")),
        ("VectorQuantize", {"reduction": "float"}, ("reduction exact", "reduction float")),
        ("ResidualVQ", {"codebook_size": 48}, ("of 16 codes", "of 48 codes")),
        ("ResidualVQ", {"codebook_size": (16, 16, 48)}, ("of 16 codes", "of 48 codes")),
        ("ResidualVQ", {"num_quantizers": 4}, ("of 16 codes", "")),
    ],
)
def test_one_rank_has_other_options(
    ranks: Ranks, kind: str, options: dict[str, Any], fragments: tuple[str, str]
) -> None:
    for message, seconds, intact in ranks.run(other_options, kind, options):
        assert message.startswith(f"ValueError: {kind}(dim={DIM}, codebook_size="), message
        assert "expected all ranks to have the same quantizer" in message
        assert all(fragment in message for fragment in fragments)
        assert intact and seconds < 10
