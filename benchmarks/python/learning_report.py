"""The learning table as text: ours minus the reference seed by seed, and whether the recommended settings are the best.

A pair is two runs of one seed. A row is *worse* if its mean paired difference is on the wrong side by more than twice
its standard error, or by more than 0.1 dB or 1 % of the error, or both: the verdict says which.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from learning_rows import OURS, REFERENCE, YARDSTICK, Row

Run = dict[str, Any]
ERRORS = 2.0
# Differences below this share of the allowed one are rounding of sums in another order.
ROUNDING = 0.01


@dataclass(frozen=True)
class Metric:
    """The measure of a task. Differences are given in `unit`; `sign` says which way is better."""

    key: str
    unit: str
    sign: int
    allowed: float
    form: str

    def difference(self, ours: float, reference: float) -> float:
        return 100 * (ours / reference - 1) if self.unit == "%" else ours - reference


ERROR = Metric("error", "%", -1, 1.0, "{:.5f}")
METRICS = {
    "autoencoder": Metric("psnr", "dB", 1, 0.1, "{:.2f}"),
    "mixture": Metric("decibels", "dB", 1, 0.1, "{:.2f}"),
    "disturbance": Metric("recovery", "steps", -1, 1.0, "{:.1f}"),
}


def metric_of(task: str) -> Metric:
    return METRICS.get(task, ERROR)


@dataclass(frozen=True)
class Difference:
    """Mean over the seeds of the paired differences, and its standard error."""

    mean: float
    error: float
    seeds: int
    metric: Metric

    @property
    def worse(self) -> list[str]:
        """The reasons why it is worse; empty if it is not."""
        loss = -self.metric.sign * self.mean
        found = []
        if self._beyond_noise(loss):
            found.append("2 s.e.")
        if loss > self.metric.allowed:
            found.append(f"{self.metric.allowed:g} {self.metric.unit}")
        return found

    def _beyond_noise(self, amount: float) -> bool:
        small = ROUNDING * self.metric.allowed
        return self.seeds > 1 and amount > max(ERRORS * self.error, small)

    @property
    def verdict(self) -> str:
        if self.worse:
            return f"worse ({' and '.join(self.worse)})"
        gain = self.metric.sign * self.mean
        # One seed has no standard error.
        better = gain > self.metric.allowed if self.seeds == 1 else self._beyond_noise(gain)
        return "better" if better else "alike"

    def __str__(self) -> str:
        error = f" ± {self.error:.2g}" if self.seeds > 1 else ""
        return f"{self.mean:+.3g}{error}"


def difference(first: dict[int, Run], second: dict[int, Run], metric: Metric) -> Difference | None:
    """The paired difference over the seeds that both have."""
    values = [
        metric.difference(first[seed][metric.key], second[seed][metric.key])
        for seed in sorted(first.keys() & second.keys())
    ]
    if not values:
        return None
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return Difference(statistics.mean(values), error, len(values), metric)


@dataclass
class Line:
    """A row with its runs by seed, and faiss's error if the task has one."""

    row: Row
    ours: dict[int, Run]
    reference: dict[int, Run]
    yardstick: float | None
    failed: list[str] = field(default_factory=list)

    @property
    def metric(self) -> Metric:
        return metric_of(self.row.task)

    @property
    def difference(self) -> Difference | None:
        return difference(self.ours, self.reference, self.metric)

    @property
    def verdict(self) -> str:
        if self.failed:
            return self.failed[0]
        found = self.difference
        return found.verdict if found else ""

    def mean(self, who: str, key: str = "") -> float | None:
        """Mean over the paired seeds, if there are any: some seeds may have run in one library only."""
        runs, others = self.ours, self.reference
        if who != OURS:
            runs, others = others, runs
        seeds = runs.keys() & others.keys() or runs.keys()
        wanted = key or self.metric.key
        values = [runs[seed][wanted] for seed in sorted(seeds) if wanted in runs[seed]]
        return statistics.mean(values) if values else None

    def over_yardstick(self, who: str) -> float | None:
        error = self.mean(who, "error")
        return error / self.yardstick if error and self.yardstick else None


