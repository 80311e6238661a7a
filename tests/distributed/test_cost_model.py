"""The cost model of docs/distributed.md, against the bytes that the engine sends."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import Ranks
from torch import nn

from torchvq import GroupedResidualVQ, HierarchicalVQ, ResidualVQ, VectorQuantize

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from communication_cost import Step, ring, table, tree  # noqa: E402

STEPS = {
    "one codebook": (VectorQuantize, dict(dim=12, codebook_size=64), Step(64, 12)),
    "dead codes": (
        VectorQuantize,
        dict(dim=12, codebook_size=64, threshold_ema_dead_code=1),
        Step(64, 12, replaces=True),
    ),
    "few candidates": (
        VectorQuantize,
        dict(dim=5, codebook_size=2048, dead_code_threshold_fraction=0.01),
        Step(2048, 5, replaces=True),
    ),
    "no room for candidates": (
        VectorQuantize,
        dict(dim=2100, codebook_size=2, threshold_ema_dead_code=1),
        Step(2, 2100, replaces=True),
    ),
    "float": (
        VectorQuantize,
        dict(dim=12, codebook_size=64, threshold_ema_dead_code=1, reduction="float"),
        Step(64, 12, replaces=True, exact=False),
    ),
    "heads": (
        VectorQuantize,
        dict(
            dim=12,
            codebook_size=64,
            heads=3,
            separate_codebook_per_head=True,
            threshold_ema_dead_code=1,
        ),
        Step(64, 12, heads=3, replaces=True),
    ),
    "stack": (
        ResidualVQ,
        dict(dim=12, codebook_size=64, num_quantizers=3, threshold_ema_dead_code=1),
        Step(64, 12, levels=3, replaces=True),
    ),
    "steps together": (
        ResidualVQ,
        dict(
            dim=12,
            codebook_size=64,
            num_quantizers=3,
            threshold_ema_dead_code=1,
            sync_every=3,
        ),
        Step(64, 12, levels=3, replaces=True, every=3),
    ),
    "shared": (
        ResidualVQ,
        dict(dim=12, codebook_size=64, num_quantizers=3, shared_codebook=True),
        Step(64, 12),
    ),
    "groups": (
        GroupedResidualVQ,
        dict(dim=12, codebook_size=64, num_quantizers=3, groups=2, threshold_ema_dead_code=1),
        Step(64, 6, levels=6, replaces=True),
    ),
    # HierarchicalVQ replaces dead codes by default.
    "scales": (
        HierarchicalVQ,
        dict(dim=12, codebook_size=64, scales=(1, 2)),
        Step(64, 12, replaces=True),
    ),
}


def sent(rank: int, name: str, dtype: torch.dtype) -> tuple[int, int, int]:
    kind, options, step = STEPS[name]
    torch.manual_seed(0)
    module: nn.Module = kind(**options).to(dtype)
    dim: Any = options["dim"]
    shape = (2, dim, 2) if kind is HierarchicalVQ else (1, 40 + rank, dim)
    # Smaller than the codes: tokens that exceed them would cost two more messages.
    x = 0.01 * torch.randn(shape, generator=torch.Generator().manual_seed(rank)).to(dtype)
    for _ in range(step.every):
        module(x)
    torch.ops.torchvq.reset_traffic()
    for _ in range(step.every):
        module(x)
    all_reduces, all_gathers, _, size = torch.ops.torchvq.traffic()
    return all_reduces, all_gathers, size


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", STEPS)
def test_a_step_sends_what_the_model_says(ranks: Ranks, name: str, dtype: torch.dtype) -> None:
    fields = {**vars(STEPS[name][2]), "ranks": ranks.size, "wide": dtype == torch.float64}
    step = Step(**fields)
    for all_reduces, all_gathers, size in ranks.run(sent, name, dtype):
        assert all_reduces == 1
        assert size == step.message + all_gathers * step.gathered
        assert all_gathers == 0 or step.offered < step.codes


def test_the_rows_mean_what_they_say() -> None:
    assert STEPS["dead codes"][2].offered == 64
    assert 0 < STEPS["few candidates"][2].offered < 2048
    assert STEPS["no room for candidates"][2].offered == 0


def test_algorithms_by_hand() -> None:
    assert ring(1000, 2) == (2, 1000) and ring(1000, 4) == (6, 1500)
    assert tree(1000, 2) == (2, 2000) and tree(1000, 5) == (6, 2000)
    assert ring(1000, 4).seconds(0.1, 1500) == pytest.approx(1.6)
    assert ring(1000, 4).seconds(0.1, 1500, every=4) == pytest.approx(0.4)


def test_the_page_has_the_table_of_the_model() -> None:
    page = (ROOT / "docs/distributed.md").read_text()
    begin = page.index("<!-- begin cost -->\n") + len("<!-- begin cost -->\n")
    assert page[begin : page.index("<!-- end cost -->")] == table()
