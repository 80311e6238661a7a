"""Where the device time of torchvq's searches and steps goes, kernel by kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gpu_cases
import torch
from gpu_measure import HAS_CARD, synchronize

CALLS = 5


def profiles() -> list[dict[str, Any]]:
    cases = [*gpu_cases.search_cases(), *gpu_cases.step_cases(), gpu_cases.entropy_case()]
    workloads = {case.name: case.contenders["torchvq"] for case in cases}
    workloads |= {name: steps["torchvq"] for name, steps in gpu_cases.host_cases().items()}
    return [dict(name=name, kernels=_kernels(run)) for name, run in workloads.items()]


def _kernels(run: Callable[[], object]) -> list[dict[str, Any]]:
    """Of each kernel its launches and microseconds a call, the longest first."""
    for _ in range(3):
        run()
    synchronize()
    activity = torch.profiler.ProfilerActivity
    watched = [activity.CUDA] if HAS_CARD else [activity.CPU]
    with torch.profiler.profile(activities=watched) as profile:
        for _ in range(CALLS):
            run()
        synchronize()
    found = [
        dict(
            kernel=event.key[:100],
            launches=event.count / CALLS,
            microseconds=(event.device_time_total if HAS_CARD else event.cpu_time_total) / CALLS,
        )
        for event in profile.key_averages()
    ]
    return sorted(found, key=lambda one: -one["microseconds"])
