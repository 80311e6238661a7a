"""k-means on all ranks gives the codebook of one process with the concatenated batch. The oracle is kmeans()."""

from __future__ import annotations

import pytest
import torch
from ranks import Ranks
from shards import SPLITS, codebook, concatenated, group_name, make_shard, traffic_of

ops = torch.ops.torchvq
RNG = torch.tensor([11, 0])


def on_rank(rank: int, size: int, split: str, codes: int, metric: str):
    shard = make_shard(split, rank, size)
    name = group_name()
    return traffic_of(
        lambda: ops.synced_kmeans(
            shard.x, codes, RNG, metric=metric, mask=shard.mask, group_name=name
        )
    )


@pytest.mark.parametrize("codes", [7, 200])
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("split", SPLITS)
def test_kmeans_is_that_of_one_process(ranks: Ranks, split: str, metric: str, codes: int):
    batch = concatenated([make_shard(split, rank, ranks.size) for rank in range(ranks.size)])
    wanted = ops.kmeans(batch.x, codes, RNG, metric=metric, mask=batch.mask)
    for (got, counts), traffic in ranks.run(on_rank, ranks.size, split, codes, metric):
        assert torch.equal(got, wanted[0])
        assert torch.equal(counts, wanted[1])
        assert traffic[:3] == (0, 2, 0)


def large_shard(rank: int) -> torch.Tensor:
    """Two ranks with 110000 tokens in total, many of them equal: more than the sample takes."""
    generator = torch.Generator().manual_seed(rank)
    tokens = torch.randn(1, [70000, 40000][rank], 2, generator=generator)
    tokens[:, ::2] = tokens[:, ::2].round()
    return tokens


def large(rank: int):
    x, name = large_shard(rank), group_name()
    return traffic_of(lambda: ops.synced_kmeans(x, 16, RNG, iterations=4, group_name=name))


def test_large_batches_are_sampled_alike_and_counted_in_full(two: Ranks):
    batch = torch.cat([large_shard(0), large_shard(1)], 1)
    codes, counts = ops.synced_kmeans(batch, 16, RNG, iterations=4)
    assert counts.sum() == batch.shape[1]
    nearest = torch.cdist(batch[0].double(), codes[0].double()).argmin(-1)
    assert (counts[0] - nearest.bincount(minlength=16)).abs().sum() <= 2, "ties aside"
    error = torch.cdist(batch[0], codes[0]).amin(-1).square().mean()
    full = (
        torch.cdist(batch[0], ops.kmeans(batch, 16, RNG, iterations=4)[0][0])
        .amin(-1)
        .square()
        .mean()
    )
    assert error < 1.02 * full
    for (got, number), traffic in two.run(large):
        assert torch.equal(got, codes)
        assert torch.equal(number, counts)
        # Two all-gathers for the sample; all-reduces for the statistics of two late iterations and the counts.
        assert traffic[:3] == (3, 2, 0)
        # Keys of the sample, then about half of its rows.
        assert traffic[3] < 65536 * 8 + 0.75 * 65536 * 8 + 3000


def initialise(rank: int, size: int, split: str):
    shard = concatenated([make_shard(split, r, 2) for r in ([rank] if size == 2 else [0, 1])])
    embed = codebook(codes=9)
    state = [torch.tensor(False), torch.ones(2, 9), embed.clone(), embed]
    ops.initialise_codebook_(
        *state,
        shard.x,
        RNG,
        mask=shard.mask,
        group_name=group_name() if size == 2 else "",
        label="vq",
    )
    return state


@pytest.mark.parametrize("split", SPLITS)
def test_initialise_codebook_sets_the_state_of_one_process(two: Ranks, split: str):
    wanted = initialise(0, 1, split)
    for got in two.run(initialise, 2, split):
        for a, b in zip(got, wanted, strict=True):
            assert torch.equal(a, b)
        assert got[0].item() == (split not in ("nobody has tokens", "everybody is masked"))


def few_values(rank: int, values: list[int], scale: float) -> torch.Tensor:
    """70000 tokens on each rank, almost all of them equal, so that late iterations have empty codes."""
    tokens = torch.zeros(1, 70000, 1)
    generator = torch.Generator().manual_seed(rank)
    tokens[0, : values[rank]] = scale * torch.randn(values[rank], 1, generator=generator)
    return tokens


def few(rank: int, codes: int, values: list[int], scale: float):
    x, name = few_values(rank, values, scale), group_name()
    return traffic_of(lambda: ops.synced_kmeans(x, codes, RNG, iterations=6, group_name=name))


# Small tokens have large times in the race; a rank with one value has nothing to send.
@pytest.mark.parametrize(
    ("codes", "values", "scale"), [(300, [400, 400], 1.0), (144, [400, 0], 1e-15)]
)
def test_many_equal_tokens(two: Ranks, codes: int, values: list[int], scale: float):
    batch = torch.cat([few_values(rank, values, scale) for rank in range(2)], 1)
    wanted, number = ops.synced_kmeans(batch, codes, RNG, iterations=6)
    assert number.sum() == 140000
    for (got, counts), traffic in two.run(few, codes, values, scale):
        assert torch.equal(got, wanted)
        assert torch.equal(counts, number)
        assert traffic[1] > 2, "the test means nothing without empty codes in late iterations"
