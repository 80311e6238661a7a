"""The commit and the machine of a measurement, and how much of the processor other processes use.

/proc/stat has the processor time of the whole machine. Time that is neither idle nor used by this process and those
that it started belongs to others; a benchmark beside them says little.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Files that measuring itself writes: they do not make the tree dirty.
WRITTEN = ("benchmarks/results", "docs")
# Up to this many cores in use by others, a machine counts as idle.
IDLE_CORES = 0.2
LOOK_SECONDS = 2.0
# Of a processor: what it is called here, and in /proc/cpuinfo.
NUMBERS = {"family": "cpu family", "model": "model"}


def _git(*command: str) -> str:
    answer = subprocess.run(
        ["git", "-C", str(ROOT), *command], capture_output=True, text=True, check=False
    )
    return answer.stdout.strip()


def changes() -> list[str]:
    """Files of the tree that differ from the commit, except results and pages."""
    but = [f":(exclude){folder}" for folder in WRITTEN]
    lines = _git("status", "--porcelain", "--", str(ROOT), *but).splitlines()
    return [line.split(maxsplit=1)[-1] for line in lines]


def commit() -> str:
    """The commit of the tree, with a suffix if the tree differs from it."""
    name = _git("rev-parse", "--short=10", "HEAD")
    return (name + ("-dirty" if changes() else "")) if name else "unknown"


def cpu_name() -> str:
    """The processor, with its family and model: virtual machines give the same name to generations apart."""
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0]
    except OSError:
        return platform.processor()
    fields = dict(re.findall(r"^(.+?)\s*: (.+)$", first, re.MULTILINE))
    if "model name" not in fields:
        return platform.processor()
    numbers = [f"{key} {fields[name]}" for key, name in NUMBERS.items() if name in fields]
    return ", ".join([fields["model name"], *numbers])


def busy_seconds() -> float | None:
    """Processor time of all processes since the machine started, or None if the system does not count it."""
    try:
        fields = Path("/proc/stat").read_text().splitlines()[0].split()
    except OSError:
        return None
    ticks = [int(field) for field in fields[1:9]]
    user, nice, system, _idle, _wait, interrupts, soft, stolen = ticks + [0] * (8 - len(ticks))
    return (user + nice + system + interrupts + soft + stolen) / os.sysconf("SC_CLK_TCK")


def own_seconds() -> float:
    """Processor time of this process, of its ended children, and of its running descendants."""
    return sum(os.times()[:4]) + sum(_descendants(os.getpid()).values())


def _descendants(root: int) -> dict[int, float]:
    """Processor time of the running descendants of a process, such as compilers."""
    parents, seconds = {}, {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The program's name is in parentheses and may itself contain any character.
            fields = file.read_text().rpartition(")")[2].split()
        except OSError:
            # The process has ended.
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
    """A point in time; later, the cores that others have used since."""

    def __init__(self) -> None:
        self.time, self.busy, self.own = time.perf_counter(), busy_seconds(), own_seconds()

    def others(self) -> float:
        """Cores, on average; the load if the system does not count processor time."""
        busy = busy_seconds()
        if busy is None or self.busy is None:
            return os.getloadavg()[0]
        passed = max(time.perf_counter() - self.time, 1e-3)
        return max(0.0, (busy - self.busy - (own_seconds() - self.own)) / passed)

    def until_now(self) -> dict[str, float]:
        """Fields for the results of a suite."""
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
    """Whether others leave the machine idle, now or within so many seconds."""
    deadline, said = clock() + seconds, False
    while (others := look()) > IDLE_CORES:
        if clock() >= deadline:
            return False
        if not said:
            say(f"others use {others:.2f} cores: waiting up to {seconds:.0f} s for them to end")
            said = True
    return True
