"""Code that is compiled before the process group exists finds the group later, and its end."""

from __future__ import annotations

import torch
import torch.distributed as dist

from torchvq import LFQ, VectorQuantize
from torchvq._base.ranks import distributed_training, everybody


def test_a_graph_asks_for_the_process_group_at_each_call() -> None:
    modules = [VectorQuantize(4, 8), LFQ(dim=4, codebook_size=16)]
    x = torch.randn(2, 5, 4)

    def step(x: torch.Tensor) -> tuple[bool, bool]:
        for module in modules:
            module(x)
        return distributed_training(), not everybody("FSQ").alone

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    assert compiled(x) == (False, False)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert compiled(x) == (True, True)
    finally:
        dist.destroy_process_group()
    assert compiled(x) == (False, False)
