"""The pages of the site and their code blocks, which the tests here run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from code_blocks import blocks_of  # noqa: E402

# On the site, but not in docs/.
OUTSIDE = ("README.md", "HACKING.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md")
# Fences that show text: output, drawings, and Sphinx directives.
NOT_CODE = ("", "text")


class Block(NamedTuple):
    """A block of code, the heading above it, and its position among the blocks of the page."""

    page: str
    heading: str
    language: str
    text: str
    place: int


def pages() -> list[str]:
    found = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
    return [*found, *OUTSIDE]


def blocks(page: str) -> Iterator[Block]:
    for place, (heading, language, text) in enumerate(blocks_of((ROOT / page).read_text())):
        if language not in NOT_CODE and not language.startswith("{"):
            yield Block(page, heading, language, text, place)


def all_blocks(*languages: str) -> list[Block]:
    return [block for page in pages() for block in blocks(page) if block.language in languages]
