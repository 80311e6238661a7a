"""The learning table as parts of docs/learning.md and docs/choosing.md, each between the markers of its name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import learning_report as report
import learning_tasks_stream as stream
from learning_report import Line
from learning_rows import OURS, REFERENCE, Row

Parts = dict[str, str]
# Formats a header and rows as Markdown.
Write = Callable[[list[str], list[list[str]]], str]
CHOOSING = ("VectorQuantize", "VectorQuantize, cosine")


def tables(
    runs: list[dict[str, Any]], rows: Iterable[Row], machine: str, write: Write
) -> tuple[Parts, Parts]:
    """The tables of learning.md (`learning_table_<task>`, and four over all tasks), and the one of choosing.md."""
    table = report.lines(runs, rows, [])
    learning = {
        f"learning_table_{task.replace(' ', '_')}": write(*report.task_table(table, task))
        for task in report.tasks_of(table)
    }
    learning["learning_table_recommended"] = write(*report.family_table(report.families(table)))
    learning["learning_table_verdicts"] = write(*_verdicts(table))
    learning["learning_table_chance"] = report.chance(table) + "\n"
    learning["learning_table_machine"] = machine
    return learning, {"choosing_vector_quantize": _choosing(table, write)}


def _verdicts(table: list[Line]) -> tuple[list[str], list[list[str]]]:
    header = ["task", "rows", "better, alike or worse"]
    cells = []
    for task in report.tasks_of(table):
        own = [line for line in table if line.row.task == task]
        cells.append([task, str(len(own)), report.verdicts(own)])
    return header, cells


def _choosing(table: list[Line], write: Write) -> str:
    """The autoencoder with one codebook; then decay and threshold on a stream, by the size of its batches."""
    parts = []
    images = [line for line in table if line.row.family in CHOOSING]
    if images:
        cells = [
            [
                line.row.name.split(": ")[1],
                who,
                report.number(line.mean(who), "{:.2f}"),
                report.number(line.mean(who, "use"), "{:.1%}"),
                report.number(line.mean(who, "replaced"), "{:.2%}"),
            ]
            for line in images
            for who in (OURS, REFERENCE)
            if line.mean(who) is not None
        ]
        header = ["autoencoder", "library", "PSNR, dB", "use", "replaced per step"]
        parts.append(write(header, cells))
    patches = [
        line
        for line in table
        if line.row.task == stream.STREAM and line.row.setting["data"] == "patches"
    ]
    if patches:
        parts.append(write(*_by_ratio(patches, "codes replaced per step", _replaced)))
        parts.append(write(*_by_ratio(patches, "error over k-means", _over)))
    return "\n".join(parts)


def _replaced(line: Line, who: str) -> str:
    return report.number(line.mean(who, "replaced"), "{:.2%}")


def _over(line: Line, who: str) -> str:
    return report.number(line.over_yardstick(who), "{:.2f}")


def _by_ratio(
    patches: list[Line], heading: str, value: Callable[[Line, str], str]
) -> tuple[list[str], list[list[str]]]:
    """Settings that ran at every usual ratio of batch to codebook, one column per ratio."""
    found: dict[tuple[str, str], dict[float, str]] = {}
    for line in patches:
        ratio = line.row.setting["batch"] / line.row.setting["codes"]
        name = line.row.name.split(": ")[1]
        for who in (OURS, REFERENCE):
            if ratio in stream.RATIOS and (text := value(line, who)):
                found.setdefault((name, who), {})[ratio] = text
    ratios = sorted({ratio for values in found.values() for ratio in values})
    header = [heading, "library", *(f"batch/codebook {ratio:g}" for ratio in ratios)]
    cells = [
        [*names, *(values[ratio] for ratio in ratios)]
        for names, values in found.items()
        if len(values) == len(ratios)
    ]
    return header, cells
