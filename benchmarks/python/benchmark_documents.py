"""docs/benchmarks.md from the JSON of the suites: a part for each marker, so that no number is typed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

from harness import LEAST_ROUNDS, Target
from state import IDLE_CORES

Document = dict[str, Any]
Documents = dict[str, Document]
# Formats a header and rows as Markdown.
Write = Callable[[list[str], list[list[str]]], str]
MIB = 2**20
# Columns of the tables, which are also the names of the ratios in the JSON.
ORDER = (
    "reference", "compiled", "plain torch", "compiled plain", "GEMM", "faiss", "faiss tables", "one thread",
    "random codes", "float32", "without messages", "empty step",
)  # fmt: skip
RIVALS = ("reference", "plain torch", "faiss")
# The lines of the headline: description, suite, and the prefix of the case's name.
CHOSEN = (
    ("search, 8192 tokens, 1024 codes of 64 features", "nearest_code", "N=8192 K=1024 D=64"),
    ("VectorQuantize, training step of that size", "vector_quantize", "training N=8192 K=1024 D=64"),
    ("ResidualVQ, training step, 8 levels of 1024 codes", "residual", "training N="),
    ("FSQ, training step", "fsq", "FSQ training step"),
    ("LFQ, training step, 16 bits", "lookup_free", "training N=256 bits=16"),
    ("k-means to the same error", "kmeans", "mixture, D=64"),
)  # fmt: skip
SMALL = 64
NOT_MEASURED = "Not measured yet.\n"


def parts(documents: Documents, suites: tuple[str, ...], table: Write) -> dict[str, str]:
    """The text between each pair of markers; for a suite without results, a note."""
    found = {
        name: _section(documents[name], table) if name in documents else NOT_MEASURED
        for name in suites
    }
    found["remark"] = remark(documents)
    found["headline"] = headline(documents, table)
    found["runs"] = _runs(documents, table)
    found["targets"] = _targets(documents, table)
    return found


def remark(documents: Documents) -> str:
    """Caveats about the tables; empty if there are none."""
    machines = [document["machine"] for document in documents.values()]
    commits = {machine["commit"] for machine in machines}
    said = []
    if any(document["quick"] for document in documents.values()):
        said.append("Quick run: the numbers are noise.")
    if len(commits) > 1:
        said.append(f"The tables are of {len(commits)} commits.")
    if any(commit.endswith("-dirty") for commit in commits):
        said.append("Some are of trees with changes that no commit has.")
    if few := [n for n, document in documents.items() if rounds_of(document)[0] < LEAST_ROUNDS]:
        said.append(f"Fewer than {LEAST_ROUNDS} rounds were taken in {_names(few, documents)}.")
    if busy := [name for name, d in documents.items() if others_of(d) > IDLE_CORES]:
        said.append(f"The machine had other work in {_names(busy, documents)}.")
    if len({machine["cpu"] + machine["level"] for machine in machines}) > 1:
        said.append("They were taken on several processors.")
    return f"**Stale**: {' '.join(said)} `make bench` measures all of it anew.\n" if said else ""


def _names(names: list[str], documents: Documents) -> str:
    return "every suite" if len(names) == len(documents) else ", ".join(names)


def rounds_of(document: Document) -> tuple[int, int]:
    """The fewest and the most rounds of a case; a suite without timings counts as having enough."""
    taken = [time["rounds"] for case in document["cases"] for time in case["times"].values()]
    return (int(min(taken)), int(max(taken))) if taken else (LEAST_ROUNDS, LEAST_ROUNDS)


def others_of(document: Document) -> float:
    """Cores in use by other processes meanwhile; for old results without that count, the load minus one."""
    machine = document["machine"]
    return float(machine["others"]) if "others" in machine else max(0.0, machine["load"] - 1)


def headline(documents: Documents, table: Write) -> str:
    """The most important lines, and one sentence on where torchvq is slower."""
    rows = []
    every = [case for document in documents.values() for case in document["cases"]]
    rows.append([f"all {len(every)} cases, geometric mean", "1", *map(_times, _means(every))])
    for what, suite, begin in CHOSEN:
        cases = documents.get(suite, {}).get("cases", [])
        if case := next((case for case in cases if case["name"].startswith(begin)), None):
            times = case["times"]
            ratios = [times[who]["ratio"] if who in times else None for who in RIVALS]
            rows.append([what, duration(times["torchvq"]["seconds"]), *map(_times, ratios)])
    if "small_steps" in documents:
        rows.append(_small(documents["small_steps"]))
    if "memory" in documents:
        rows.append(_held(documents["memory"]))
    header = ["on one thread unless said", "torchvq", *(f"{who}, times" for who in RIVALS)]
    return table(header, rows) + "\n" + _slower(every) + _picture("summary")


def _small(document: Document) -> list[str]:
    cases = [case for case in document["cases"] if case["parameters"]["N"] == SMALL]
    cases = cases or document["cases"]
    seconds = statistics.median(case["times"]["torchvq"]["seconds"] for case in cases)
    what = f"small training steps of {len(cases)} classes, {cases[0]['parameters']['N']} tokens"
    return [what, duration(seconds), *map(_times, _means(cases))]


def _held(document: Document) -> list[str]:
    """Memory of the last case that was measured with the reference."""
    case = [case for case in document["cases"] if "reference" in case["checks"]["peak_bytes"]][-1]
    peaks, sizes = case["checks"]["peak_bytes"], case["parameters"]
    ours = max(peaks["torchvq"], 1)
    ratios = [peaks["reference"] / ours, peaks["plain torch"] / ours, None]
    what = f"memory of a training step, {sizes['N']} tokens, {sizes['K']} codes"
    return [what, f"{ours / MIB:.1f} MiB", *map(_times, ratios)]


def _slower(cases: list[dict[str, Any]]) -> str:
    """Cases in which another implementation of the same computation is faster."""
    rivals = (*RIVALS, "compiled plain", "faiss tables")
    pairs = [
        (case["times"][who]["ratio"], who, case["name"])
        for case in cases
        for who in rivals
        if who in case["times"]
    ]
    lost = sorted(pair for pair in pairs if pair[0] < 1)
    if not lost:
        return f"In none of {len(pairs)} comparisons is torchvq the slower one.\n\n"
    ratio, who, name = lost[0]
    return (
        f"torchvq is the slower one in {len(lost)} of {len(pairs)} comparisons, the most beside {who}, which takes "
        f"{ratio:.2f} times as long in *{name}*.\n\n"
    )


def _means(cases: list[dict[str, Any]]) -> list[float | None]:
    """Geometric mean of each rival over the cases that it has."""
    times = [case["times"] for case in cases]
    return [geometric_mean([time[who]["ratio"] for time in times if who in time]) for who in RIVALS]


def geometric_mean(values: list[float]) -> float | None:
    return math.exp(statistics.fmean(map(math.log, values))) if values else None


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.3g}"


def duration(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"


def _picture(name: str) -> str:
    return f"![Chart of the cases](../benchmarks/results/{name}.png)\n"


def _runs(documents: Documents, table: Write) -> str:
    rows = []
    for name, document in documents.items():
        machine, (fewest, most) = document["machine"], rounds_of(document)
        timed = any(case["times"] for case in document["cases"])
        rows.append(
            [
                name,
                str(len(document["cases"])),
                f"{fewest} to {most}" if timed else "",
                f"{others_of(document):.2f}",
                machine["commit"],
                machine["date"],
                f"{machine['cpu']}, {machine['cores']} cores, {machine['level']}",
                f"torch {machine['torch']}, faiss {machine['faiss']}, {document['clock']}",
            ]
        )
    header = ["suite", "cases", "rounds", "cores in use by others", "commit", "date", "processor"]
    return table([*header, "by"], rows)


def _targets(documents: Documents, table: Write) -> str:
    """A row for each kind of target, then the missed targets."""
    kinds: dict[tuple[str, float, bool], list[Target]] = {}
    for document in documents.values():
        for target in targets_of(document):
            kinds.setdefault((target.text, target.wanted, target.at_most), []).append(target)
    rows, missed = [], []
    for (text, wanted, at_most), targets in kinds.items():
        worst = (max if at_most else min)(targets, key=lambda target: target.measured)
        relation = f"{'at most' if at_most else 'at least'} {wanted:g}"
        met = sum(target.met for target in targets)
        cell = f"{met} of {len(targets)}" if met == len(targets) else f"**{met} of {len(targets)}**"
        rows.append([text, relation, cell, f"{worst.measured:.3g}", worst.case])
        missed += [[t.text, t.case, relation, f"{t.measured:.3g}"] for t in targets if not t.met]
    count = sum(len(targets) for targets in kinds.values())
    tables = [
        f"{count - len(missed)} of {count} are met.\n",
        table(["target", "wanted", "met", "worst", "in"], rows),
    ]
    if missed:
        tables += ["Those that are missed:\n", table(["target", "case", "wanted", "measured"], missed)]  # fmt: skip
    return "\n".join(tables)


def targets_of(document: Document) -> list[Target]:
    """All targets of a suite, or of the learning rows."""
    stored = [row for case in document.get("cases", []) for row in case["targets"]]
    stored += document.get("targets", [])
    return [Target(**{k: v for k, v in row.items() if k != "met"}) for row in stored]


def _section(document: Document, table: Write) -> str:
    own = {
        "memory": _memory,
        "kmeans": _kmeans,
        "small_calls": _small_calls,
        "residual": _residual,
        "lookup_free": _lookup_free,
        "several_ranks": _ranks,
        "growth": _growth,
    }
    return own.get(document["name"], _ratios)(document, table) + "\n" + _picture(document["name"])


def _with_quartiles(time: dict[str, float]) -> str:
    return f"{time['ratio']:.3g} ({time['ratio_low']:.3g} to {time['ratio_high']:.3g})"


def _ratios(document: Document, table: Write) -> str:
    """One row per case: ours in milliseconds, the others as multiples of it."""
    cases = document["cases"]
    names = [name for name in ORDER if any(name in case["times"] for case in cases)]
    rows = []
    for case in cases:
        times = case["times"]
        first = next(iter(times.values()))
        cells = [_with_quartiles(times[name]) if name in times else "" for name in names]
        rows.append([case["name"], f"{first['seconds'] * 1e3:.3g}", *cells])
    first_name = next(iter(cases[0]["times"]))
    return table(["case", f"{first_name}, ms", *(f"{name}, times" for name in names)], rows)


def _lookup_free(document: Document, table: Write) -> str:
    """The ratios; then the memory of one step."""
    names = ("torchvq", "plain torch", "reference")
    rows = []
    for case in document["cases"]:
        if peaks := case["checks"].get("peak_bytes"):
            cells = [f"{peaks[name] / MIB:.1f}" if name in peaks else "" for name in names]
            rows.append([case["name"], *cells])
    header = ["peak extra memory, MiB", *names]
    return "\n".join([_ratios(document, table), table(header, rows)])


def _kmeans(document: Document, table: Write) -> str:
    rows = []
    for case in document["cases"]:
        iterations, errors = case["checks"]["iterations"], case["checks"]["mean_squared_error"]
        rows.append(
            [
                case["name"],
                f"{case['times']['torchvq']['seconds']:.3g}",
                _with_quartiles(case["times"]["faiss"]),
                f"{iterations['torchvq']} and {iterations['faiss']}",
                f"{errors['torchvq']:.5g} and {errors['faiss']:.5g}",
            ]
        )
    header = ["case", "torchvq, s", "faiss, times", "iterations", "mean squared error"]
    return table(header, rows)


def _memory(document: Document, table: Write) -> str:
    """Searches and steps of one codebook; then a step of every class."""
    names = ("torchvq", "torchvq search", "faiss search", "plain torch", "reference")
    rows = []
    for case in document["cases"]:
        peaks, sizes = case["checks"]["peak_bytes"], case["parameters"]
        held = (sizes["tokens"] + sizes["codebook"]) / MIB
        cells = [f"{peaks[name] / MIB:.1f}" if name in peaks else "" for name in names]
        rows.append([case["name"], f"{held:.1f}", f"{sizes['matrix'] / MIB:.0f}", *cells])
    header = ["MiB", "tokens and codebook", "matrix N x K"]
    shown = ("training step", "search", "faiss, search", "plain torch, step", "reference, step")
    tables = [table([*header, *shown], rows)]
    if classes := document.get("classes"):
        who = ("torchvq", "plain torch", "reference")
        rows = [
            [name, *(f"{peaks[contender] / MIB:.1f}" for contender in who)]
            for name, peaks in classes["peaks"].items()
        ]
        tables.append(table([f"MiB, training step of {classes['tokens']} tokens", *who], rows))
    return "\n".join(tables)


def _residual(document: Document, table: Write) -> str:
    """The ratios; then the error of each search, and the memory of beam search."""
    rows = []
    for case in document["cases"]:
        errors = case["checks"].get("mean_squared_error")
        if errors and case["parameters"]["threads"] == 1:
            rows.append([case["name"], *(f"{errors[name]:.6g}" for name in ("torchvq", "faiss"))])
    peaks = document["peak_bytes"]
    held = [[name, f"{peak / MIB:.1f}"] for name, peak in peaks["peaks"].items()]
    tables = [
        _ratios(document, table),
        table(["error of the codes found", "torchvq", "faiss"], rows),
        table([f"peak extra memory, {peaks['case']}", "MiB"], held),
    ]
    return "\n".join(tables)


def _small_calls(document: Document, table: Write) -> str:
    names = ("torchvq", "plain torch", "reference")
    rows = []
    for case in document["cases"]:
        times = case["times"]
        cells = [duration(times[name]["seconds"]) if name in times else "" for name in names]
        rows.append([case["name"], *cells])
    return table(["case", *names], rows)


def _ranks(document: Document, table: Write) -> str:
    rows = [
        [case["name"], f"{case['checks']['collective_share']:.1%}"]
        for case in document["cases"]
        if case["parameters"]["ranks"] > 1
    ]
    tables = [
        _ratios(document, table),
        table(["share of a step of torchvq", "in collectives"], rows),
        _exponents(document, table),
    ]
    return "\n".join(tables)


def _growth(document: Document, table: Write) -> str:
    """The exponents first, because the cases are measured for them."""
    return "\n".join([_exponents(document, table), _ratios(document, table)])


def _exponents(document: Document, table: Write) -> str:
    found = document["exponents"]
    names = [n for n in ("torchvq", *ORDER) if any(n in row["exponents"] for row in found)]
    rows = [
        [
            row["what"],
            f"{row['axis']} from {row['values'][0]} to {row['values'][-1]}",
            *(f"{row['exponents'][n]:.2f}" if n in row["exponents"] else "" for n in names),
        ]
        for row in found
    ]
    return table(["exponent of the time", "in", *names], rows)
