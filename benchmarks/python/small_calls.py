"""What a call costs when there is almost nothing to compute; import and construction."""

from __future__ import annotations

import statistics
import subprocess
import sys

import torch
from contenders import ours_nearest, plain_nearest, quantizers, tokens_and_codes, training_step
from harness import OURS, Case, Contender, Settings, Target, compare, write
from vector_quantize_pytorch import VectorQuantize as Reference

import torchvq

IMPORT = (
    "import time, torch; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"
)
PACKAGES = {OURS: "torchvq", "reference": "vector_quantize_pytorch"}


def run(settings: Settings) -> None:
    cases = [_operator(settings)]
    for n in (1,) if settings.quick else (1, 64):
        cases += [_evaluation(n, settings), _training(n, settings)]
    cases += [_construction(settings), _imports(settings)]
    for case in cases:
        ratios = ", ".join(
            f"{name} {t['seconds'] * 1e6:.1f} us ({t['ratio']:.2f})"
            for name, t in case.times.items()
        )
        settings.say(f"  {case.name}: {ratios}")
    write("small_calls", cases, settings)


def _under(case: Case, text: str, limit: float) -> None:
    """Holds the seconds of ours to a limit."""
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


def _evaluation(n: int, settings: Settings) -> Case:
    x, codes = tokens_and_codes(n, 16, 8)
    modules = {name: module.eval() for name, module in quantizers(16, 8, codes).items()}
    contenders = [Contender(name, lambda m=m: m(x[None])) for name, m in modules.items()]
    with torch.no_grad():
        times = compare(contenders, settings)
    case = Case(f"VectorQuantize evaluation N={n} K=16 D=8", dict(what="evaluation", N=n), times)
    _under(case, "VectorQuantize evaluation: under 30 us a call", 30e-6)
    return case


def _training(n: int, settings: Settings) -> Case:
    x, codes = tokens_and_codes(n, 16, 8)
    modules = quantizers(16, 8, codes)
    contenders = []
    for name, module in modules.items():
        contenders.append(Contender(name, training_step(module.train(), x[None])))
    return Case(
        f"VectorQuantize training step N={n} K=16 D=8",
        dict(what="training step", N=n),
        compare(contenders, settings),
    )


def _construction(settings: Settings) -> Case:
    contenders = [
        Contender(OURS, lambda: torchvq.VectorQuantize(256, 16384)),
        Contender("reference", lambda: Reference(dim=256, codebook_size=16384)),
    ]
    times = compare(contenders, settings)
    return Case("constructing VectorQuantize(256, 16384)", dict(what="construction"), times)


def _imports(settings: Settings) -> Case:
    rounds: dict[str, list[float]] = {name: [] for name in PACKAGES}
    for _ in range(settings.rounds[0]):
        for name, package in PACKAGES.items():
            command = [sys.executable, "-c", IMPORT.format(package)]
            answer = subprocess.run(command, capture_output=True, text=True, check=True)
            rounds[name].append(float(answer.stdout))
    ratios = {
        name: [a / b for a, b in zip(seconds, rounds[OURS], strict=True)]
        for name, seconds in rounds.items()
    }
    times = {
        name: {
            "seconds": statistics.median(seconds),
            "fastest": min(seconds),
            "ratio": statistics.median(ratios[name]),
            "ratio_low": min(ratios[name]),
            "ratio_high": max(ratios[name]),
            "rounds": len(seconds),
        }
        for name, seconds in rounds.items()
    }
    case = Case("import, after torch", dict(what="import"), times)
    _under(case, "import under 0.3 s over torch", 0.3)
    return case
