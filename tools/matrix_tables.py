"""Writes the tables of docs/matrices.md from a JUnit report of the matrices, so that no cell is typed.

pytest tests/matrix tests/distributed/test_matrix_wrappers.py --junitxml build/matrix.xml
python tools/matrix_tables.py build/matrix.xml
"""

from __future__ import annotations

import argparse
import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from pathlib import Path

FAILS = "**fails**"
Tables = dict[str, dict[str, dict[str, "str | float"]]]


def read(reports: list[Path]) -> Tables:
    """Cells of all tests, by table, row and column."""
    tables: Tables = {}
    cases = [case for report in reports for case in ElementTree.parse(report).iter("testcase")]
    for case in cases:
        failed = case.find("failure") is not None or case.find("error") is not None
        for found in case.iter("property"):
            if found.get("name") != "cell":
                continue
            table, row, column, value = json.loads(found.get("value", ""))
            cells = tables.setdefault(table, {}).setdefault(row, {})
            cells[column] = _merged(cells.get(column), FAILS if failed else value)
    return tables


def _merged(before: str | float | None, value: str | float) -> str | float:
    if before is None or before == value or value == FAILS:
        return value
    if before == FAILS:
        return before
    if isinstance(before, str) or isinstance(value, str):
        raise ValueError(
            f"matrix_tables: expected one value for a cell, but got {before!r}, {value!r}"
        )
    return max(before, value)


def table(rows: dict[str, dict[str, str | float]], before: str = "") -> str:
    """The table in Markdown. Rows and columns keep their previous order, because parallel runs report in any order."""
    columns = _in_order((column for cells in rows.values() for column in cells), _cells(before, 0))
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for row in _in_order(rows, [_cells(before, at)[0] for at in range(2, before.count("\n"))]):
        values = [_text(rows[row].get(column, "-")) for column in columns]
        lines.append(f"| {row} | " + " | ".join(values) + " |")
    return "\n".join(lines) + "\n"


def _cells(text: str, line: int) -> list[str]:
    """The cells of one line of a table."""
    return [cell.strip() for cell in text.split("\n")[line].strip("|").split("|")]


def _in_order(names: Iterable[str], before: list[str]) -> list[str]:
    places = {name: place for place, name in enumerate(before)}
    return sorted(dict.fromkeys(names), key=lambda name: places.get(name, len(places)))


def _text(value: str | float) -> str:
    return (
        value
        if isinstance(value, str)
        else f"{value:.1e}"
        if 0 < abs(value) < 0.01
        else f"{value:.3g}"
    )


def fill(page: Path, tables: Tables) -> None:
    """Replaces the text between `<!-- begin NAME -->` and `<!-- end NAME -->`."""
    text = page.read_text()
    for name, rows in tables.items():
        pattern = re.compile(rf"(<!-- begin {name} -->\n)(.*?)(<!-- end {name} -->)", re.DOTALL)
        found = pattern.search(text)
        if not found:
            raise ValueError(f"{page}: expected the markers of table {name}, but found none")
        made = table(rows, found[2])
        text = text[: found.start(2)] + made + text[found.end(2) :]
    page.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("reports", type=Path, nargs="+", help="JUnit XML of runs of the matrices")
    parser.add_argument(
        "--page", type=Path, default=Path(__file__).parent.parent / "docs" / "matrices.md"
    )
    options = parser.parse_args()
    fill(options.page, read(options.reports))


if __name__ == "__main__":
    main()
