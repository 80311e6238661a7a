"""FSQ and its stacks over ranks: no communication, the same dropped levels, different noise."""

from __future__ import annotations

import pytest
import torch
from ranks import Ranks
from shards import traffic_of

import torchvq


def steps(rank: int, kwargs: dict, grouped: bool) -> tuple[list[int], tuple[int, ...]]:
    """Depths of twenty training steps, and messages; ranks differ in seed and number of tokens."""
    torch.manual_seed(100 + rank)
    options = dict(levels=[5, 5, 5], num_quantizers=6, quantize_dropout=True, **kwargs)
    stack: torch.nn.Module
    if grouped:
        stack = torchvq.GroupedResidualFSQ(dim=6, groups=2, **options)
    else:
        stack = torchvq.ResidualFSQ(**options)

    def depth() -> int:
        indices = stack(torch.randn(2, 3 + rank, 6 if grouped else 3)).indices
        return int((indices >= 0).sum(-1).unique())

    depths, sent = traffic_of(lambda: [depth() for _ in range(20)])
    return depths, sent[:3]


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("kwargs", [{}, dict(noise_dropout=0.5)], ids=str)
def test_ranks_drop_the_same_levels(two: Ranks, kwargs: dict, grouped: bool):
    (first, sent), (second, _) = two.run(steps, kwargs, grouped)
    assert first == second and set(first) == set(range(1, 7))
    assert sent == (0, 0, 0)


def only_on_rank_0(rank: int) -> int:
    torch.manual_seed(rank)
    stack = torchvq.ResidualFSQ(levels=[5, 5], num_quantizers=3, quantize_dropout=True)
    module = torchvq.FSQ([5, 5], preserve_symmetry=True, noise_dropout=0.5)
    if rank > 0:
        return 0
    # Neither evaluation nor training waits for another rank.
    for training in (False, True):
        for quantizer in (stack, module):
            quantizer.train(training)(torch.randn(1, 4, 2))
    return 1


def test_rank_0_alone_returns(two: Ranks):
    assert two.run(only_on_rank_0) == [1, 0]


def noise(rank: int) -> torch.Tensor:
    torch.manual_seed(7)
    module = torchvq.FSQ([5, 5], preserve_symmetry=True, noise_dropout=1.0)
    return module(torch.zeros(1, 50, 2)).quantized.detach()


def test_ranks_of_one_seed_draw_different_noise(two: Ranks):
    first, second = two.run(noise)
    assert not torch.equal(first, second)
    assert first.abs().max() <= 0.25 and second.abs().max() <= 0.25
