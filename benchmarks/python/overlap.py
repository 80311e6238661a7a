"""The exposed part of a step's message with `overlap_sync`, between two hosts: namespaces joined by a slow cable.

    sudo python benchmarks/python/overlap.py                  # delays of 1 and 5 ms, 1 Gbit/s
    sudo python benchmarks/python/overlap.py --quick          # see that it runs; the numbers are noise
    sudo python benchmarks/python/overlap.py --json FILE      # the measurements, besides the table

It needs root and `ip`. A step is a forward and a backward that sleeps for twice the time of the message, as the host
does while a GPU computes. Three modules take turns: without messages, with a message for which forward waits, with
overlap. Beyond the first, the second takes the time of the message, and the third the exposed part of it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from slow_cable import Cable

PORT = 29653
SECONDS = 300
CLASSES: dict[str, dict[str, Any]] = {
    "VectorQuantize": dict(dim=128, codebook_size=1024),
    "ResidualVQ": dict(dim=128, codebook_size=1024, num_quantizers=8),
}
ALONE, WAITS, OVERLAPS = "no message", "waits", "overlaps"
OPTIONS: dict[str, dict[str, Any]] = {
    ALONE: {"sync_codebook": False},
    WAITS: {},
    OVERLAPS: {"overlap_sync": True},
}


def run(cable: Cable, name: str, rounds: int, tokens: int) -> dict[str, Any]:
    """The measurements of rank 0."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "measured.json"
        ranks = [start(cable, rank, name, str(file), rounds, tokens) for rank in range(2)]
        outputs = [rank.communicate(timeout=SECONDS)[0] for rank in ranks]
        if any(rank.returncode for rank in ranks):
            raise RuntimeError("a rank failed:\n" + "\n".join(outputs))
        found: dict[str, Any] = json.loads(file.read_text())
        return found


def start(
    cable: Cable, rank: int, name: str, file: str, rounds: int, tokens: int
) -> subprocess.Popen[str]:
    environment = os.environ | {
        "MASTER_ADDR": cable.addresses[0],
        "MASTER_PORT": str(PORT),
        "GLOO_SOCKET_IFNAME": cable.devices[rank],
        "OMP_NUM_THREADS": "1",
    }
    command = ["ip", "netns", "exec", cable.spaces[rank], sys.executable, __file__, "--rank"]
    return subprocess.Popen(
        [*command, str(rank), name, file, str(rounds), str(tokens)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


# One rank ---------------------------------------------------------------------------------------------------


def rank_main(rank: int, name: str, file: str, rounds: int, tokens: int) -> None:
    import torch
    import torch.distributed as dist

    import torchvq

    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)

    class Sleeps(torch.autograd.Function):
        """Its backward takes a while, without using the processor."""

        seconds = 0.0

        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            time.sleep(Sleeps.seconds)
            return gradient

    modules = {}
    for kind, options in OPTIONS.items():
        torch.manual_seed(0)
        modules[kind] = getattr(torchvq, name)(**CLASSES[name], **options)
    generator = torch.Generator().manual_seed(rank)

    def step(kind: str) -> float:
        x = torch.randn(1, tokens, CLASSES[name]["dim"], generator=generator)
        dist.barrier()
        start = time.perf_counter()
        quantized, _, loss = modules[kind](Sleeps.apply(x.requires_grad_()))
        (quantized.sum() + loss.sum()).backward()
        return time.perf_counter() - start

    def measured(number: int) -> dict[str, list[float]]:
        seconds: dict[str, list[float]] = {kind: [] for kind in OPTIONS}
        for _ in range(number):
            for kind in OPTIONS:
                seconds[kind].append(step(kind))
        return seconds

    measured(3)  # the first steps compare the options of ranks, and tokens outgrow the random codes
    first = {kind: statistics.median(own) for kind, own in measured(rounds).items()}
    # Both ranks must sleep equally long.
    longest = torch.tensor([first[WAITS] - first[ALONE]], dtype=torch.float64)
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    Sleeps.seconds = 2 * max(longest.item(), 0.001)
    found = measured(rounds)
    if rank == 0:
        Path(file).write_text(json.dumps({"backward": Sleeps.seconds, "seconds": found}))
    dist.barrier()
    dist.destroy_process_group()


# All of them ------------------------------------------------------------------------------------------------


def row(found: dict[str, Any], **what: Any) -> dict[str, Any]:
    step = {kind: 1e3 * statistics.median(own) for kind, own in found["seconds"].items()}
    message, exposed = step[WAITS] - step[ALONE], step[OVERLAPS] - step[ALONE]
    return {
        **what,
        "backward_ms": round(1e3 * found["backward"], 2),
        "message_ms": round(message, 2),
        "exposed_ms": round(exposed, 2),
        "share": round(exposed / message, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--delays", type=float, nargs="+", default=[1.0, 5.0], metavar="MS")
    parser.add_argument("--gigabits", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    rounds = 3 if arguments.quick else arguments.rounds
    rows = []
    print("| class | delay, ms | backward, ms | message, ms | exposed, ms | share |")
    print("|---|---:|---:|---:|---:|---:|")
    for delay in arguments.delays:
        with Cable(delay, arguments.gigabits) as cable:
            for name in CLASSES:
                found = run(cable, name, rounds, arguments.tokens)
                rows.append(row(found, name=name, delay_ms=delay))
                print("|", " | ".join(str(value) for value in rows[-1].values()), "|", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "--rank":
        number, name, file, rounds, tokens = sys.argv[2:]
        rank_main(int(number), name, file, int(rounds), int(tokens))
    else:
        main()
