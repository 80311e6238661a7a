"""The learning table in three pictures, for the top of docs/learning.md.

`run.py --write-docs` draws them beside the results: every row's difference from the reference, the codes in use in rows
without settings for it, and the recommended settings against k-means on all tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import learning_report as report
import learning_tasks_autoencoder as autoencoder
import matplotlib as mpl
from learning_report import Line
from learning_rows import OURS, REFERENCE, Row

mpl.use("Agg")
from charts import COLOURS
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

NAMES = {OURS: "torchvq", REFERENCE: "reference"}
SHADES = {"better": COLOURS["torchvq"], "alike": "#999999", "worse": COLOURS["reference"]}
# Offset of a library's dots from the middle of the line, so that equal values stay visible.
OFFSET = {OURS: -0.15, REFERENCE: 0.15}
# Rows without settings that affect the use of codes.
UNSET = (
    "VectorQuantize: defaults",
    "VectorQuantize: commitment 0.25",
    "VectorQuantize: no rotation trick",
    "VectorQuantize: cosine",
    "VectorQuantize: codebook_dim 8",
    "VectorQuantize: 4 heads",
    "ResidualVQ: defaults",
    "GroupedResidualVQ: defaults",
)


def draw(runs: list[dict[str, Any]], rows: Iterable[Row], folder: Path) -> None:
    """Writes learning_differences.png, learning_use.png and learning_recommended.png; empty tables give no picture."""
    table = report.lines(runs, rows, [])
    images = [line for line in table if line.row.task == autoencoder.TASK]
    streams = [line for line in table if line.yardstick and line.metric is report.ERROR]
    if images and streams:
        _save(_differences(images, streams), folder / "learning_differences.png")
    unset = [line for line in images if line.row.name in UNSET]
    if unset:
        _save(_use(unset), folder / "learning_use.png")
    best = [line for line in streams if line.row.recommended]
    if best:
        plain = {line.row.family: line for line in streams if line.row.name.endswith(": defaults")}
        _save(_recommended(best, plain), folder / "learning_recommended.png")


def _save(figure: Figure, file: Path) -> None:
    # Without metadata that changes, equal results give equal files.
    figure.savefig(file, dpi=130, bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)


def _differences(images: list[Line], streams: list[Line]) -> Figure:
    """Rows in the order of their difference, with twice its standard error; right of zero, torchvq learns better."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4.2))
    _sorted(left, images, "PSNR in the autoencoder, ours less the reference's, dB", (-1, 3))
    _sorted(right, streams, "error without a network, the reference's less ours, %", (-3, 50))
    ticks = (-2, -1, 0, 1, 2, 5, 10, 20, 50)
    right.set_xscale("symlog", linthresh=2)
    right.set_xticks(ticks, [str(tick) for tick in ticks])
    handles = [
        plt.Line2D([], [], color=shade, marker="o", markersize=3, label=verdict)
        for verdict, shade in SHADES.items()
    ]
    left.legend(handles=handles, fontsize=7, loc="lower right", frameon=False)
    return figure


def _sorted(axes: Axes, lines: list[Line], label: str, limits: tuple[float, float]) -> None:
    known = [(line, found) for line in lines if (found := line.difference) is not None]
    known.sort(key=lambda pair: pair[1].metric.sign * pair[1].mean)
    for place, (line, found) in enumerate(known):
        gain = found.metric.sign * found.mean
        error = 2 * found.error if found.seeds > 1 else 0
        shade = SHADES.get(line.verdict.split()[0], "black")
        shown = min(max(gain, limits[0]), limits[1])
        axes.errorbar(shown, place, xerr=error, color=shade, fmt="o", markersize=2.5, linewidth=0.8)
        if shown != gain:
            axes.text(shown, place - 1.5, f"{gain:+.1f}", fontsize=6, ha="right", va="center")
    if known:
        # The region of a difference worse than allowed, whatever its standard error.
        allowed = -known[0][1].metric.allowed
        axes.axvspan(limits[0], allowed, color=COLOURS["reference"], alpha=0.08, linewidth=0)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xlim(limits)
    axes.set_xlabel(label, fontsize=8)
    axes.set_ylabel(f"{len(known)} rows, the worst first", fontsize=8)
    axes.set_yticks([])
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)


def _use(lines: list[Line]) -> Figure:
    """Share of the codes in use on unseen images; for stacks, of the first level."""
    figure, axes = _pairs(lines, [[line.mean(who, "use") for line in lines] for who in NAMES])
    axes.set_xlim(0, 1.08)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    axes.set_xlabel("codes in use after 300 steps of the autoencoder", fontsize=8)
    return figure


def _recommended(lines: list[Line], plain: dict[str, Line]) -> Figure:
    """Error over that of faiss on all tokens at once; hollow dots for the defaults, if a family has that row."""
    values = [[line.over_yardstick(who) for line in lines] for who in NAMES]
    figure, axes = _pairs(lines, values)
    for who, name in NAMES.items():
        for place, line in enumerate(lines):
            own = plain.get(line.row.family)
            if own is not None and (value := own.over_yardstick(who)):
                axes.scatter(
                    value, place + OFFSET[who], 26, facecolors="none", edgecolors=COLOURS[name]
                )
    axes.scatter([], [], 26, facecolors="none", edgecolors="black", label="defaults")
    axes.legend(fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    ticks = (1, 1.05, 1.1, 1.2, 1.3, 1.4, 1.5, 1.75, 2)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("error over that of faiss on all tokens at once", fontsize=8)
    return figure


def _pairs(lines: list[Line], values: list[list[float | None]]) -> tuple[Figure, Axes]:
    """A line for each row, with a dot for each library."""
    figure, axes = plt.subplots(figsize=(9, 0.6 + 0.24 * len(lines)))
    places = range(len(lines))
    for (who, name), side in zip(NAMES.items(), values, strict=True):
        known = [(value, place) for value, place in zip(side, places, strict=True) if value]
        heights = [place + OFFSET[who] for _, place in known]
        axes.scatter([value for value, _ in known], heights, 26, COLOURS[name], label=name)
    axes.set_yticks(places, [_called(line) for line in lines], fontsize=7)
    axes.invert_yaxis()
    axes.tick_params(labelsize=7)
    axes.grid(color="#eeeeee")
    axes.set_axisbelow(True)
    axes.legend(fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _called(line: Line) -> str:
    if line.row.task == autoencoder.TASK:
        return line.row.name
    return f"{line.row.task}: {line.row.family}"
