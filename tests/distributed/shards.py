"""Splits of data over ranks, among them those on which synchronisation usually fails, and the default group's name."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

import torchvq  # noqa: F401  (registers the operators)

GROUP = "group"


def group_name() -> str:
    """The name under which this process's default group is registered."""
    assert dist.group.WORLD is not None
    return dist.group.WORLD.group_name


# Tokens per rank (of at most three), and the ranks that are fully masked.
SPLITS: dict[str, tuple[tuple[int, int, int], set[int]]] = {
    "even": ((40, 40, 40), set()),
    "ragged": ((1, 90, 37), set()),
    "one rank without tokens": ((50, 0, 20), set()),
    "one rank fully masked": ((50, 30, 20), {1}),
    "only the last rank has tokens": ((0, 0, 60), set()),
    "nobody has tokens": ((0, 0, 0), set()),
    "everybody is masked": ((20, 30, 10), {0, 1, 2}),
}


@dataclass
class Shard:
    """The tokens of one rank: (H, N, D), indices (H, N), mask (H, N)."""

    x: Tensor
    indices: Tensor
    mask: Tensor


def make_shard(
    split: str,
    rank: int,
    size: int,
    *,
    heads: int = 2,
    dim: int = 5,
    codes: int = 7,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    loud: int | None = None,
) -> Shard:
    """Shard of a rank. `loud` names a rank whose tokens are 2^14 times as large, so that exponents grow."""
    counts, masked = SPLITS[split]
    own = rank if size == 3 else rank + 1
    generator = torch.Generator().manual_seed(1000 * seed + own)
    tokens = counts[own]
    x = torch.randn(heads, tokens, dim, generator=generator, dtype=torch.float64)
    x[..., 0] += 3 * own
    if loud == rank:
        x = x * 2**14
    if tokens > 3:
        x[0, 2, 1] = float("nan")
    indices = torch.randint(codes, (heads, tokens), generator=generator)
    mask = torch.rand(heads, tokens, generator=generator) < 0.8
    if own in masked:
        mask[:] = False
    return Shard(x.to(dtype), indices, mask)


def concatenated(shards: list[Shard]) -> Shard:
    """The batch of a single process: the shards concatenated."""
    return Shard(
        torch.cat([shard.x for shard in shards], 1),
        torch.cat([shard.indices for shard in shards], 1),
        torch.cat([shard.mask for shard in shards], 1),
    )


def codebook(heads: int = 2, codes: int = 7, dim: int = 5, seed: int = 99) -> Tensor:
    return torch.randn(heads, codes, dim, generator=torch.Generator().manual_seed(seed))


def traffic_of(function, *args):  # type: ignore[no-untyped-def]
    """Result of a call, and the (all-reduces, all-gathers, broadcasts, bytes) that it took."""
    torch.ops.torchvq.reset_traffic()
    result = function(*args)
    return result, torch.ops.torchvq.traffic()
