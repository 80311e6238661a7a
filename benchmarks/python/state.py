"""Of what and on what is measured: the commit, the processor, and how much of it others take.

Processor time of the whole machine stands in /proc/stat. What is not idle there and not of this process and those that
it started is of others; a benchmark beside them says little.
"""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# What measuring writes by itself makes no tree dirty, and moves no time.
WRITTEN = ("benchmarks/results", "docs")
# Cores in use by others: up to this a machine counts as idle.
IDLE_CORES = 0.2
LOOK_SECONDS = 2.0


def _git(*command: str) -> str:
    answer = subprocess.run(
        ["git", "-C", str(ROOT), *command], capture_output=True, text=True, check=False
    )
    return answer.stdout.strip()


def changes() -> list[str]:
    """Files of the tree that are not those of the commit, results and pages aside."""
    but = [f":(exclude){folder}" for folder in WRITTEN]
    lines = _git("status", "--porcelain", "--", str(ROOT), *but).splitlines()
    return [line.split(maxsplit=1)[-1] for line in lines]


def commit() -> str:
    """The commit of the tree, marked where it is not the tree."""
    name = _git("rev-parse", "--short=10", "HEAD")
    return (name + ("-dirty" if changes() else "")) if name else "unknown"


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def busy_seconds() -> float | None:
    """Processor time of all processes since the machine started, where the system tells."""
    try:
        fields = Path("/proc/stat").read_text().splitlines()[0].split()
    except OSError:
        return None
    ticks = [int(field) for field in fields[1:9]]
    user, nice, system, _idle, _wait, interrupts, soft, stolen = ticks + [0] * (8 - len(ticks))
    return (user + nice + system + interrupts + soft + stolen) / os.sysconf("SC_CLK_TCK")


def own_seconds() -> float:
    """Of this process, of those that it has seen end, and of those that it has started and that still run."""
    return sum(os.times()[:4]) + sum(_descendants(os.getpid()).values())


def _descendants(root: int) -> dict[int, float]:
    """Processor time of running processes that one has started, or that those have: compilers for one."""
    parents, seconds = {}, {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name of the program stands in parentheses, and may hold any.
            fields = file.read_text().rpartition(")")[2].split()
        except OSError:
            # It has ended meanwhile.
            continue
        number = int(file.parent.name)
        parents[number] = int(fields[1])
        seconds[number] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    found, generation = {}, {root}
    while generation:
        generation = {number for number, parent in parents.items() if parent in generation}
        found |= {number: seconds[number] for number in generation}
    return found


class Started:
    """A moment; later, how many cores others have used since."""

    def __init__(self) -> None:
        self.time, self.busy, self.own = time.perf_counter(), busy_seconds(), own_seconds()

    def others(self) -> float:
        """Cores, on average; the load where the system does not tell."""
        busy = busy_seconds()
        if busy is None or self.busy is None:
            return os.getloadavg()[0]
        passed = max(time.perf_counter() - self.time, 1e-3)
        return max(0.0, (busy - self.busy - (own_seconds() - self.own)) / passed)

    def until_now(self) -> dict[str, float]:
        """For the results of a suite."""
        seconds = time.perf_counter() - self.time
        return {"others": round(self.others(), 3), "seconds": round(seconds, 1)}


def others_now(sleep: Callable[[float], None] = time.sleep) -> float:
    """Cores that others use in the next two seconds."""
    started = Started()
    sleep(LOOK_SECONDS)
    return started.others()


def wait_for_idle(
    seconds: float,
    say: Callable[[str], None],
    look: Callable[[], float] = others_now,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Whether others leave the machine alone, now or within so many seconds."""
    deadline, said = clock() + seconds, False
    while (others := look()) > IDLE_CORES:
        if clock() >= deadline:
            return False
        if not said:
            say(f"others use {others:.2f} cores: waiting up to {seconds:.0f} s for them to end")
            said = True
    return True
