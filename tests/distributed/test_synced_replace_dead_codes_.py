"""Dead codes are replaced in the same way on all ranks, and as in one process with the concatenated batch.

The oracle is replace_dead_codes_() on the concatenated batch.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ranks import Ranks, outcome
from shards import SPLITS, codebook, concatenated, group_name, make_shard, traffic_of
from torch import Tensor

ops = torch.ops.torchvq

DEAD = {"threshold": 2.0, "threshold_fraction": 0.0, "reset_cluster_size": 2.0}
State = dict[str, list[Tensor]]


def make_state(sizes: list[int], dead: list[int]) -> State:
    """Codebooks of the given sizes, in each of which the first `dead` codes are unused."""
    state: State = {
        "embed": [],
        "embed_avg": [],
        "cluster_size": [],
        "counts": [],
        "rng": [],
    }
    for i, (size, unused) in enumerate(zip(sizes, dead, strict=True)):
        embed = codebook(codes=size, seed=i)
        alive = torch.arange(size).ge(unused).expand(2, size)
        state["embed"].append(embed)
        state["embed_avg"].append(embed * 3)
        state["cluster_size"].append(torch.where(alive, 3.0, 0.5))
        state["counts"].append(alive.long())
        state["rng"].append(torch.tensor([5 + i, 17]))
    return state


def synced(state: State, x: list[Tensor], mask: list[Tensor], **options: Any) -> Tensor:
    return ops.synced_replace_dead_codes_(
        state["embed"],
        state["embed_avg"],
        state["cluster_size"],
        x,
        state["counts"],
        state["rng"],
        mask=mask,
        **DEAD,
        **options,
    )


def one_process(
    state: State, x: list[Tensor], mask: list[Tensor], metric: str, **options: Any
) -> Tensor:
    return ops.replace_dead_codes_(
        state["embed"],
        state["embed_avg"],
        state["cluster_size"],
        x,
        state["counts"],
        state["rng"],
        mask=mask,
        metric=metric,
        **DEAD,
        **options,
    )


def on_rank(
    rank: int, size: int, split: str, sizes: list[int], dead: list[int], levels: int, options: dict
):
    shards = [make_shard(split, rank, size, seed=level) for level in range(levels)]
    state = make_state(sizes, dead)
    x, mask = [shard.x for shard in shards], [shard.mask for shard in shards]
    name = group_name()
    replaced, traffic = traffic_of(lambda: synced(state, x, mask, group_name=name, **options))
    return state, replaced, traffic


def batches(split: str, size: int, levels: int) -> tuple[list[Tensor], list[Tensor]]:
    whole = [
        concatenated([make_shard(split, rank, size, seed=level) for rank in range(size)])
        for level in range(levels)
    ]
    return [batch.x for batch in whole], [batch.mask for batch in whole]


def assert_same(got: State, wanted: State) -> None:
    for name, tensors in wanted.items():
        for a, b in zip(got[name], tensors, strict=True):
            assert torch.equal(a, b), name


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("split", SPLITS)
def test_replacement_is_that_of_one_process(ranks: Ranks, split: str, metric: str):
    sizes, dead = [7, 33, 4], [3, 20, 0]
    x, mask = batches(split, ranks.size, 3)
    wanted = make_state(sizes, dead)
    number = one_process(wanted, x, mask, metric)
    if split in ("even", "ragged"):
        assert number[0] == 3 and number[2] == 20, "the test means nothing otherwise"
    for state, replaced, traffic in ranks.run(
        on_rank, ranks.size, split, sizes, dead, 3, {"metric": metric}
    ):
        assert_same(state, wanted)
        assert torch.equal(replaced, number)
        assert traffic[:3] == (0, 1, 0), "one gather for all levels"


@pytest.mark.parametrize("most", [0.05, 0.5])
def test_the_tokens_of_all_ranks_limit_the_number(ranks: Ranks, most: float):
    sizes, dead = [7, 33, 4], [6, 20, 0]
    wanted = make_state(sizes, dead)
    number = one_process(wanted, *batches("even", ranks.size, 3), "euclidean", most_per_token=most)
    tokens = torch.cat([counts.sum(1) for counts in wanted["counts"]])
    limits = (tokens * most).ceil().long()
    assert number.tolist() == [min(limits[i].item(), [6, 20, 0][i // 2]) for i in range(6)]
    for state, replaced, _ in ranks.run(
        on_rank, ranks.size, "even", sizes, dead, 3, {"most_per_token": most}
    ):
        assert_same(state, wanted)
        assert torch.equal(replaced, number)


def test_other_reductions_are_refused() -> None:
    x, mask = batches("even", 1, 1)
    with pytest.raises(ValueError, match='reduction to be "exact" or "float", but got "half"'):
        synced(make_state([7], [3]), x, mask, reduction="half")


def with_counts(state: State, tokens: bool) -> State:
    """`tokens`: every code has one; otherwise none has."""
    for counts in state["counts"]:
        counts.fill_(int(tokens))
    return state


def special_step(rank: int, size: int, dead: list[int], tokens: bool, used: bool) -> Any:
    shards = [make_shard("even", rank, size, seed=level) for level in range(2)]
    state = with_counts(make_state([7, 33], dead), tokens)
    x, mask = [shard.x for shard in shards], [shard.mask for shard in shards]
    return state, synced(state, x, mask, group_name=group_name(), replace_used=used)


@pytest.mark.parametrize("dead", [[0, 0], [3, 20], [0, 20]], ids=str)
@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("tokens", [False, True])
def test_steps_without_tokens_and_codes_in_use(
    two: Ranks, dead: list[int], tokens: bool, used: bool
):
    wanted = with_counts(make_state([7, 33], dead), tokens)
    number = one_process(wanted, *batches("even", 2, 2), "euclidean", replace_used=used)
    assert (number.sum() > 0) == (sum(dead) > 0 and (used or not tokens))
    for state, replaced in two.run(special_step, 2, dead, tokens, used):
        assert_same(state, wanted)
        assert torch.equal(replaced, number)


def test_no_dead_code_means_no_collective(two: Ranks):
    sizes, dead = [7, 33], [0, 0]
    wanted = make_state(sizes, dead)
    one_process(wanted, *batches("ragged", 2, 2), "euclidean")
    for state, replaced, traffic in two.run(on_rank, 2, "ragged", sizes, dead, 2, {}):
        assert_same(state, wanted)
        assert replaced.sum() == 0
        assert traffic == (0, 0, 0, 0)


def test_only_codebooks_with_dead_codes_are_sent(two: Ranks):
    (_, _, both), (_, _, one) = (
        two.run(on_rank, 2, "even", [7, 33], dead, 2, {})[0] for dead in ([3, 20], [3, 0])
    )
    assert one[3] == 2 * 7 * (8 + 4 * 5)
    assert both[3] == 2 * 40 * (8 + 4 * 5)


def test_replacement_is_that_of_one_process_over_many_steps(two: Ranks):
    got = two.run(many_steps, 2, 30)
    wanted = many_steps(0, 1, 30)
    for state in got:
        assert_same(state, wanted)


def many_steps(rank: int, size: int, steps: int) -> State:
    """Statistics, averages and replacement, with unequal ranks; `size` 1 is one process with both shards."""
    state = make_state([33], [0])
    rng = state["rng"][0]
    for step in range(steps):
        shards = [make_shard("ragged", r, 2, seed=step) for r in ([rank] if size == 2 else [0, 1])]
        shard = concatenated(shards)
        name = group_name() if size == 2 else ""
        indices = ops.nearest_code(shard.x, state["embed"][0])[0]
        statistics = ops.synced_code_statistics(
            [shard.x],
            [indices],
            [ops.code_exponents(state["embed"][0])],
            mask=[shard.mask],
            state=state["cluster_size"],
            rng=rng,
            group_name=name,
        )
        counts, sums, exponents = (column[0] for column in statistics)
        ops.ema_update_(
            state["cluster_size"][0],
            state["embed_avg"][0],
            state["embed"][0],
            counts,
            sums,
            exponents,
            decay=0.8,
            eps=1e-5,
        )
        state["counts"] = [counts]
        synced(state, [shard.x], [shard.mask], group_name=name)
        ops.advance_rng_(rng, counts > 0)
    return state


def bad_call(rank: int) -> str:
    state = make_state([7], [3])
    return outcome(lambda: synced(state, [torch.zeros(2, 3, 6)], [], group_name=group_name()))


def test_bad_arguments_are_refused_before_anything_is_sent(two: Ranks):
    for message in two.run(bad_call):
        assert message.startswith("ValueError: replace_dead_codes_: expected x to have size 5")
