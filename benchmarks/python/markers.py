"""Generated parts of pages, between markers."""

from __future__ import annotations

import re
from pathlib import Path


def fill(file: Path, tables: dict[str, str]) -> None:
    """Replaces the text between the markers of each table. Raises for a table without markers."""
    text = file.read_text()
    for name, table in tables.items():
        pattern = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
        if not pattern.search(text):
            raise ValueError(
                f"{file}: expected the markers <!-- begin {name} --> and end, but found none"
            )
        text = pattern.sub(lambda match, table=table: match[1] + table + match[2], text)
    file.write_text(text)
