"""Training steps on one, two and three ranks (Gloo, this machine), and the share of a step spent in collectives.

`python several_ranks.py RANK RANKS FILE ROUNDS QUICK` is one rank; run() starts these. Every rank has the same number
of tokens, so with enough cores a step would take equally long on any number of ranks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness import Case, Settings

RANKS = (1, 2, 3)
OURS, ALONE = "torchvq", "without messages"
NAMES = (OURS, ALONE, "reference")
TOKENS, QUICK_TOKENS = 2048, 64
CLASSES: dict[str, dict[str, Any]] = {
    "VectorQuantize": dict(dim=64, codebook_size=1024),
    "ResidualVQ": dict(dim=64, codebook_size=512, num_quantizers=4),
    "LFQ": dict(dim=10, codebook_size=1024, commitment_loss_weight=0.25),
}
ROUNDS = 15
# Steps per block, and profiled steps.
STEPS, WATCHED = 4, 5
SECONDS = 300


def run(settings: Settings) -> None:
    from growth import exponent
    from harness import write

    numbers = RANKS[:2] if settings.quick else RANKS
    measured = {number: _all_ranks(number, settings) for number in numbers}
    cases = [
        _case(name, number, measured[number][name], settings)
        for name in measured[numbers[0]]
        for number in numbers
    ]
    exponents = []
    for name in measured[numbers[0]]:
        own = [case for case in cases if case.parameters["what"] == name]
        seconds = {key: [case.times[key]["seconds"] for case in own] for key in NAMES}
        found = {key: round(exponent(numbers, values), 3) for key, values in seconds.items()}
        exponents.append(
            dict(what=f"{name} step", axis="ranks", values=list(numbers), exponents=found)
        )
    write("several_ranks", cases, settings, exponents=exponents)


def _case(name: str, number: int, found: dict[str, Any], settings: Settings) -> Case:
    from harness import Case, summary

    rounds = found["rounds"]
    tokens = QUICK_TOKENS if settings.quick else TOKENS
    case = Case(
        f"{name} N={tokens} on each of {number}",
        dict(what=name, N=tokens, ranks=number),
        {key: summary(rounds[key], rounds[OURS]) for key in NAMES},
        {"collective_share": found["share"], "cores": os.cpu_count()},
    )
    settings.report(case)
    settings.say(f"    in collectives: {found['share']:.1%} of a step")
    return case


def _all_ranks(number: int, settings: Settings) -> dict[str, Any]:
    """The output of the first rank. All processes end, or are killed."""
    rounds, quick = str(min(ROUNDS, settings.rounds[1])), str(int(settings.quick))
    with tempfile.TemporaryDirectory() as folder:
        common = [str(number), str(Path(folder) / "store"), rounds, quick]
        running = [
            subprocess.Popen(
                [sys.executable, "-W", "ignore", __file__, str(rank), *common],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(number)
        ]
        try:
            answers = [process.communicate(timeout=SECONDS) for process in running]
        finally:
            for process in running:
                process.kill()
    if failed := [rank for rank, process in enumerate(running) if process.returncode]:
        raise RuntimeError(f"ranks {failed} of {number} failed: {answers[failed[0]][1][-2000:]}")
    document: dict[str, Any] = json.loads(answers[0][0].splitlines()[-1])
    return document


def _steps(name: str, tokens: int, rank: int, number: int) -> dict[str, Callable[[], object]]:
    import torch
    import vector_quantize_pytorch as reference

    import torchvq

    options = CLASSES[name]
    steps: dict[str, Callable[[], object]] = {}
    for key in NAMES:
        package = reference if key == "reference" else torchvq
        torch.manual_seed(0)
        # The reference's LFQ has no such option: it shares entropies whenever there is a group.
        shares = dict(sync_codebook=key != ALONE and number > 1)
        more = {} if key == "reference" and name == "LFQ" else shares
        module = getattr(package, name)(**options, **more).train()
        x = torch.randn(1, tokens, options["dim"], generator=torch.Generator().manual_seed(rank))
        x.requires_grad_()
        steps[key] = _step(module, x)
    return steps


def _step(module: Any, x: Any) -> Callable[[], object]:
    def step() -> None:
        x.grad = None
        quantized, _, loss = module(x)
        (quantized.mean() + loss.sum()).backward()

    return step


def _share(step: Callable[[], object]) -> float:
    """The share of the time of a few steps that is spent in collectives."""
    import torch

    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        start = time.perf_counter()
        for _ in range(WATCHED):
            step()
        seconds = time.perf_counter() - start
    waits = [event for event in profile.key_averages() if event.key == "torchvq::collective"]
    return sum(event.cpu_time_total for event in waits) / 1e6 / seconds


def _rank(rank: int, number: int, file: str, rounds: int, quick: bool) -> None:
    import logging

    import torch
    from torch import distributed as dist

    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=number)
    tokens = QUICK_TOKENS if quick else TOKENS
    document = {}
    for name in list(CLASSES)[:1] if quick else CLASSES:
        steps = _steps(name, tokens, rank, number)
        seconds: dict[str, list[float]] = {key: [] for key in NAMES}
        for step in steps.values():
            for _ in range(2):
                step()
        for place in range(rounds):
            for key in NAMES[place % 3 :] + NAMES[: place % 3]:
                dist.barrier()
                start = time.perf_counter()
                for _ in range(STEPS):
                    steps[key]()
                # A step ends when the last rank has finished it.
                dist.barrier()
                seconds[key].append((time.perf_counter() - start) / STEPS)
        document[name] = {"rounds": seconds, "share": _share(steps[OURS]) if number > 1 else 0.0}
    dist.destroy_process_group()
    if rank == 0:
        print(json.dumps(document))


if __name__ == "__main__":
    _rank(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), bool(int(sys.argv[5])))
