"""Pages of the repository that lie outside of docs/ and are shown on the site as they are, whole or some sections.

```{outside} ../README.md
Ten lines
Install
```

Their links are turned to where the site has what they lead to. On GitHub such a page shows the name of the file.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
# Where the site shows files and folders of the repository.
PAGES = {
    "README.md": "quickstart.md",
    "examples/README.md": "examples.md",
    "CHANGELOG.md": "changes.md",
    "HACKING.md": "hacking.md",
    "CONTRIBUTING.md": "contributing.md",
    "docs/papers.bib": "papers.md",
    "docs/design/": "index.md",
}
BLOCK = re.compile(r"^```\{outside\} (\S+)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)]*)?\)")


def sections(text: str, wanted: list[str]) -> str:
    """The parts below some headings of the second level, in the order in which they are wanted."""
    if not wanted:
        return text
    parts = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    return "".join(f"## {name}\n{parts[name]}" for name in wanted)


def turned(text: str, folder: str, page: Path) -> str:
    """Links of a file in a folder of the repository, as they are on a page of the site."""

    def link(found: re.Match[str]) -> str:
        path = os.path.normpath(os.path.join(folder, found[1]))
        path += "/" * found[1].endswith("/")
        anchor = found[2] or ""
        shown = PAGES.get(path)
        if shown is None and path.startswith("docs/"):
            shown = path.removeprefix("docs/")
        target = DOCS / shown if shown else ROOT / path
        if target.is_dir():
            target, anchor = DOCS / "examples.md", ""
        return f"]({os.path.relpath(target, page.parent)}{anchor})"

    return LINK.sub(link, text)


def _read(app: Sphinx, docname: str, source: list[str]) -> None:
    page = Path(app.env.doc2path(docname))

    def show(found: re.Match[str]) -> str:
        file = (page.parent / found[1]).resolve()
        app.env.note_dependency(str(file))
        wanted = [line for line in found[2].splitlines() if line.strip()]
        folder = str(file.parent.relative_to(ROOT))
        return turned(sections(file.read_text(), wanted), folder, page)

    source[0] = BLOCK.sub(show, source[0])
    # Pages of docs/ lead to files outside as well.
    own = str(page.parent.relative_to(ROOT))
    for path in PAGES:
        if os.path.relpath(ROOT / path, page.parent) in source[0]:
            source[0] = turned(source[0], own, page)
            break


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", _read)
    return {"version": "1", "parallel_read_safe": True}
