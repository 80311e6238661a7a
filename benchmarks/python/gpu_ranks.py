"""NCCL: several processes on one card; they learn what a single process learns.

NCCL refuses two ranks of one host on one card. Each rank has a host name of its own for NCCL (NCCL_HOSTID), so they
talk through sockets, as ranks on several machines do.

python gpu_ranks.py RANK RANKS FILE      # one rank, which prints nothing and fails if states differ
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from gpu_measure import DEVICE, HAS_CARD
from torch import distributed as dist

import torchvq

TOKENS, CODES, DIM, STEPS = 384, 32, 16, 4
RANKS = (2, 3)
SECONDS = 60
OPTIONS = dict(dim=DIM, codebook_size=CODES, sync_codebook=True)
STACK = OPTIONS | dict(num_quantizers=3)
MODULES: dict[str, Callable[[], torch.nn.Module]] = {
    "VectorQuantize": lambda: torchvq.VectorQuantize(**OPTIONS),
    "dead codes": lambda: torchvq.VectorQuantize(**OPTIONS, threshold_ema_dead_code=4),
    "cosine": lambda: torchvq.VectorQuantize(**OPTIONS, use_cosine_sim=True),
    "sync_every": lambda: torchvq.VectorQuantize(**OPTIONS, sync_every=2),
    "ResidualVQ": lambda: torchvq.ResidualVQ(**STACK, threshold_ema_dead_code=4),
    "GroupedResidualVQ": lambda: torchvq.GroupedResidualVQ(**STACK, groups=2),
}


def data(step: int) -> torch.Tensor:
    return torch.randn(1, TOKENS, DIM, generator=torch.Generator().manual_seed(step))


def learned(name: str, number: int = 0, ranks: int = 1) -> dict[str, torch.Tensor]:
    """The state after some steps of the rank's share of the tokens."""
    torch.manual_seed(0)
    module = MODULES[name]().to(DEVICE).train()
    for step in range(STEPS):
        module(data(step).chunk(ranks, dim=1)[number].to(DEVICE))
    return module.state_dict()


def rank(number: int, ranks: int, file: str) -> None:
    alone = {name: learned(name) for name in MODULES}
    backend = "nccl" if HAS_CARD else "gloo"
    dist.init_process_group(backend, init_method=f"file://{file}", rank=number, world_size=ranks)
    differ = []
    for name, expected in alone.items():
        found = learned(name, number, ranks)
        for key, value in expected.items():
            # What sync_every keeps until the next exchange is each rank's own.
            if "kept_" not in key and not found[key].equal(value):
                differ.append(f"{name}: {key}")
    dist.destroy_process_group()
    if differ:
        raise SystemExit(f"Error: rank {number} of {ranks} has another {', '.join(differ)}")


def attempt(ranks: int) -> str:
    """Empty, or the reason of the failure."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__]
        running = [
            subprocess.Popen(
                [*command, str(number), str(ranks), str(Path(folder) / "store")],
                stderr=subprocess.PIPE,
                text=True,
                env=os.environ | {"NCCL_HOSTID": f"rank-{number}", "NCCL_SOCKET_IFNAME": "lo"},
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
    """The number of ranks that ran, and what went wrong with others."""
    failures = {ranks: attempt(ranks) for ranks in (1, *RANKS)}
    failed = "; ".join(
        f"{ranks} ranks: {failure}" for ranks, failure in failures.items() if failure
    )
    return dict(ranks=[ranks for ranks, failure in failures.items() if not failure], failed=failed)


if __name__ == "__main__":
    rank(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
