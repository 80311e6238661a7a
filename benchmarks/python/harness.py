"""Measures contenders in one process, in turn, and writes the results as JSON.

On a shared machine times drift by more than the differences of interest. So every round times all contenders one
after the other, in changing order, and results are medians over rounds of ratios within a round.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import faiss
import state
import torch
from torch.utils.benchmark import Timer

ROOT, RESULTS = state.ROOT, state.ROOT / "benchmarks" / "results"
OURS = "torchvq"
# Shorter blocks are dominated by the noise of the clock and the scheduler.
BLOCK_SECONDS = 0.01
# With fewer rounds, a quartile says little.
LEAST_ROUNDS = 9


@dataclass
class Settings:
    """How long to measure. A quick run checks that everything runs; its numbers are noise."""

    quick: bool = False
    # Count processor time instead of wall-clock time: for a busy machine, and one thread only.
    cpu_clock: bool = False
    threads: tuple[int, ...] = (1, 2)
    output: Path = RESULTS
    least_rounds: int = LEAST_ROUNDS
    say: Callable[[str], None] = print
    # When the present suite began, to count the processor time that others have used since.
    started: state.Started = field(default_factory=lambda: state.Started())

    def report(self, case: Case) -> None:
        """Prints the ratios of a case as soon as it is measured."""
        ratios = ", ".join(f"{name} {time['ratio']:.2f}" for name, time in case.times.items())
        self.say(f"  {case.name}: {ratios}")

    @property
    def clock(self) -> Callable[[], float]:
        return time.process_time if self.cpu_clock else time.perf_counter

    @property
    def seconds(self) -> float:
        """Time budget for the rounds of one case."""
        return 0.05 if self.quick else 1.5

    @property
    def rounds(self) -> tuple[int, int]:
        """The least number of rounds, whatever the time, and the most."""
        return (1, 2) if self.quick else (self.least_rounds, 31)


@dataclass
class Contender:
    name: str
    run: Callable[[], object]
    threads: int = 1


@dataclass
class Target:
    """A target and its measured value, which must be at least, or at most, the wanted one."""

    text: str
    wanted: float
    measured: float
    case: str = ""
    at_most: bool = False

    @property
    def met(self) -> bool:
        return self.measured <= self.wanted if self.at_most else self.measured >= self.wanted

    def __str__(self) -> str:
        verdict = "met   " if self.met else "MISSED"
        relation = "at most" if self.at_most else "at least"
        return f"{verdict}  {self.measured:8.3g}  {relation} {self.wanted:<6g} {self.text}; {self.case}"


@dataclass
class Case:
    """One row of results: the parameters, the times, and the checks made before."""

    name: str
    parameters: dict[str, Any]
    times: dict[str, dict[str, float]]
    checks: dict[str, Any] = field(default_factory=dict)
    targets: list[Target] = field(default_factory=list)

    def ratio(self, against: str) -> float:
        return self.times[against]["ratio"]

    def expect(self, against: str, wanted: float, text: str) -> None:
        """Adds a target for the ratio of `against`."""
        self.targets.append(Target(text, wanted, self.ratio(against), self.name))


def compare(contenders: list[Contender], settings: Settings) -> dict[str, dict[str, float]]:
    """Seconds per call of each contender and its ratio to the first one, as medians over rounds."""
    counts = [_calls_per_block(contender, settings) for contender in contenders]
    rounds: list[list[float]] = []
    least, most = settings.rounds
    deadline = time.perf_counter() + settings.seconds
    while len(rounds) < least or (len(rounds) < most and time.perf_counter() < deadline):
        times = [0.0] * len(contenders)
        for place in range(len(contenders)):
            # Rotate, because a contender that follows a heavy one finds cold caches.
            i = (place + len(rounds)) % len(contenders)
            times[i] = _block(contenders[i], counts[i], settings)
        rounds.append(times)
    return {c.name: _summary(rounds, i) for i, c in enumerate(contenders)}


def _timer(contender: Contender, settings: Settings) -> Timer:
    faiss.omp_set_num_threads(contender.threads)
    scope = {"run": contender.run}
    return Timer("run()", timer=settings.clock, globals=scope, num_threads=contender.threads)


def _calls_per_block(contender: Contender, settings: Settings) -> int:
    timer = _timer(contender, settings)
    warmed = timer.timeit(1).mean
    # For calls of seconds, a second timing adds nothing.
    seconds = warmed if warmed > 1 else timer.timeit(1).mean
    if seconds > BLOCK_SECONDS:
        return 1
    seconds = timer.timeit(max(1, int(BLOCK_SECONDS / 10 / seconds))).mean
    return max(1, int(BLOCK_SECONDS / seconds))


def _block(contender: Contender, calls: int, settings: Settings) -> float:
    return float(_timer(contender, settings).timeit(calls).mean)


def _summary(rounds: list[list[float]], i: int) -> dict[str, float]:
    return summary([times[i] for times in rounds], [times[0] for times in rounds])


def summary(seconds: list[float], ours: list[float]) -> dict[str, float]:
    """One contender against ours, round by round: medians, and the quartiles of the ratios."""
    ratios = sorted(a / b for a, b in zip(seconds, ours, strict=True))
    return {
        "seconds": statistics.median(seconds),
        "fastest": min(seconds),
        "ratio": statistics.median(ratios),
        "ratio_low": ratios[len(ratios) // 4],
        "ratio_high": ratios[-1 - len(ratios) // 4],
        "rounds": len(ratios),
    }


def write(name: str, cases: list[Case], settings: Settings, **more: Any) -> None:
    """Writes `<name>.json`: the machine, then every case."""
    document = {
        "name": name,
        "quick": settings.quick,
        "clock": "processor time" if settings.cpu_clock else "wall clock",
        "machine": machine() | settings.started.until_now(),
        "rounds": _rounds(cases),
        "cases": [_as_json(case) for case in cases],
        **more,
    }
    write_json(settings.output / f"{name}.json", document)


def _rounds(cases: list[Case]) -> list[int]:
    """The fewest and the most rounds of a case."""
    taken = [int(time["rounds"]) for case in cases for time in case.times.values()]
    return [min(taken), max(taken)] if taken else []


def write_json(file: Path, document: dict[str, Any]) -> None:
    """Writes the file atomically: after an interruption there is either the old file or the new one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_suffix(".tmp")
    fresh.write_text(json.dumps(document, indent=1) + "\n")
    fresh.replace(file)


def read_json(file: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(file.read_text())
    return document


def _as_json(case: Case) -> dict[str, Any]:
    return {**vars(case), "targets": [target_as_json(target) for target in case.targets]}


def target_as_json(target: Target) -> dict[str, Any]:
    return {**vars(target), "met": target.met}


def machine() -> dict[str, Any]:
    """The machine and the versions behind the numbers."""
    return {
        "cpu": state.cpu_name(),
        "cores": os.cpu_count(),
        "level": os.environ.get("TORCHVQ_SIMD_LEVEL", torch.backends.cpu.get_cpu_capability()),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "faiss": faiss.__version__,
        "commit": state.commit(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
