"""One chart per suite, drawn from its JSON: time or memory of the others as a multiple of torchvq's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

# Distinguishable in print and by colour-blind readers (Okabe and Ito).
COLOURS = {
    "torchvq": "#0072B2",
    "torchvq search": "#56B4E9",
    "reference": "#D55E00",
    "faiss": "#009E73",
    "faiss search": "#009E73",
    "faiss tables": "#8DC63F",
    "plain torch": "#E69F00",
    "compiled": "#CC79A7",
    "compiled plain": "#999999",
    "random codes": "#56B4E9",
    "float32": "#56B4E9",
    "without messages": "#56B4E9",
    "GEMM": "#CC79A7",
    "one thread": "#0072B2",
}
# Not drawn: a case of another size, the divisor of the ratios, and what bounds them.
LEFT_OUT = ("square GEMM", "two threads", "empty step")
BAR = 0.8


def draw(document: dict[str, Any], file: Path) -> None:
    """Draws the results of one suite."""
    rows = [(case["name"], _values(case)) for case in document["cases"]]
    names = [name for name in COLOURS if any(name in values for _, values in rows)]
    figure, axes = plt.subplots(figsize=(9, 1.2 + 0.17 * len(rows) * (len(names) + 1)))
    width = BAR / len(names)
    for i, name in enumerate(names):
        places = [place for place, (_, values) in enumerate(rows) if name in values]
        values = [rows[place][1][name] for place in places]
        heights = [place - BAR / 2 + (i + 0.5) * width for place in places]
        axes.barh(heights, values, width, color=COLOURS[name], label=name)
        for height, value in zip(heights, values, strict=True):
            axes.text(value, height, f" {value:.3g}", va="center", fontsize=6)
    axes.set_yticks(range(len(rows)), [name for name, _ in rows], fontsize=7)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.margins(x=0.08, y=0.01)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel(_label(document), fontsize=8)
    axes.set_title(_title(document), fontsize=9)
    axes.legend(fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.05), ncols=6, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    # Without metadata that changes, equal results give equal files.
    figure.savefig(file, dpi=130, bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)


# In the summary, only implementations of the same computation as torchvq.
RIVALS = ("reference", "plain torch", "compiled plain", "faiss", "faiss tables")


def draw_summary(documents: dict[str, dict[str, Any]], folder: Path) -> None:
    """`summary.png`: every case of every suite as a point, by who is compared."""
    shown = [name for name, document in documents.items() if _points(document)]
    if not shown:
        return
    figure, axes = plt.subplots(figsize=(9, 1.4 + 0.42 * len(shown)))
    for i, rival in enumerate(RIVALS):
        shift = (i - (len(RIVALS) - 1) / 2) * 0.15
        points = [
            (ratio, place + shift)
            for place, name in enumerate(shown)
            for who, ratio in _points(documents[name])
            if who == rival
        ]
        if points:
            x, y = zip(*points, strict=True)
            axes.scatter(x, y, s=16, alpha=0.75, color=COLOURS[rival], label=rival, linewidths=0)
    axes.set_yticks(range(len(shown)), shown, fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.grid(axis="x", linewidth=0.3)
    axes.set_xlabel(
        "time over that of torchvq (logarithmic; right of the line: slower than torchvq)",
        fontsize=8,
    )
    axes.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=5, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(
        folder / "summary.png", dpi=130, bbox_inches="tight", metadata={"Software": None}
    )
    plt.close(figure)


def _points(document: dict[str, Any]) -> list[tuple[str, float]]:
    return [
        (who, time["ratio"])
        for case in document["cases"]
        for who, time in case["times"].items()
        if who in RIVALS
    ]


def _values(case: dict[str, Any]) -> dict[str, float]:
    if case["times"]:
        return {name: time["ratio"] for name, time in case["times"].items() if name not in LEFT_OUT}
    held = case["parameters"]["tokens"] + case["parameters"]["codebook"]
    # Extra memory may be 0, if a process reuses what it has; the logarithmic axis shows that as 0.001.
    return {name: max(peak / held, 1e-3) for name, peak in case["checks"]["peak_bytes"].items()}


def _label(document: dict[str, Any]) -> str:
    if document["name"] == "memory":
        return "peak extra memory over the size of tokens and codebook (logarithmic)"
    if document["name"] == "threads":
        return "time on one thread over time on two"
    return "time over that of torchvq (logarithmic; right of 1: slower than torchvq)"


def _title(document: dict[str, Any]) -> str:
    machine = document["machine"]
    quick = ", QUICK: only noise" if document["quick"] else ""
    return f"{document['name']}: {machine['cpu']}, {machine['cores']} cores, {machine['commit']}{quick}"