def lines(runs: list[Run], rows: Iterable[Row], baseline: list[Run]) -> list[Line]:
    """The rows that have runs of ours; runs of the reference and of faiss may come from the baseline."""
    found: dict[tuple[str, str, str], dict[int, Run]] = {}
    # Later runs replace earlier ones, so runs made here replace those of the baseline.
    for run in [run for run in baseline if run["who"] != OURS] + runs:
        found.setdefault((run["task"], run["row"], run["who"]), {})[run["seed"]] = run
    # Runs are compared with the yardstick of their machine, or with the latest one.
    yardsticks: dict[tuple[str, str | None], float | None] = {}
    for run in [run for run in baseline + runs if run["who"] == YARDSTICK]:
        for machine in (machine_of(run), None):
            yardsticks[run["yardstick"], machine] = run.get("error")
    result = []
    for row in rows:
        ours = found.get((row.task, row.name, OURS), {})
        theirs = found.get((row.task, row.against or row.name, REFERENCE), {})
        failed = [
            f"{run['who']}, seed {run['seed']}: {run.get('failed', 'not finite')}"
            for run in [*ours.values(), *theirs.values()]
            if not run["finite"]
        ]
        line = Line(row, _good(ours), _good(theirs), None, failed)
        for run in ours.values():
            name = run.get("yardstick", "")
            known = (name, machine_of(run)) in yardsticks
            line.yardstick = yardsticks.get((name, machine_of(run) if known else None))
        if ours or (theirs and not row.against):
            result.append(line)
    return result


def machine_of(run: Run) -> str:
    """The processor of a run, empty if it is the whole table's. Embeddings are trained, so they differ by machine."""
    return str(run.get("machine", {}).get("cpu", ""))


def _good(runs: dict[int, Run]) -> dict[int, Run]:
    return {seed: run for seed, run in runs.items() if run["finite"]}


@dataclass(frozen=True)
class Family:
    """The recommended settings against the best row of their family, of either library."""

    task: str
    name: str
    best: str
    lead: Difference | None

    @property
    def verdict(self) -> str:
        if self.lead is None:
            return "the best"
        return "behind" if self.lead.worse else "within noise"


def families(table: list[Line]) -> list[Family]:
    result = []
    for line in table:
        if not line.row.recommended or not line.ours:
            continue
        # Bad codes recover quickly to a bad error, so a disturbance is judged by its error as well.
        metric = ERROR if line.row.task == "disturbance" else line.metric
        rivals: list[tuple[str, dict[int, Run]]] = []
        for other in table:
            if (other.row.task, other.row.family) == (line.row.task, line.row.family):
                if other is not line:
                    rivals.append((f"{other.row.name}, {OURS}", other.ours))
                if not other.row.against:
                    rivals.append((f"{other.row.name}, {REFERENCE}", other.reference))
        leads = [(name, difference(line.ours, runs, metric)) for name, runs in rivals]
        ranked = [(name, lead) for name, lead in leads if lead is not None]
        if not ranked:
            continue
        name, lead = min(ranked, key=lambda pair: metric.sign * pair[1].mean)
        first = metric.sign * lead.mean >= 0
        result.append(Family(line.row.task, line.row.family, name, None if first else lead))
    return result


def task_table(table: list[Line], task: str) -> tuple[list[str], list[list[str]]]:
    """Header and cells of one task's rows."""
    chosen = [line for line in table if line.row.task == task]
    metric = metric_of(task)
    value = "PSNR, dB" if metric.key == "psnr" else metric.key
    header = ["row", f"{value}, ours", "reference", f"ours less reference, {metric.unit}", "pairs"]
    measured = any(line.yardstick for line in chosen)
    if measured:
        header += ["over faiss, ours", "reference"]
    header += ["use, ours", "reference", "perplexity, ours", "reference"]
    header += ["replaced, ours", "reference", "verdict"]
    return header, [_cells(line, measured) for line in chosen]


