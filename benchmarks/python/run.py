"""Measures torchvq against the reference, plain torch and faiss, and says which targets are met.

    python benchmarks/python/run.py                          # every suite that was not yet measured at this commit
    python benchmarks/python/run.py --again                  # every suite
    python benchmarks/python/run.py --only nearest_code,kmeans
    python benchmarks/python/run.py --quick                  # see that it runs; the numbers are noise
    python benchmarks/python/run.py --write-docs             # put results into docs/, measuring nothing

It needs a tree without changes and an idle machine, and otherwise says what is wrong. Correctness is checked before
anything is timed. Each suite writes <suite>.json and draws <suite>.png as soon as it is measured, so an interrupted run
continues where it stopped. learning_table.py measures how well quantizers learn.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from pathlib import Path

import charts
import documents
import state
from harness import LEAST_ROUNDS, RESULTS, ROOT, Settings, machine, read_json

# Minutes of each suite on two slow cores, for suites not yet measured on this machine.
SUITES = {
    "nearest_code": 2.5,
    "inputs": 1.0,
    "vector_quantize": 3.5,
    "features_first": 1.0,
    "residual": 2.5,
    "fsq": 0.5,
    "lookup_free": 2.0,
    "kmeans": 1.5,
    "scalar_modules": 1.0,
    "small_steps": 12.0,
    "small_calls": 1.0,
    "compiled": 2.5,
    "threads": 0.5,
    "several_ranks": 1.5,
    "growth": 1.5,
    "memory": 2.0,
}
QUICK_MINUTES = 0.2


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--only", type=_suites, metavar="A,B", help="of " + ", ".join(SUITES))
    add("--again", action="store_true", help="also what was measured at this commit already")
    add("--quick", action="store_true", help="see that it runs; the numbers are noise")
    add("--dirty", action="store_true", help="measure a tree with changes; the results say so")
    add("--busy", action="store_true", help="measure beside other work; the results say so")
    add("--wait", type=float, default=600, metavar="S", help="for an idle machine; default: 600")
    add(
        "--threads",
        type=_threads,
        metavar="1,2",
        help="numbers of threads; default: 1, and 2 if there are",
    )
    add(
        "--cpu-clock", action="store_true", help="processor time, on one thread: for a busy machine"
    )
    add("--output", type=Path, default=RESULTS, help="folder of the results")
    add("--docs", type=Path, default=ROOT / "docs", help="folder of benchmarks.md and learning.md")
    add("--ready", action="store_true", help="only look whether tree and machine are fit for it")
    add(
        "--write-docs",
        action="store_true",
        help="measure nothing, put the results there are into docs",
    )
    return parser.parse_args()


def _suites(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in SUITES]
    if unknown:
        raise argparse.ArgumentTypeError(f"no suite {unknown[0]}; there are {', '.join(SUITES)}")
    return names


def _threads(text: str) -> tuple[int, ...]:
    numbers = tuple(int(part) for part in text.split(","))
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError("expected numbers of threads of at least 1")
    return numbers


def settings_from(options: argparse.Namespace) -> Settings:
    one_is_enough = options.quick or options.cpu_clock or os.cpu_count() == 1
    return Settings(
        quick=options.quick,
        cpu_clock=options.cpu_clock,
        threads=options.threads or ((1,) if one_is_enough else (1, 2)),
        output=options.output,
    )


def refusal(options: argparse.Namespace) -> str:
    """The reason not to measure now; empty if tree and machine are fit for it. A quick run needs neither."""
    if options.quick:
        return ""
    if (changed := state.changes()) and not options.dirty:
        shown = ", ".join(changed[:5]) + (", ..." if len(changed) > 5 else "")
        return f"the tree is not that of a commit ({shown}); commit, or --dirty to try"
    if not options.busy and not options.cpu_clock and not state.wait_for_idle(options.wait, print):
        return f"others used the machine for {options.wait:.0f} s; later, or --busy to try"
    return ""


def is_measured(name: str, settings: Settings) -> bool:
    """Whether the folder has results of this suite for this commit, machine and these settings."""
    file = settings.output / f"{name}.json"
    if settings.quick or not file.exists():
        return False
    document, here = read_json(file), machine()
    there = document["machine"]
    same = all(there.get(key) == here[key] for key in ("commit", "cpu", "cores", "level", "torch"))
    clock = "processor time" if settings.cpu_clock else "wall clock"
    fewest = (document.get("rounds") or [LEAST_ROUNDS])[0]
    return (
        same
        and not here["commit"].endswith("-dirty")
        and not document["quick"]
        and document["clock"] == clock
        and fewest >= LEAST_ROUNDS
    )


def minutes(name: str, settings: Settings) -> float:
    """The minutes that a suite took last on such a machine, or is expected to take."""
    file = settings.output / f"{name}.json"
    if settings.quick:
        return QUICK_MINUTES
    if file.exists():
        there = read_json(file)
        if there["machine"].get("cpu") == state.cpu_name() and not there["quick"]:
            return float(there["machine"].get("seconds", SUITES[name] * 60)) / 60
    return SUITES[name]


def measure(suites: tuple[str, ...], settings: Settings, options: argparse.Namespace) -> int:
    """All suites, one after the other. Returns 1 if the machine did not become idle before one of them."""
    start = time.perf_counter()
    for name in suites:
        if name == "threads" and settings.cpu_clock:
            settings.say("threads: left out, because processor time does not show it")
            continue
        if reason := refusal(options):
            settings.say(f"stopped before {name}: {reason}; what is measured stays")
            return 1
        settings.say(f"{name}: times over that of torchvq")
        settings.started = state.Started()
        # Imported here, so that a suite runs without the packages of the others.
        importlib.import_module(name).run(settings)
        document = read_json(settings.output / f"{name}.json")
        there, rounds = document["machine"], document["rounds"]
        counted = f", {rounds[0]} to {rounds[1]} rounds" if rounds else ""
        settings.say(f"  ({there['seconds']:.0f} s{counted}, others used {there['others']} cores)")
        charts.draw(document, settings.output / f"{name}.png")
    settings.say(f"measured in {(time.perf_counter() - start) / 60:.1f} minutes")
    return 0


def show_targets(suites: tuple[str, ...], folder: Path) -> None:
    """The table of targets."""
    rows = []
    for name in suites:
        file = folder / f"{name}.json"
        if file.exists():
            rows += documents.targets_of(read_json(file))
    met = sum(target.met for target in rows)
    print(f"\n{met} of {len(rows)} targets met")
    for target in sorted(rows, key=lambda target: target.met):
        print(f"  {target}")


def main() -> int:
    options = arguments()
    suites = options.only or tuple(SUITES)
    settings = settings_from(options)
    if options.write_docs:
        charts.draw_summary(documents.read(options.output, tuple(SUITES)), options.output)
        documents.write(options.output, options.docs, tuple(SUITES))
        return 0
    if reason := refusal(options):
        print(f"not measured: {reason}", file=sys.stderr)
        return 1
    if options.ready:
        return 0
    # A suite that is named with --only is measured again in any case.
    kept = [name for name in suites if not options.only and is_measured(name, settings)]
    if kept and not options.again:
        print("measured at this commit already: " + ", ".join(kept))
        suites = tuple(name for name in suites if name not in kept)
    expected = sum(minutes(name, settings) for name in suites)
    print(f"{len(suites)} suites, {settings.rounds[0]} rounds or more, some {expected:.0f} minutes")
    failed = measure(suites, settings, options)
    show_targets(options.only or tuple(SUITES), options.output)
    return failed


if __name__ == "__main__":
    sys.exit(main())
