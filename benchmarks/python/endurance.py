"""A long training in small: many steps on several ranks, unequal, masked and empty batches, dropout, dead codes.

    python benchmarks/python/endurance.py                  # 100,000 steps on two ranks and on one process, ten minutes
    python benchmarks/python/endurance.py --steps 2000 --ranks 3

Checks three things: that memory stays flat, that the ranks' states stay equal, and that the state equals, bit for bit,
that of one process which gets the batches of all ranks as one. If a check fails, it prints a sentence and exits with 1.
"""

from __future__ import annotations

import argparse
import hashlib
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

import torchvq

DIM = 8
LARGEST_BATCH = 40
REPORTS = 10
# Pools of allocators and compiler caches fill in the first tenth; after that, a megabyte is a leak.
GROWTH_KIB = 1024


class Batch(NamedTuple):
    tokens: Tensor  # (1, N, DIM)
    mask: Tensor  # (1, N)


def make_quantizer() -> torchvq.ResidualVQ:
    torch.manual_seed(0)
    return torchvq.ResidualVQ(
        dim=DIM,
        num_quantizers=4,
        codebook_size=32,
        kmeans_init=True,
        threshold_ema_dead_code=1,
        quantize_dropout=True,
    )


def batch_of(step: int, rank: int) -> Batch:
    """The same in every run. Sometimes a rank has no tokens; some tokens are padding, and the data drift."""
    generator = torch.Generator().manual_seed(step * 1009 + rank)
    count = int(torch.randint(LARGEST_BATCH, (), generator=generator))
    tokens = torch.randn(1, count, DIM, generator=generator) + step * 1e-4
    return Batch(tokens, torch.rand(1, count, generator=generator) > 0.2)


def joined(batches: list[Batch]) -> Batch:
    return Batch(*(torch.cat(parts, dim=1) for parts in zip(*batches, strict=True)))


def digest(module: torch.nn.Module) -> str:
    state = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        state.update(name.encode() + tensor.numpy().tobytes())
    return state.hexdigest()


def resident_kib() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() // 1024


def train(steps: int, ranks: list[int], say: bool) -> tuple[list[str], list[int]]:
    """Digests of the state and resident memory, at every tenth of the steps, of a process with these ranks' tokens."""
    torch.set_num_threads(1)
    quantizer = make_quantizer()
    digests, memory = [], []
    start = time.monotonic()
    for step in range(steps):
        tokens, mask = joined([batch_of(step, rank) for rank in ranks])
        tokens.requires_grad_()
        quantized, _, losses = quantizer(tokens, mask=mask)
        (quantized.square().mean() if tokens.numel() else quantized.sum()).add(
            losses.sum()
        ).backward()
        if (step + 1) % max(1, steps // REPORTS) == 0:
            digests.append(digest(quantizer))
            memory.append(resident_kib())
            if say:
                took = (time.monotonic() - start) / (step + 1) * 1e6
                print(f"  {step + 1} steps, {memory[-1]} KiB, {took:.0f} us a step", flush=True)
    return digests, memory


def run_rank(rank: int, ranks: int, steps: int, folder: str) -> None:
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=ranks)
    found = train(steps, [rank], say=rank == 0)
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def faults(steps: int, ranks: int) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        print(f"{ranks} ranks", flush=True)
        mp.spawn(run_rank, (ranks, steps, folder), nprocs=ranks)
        results = [torch.load(f"{folder}/{rank}.pt") for rank in range(ranks)]
    print("one process with their tokens", flush=True)
    alone = train(steps, list(range(ranks)), say=True)
    found = []
    for who, (digests, memory) in zip([*range(ranks), "alone"], [*results, alone], strict=True):
        if digests != alone[0]:
            at = next(i for i, (a, b) in enumerate(zip(digests, alone[0], strict=True)) if a != b)
            found.append(f"rank {who} left the state of one process before report {at + 1}")
        if memory[-1] - memory[0] > GROWTH_KIB:
            found.append(f"memory of {who} grew from {memory[0]} to {memory[-1]} KiB")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    found = faults(options.steps, options.ranks)
    print(
        "\n".join(found)
        or f"{options.steps} steps: memory flat, states the same on all ranks and as of one process"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
