"""Statistics of all ranks equal those of one process with the concatenated batch: every bit, in one all-reduce.

The oracle is code_statistics() (tested against Python integers) on the concatenated batch.
"""

from __future__ import annotations

import pytest
import torch
from ranks import Ranks, outcome
from shards import SPLITS, Shard, codebook, concatenated, group_name, make_shard, traffic_of
from torch import Tensor

ops = torch.ops.torchvq
Statistics = tuple[list[Tensor], list[Tensor], list[Tensor]]


def statistics(levels: list[Shard], books: list[Tensor], **options: object) -> Statistics:
    return ops.synced_code_statistics(
        [level.x for level in levels],
        [level.indices for level in levels],
        [ops.code_exponents(book) for book in books],
        mask=[level.mask for level in levels],
        **{"state": [], "rng": torch.tensor([5, 17]), **options},
    )


def on_rank(
    rank: int, size: int, split: str, options: dict, levels: list[dict], books: list[Tensor]
):
    shards = [make_shard(split, rank, size, **level) for level in levels]
    name = group_name()
    return traffic_of(lambda: statistics(shards, books, group_name=name, **options))


def batches(split: str, size: int, levels: list[dict]) -> list[Shard]:
    return [
        concatenated([make_shard(split, rank, size, **level) for rank in range(size)])
        for level in levels
    ]


def assert_same_bits(got: Statistics, wanted: Statistics) -> None:
    for mine, theirs in zip(got, wanted, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            assert a.dtype == b.dtype
            assert torch.equal(a, b)


def one_process(split: str, size: int, levels: list[dict], books: list[Tensor]) -> Statistics:
    """code_statistics() level by level, instead of the synchronised operator."""
    results = [
        ops.code_statistics(batch.x, batch.indices, ops.code_exponents(book), mask=batch.mask)
        for batch, book in zip(batches(split, size, levels), books, strict=True)
    ]
    return tuple(list(column) for column in zip(*results, strict=True))


LEVELS = [{"seed": 0}, {"seed": 1, "codes": 33}, {"seed": 2, "codes": 1}]
BOOKS = [codebook(), codebook(codes=33), codebook(codes=1)]


@pytest.mark.parametrize("split", SPLITS)
def test_synced_statistics_are_those_of_one_process(ranks: Ranks, split: str):
    wanted = one_process(split, ranks.size, LEVELS, BOOKS)
    for got, traffic in ranks.run(on_rank, ranks.size, split, {}, LEVELS, BOOKS):
        assert_same_bits(got, wanted)
        assert traffic[:3] == (1, 0, 0), "one all-reduce for the whole stack"


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_synced_statistics_of_every_dtype(two: Ranks, dtype: torch.dtype):
    levels = [{"dtype": dtype}]
    wanted = one_process("ragged", 2, levels, BOOKS[:1])
    for got, _ in two.run(on_rank, 2, "ragged", {}, levels, BOOKS[:1]):
        assert_same_bits(got, wanted)


def test_tokens_of_one_rank_that_outgrow_the_codebook_raise_the_exponents_of_all(ranks: Ranks):
    levels = [{"loud": 1}, {"seed": 1, "codes": 33}]
    wanted = one_process("even", ranks.size, levels, BOOKS[:2])
    assert (wanted[2][0] > ops.code_exponents(BOOKS[0])).any(), "the test means nothing otherwise"
    for got, traffic in ranks.run(on_rank, ranks.size, "even", {}, levels, BOOKS[:2]):
        assert_same_bits(got, wanted)
        assert traffic[:3] == (3, 0, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("loud", [None, 1])
def test_float_reduction_is_close_cheaper_and_the_same_on_all_ranks(
    two: Ranks, dtype: torch.dtype, loud: int | None
):
    levels = [{"seed": 1, "codes": 33, "dtype": dtype, "loud": loud}, {"seed": 2, "dtype": dtype}]
    books = [BOOKS[1], BOOKS[0]]
    wanted = one_process("ragged", 2, levels, books)
    exact = two.run(on_rank, 2, "ragged", {}, levels, books)
    answers = two.run(on_rank, 2, "ragged", {"reduction": "float"}, levels, books)
    assert_same_bits(answers[0][0], answers[1][0])
    (counts, sums, exponents), traffic = answers[0]
    assert traffic[0] == 1
    if dtype == torch.float32 and loud is None:
        assert traffic[3] < 0.8 * exact[0][1][3]
    tolerance = 1e-6 if dtype == torch.float32 else 1e-14
    for level in range(2):
        assert torch.equal(counts[level], wanted[0][level])
        got = ops.decode_sums(sums[level], exponents[level], dtype=torch.float64)
        true = ops.decode_sums(wanted[1][level], wanted[2][level], dtype=torch.float64)
        torch.testing.assert_close(
            got, true, rtol=tolerance, atol=tolerance * true.abs().max().item()
        )


def test_alone_means_no_communication_and_the_same_bits(two: Ranks):
    wanted = one_process("ragged", 2, LEVELS, BOOKS)
    got, traffic = traffic_of(lambda: statistics(batches("ragged", 2, LEVELS), BOOKS))
    assert_same_bits(got, wanted)
    assert traffic == (0, 0, 0, 0)


# Disagreement ------------------------------------------------------------------------------------


def disagree(rank: int, what: str) -> str:
    shard = make_shard("even", rank, 2)
    book = codebook()
    state, rng, signature = torch.zeros(4), torch.tensor([5, 17]), "depth 3"
    if rank == 1:
        if what == "state":
            state[2] = 1e-30
        if what == "step":
            rng[1] = 18
        if what == "codes":
            book[0, 0, 0] = 1e6
        if what == "options":
            signature = "depth 4"
    return outcome(
        lambda: ops.synced_code_statistics(
            [shard.x],
            [shard.indices],
            [ops.code_exponents(book)],
            mask=[],
            state=[state],
            rng=rng,
            signature=signature,
            group_name=group_name(),
            label="encoder.vq",
        )
    )


@pytest.mark.parametrize(
    ("what", "words"),
    [("state", "state "), ("step", "step 18"), ("codes", "state "), ("options", "depth 4")],
)
def test_ranks_that_disagree_get_one_sentence_each_that_quotes_both(
    two: Ranks, what: str, words: str
):
    for rank, message in enumerate(two.run(disagree, what)):
        assert message.startswith("DistError: encoder.vq, step 1"), message
        assert "rank 0: " in message and "rank 1: " in message
        assert words in message
        assert "Likely reasons" in message, rank


def test_ranks_that_agree_are_believed(two: Ranks):
    assert two.run(disagree, "nothing") == ["nothing", "nothing"]
