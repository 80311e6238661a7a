"""Timers for a card: CUDA events around a block of calls; without a card the host's clock, to see that it runs."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

# Asked without a CUDA context, with which processes could not be forked.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
HAS_CARD = torch.cuda.is_available()
DEVICE = torch.device("cuda" if HAS_CARD else "cpu")
MILLISECONDS_A_BLOCK = 20.0 if HAS_CARD else 1.0
ROUNDS = 9 if HAS_CARD else 1


@dataclass
class Target:
    """A target: at least ``wanted`` times as fast as ``against``, or without that at most ``wanted`` milliseconds."""

    wanted: float
    against: str = ""


@dataclass
class GpuCase:
    """One workload: its contenders, and the least work and memory traffic that it needs."""

    name: str
    contenders: dict[str, Callable[[], object]]
    target: Target | None = None
    flops: float = 0
    bytes: float = 0
    left_out: dict[str, str] = field(default_factory=dict)


def synchronize() -> None:
    if HAS_CARD:
        torch.cuda.synchronize()


def block_milliseconds(run: Callable[[], object], calls: int) -> float:
    """Device time of a call, over a block of them."""
    if not HAS_CARD:
        start = time.perf_counter()
        for _ in range(calls):
            run()
        return (time.perf_counter() - start) * 1e3 / calls
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(calls):
        run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / calls


def host_microseconds(run: Callable[[], object], calls: int = 20) -> float:
    """Host time of a call: the device's queue is empty at the start, and the host does not wait for it."""
    times = []
    for _ in range(5):
        synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            run()
        times.append((time.perf_counter() - start) * 1e6 / calls)
        synchronize()
    return statistics.median(times)


def peak_bytes(run: Callable[[], object]) -> int:
    """Peak memory of a call beyond what was allocated before."""
    if not HAS_CARD:
        return 0
    synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    synchronize()
    return int(torch.cuda.max_memory_allocated() - before)


def measure(case: GpuCase) -> dict[str, Any]:
    """All contenders in turn, round by round, so that clocks and heat are the same for all."""
    counts = {name: _calls(run) for name, run in case.contenders.items()}
    rounds: dict[str, list[float]] = {name: [] for name in counts}
    for _ in range(ROUNDS):
        for name, run in case.contenders.items():
            rounds[name].append(block_milliseconds(run, counts[name]))
    found = {
        name: dict(
            milliseconds=statistics.median(times),
            fastest=min(times),
            peak_bytes=peak_bytes(case.contenders[name]),
        )
        for name, times in rounds.items()
    }
    row: dict[str, Any] = dict(
        name=case.name, contenders=found, flops=case.flops, bytes=case.bytes, left_out=case.left_out
    )
    if case.target is not None:
        row["target"] = _judged(case.target, found)
    return row


def _calls(run: Callable[[], object]) -> int:
    run()
    synchronize()
    once = block_milliseconds(run, 1)
    return max(1, min(200, int(MILLISECONDS_A_BLOCK / max(once, 1e-3))))


def _steady(run: Callable[[], object]) -> float:
    """Milliseconds of a call once the card's clocks have risen and libraries have started."""
    calls = _calls(run)
    return statistics.median(block_milliseconds(run, calls) for _ in range(ROUNDS))


def _judged(target: Target, found: dict[str, Any]) -> dict[str, Any]:
    if target.against not in found:
        return dict(wanted=target.wanted, against=target.against, measured=None, met=None)
    ratio = found[target.against]["milliseconds"] / found["torchvq"]["milliseconds"]
    return dict(
        wanted=target.wanted, against=target.against, measured=ratio, met=ratio >= target.wanted
    )


def rates() -> dict[str, float]:
    """The rates that plain torch reaches on the card, with which others are compared."""
    size = 8192 if HAS_CARD else 64
    a = torch.randn(size, size, device=DEVICE).to(torch.bfloat16)
    half = _steady(lambda: a @ a)
    wide = torch.randn(size // 2, size // 2, device=DEVICE)
    single = _steady(lambda: wide @ wide)
    copied = torch.empty(size * size * 8, device=DEVICE)
    fresh = torch.empty_like(copied)
    copy = _steady(lambda: fresh.copy_(copied))
    return dict(
        bfloat16_tflops=2 * size**3 / half / 1e9,
        float32_tflops=2 * (size // 2) ** 3 / single / 1e9,
        copy_gigabytes=2 * copied.numel() * 4 / copy / 1e6,
    )


def card() -> dict[str, Any]:
    """The card, its clocks and driver, and the versions of torch and CUDA."""
    found: dict[str, Any] = dict(
        name=torch.cuda.get_device_name() if HAS_CARD else "none",
        torch=torch.__version__,
        cuda=torch.version.cuda,
        commit=_commit(),
        date=time.strftime("%Y-%m-%d", time.gmtime()),
    )
    if HAS_CARD:
        properties = torch.cuda.get_device_properties(0)
        found |= dict(
            capability=f"{properties.major}.{properties.minor}",
            multiprocessors=properties.multi_processor_count,
            memory=properties.total_memory,
            clocks=_asked("clocks.sm,clocks.mem,clocks.max.sm,power.limit"),
            driver=_asked("driver_version"),
        )
    return found


def _commit() -> str:
    """From the environment where the sources are a copy without their history."""
    described = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    return os.environ.get("TORCHVQ_COMMIT") or _output(described)


def _asked(what: str) -> str:
    return _output(["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader", "--id=0"])


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=20
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"
