"""FSDP2 over codes that the forward writes: the same codes as without shards."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from ranks import Ranks
from torch import Tensor, nn

from torchvq import LatentQuantize, VectorQuantize

DIM = 4
LEARNABLE = dict(learnable_codebook=True, ema_update=False)
SGD = partial(torch.optim.SGD, lr=0.5)
WRITTEN: dict[str, dict[str, Any]] = {
    "moving averages": dict(orthogonal_reg_weight=0.1),
    "k-means": dict(**LEARNABLE, kmeans_init=True),
    "dead codes": dict(orthogonal_reg_weight=0.1, threshold_ema_dead_code=2),
    "heads": dict(
        orthogonal_reg_weight=0.1, heads=3, codebook_dim=DIM, separate_codebook_per_head=True
    ),
    "own optimizer": dict(**LEARNABLE, in_place_codebook_optimizer=SGD),
    "values": dict(in_place_codebook_optimizer=SGD),
}


def make(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == "values":
        return LatentQuantize(levels=[5, 4, 3], dim=3, channel_first=False, **WRITTEN[name])
    return VectorQuantize(DIM, 8, **WRITTEN[name])


def codes_of(module: nn.Module) -> list[Tensor]:
    return [
        (p.full_tensor() if hasattr(p, "full_tensor") else p).detach().clone()
        for p in module.parameters()
    ]


def train(module: nn.Module, rank: int, dim: int) -> list[Tensor]:
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(4):
        x = torch.randn(2 + rank, 9, dim, generator=generator, requires_grad=True)
        quantized, _, loss = module(x)
        (quantized.square().mean() + loss).backward()
        optimizer.step()
        optimizer.zero_grad()
    return codes_of(module)


def sharded_and_whole(rank: int, name: str) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    dim = 3 if name == "values" else DIM
    whole = make(name)
    before = codes_of(whole)
    # Values that have their own optimizer have no gradient that DDP could average.
    parallel = whole if name == "values" else DistributedDataParallel(whole)
    sharded = make(name)
    fully_shard(sharded, mesh=init_device_mesh("cpu", (2,)))
    return before, train(parallel, rank, dim), train(sharded, rank, dim)


@pytest.mark.parametrize("name", WRITTEN)
def test_codes_are_those_without_shards(two: Ranks, name: str) -> None:
    for before, whole, sharded in two.run(sharded_and_whole, name):
        assert any(not torch.equal(a, b) for a, b in zip(before, whole, strict=True))
        for a, b in zip(sharded, whole, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
