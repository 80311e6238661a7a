"""The sections of tools/gpu.sh, which runs them on a machine with a card; each writes <section>.json.

    python benchmarks/python/gpu.py requirements            # what this machine lacks, and what is left out for it
    python benchmarks/python/gpu.py checks|small|search|steps|profile|host|ranks --output FOLDER
    python benchmarks/python/gpu.py report --output FOLDER   # all of them as FOLDER/gpu.json, and a summary
    python benchmarks/python/gpu.py docs --output FOLDER     # FOLDER/gpu.json into docs/gpu.md

A section that fails does not affect the others. Without a card everything is tiny and timed by the CPU's clock: that
shows that it runs, but docs/gpu.md is not written from it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpu_documents
import gpu_isolated
import gpu_measure
import torch

ROOT = Path(__file__).resolve().parents[2]
# The folder of cases that this file shares with test_cuda.py.
sys.path.append(str(ROOT / "tests" / "python"))

# What may be missing, and what is left out without it.
PACKAGES = {
    "vector_quantize_pytorch": "the reference's columns, and targets against it",
    "triton": "the compiled column",
}
PROGRAMS = {
    "nvcc": "CUDA kernels: the library is built with its path in plain torch alone",
    "compute-sanitizer": "memcheck and racecheck",
    "nvidia-smi": "clocks and driver",
}
HOST_MICROSECONDS = 200.0
# Much of a check is waiting for a context of the card, so even a small machine runs some at once.
CHECKS_AT_ONCE, CHECK_SECONDS = max(4, (os.cpu_count() or 1) - 2), 90.0
Section = Callable[[], dict[str, Any]]


def requirements() -> dict[str, str]:
    """What is missing on this machine, and what is left out without it."""
    missing = {
        name: lost for name, lost in PACKAGES.items() if importlib.util.find_spec(name) is None
    }
    missing |= {name: lost for name, lost in PROGRAMS.items() if shutil.which(name) is None}
    import cuda_checks

    if not cuda_checks.has_cpp_program():
        missing["torchvq_run (tests/cpp/run.cpp)"] = "checks of C++ modules"
    if not gpu_measure.HAS_CARD:
        missing["a CUDA card"] = "every number: all is tiny and on the CPU's clock"
    return missing


def checks() -> dict[str, Any]:
    # Processes cannot be forked from one whose OpenMP has made threads, or that has touched the card.
    torch.set_num_threads(1)
    import cuda_checks

    if not gpu_measure.HAS_CARD:
        return dict(left_out="no card", found={})
    wanted = {
        name: check
        for name, check in cuda_checks.all_checks().items()
        if not cuda_checks.lacking(name)
    }
    return dict(
        found=gpu_isolated.run(wanted, CHECKS_AT_ONCE, CHECK_SECONDS),
        kernels=sorted(name for name in _operators() if cuda_checks.has_kernel(name)),
    )


def _operators() -> set[str]:
    names = {schema.name for schema in torch._C._jit_get_all_schemas()}
    return {name.removeprefix("torchvq::") for name in names if name.startswith("torchvq::")}


def small() -> dict[str, Any]:
    """Every operator once on small tensors, for compute-sanitizer."""
    import copy

    from device_cases import CASES

    for name, case in CASES.items():
        arguments, options = copy.deepcopy((case.arguments, case.options))
        there = torch.utils._pytree.tree_map(_on_device, (arguments, options))
        getattr(torch.ops.torchvq, name.split(" ")[0])(*there[0], **there[1])
    gpu_measure.synchronize()
    return dict(operators=len(CASES))


def _on_device(value: Any) -> Any:
    return value.to(gpu_measure.DEVICE) if isinstance(value, torch.Tensor) else value


def search() -> dict[str, Any]:
    import gpu_cases

    return dict(
        rates=gpu_measure.rates(),
        cases=[gpu_measure.measure(case) for case in gpu_cases.search_cases()],
    )


def steps() -> dict[str, Any]:
    import gpu_cases

    cases = [*gpu_cases.step_cases(), gpu_cases.entropy_case()]
    return dict(cases=[gpu_measure.measure(case) for case in cases])


def profile() -> dict[str, Any]:
    import gpu_profile

    return dict(profiles=gpu_profile.profiles())


def host() -> dict[str, Any]:
    import gpu_cases

    found = {}
    for name, steps in gpu_cases.host_cases().items():
        times = {}
        for contender, step in steps.items():
            step()
            times[contender] = gpu_measure.host_microseconds(step)
        measured = times.pop("torchvq")
        found[name] = dict(
            microseconds=measured,
            wanted=HOST_MICROSECONDS,
            met=measured <= HOST_MICROSECONDS,
            others=times,
        )
    return dict(host=found)


def ranks() -> dict[str, Any]:
    import gpu_ranks

    return dict(ranks=gpu_ranks.ranks_report())


SECTIONS: dict[str, Section] = {
    "checks": checks,
    "small": small,
    "search": search,
    "steps": steps,
    "profile": profile,
    "host": host,
    "ranks": ranks,
}


def report(folder: Path) -> dict[str, Any]:
    """All completed sections, as one document."""
    sections = {
        name: json.loads(file.read_text())
        for name in SECTIONS
        if (file := folder / f"{name}.json").exists()
    }
    document = dict(
        card=gpu_measure.card(),
        on_a_card=gpu_measure.HAS_CARD,
        left_out=requirements(),
        missing=[name for name in SECTIONS if name not in sections],
        # Written by tools/gpu.sh: a line "name exit-status" for each part.
        commands=_commands(folder / "commands.txt"),
        sections=sections,
    )
    (folder / "gpu.json").write_text(json.dumps(document, indent=1) + "\n")
    return document


def _commands(file: Path) -> dict[str, int]:
    lines = file.read_text().split("\n") if file.exists() else []
    return {name: int(status) for name, status in (line.rsplit(" ", 1) for line in lines if line)}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["requirements", *SECTIONS, "report", "docs"])
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "gpu-report")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="folder of gpu.md")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    options.output.mkdir(parents=True, exist_ok=True)
    if options.what == "requirements":
        for name, lost in requirements().items():
            print(f"  without {name}, left out: {lost}")
        return 0
    if options.what == "report":
        print(gpu_documents.summary(report(options.output)))
        return 0
    if options.what == "docs":
        document = json.loads((options.output / "gpu.json").read_text())
        return gpu_documents.write(document, options.docs / "gpu.md")
    found = SECTIONS[options.what]()
    (options.output / f"{options.what}.json").write_text(json.dumps(found, indent=1) + "\n")
    failed = {name: why for name, why in found.get("found", {}).items() if why}
    for name, why in failed.items():
        print(f"  FAILED {name}: {why}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
