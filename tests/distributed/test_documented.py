"""The tables of docs/distributed.md: messages of a step are counted here, and every claim names a test that exists.

`TORCHVQ_WRITE_DOCS=1 pytest tests/distributed/test_documented.py` writes the counts into the page.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import Ranks
from torch import Tensor, nn

from torchvq import GroupedResidualVQ, ResidualVQ, VectorQuantize, verify_replicas

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "distributed.md"
DIM = 128

Module = Callable[[], nn.Module]


def stack(**options: Any) -> nn.Module:
    return ResidualVQ(**{"dim": DIM, "num_quantizers": 8, "codebook_size": 1024, **options})


# Rows of the table: a module, the number of steps before, and the action whose messages are counted.
ROWS: dict[str, tuple[Module, int, str]] = {
    "`VectorQuantize`, 1024 codes": (lambda: VectorQuantize(DIM, 1024), 1, "step"),
    "`ResidualVQ`, 8 levels of 1024": (stack, 1, "step"),
    'the same, `reduction="float"`': (lambda: stack(reduction="float"), 1, "step"),
    "the same, one shared codebook": (lambda: stack(shared_codebook=True), 1, "step"),
    "the same, with quantize dropout": (lambda: stack(quantize_dropout=True), 1, "step"),
    "the same, all codes of all levels dead, two ranks": (
        lambda: stack(threshold_ema_dead_code=2),
        1,
        "step",
    ),
    "the same, three ranks of 500 tokens, whose candidates have no room": (
        lambda: stack(threshold_ema_dead_code=2),
        1,
        "step",
    ),
    "the same, with `codebook_diversity_loss_weight`": (
        lambda: stack(codebook_diversity_loss_weight=0.1),
        1,
        "step",
    ),
    "the same, `sync_every=4`, three steps of four": (lambda: stack(sync_every=4), 1, "step"),
    "the same, `sync_every=4`, the fourth": (lambda: stack(sync_every=4), 3, "step"),
    "the same, codes learn by gradient alone": (
        lambda: stack(learnable_codebook=True, ema_update=False),
        1,
        "step",
    ),
    "the same, first step": (stack, 0, "step"),
    "the same, first step with k-means": (lambda: stack(kmeans_init=True), 0, "step"),
    "the same, backward": (stack, 1, "backward"),
    "the same, evaluation": (stack, 1, "evaluation"),
    "the same, frozen": (stack, 1, "frozen"),
    "the same, `sync_codebook=False`": (lambda: stack(sync_codebook=False), 1, "step"),
    "the same, `stats(synced=True)`": (stack, 1, "stats"),
    "the same, `verify_replicas`": (stack, 1, "verify"),
    "`GroupedResidualVQ`, 2 groups of 8 levels": (
        lambda: GroupedResidualVQ(dim=2 * DIM, groups=2, num_quantizers=8, codebook_size=1024),
        1,
        "step",
    ),
}


def tokens(module: Any, rank: int, step: int, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(10 * step + rank)
    return torch.randn(1, count + rank, module.dim, generator=generator)


def count(rank: int, row: str) -> tuple[int, ...]:
    make, before, what = ROWS[row]
    torch.manual_seed(0)
    module = make()
    tokens_of_rank = 500 if "no room" in row else 100
    for step in range(before):
        module(tokens(module, rank, step, tokens_of_rank))
    x = tokens(module, rank, before, tokens_of_rank).requires_grad_()
    actions: dict[str, Callable[[], Any]] = {
        "step": lambda: module(x),
        "evaluation": lambda: module.eval()(x),
        "frozen": lambda: module(x, freeze_codebook=True),
        "stats": lambda: module.stats(synced=True),  # type: ignore[operator]
        "verify": lambda: verify_replicas(module),
    }
    if what == "backward":
        result = module(x)
        actions["backward"] = lambda: (result[0].sum() + result[2].sum()).backward()
    torch.ops.torchvq.reset_traffic()
    actions[what]()
    return tuple(torch.ops.torchvq.traffic())


def spell(counted: tuple[int, ...]) -> str:
    all_reduces, all_gathers, broadcasts, sent = counted
    assert broadcasts == 0
    size = f"{sent / 1024:,.1f} KiB" if sent else "0"
    return f"{all_reduces} | {all_gathers} | {size} |"


def block(page: str, name: str) -> tuple[int, int]:
    """Begin and end of the lines between the markers of a table."""
    begin = page.index(f"<!-- begin {name} -->\n") + len(f"<!-- begin {name} -->\n")
    return begin, page.index(f"<!-- end {name} -->", begin)


def test_what_is_sent_is_what_the_page_says(pool: Callable[[int], Ranks]) -> None:
    lines = ["| | all-reduces | all-gathers | sent by a rank |", "|---|---:|---:|---:|"]
    for row in ROWS:
        # Candidates are sent once per rank, so these rows depend on the number of ranks.
        sizes = (2,) if "two ranks" in row else (3,) if "three ranks" in row else (2, 3)
        answers = [answer for size in sizes for answer in pool(size).run(count, row)]
        if "k-means" in row:
            # The rows of a rank's share of the sample are the only bytes that depend on the data.
            answers = [(*answer[:3], min(a[3] for a in answers)) for answer in answers]
        assert len(set(answers)) == 1, (row, answers)
        lines.append(f"| {row} | {spell(answers[0])}")
    table = "\n".join(lines) + "\n"
    page = PAGE.read_text()
    begin, end = block(page, "traffic")
    if os.environ.get("TORCHVQ_WRITE_DOCS") == "1":
        PAGE.write_text(page[:begin] + table + page[end:])
    else:
        assert page[begin:end] == table


def named_tests() -> list[tuple[str, str]]:
    page = PAGE.read_text()
    begin, end = block(page, "claims")
    found = re.findall(r"`(test_\w+)\.(test_\w+)`", page[begin:end])
    assert len(found) >= 20
    return found


@pytest.mark.parametrize(("file", "test"), named_tests())
def test_every_claim_has_its_test(file: str, test: str) -> None:
    source = (ROOT / "tests" / "distributed" / f"{file}.py").read_text()
    assert f"\ndef {test}(" in source
