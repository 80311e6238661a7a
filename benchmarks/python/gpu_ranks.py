"""NCCL: two processes on one card if it allows that, else one; they learn what a single process learns.

python gpu_ranks.py RANK RANKS FILE      # one rank, which prints nothing and fails if the codebooks differ
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from gpu_measure import DEVICE, HAS_CARD
from torch import distributed as dist

import torchvq

TOKENS, CODES, DIM, STEPS = 512, 32, 16, 3
SECONDS = 60


def data(step: int) -> torch.Tensor:
    return torch.randn(1, TOKENS, DIM, generator=torch.Generator().manual_seed(step))


def module() -> torch.nn.Module:
    torch.manual_seed(0)
    return (
        torchvq.VectorQuantize(dim=DIM, codebook_size=CODES, sync_codebook=True).to(DEVICE).train()
    )


def rank(number: int, ranks: int, file: str) -> None:
    alone = module()
    for step in range(STEPS):
        alone(data(step).to(DEVICE))
    backend = "nccl" if HAS_CARD else "gloo"
    dist.init_process_group(backend, init_method=f"file://{file}", rank=number, world_size=ranks)
    together = module()
    for step in range(STEPS):
        together(data(step).chunk(ranks, dim=1)[number].to(DEVICE))
    same = torch.equal(together.codebook, alone.codebook)
    dist.destroy_process_group()
    if not same:
        raise SystemExit(f"rank {number} of {ranks}: the codebook is not that of one process")


def attempt(ranks: int) -> str:
    """Empty, or the reason of the failure."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__]
        running = [
            subprocess.Popen(
                [*command, str(number), str(ranks), str(Path(folder) / "store")],
                stderr=subprocess.PIPE,
                text=True,
            )
            for number in range(ranks)
        ]
        errors = []
        for process in running:
            try:
                _, error = process.communicate(timeout=SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                error = f"not done in {SECONDS} s"
            if process.returncode:
                errors.append(_reason(error))
    return "; ".join(errors)


def _reason(error: str) -> str:
    """The last line that names an error; NCCL adds warnings after it."""
    lines = error.strip().splitlines() or ["failed"]
    return next((line for line in reversed(lines) if "Error" in line), lines[-1])


def ranks_report() -> dict[str, object]:
    two = attempt(2)
    if not two:
        return dict(ranks=2, failed="")
    return dict(ranks=1, two_ranks=two, failed=attempt(1))


if __name__ == "__main__":
    rank(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
