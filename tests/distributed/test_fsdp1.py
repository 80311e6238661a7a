"""FullyShardedDataParallel, the first version of FSDP, which replaces parameters by views of a flat one."""

from typing import Any

import pytest
import torch
from ranks import Ranks, outcome
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchvq

DIM = 8
QUANTIZERS = {
    "VectorQuantize": lambda: torchvq.VectorQuantize(DIM, 8, codebook_dim=4),
    "heads": lambda: torchvq.VectorQuantize(DIM, 8, heads=2, codebook_dim=3),
    "ResidualVQ": lambda: torchvq.ResidualVQ(
        dim=DIM, codebook_dim=4, codebook_size=8, num_quantizers=2
    ),
    "FSQ": lambda: torchvq.FSQ([5, 5], dim=DIM),
    "LFQ": lambda: torchvq.LFQ(dim=DIM, codebook_size=16),
    "ResidualLFQ": lambda: torchvq.ResidualLFQ(dim=DIM, codebook_size=16, num_quantizers=2),
    "FSP": lambda: torchvq.FSP([5, 5], dim=DIM),
    "LatentQuantize": lambda: torchvq.LatentQuantize([5, 5], DIM),
    "SimVQ": lambda: torchvq.SimVQ(
        dim=DIM, codebook_size=8, codebook_transform=nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU())
    ),
}


class Checkpointed(nn.Module):
    def __init__(self, quantizer: nn.Module) -> None:
        super().__init__()
        self.quantizer = quantizer

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.quantizer, x, use_reentrant=False)


def trained(rank: int, size: int, name: str, keep_parameters: bool, recompute: bool) -> Any:
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision

    torch.manual_seed(0)
    quantizer = QUANTIZERS[name]()
    model = FullyShardedDataParallel(
        Checkpointed(quantizer) if recompute else nn.Sequential(quantizer),
        device_id=torch.device("cpu"),
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16),
        use_orig_params=keep_parameters,
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(2):
        x = torch.randn(2, DIM, DIM, generator=torch.Generator().manual_seed(10 * step + rank))
        results = model(x.requires_grad_())
        quantized = results[0]
        assert quantized.dtype in (torch.float32, torch.bfloat16) and quantized.isfinite().all()
        losses = [own.float().sum() for own in results[2:3]]  # FSQ has none
        sum(losses, quantized.float().square().mean()).backward()
        assert x.grad is not None and x.grad.isfinite().all()
        optimizer.step()
        optimizer.zero_grad()
    assert torchvq.verify_replicas(quantizer) == []
    return True


@pytest.mark.parametrize("recompute", [False, True], ids=["plain", "checkpoint"])
@pytest.mark.parametrize("keep_parameters", [False, True], ids=["flat", "use_orig_params"])
@pytest.mark.parametrize("name", QUANTIZERS)
def test_fsdp1_in_bfloat16(two: Ranks, name: str, keep_parameters: bool, recompute: bool) -> None:
    """Projections compute in the dtype to which FSDP1 casts their weights, wherever it puts them."""
    assert two.run(trained, 2, name, keep_parameters, recompute) == [True, True]


LEARNABLE = dict(learnable_codebook=True, ema_update=False)
BY_GRADIENT = {
    "VectorQuantize": lambda: torchvq.VectorQuantize(DIM, 8, **LEARNABLE),
    "ResidualVQ": lambda: torchvq.ResidualVQ(
        dim=DIM, codebook_size=8, num_quantizers=3, **LEARNABLE
    ),
}


def verified(rank: int, name: str, keep_parameters: bool, strategy: str) -> Any:
    """What ``verify_replicas`` finds before, within and after two steps."""
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    torch.manual_seed(0)
    model = FullyShardedDataParallel(
        nn.Sequential(BY_GRADIENT[name]()),
        device_id=torch.device("cpu"),
        use_orig_params=keep_parameters,
        sharding_strategy=ShardingStrategy[strategy],
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    found = [torchvq.verify_replicas(model)]
    for step in range(2):
        generator = torch.Generator().manual_seed(10 * step + rank)
        results = model(torch.randn(2, DIM, DIM, generator=generator))
        found.append(torchvq.verify_replicas(model))
        results[2].sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(torchvq.verify_replicas(model))
    return found


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"])
@pytest.mark.parametrize("keep_parameters", [False, True], ids=["flat", "use_orig_params"])
@pytest.mark.parametrize("name", BY_GRADIENT)
def test_codes_in_shards_have_no_replicas(
    two: Ranks, name: str, keep_parameters: bool, strategy: str
) -> None:
    assert two.run(verified, name, keep_parameters, strategy) == [[[]] * 5] * 2


OWN_OPTIMIZER = {
    "VectorQuantize": lambda: torchvq.VectorQuantize(
        DIM, 8, in_place_codebook_optimizer=torch.optim.SGD, **LEARNABLE
    ),
    "LatentQuantize": lambda: torchvq.LatentQuantize(
        [5, 5], DIM, channel_first=False, in_place_codebook_optimizer=torch.optim.SGD
    ),
}


def refused(rank: int, name: str) -> str:
    from torch.distributed.fsdp import FullyShardedDataParallel

    torch.manual_seed(0)
    model = FullyShardedDataParallel(
        nn.Sequential(nn.Linear(DIM, DIM), OWN_OPTIMIZER[name]()), device_id=torch.device("cpu")
    )
    return outcome(model, torch.randn(2, DIM, DIM))


@pytest.mark.parametrize("name", OWN_OPTIMIZER)
def test_an_own_optimizer_of_flat_codes_is_refused(two: Ranks, name: str) -> None:
    """The optimizer found no parameter and took no step."""
    for answer in two.run(refused, name):
        assert answer.startswith(f"RuntimeError: {name}: expected the codes to be parameters")
