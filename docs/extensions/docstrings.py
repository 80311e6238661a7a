"""Docstrings of the package as Sphinx reads them: `Gradient: ...` paragraphs become fields, with what is below them.

Sections such as `Args:` are left to sphinx.ext.napoleon, which runs before.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

FIELD = re.compile(r"(?P<indent> *)(?P<name>[A-Z][\w -]{1,30}): (?P<text>\S.*)")


def fields(lines: list[str]) -> list[str]:
    """`Name: text` at the beginning of a paragraph is a field, and so are the paragraphs that follow it at once."""
    out: list[str] = []
    inside = ""
    for place, line in enumerate(lines):
        begins = place == 0 or not lines[place - 1].strip() or inside
        found = FIELD.fullmatch(line)
        if found and begins and (not inside or found["indent"] == inside[:-4]):
            inside = found["indent"] + "    "
            out.append(f"{found['indent']}:{found['name']}: {found['text']}")
        elif inside and line.strip() and not line.startswith(inside):
            # Text of the field that is not indented, to the end of its paragraph.
            if lines[place - 1].strip():
                out.append(inside + line.strip())
            else:
                inside = ""
                out.append(line)
        else:
            out.append(line)
    return out


def starred(line: str) -> str:
    """A line in which the `*` of a shape such as (B, *, dim) is no mark, and a page of docs/ a link."""
    if line.lstrip().startswith((">>>", "...")):
        return line
    parts = line.split("`")
    parts[::2] = [re.sub(r"(?<![*\\\w])\*(?!\*)", r"\\*", part) for part in parts[::2]]
    return re.sub(r"``docs/([\w/-]+)\.md``", r":doc:`/\1`", "`".join(parts))


def _process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = [starred(line) for line in fields(lines)]


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", _process, priority=900)
    return {"version": "1", "parallel_read_safe": True}
