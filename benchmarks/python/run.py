"""Measures torchvq against the reference, plain torch and faiss, and says which targets are met.

    python benchmarks/python/run.py                          # everything, about half an hour
    python benchmarks/python/run.py --only nearest_code,kmeans
    python benchmarks/python/run.py --quick                  # see that it runs; the numbers are noise
    python benchmarks/python/run.py --write-docs             # put results into docs/, measuring nothing

Correctness is checked before anything is timed. Each suite writes <suite>.json and draws <suite>.png.
What is learnt, and how well, is measured by learning_table.py.
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
from harness import RESULTS, ROOT, Settings, read_json

SUITES = (
    "nearest_code",
    "vector_quantize",
    "residual",
    "fsq",
    "lookup_free",
    "kmeans",
    "compiled",
    "memory",
    "scalar_modules",
    "small_calls",
    "threads",
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--only", type=_suites, default=SUITES, metavar="A,B", help="of " + ", ".join(SUITES))
    add("--quick", action="store_true", help="see that it runs; the numbers are noise")
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


def measure(suites: tuple[str, ...], settings: Settings) -> None:
    for name in suites:
        if name == "threads" and settings.cpu_clock:
            settings.say("threads: left out, because processor time does not show it")
            continue
        start = time.perf_counter()
        settings.say(f"{name}: times over that of torchvq")
        # Imported here, so that a suite can be run where the packages of another one are missing.
        importlib.import_module(name).run(settings)
        settings.say(f"  ({time.perf_counter() - start:.0f} s)")
        charts.draw(read_json(settings.output / f"{name}.json"), settings.output / f"{name}.png")


def show_targets(suites: tuple[str, ...], folder: Path) -> None:
    """The table of what was promised."""
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
    if options.write_docs:
        documents.write(options.output, options.docs, SUITES)
        return 0
    measure(options.only, settings_from(options))
    show_targets(options.only, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
