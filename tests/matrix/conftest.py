"""Set-up of every matrix: the cells of the tables in docs/matrices.md."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from cells import Cell


@pytest.fixture
def cell(record_property: Callable[[str, object], None]) -> Cell:
    """`cell(table, row, column, value)` records a cell, which `tools/matrix_tables.py` reads from the JUnit report.

    Text is shown as it is; of several numbers in one cell, the largest is shown. Cells of a failed test are marked.
    Record cells first in a test, so that they are in the report if it fails.
    """

    def put(table: str, row: str, column: str, value: str | float = "yes") -> None:
        record_property("cell", json.dumps([table, row, column, value]))

    return put
