"""One host's process under torchrun: trains a residual stack on its share of each batch, writes `FOLDER/RANK.pt`.

`hosts_program.py FOLDER [pull]`: with `pull` it then creates `FOLDER/RANK.ready`, waits for `FOLDER/pulled`, and tries
one more step.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from ranks import outcome
from test_modules import batch, build, shares_of

from torchvq import verify_replicas

STEPS = 8


def attempt(module: torch.nn.Module, folder: Path, rank: int) -> tuple[str, float, bool]:
    """A step after the cable was pulled: its error, the seconds it took, and whether the state is unchanged."""
    (folder / f"{rank}.ready").touch()
    while not (folder / "pulled").exists():
        time.sleep(0.05)
    x, mask = (parts[rank] for parts in batch(STEPS, shares_of(STEPS, 2)))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    start = time.monotonic()
    message = outcome(lambda: module(x, mask=mask))
    seconds = time.monotonic() - start
    after = module.state_dict()
    return message, seconds, all(torch.equal(after[n], value) for n, value in before.items())


def main() -> None:
    folder, pull = Path(sys.argv[1]), sys.argv[2:] == ["pull"]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=5 if pull else 60))
    rank, size = dist.get_rank(), dist.get_world_size()
    module = build("residual_dropout", 100 + rank)
    torch.ops.torchvq.reset_traffic()
    for step in range(STEPS):
        x, mask = (parts[rank] for parts in batch(step, shares_of(step, size)))
        module(x, mask=mask)
    result = {
        "traffic": torch.ops.torchvq.traffic(),
        "interfaces": sorted(name for _, name in socket.if_nameindex()),
        "local_world_size": int(os.environ["LOCAL_WORLD_SIZE"]),
    }
    assert verify_replicas(module) == []
    if pull:
        result["attempt"] = attempt(module, folder, rank)
    result["state"] = dict(module.state_dict())
    # Renamed when complete, because other processes wait for the file.
    torch.save(result, folder / f"{rank}.part")
    (folder / f"{rank}.part").rename(folder / f"{rank}.pt")
    if not pull:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
