"""Checks in minutes, on some cases, whether a ratio has fallen below the results in benchmarks/results/.

    python benchmarks/python/check_ratios.py
    python benchmarks/python/check_ratios.py --only small_steps

A ratio is the time of another implementation over that of torchvq, so a lower ratio means that torchvq has become
slower relative to it. A ratio has fallen if its quartiles lie below those of the baseline, by more than the width of
both and the drift between processes, in each of three measurements. Exits with 1 if one has fallen, with 2 if there is
nothing to compare with.
"""

from __future__ import annotations

import argparse
import importlib
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import state
from harness import OURS, RESULTS, Case, Settings, machine, read_json

Times = dict[str, dict[str, float]]
# Difference of a case between processes, in which memory lies elsewhere; the rounds of one process do not show it.
DRIFT = math.log(1.05)
MEASUREMENTS = 3
STEPS = ("VectorQuantize", "ResidualVQ", "SimVQ", "FSQ", "LFQ", "LatentQuantize", "HierarchicalVQ")
# Not compared: torchvq itself, and a case of another size.
LEFT_OUT = (OURS, "square GEMM")


@dataclass
class Chosen:
    """A case of a suite: its name in the results, and a function that measures it again."""

    suite: str
    name: str
    measure: Callable[[Any, Settings], Case]


def _step(name: str) -> Chosen:
    def measure(suite: Any, settings: Settings) -> Case:
        entry = next(entry for entry in suite.ENTRIES if entry.name == name)
        found: Case = suite.measure(entry, 64, settings, compiled=False)
        return found

    return Chosen("small_steps", f"{name} N=64", measure)


def _nearest(n: int, k: int, d: int) -> Chosen:
    name = f"N={n} K={k} D={d} threads=1"
    return Chosen("nearest_code", name, lambda suite, s: suite.measure((n, k, d), 1, s))


def _hard(suite: Any, settings: Settings) -> Case:
    import contenders

    n, k, d = suite.SHAPE
    x, codes = suite.close_codes(*contenders.tokens_and_codes(n, k, d))["nearly equal"]
    found: Case = suite.search("nearly equal", x, codes, settings)
    return found


SUBSET = [
    _nearest(8192, 1024, 8),
    _nearest(8192, 1024, 64),
    _nearest(64, 1024, 128),
    _nearest(1, 1024, 128),
    Chosen("inputs", "search, nearly equal, N=4096 K=1024 D=64", _hard),
    Chosen(
        "vector_quantize",
        "training N=8192 K=1024 D=64 threads=1",
        lambda suite, s: suite.training((8192, 1024, 64), 1, s),
    ),
    Chosen(
        "residual",
        "training N=2048 K=1024 D=128 Q=8 threads=1",
        lambda suite, s: suite.training((suite.TOKENS, suite.DIM, suite.LEVELS), 1024, 1, s),
    ),
    Chosen(
        "residual",
        "greedy N=2048 K=256 D=128 Q=8 threads=1",
        lambda suite, s: suite.greedy((suite.TOKENS, suite.DIM, suite.LEVELS), 256, 1, s),
    ),
    Chosen(
        "fsq",
        "FSQ training step threads=1",
        lambda suite, s: suite.training("FSQ", suite.single(), suite.tokens(), 1, s),
    ),
    Chosen(
        "lookup_free",
        "training N=1024 bits=12 threads=1",
        lambda suite, s: suite.measure(12, 1024, 1, s),
    ),
    Chosen(
        "small_calls",
        "VectorQuantize evaluation N=1 K=16 D=8",
        lambda suite, s: suite.evaluation(1, s),
    ),
    *map(_step, STEPS),
]


def has_fallen(baseline: dict[str, float], now: dict[str, float]) -> bool:
    """Whether a ratio is lower than the baseline by more than the spread of both."""
    apart = now["ratio_high"] < baseline["ratio_low"]
    spread = sum(math.log(time["ratio_high"] / time["ratio_low"]) for time in (baseline, now))
    return apart and math.log(baseline["ratio"] / now["ratio"]) > spread + DRIFT


def fallen(baseline: Times, now: Times) -> list[str]:
    """The contenders whose ratio has fallen, among those in both results."""
    return [
        name
        for name in now
        if name in baseline and name not in LEFT_OUT and has_fallen(baseline[name], now[name])
    ]


def baseline_of(chosen: Chosen, folder: Path) -> dict[str, Any] | None:
    """The baseline of the case, with its machine; None if it was not measured."""
    file = folder / f"{chosen.suite}.json"
    if not file.exists():
        return None
    document = read_json(file)
    cases = [case for case in document["cases"] if case["name"] == chosen.name]
    return {"machine": document["machine"], **cases[0]} if cases else None


def check(chosen: Chosen, baseline: Times, settings: Settings) -> list[str]:
    """A sentence for each contender whose ratio has fallen in every measurement."""
    suite = importlib.import_module(chosen.suite)
    still: set[str] | None = None
    for _ in range(MEASUREMENTS):
        case = chosen.measure(suite, settings)
        if case.name != chosen.name:
            raise AssertionError(f"{chosen.name} of {chosen.suite} is called {case.name} there")
        now = case.times
        found = set(fallen(baseline, now))
        still = found if still is None else still & found
        if not still:
            return []
    return [
        f"{chosen.suite}, {chosen.name}: {name} takes {_shown(now[name])} times as long; "
        f"it was {_shown(baseline[name])}"
        for name in sorted(still or ())
    ]


def _shown(time: dict[str, float]) -> str:
    return f"{time['ratio']:.3g} ({time['ratio_low']:.3g} to {time['ratio_high']:.3g})"


def not_comparable(there: dict[str, Any]) -> str:
    """The reason why the baseline's ratios do not compare with those of this machine; empty if they do."""
    here = machine()
    for key in ("cpu", "level", "torch"):
        if there.get(key) != here[key]:
            return f"the baseline is of {there.get(key)}, this is {here[key]}"
    return ""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--only", default="", metavar="SUITE", help="cases of this suite")
    add("--baseline", type=Path, default=RESULTS, help="folder of the results to compare with")
    add("--quick", action="store_true", help="see that it runs; the verdict is noise")
    add("--wait", type=float, default=120, metavar="S", help="for an idle machine; default: 120")
    add("--busy", action="store_true", help="compare beside other work")
    add("--elsewhere", action="store_true", help="compare with another processor or torch")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    settings = Settings(quick=options.quick, threads=(1,))
    rows = [chosen for chosen in SUBSET if options.only in ("", chosen.suite)]
    found = [(chosen, baseline_of(chosen, options.baseline)) for chosen in rows]
    missing = [f"{chosen.suite}, {chosen.name}" for chosen, case in found if case is None]
    if missing or not rows:
        print("nothing to compare with; `make bench` first: " + "; ".join(missing), file=sys.stderr)
        return 2
    reasons = {not_comparable(case["machine"]) for _, case in found if case} - {""}
    if reasons and not options.elsewhere:
        print(f"{reasons.pop()}; `make bench` here, or --elsewhere", file=sys.stderr)
        return 2
    if not options.busy and not options.quick and not state.wait_for_idle(options.wait, print):
        print(
            f"others used the machine for {options.wait:.0f} s; later, or --busy", file=sys.stderr
        )
        return 2
    lines = [
        line for chosen, case in found if case for line in check(chosen, case["times"], settings)
    ]
    for line in lines:
        print(f"FALLEN  {line}")
    print(f"{len(rows)} cases, {len(lines)} ratios have fallen by more than their spread")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
