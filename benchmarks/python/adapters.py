"""Tokenizers of other packages at their real sizes, original and adapted.

    python benchmarks/python/adapters.py              # needs the packages of requirements/adapters.txt; an hour
    python benchmarks/python/adapters.py --quick      # see that it runs; the numbers are noise
    python benchmarks/python/adapters.py --only Mimi  # rows whose names contain this

Quantizers alone and whole `encode`: clips of 10 s, 1 and 16 of them, one frame (also with frozen codes), images of 256
and 512; random weights.
Measures the time of the original over that of the adapted model, peak memory of a call in its own process, and tokens
that differ: each of them is a near tie, or follows one in its residual. Results go to adapters.json, in which rows that
are not measured keep the commit of their measurement, and, with --docs, to the table of docs/adapters.md.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import state
import torch
from adapters_models import Measured, rows
from harness import (
    OURS,
    RESULTS,
    ROOT,
    Case,
    Contender,
    Settings,
    compare,
    read_json,
    write,
    write_json,
)
from memory import peak_over_now

from torchvq import adapters

ORIGINAL = "original"
DOCS = ROOT / "docs" / "adapters.md"
BEGIN, END = "<!-- measured -->", "<!-- /measured -->"
WHOLE_THREADS = 2
# Targets: how many times as fast as the package's quantizer.
WANTED = {"1 clip": 2.0, "one frame": 10.0, "one frame, frozen": 10.0}


@torch.no_grad()
def measure(row: Measured, settings: Settings) -> list[Case]:
    if row.part == "encode":
        settings = dataclasses.replace(
            settings, least_rounds=row.rounds, threads=settings.threads[-1:]
        )
    module, x = row.make()
    adapted = adapters.adapt(copy.deepcopy(module), frozen=row.frozen)
    ours, theirs = row.encode(adapted, x), row.encode(module, x)
    checks: dict[str, Any] = dict(
        differ=int((ours != theirs).sum()),
        tokens=ours.numel(),
        peak_bytes=peaks(row, settings),
        commit=state.commit(),
    )
    cases = []
    for threads in settings.threads:
        contenders = [
            Contender(OURS, lambda: row.encode(adapted, x), threads),
            Contender(ORIGINAL, lambda: row.encode(module, x), threads),
        ]
        parameters = dict(model=row.model, part=row.part, size=row.size, threads=threads)
        name = f"{row.name}, {threads} threads"
        case = Case(name, parameters, compare(contenders, settings), checks)
        if row.part == "quantizer" and row.size in WANTED:
            case.expect(ORIGINAL, WANTED[row.size], "times faster than the original")
        cases.append(case)
        _say(case, settings)
    return cases


def peaks(row: Measured, settings: Settings) -> dict[str, int]:
    """Peak memory of a call of each, in its own process; quantizers on one thread, to exclude per-thread buffers."""
    if settings.quick:
        return {}
    found = {}
    for name in (OURS, ORIGINAL):
        command = [sys.executable, str(Path(__file__)), "--peak", name, "--only", row.name]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
        found[name] = int(answer.stdout.splitlines()[-1])
    return found


@torch.no_grad()
def print_peak(row: Measured, name: str) -> None:
    torch.set_num_threads(WHOLE_THREADS if row.part == "encode" else 1)
    module, x = row.make()
    if name == OURS:
        adapters.adapt(module, frozen=row.frozen)
    row.encode(module, x[:1, ..., : max(1, x.shape[-1] // 8)] if row.part == "quantizer" else x[:1])
    print(peak_over_now(lambda: row.encode(module, x)))


def _say(case: Case, settings: Settings) -> None:
    ours, theirs = (case.times[name]["seconds"] * 1e3 for name in (OURS, ORIGINAL))
    held = [f"{peak / 2**20:.1f}" for peak in case.checks["peak_bytes"].values()]
    settings.say(
        f"  {case.name}: {theirs:.2f} ms, adapted {ours:.2f} ms, {case.ratio(ORIGINAL):.2f} times; "
        f"{case.checks['differ']} of {case.checks['tokens']} tokens differ"
        + (f"; peak MiB {held[1]}, adapted {held[0]}" if held else "")
    )


def with_earlier(file: Path, before: dict[str, Any]) -> dict[str, Any]:
    """The document, plus those rows of an earlier one that it lacks, in the order of all rows."""
    document = read_json(file)
    fresh = {case["name"] for case in document["cases"]}
    for case in before["cases"]:
        case["checks"].setdefault("commit", before["machine"]["commit"])
    cases = document["cases"] + [case for case in before["cases"] if case["name"] not in fresh]
    places = {row.name: place for place, row in enumerate(rows())}
    order = {case["name"]: places.get(case["name"].rsplit(", ", 1)[0], -1) for case in cases}
    kept = [case for case in cases if order[case["name"]] >= 0]
    return document | {"cases": sorted(kept, key=lambda case: order[case["name"]])}


def table(document: dict[str, Any]) -> str:
    """The rows with the most threads, in the format of docs/adapters.md."""
    cases = document["cases"]
    most = max(case["parameters"]["threads"] for case in cases)
    lines = [
        "| model | part | size | original, ms | adapted, ms | times | tokens that differ "
        "| peak MiB | adapted | commit |\n"
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for case in cases:
        given, checks = case["parameters"], case["checks"]
        if given["threads"] != most:
            continue
        ours, theirs = (case["times"][name] for name in (OURS, ORIGINAL))
        peak = checks["peak_bytes"]
        held = [f"{peak[name] / 2**20:.1f}" if peak else "" for name in (ORIGINAL, OURS)]
        times = [f"{time['seconds'] * 1e3:.2f}" for time in (theirs, ours)]
        differ = f"{checks['differ']} of {checks['tokens']}"
        place = [given[key] for key in ("model", "part", "size")]
        ratio, commit = f"{theirs['ratio']:.2f}", checks["commit"][:7]
        cells = [*place, *times, ratio, differ, *held, commit]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + f"\n\n{most} threads, {document['machine']['cpu']}."


def write_docs(document: dict[str, Any]) -> None:
    text = DOCS.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    DOCS.write_text(
        f"{before}{BEGIN}\n{table(document)}\n{END}{rest.split(END)[1]}", encoding="utf-8"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="see that it runs")
    parser.add_argument("--cpu-clock", action="store_true", help="processor time, on one thread")
    parser.add_argument(
        "--only", action="append", help="rows whose names hold this; may be given again"
    )
    parser.add_argument("--docs", action="store_true", help="put the table into docs/adapters.md")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--peak", choices=(OURS, ORIGINAL), help=argparse.SUPPRESS)
    given = parser.parse_args()
    wanted = given.only or [""]
    chosen = [row for row in rows() if any(part in row.name for part in wanted)]
    if given.peak:
        print_peak(next(row for row in chosen if row.name == wanted[0]), given.peak)
        return
    threads = (1,) if given.cpu_clock else (1, 2)
    settings = Settings(given.quick, given.cpu_clock, threads, given.output)
    file = settings.output / "adapters.json"
    before = read_json(file) if file.exists() and not given.quick else None
    write("adapters", [case for row in chosen for case in measure(row, settings)], settings)
    if before:
        write_json(file, with_earlier(file, before))
    if given.docs:
        write_docs(read_json(file))


if __name__ == "__main__":
    main()
