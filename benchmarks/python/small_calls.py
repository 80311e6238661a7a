"""Costs of calls that compute almost nothing, of imports and of construction. Steps are in small_steps.py."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import torch
import vector_quantize_pytorch as reference
from contenders import ours_nearest, plain_nearest, quantizers, tokens_and_codes
from harness import OURS, Case, Contender, Settings, Target, compare, summary, write

import torchvq

IMPORTS = """
import importlib, os, sys, time
import torch
for _ in range(int(sys.argv[1])):
    for package in sys.argv[2:]:
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            start = time.perf_counter()
            importlib.import_module(package)
            os.write(writer, str(time.perf_counter() - start).encode())
            os._exit(0)
        os.close(writer)
        _, status = os.waitpid(child, 0)
        assert status == 0, package
        print(os.read(reader, 100).decode(), end=" ")
        os.close(reader)
    print()
"""
PACKAGES = {OURS: "torchvq", "reference": "vector_quantize_pytorch"}
CONSTRUCTED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("VectorQuantize", dict(dim=256, codebook_size=16384)),
    ("ResidualVQ", dict(dim=128, num_quantizers=32, codebook_size=1024)),
    ("FSQ", dict(levels=[8] * 6)),
)


def run(settings: Settings) -> None:
    cases = [_operator(settings)]
    cases += [evaluation(n, settings) for n in ((1,) if settings.quick else (1, 64))]
    cases += [_construction(*row, settings) for row in CONSTRUCTED]
    cases.append(_imports(settings))
    for case in cases:
        ratios = ", ".join(
            f"{name} {t['seconds'] * 1e6:.1f} us ({t['ratio']:.2f})"
            for name, t in case.times.items()
        )
        settings.say(f"  {case.name}: {ratios}")
    write("small_calls", cases, settings)


def _under(case: Case, text: str, limit: float) -> None:
    """Adds a limit for the seconds of ours as a target."""
    case.targets.append(Target(text, 1.0, limit / case.times[OURS]["seconds"], case.name))


def _operator(settings: Settings) -> Case:
    x, codes = tokens_and_codes(1, 16, 8)
    contenders = [
        Contender(OURS, lambda: ours_nearest(x, codes)),
        Contender("plain torch", lambda: plain_nearest(x, codes)),
    ]
    with torch.no_grad():
        case = Case(
            "nearest_code N=1 K=16 D=8", dict(what="nearest_code"), compare(contenders, settings)
        )
    _under(case, "nearest_code: under 30 us a call", 30e-6)
    return case


def evaluation(n: int, settings: Settings) -> Case:
    x, codes = tokens_and_codes(n, 16, 8)
    modules = {name: module.eval() for name, module in quantizers(16, 8, codes).items()}
    contenders = [Contender(name, lambda m=m: m(x[None])) for name, m in modules.items()]
    with torch.no_grad():
        times = compare(contenders, settings)
    case = Case(f"VectorQuantize evaluation N={n} K=16 D=8", dict(what="evaluation", N=n), times)
    _under(case, "VectorQuantize evaluation: under 30 us a call", 30e-6)
    return case


def _construction(name: str, options: dict[str, Any], settings: Settings) -> Case:
    contenders = [
        Contender(OURS, lambda: getattr(torchvq, name)(**options)),
        Contender("reference", lambda: getattr(reference, name)(**options)),
    ]
    shown = ", ".join(f"{key}={value}" for key, value in options.items())
    case = Case(
        f"constructing {name}({shown})", dict(what="construction"), compare(contenders, settings)
    )
    case.expect("reference", 1.0, "construction no slower than the reference's")
    return case


def _imports(settings: Settings) -> Case:
    """Each import in its own process, forked from one that has imported only torch."""
    rounds: dict[str, list[float]] = {name: [] for name in PACKAGES}
    command = [sys.executable, "-c", IMPORTS, str(settings.rounds[0]), *PACKAGES.values()]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    for line in answer.stdout.splitlines():
        for name, seconds in zip(PACKAGES, line.split(), strict=True):
            rounds[name].append(float(seconds))
    times = {name: summary(seconds, rounds[OURS]) for name, seconds in rounds.items()}
    case = Case("import, after torch", dict(what="import"), times)
    _under(case, "import under 0.3 s over torch", 0.3)
    return case