def _cells(line: Line, measured: bool) -> list[str]:
    found = line.difference
    sides = (OURS, REFERENCE)
    cells = [line.row.name]
    cells += [number(line.mean(who), line.metric.form) for who in sides]
    cells += [str(found), str(found.seeds)] if found else ["", ""]
    if measured:
        cells += [number(line.over_yardstick(who), "{:.3f}") for who in sides]
    cells += [_use(line, who) for who in sides]
    cells += [number(line.mean(who, "perplexity"), "{:.0f}") for who in sides]
    cells += [number(line.mean(who, "replaced"), "{:.2%}") for who in sides]
    return [*cells, line.verdict]


def _use(line: Line, who: str) -> str:
    """Use of the first level, and of the last if there are several."""
    parts = [line.mean(who, key) for key in ("use", "use_last")]
    return ", ".join(f"{part:.1%}" for part in parts if part is not None)


def number(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def family_table(found: list[Family]) -> tuple[list[str], list[list[str]]]:
    header = ["task", "family", "best other row", "recommended less best", "verdict"]
    cells = [
        [
            family.task,
            family.name,
            family.best,
            f"{family.lead} {family.lead.metric.unit}" if family.lead else "",
            family.verdict,
        ]
        for family in found
    ]
    return header, cells


def tasks_of(table: list[Line]) -> list[str]:
    return list(dict.fromkeys(line.row.task for line in table))


def verdicts(table: list[Line]) -> str:
    """How many rows are worse, alike, better."""
    counts: dict[str, int] = {}
    for line in table:
        if line.verdict:
            kind = "failed" if line.failed else line.verdict.split()[0]
            counts[kind] = counts.get(kind, 0) + 1
    return ", ".join(
        f"{counts[kind]} {kind}"
        for kind in ("better", "alike", "worse", "failed")
        if kind in counts
    )


def beyond(bound: float, freedom: int) -> float:
    """The chance that Student's t is above the bound: Simpson's rule over its angle, tan = t / sqrt(freedom)."""
    steps, start = 1000, math.atan(bound / math.sqrt(freedom))
    width = (math.pi / 2 - start) / steps
    # In the angle, the density is a power of its cosine.
    heights = [math.cos(start + i * width) ** (freedom - 1) for i in range(steps + 1)]
    area = sum((4 if i % 2 else 2) * height for i, height in enumerate(heights[1:-1], 1))
    area = (area + heights[0] + heights[-1]) * width / 3
    scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(math.pi) / 2
    return area * math.exp(scale)


def chance(table: list[Line]) -> str:
    """How many rows are worse by their error, and how many would be if all rows that are not better were alike."""
    found = [
        line.difference
        for line in table
        # Without rows that borrow the reference's runs from another row, which would then count twice.
        if line.verdict != "better" and not line.row.against and line.difference is not None
    ]
    found = [one for one in found if one.seeds > 1]
    expected = sum(beyond(ERRORS, one.seeds - 1) for one in found)
    worse = sum("2 s.e." in one.worse for one in found)
    return (
        f"Of the {len(found)} rows that are not better, {worse} are worse by twice their error; chance alone would put "
        f"{expected:.1f} there."
    )


def text(runs: list[Run], rows: Iterable[Row], baseline: list[Run]) -> str:
    """The whole table for a terminal."""
    table = lines(runs, rows, baseline)
    parts = []
    for task in tasks_of(table):
        own = [line for line in table if line.row.task == task]
        parts.append(f"{task}: {verdicts(own)}\n" + _aligned(*task_table(table, task)))
    parts.append("recommended settings\n" + _aligned(*family_table(families(table))))
    return "\n\n".join(parts)


def _aligned(header: list[str], cells: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in [header, *cells]
    )
