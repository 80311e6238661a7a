"""SimVQ on ranks: whatever codes each rank drew, all train one codebook, and steps send nothing."""

from __future__ import annotations

from typing import Any

import torch
from ranks import Ranks

from torchvq import ResidualSimVQ, SimVQ

DIM, CODES = 6, 16


def build(kind: str, seed: int, **options: Any) -> SimVQ | ResidualSimVQ:
    torch.manual_seed(seed)
    if kind == "SimVQ":
        return SimVQ(DIM, CODES, **options)
    return ResidualSimVQ(
        dim=DIM, codebook_size=CODES, num_quantizers=4, **{"quantize_dropout": True, **options}
    )


def train(rank: int, kind: str, alone: bool) -> dict[str, Any]:
    module = build(kind, rank, **({"sync_codebook": False} if alone else {}))
    depths = []
    for step in range(4):
        x = torch.randn(2, 5, DIM, generator=torch.Generator().manual_seed(10 * step + rank))
        if step == 1:
            torch.ops.torchvq.reset_traffic()
        found = module(x)
        found.loss.sum().backward()
        depths.append(
            (found.indices >= 0).sum(-1).unique().tolist() if found.indices.dim() > 2 else 1
        )
        if not alone:
            assert all(parameter.grad is not None for parameter in module.parameters())
    sent = torch.ops.torchvq.traffic()
    frozen = {name: b.clone() for name, b in module.named_buffers() if "frozen" in name}
    return {"frozen": frozen, "depths": depths, "sent": sent}


def test_ranks_take_the_codes_of_rank_0(two: Ranks) -> None:
    for kind in ("SimVQ", "ResidualSimVQ"):
        first, second = two.run(train, kind, False)
        own = dict(build(kind, 0).named_buffers())
        for name, codes in first["frozen"].items():
            assert torch.equal(codes, own[name]) and torch.equal(codes, second["frozen"][name])
        assert first["depths"] == second["depths"]
        assert first["sent"] == second["sent"] == (0, 0, 0, 0)


def test_each_keeps_its_own_where_it_is_told_to(two: Ranks) -> None:
    first, second = two.run(train, "SimVQ", True)
    assert not torch.equal(first["frozen"]["frozen_codebook"], second["frozen"]["frozen_codebook"])
    assert second["sent"] == (0, 0, 0, 0)


def beside_one_in_evaluation(rank: int) -> list[torch.Tensor]:
    module = build("ResidualSimVQ", rank)
    module.layers[0].eval()
    module(torch.randn(2, 5, DIM))
    return [level.frozen_codebook for level in module.layers]


def test_a_first_level_in_evaluation_does_not_part_the_ranks(two: Ranks) -> None:
    first, second = two.run(beside_one_in_evaluation)
    assert all(map(torch.equal, first, second))


def gradient_of_two_forwards(rank: int, kind: str, backwards: int) -> list[torch.Tensor]:
    module = build(kind, 0, **({"quantize_dropout": False} if kind == "ResidualSimVQ" else {}))
    inputs = torch.randn(2, 2, 5, DIM, generator=torch.Generator().manual_seed(rank))
    if backwards == 2:
        for x in inputs:
            module(x).loss.sum().backward()
    else:
        sum(module(x).loss.sum() for x in inputs).backward()
    return [parameter.grad for parameter in module.parameters()]


def test_one_backward_for_two_forwards(two: Ranks) -> None:
    for kind in ("SimVQ", "ResidualSimVQ"):
        once, twice = (two.run(gradient_of_two_forwards, kind, backwards) for backwards in (1, 2))
        for own, other in zip(once, twice, strict=True):
            torch.testing.assert_close(own, other)
