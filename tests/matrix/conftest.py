"""Set-up of every matrix: one thread, and the cells of the tables in docs/matrices.md."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from cells import Cell


@pytest.fixture
def cell(record_property: Callable[[str, object], None]) -> Cell:
    """`cell(table, row, column, value)`: what `tools/matrix_tables.py` reads from the JUnit report of a run.

    A text stands as it is; of several numbers in one cell the largest does. Cells of a test that fails say so.
    Put them first in the test, so that a failure finds them.
    """

    def put(table: str, row: str, column: str, value: str | float = "yes") -> None:
        record_property("cell", json.dumps([table, row, column, value]))

    return put
