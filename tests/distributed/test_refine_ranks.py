"""Refinement over ranks: bit for bit the result of one process with all tokens, however they are split."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ranks import Ranks, outcome
from torch import Tensor

import torchvq
from torchvq import GroupedResidualVQ, ResidualVQ

CASES: dict[str, dict[str, Any]] = {
    "default": dict(codebook_size=(16, 8, 12)),
    "shared": dict(num_quantizers=3, codebook_size=16, shared_codebook=True),
    "groups": dict(num_quantizers=2, codebook_size=16, groups=2),
    "separate_heads": dict(
        num_quantizers=2,
        codebook_size=12,
        heads=2,
        codebook_dim=3,
        separate_codebook_per_head=True,
    ),
}
SPLITS = {"uneven": (70, 430), "one rank without tokens": (0, 500)}


def make(case: str, seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    options = CASES[case]
    kind = GroupedResidualVQ if "groups" in options else ResidualVQ
    return kind(dim=6, **options).eval()


def tokens() -> Tensor:
    x = torch.randn(1, 500, 6, generator=torch.Generator().manual_seed(1))
    x[0, 77, 2] = float("nan")
    return x


def refined(rank: int, case: str, split: str, options: dict[str, Any]) -> Any:
    module = make(case)
    found = torchvq.refine(module, tokens().split(SPLITS[split], 1)[rank], **options)
    return tuple(found), module.state_dict()


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("case", CASES)
def test_ranks_refine_what_one_process_refines(two: Ranks, case: str, split: str) -> None:
    for options in (dict(noise=0.3), dict(beam_size=1)):
        module = make(case)
        wanted = tuple(torchvq.refine(module, tokens(), **options))
        assert wanted[1] < wanted[0]
        for found, state in two.run(refined, case, split, options):
            assert found == wanted
            for name, value in module.state_dict().items():
                # The modules had the same seed; only their generators differ.
                assert name.endswith("rng") or torch.equal(state[name], value), name


def by_level(rank: int | None) -> list[Tensor]:
    x = torch.randn(1, 400, 5, generator=torch.Generator().manual_seed(2))
    torch.manual_seed(0)
    codebooks = [torch.randn(1, 9, 5), torch.randn(1, 7, 5)]
    group = ""
    if rank is not None:
        world = torch.distributed.group.WORLD
        assert world is not None
        x, group = x.split((150, 250), 1)[rank], world.group_name
    found = torch.ops.torchvq.refine_codebooks(x, codebooks, memory=0, group_name=group)
    return [*found[0], *found[1:]]


def test_levels_in_turn_are_those_of_one_process(two: Ranks) -> None:
    wanted = by_level(None)
    for found in two.run(by_level):
        assert all(map(torch.equal, found, wanted))


def too_few(rank: int) -> str:
    return outcome(torchvq.refine, make("default"), tokens()[:, 5 * rank : 5 * rank + 5])


def test_every_rank_hears_of_too_few_tokens(two: Ranks) -> None:
    for said in two.run(too_few):
        assert "at least 16 finite vectors, as many as a level has codes, but got 10" in said


def at_odds(rank: int) -> str:
    module = make("default")
    return outcome(lambda: torchvq.refine(module, tokens(), beam_size=4 + rank))


def test_every_rank_hears_of_other_options(two: Ranks) -> None:
    for said in two.run(at_odds):
        assert "refine: expected all ranks to refine alike" in said
        assert "rank 0: beam 4" in said and "rank 1: beam 5" in said
