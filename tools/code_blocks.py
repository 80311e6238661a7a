"""Prints the code blocks of one language below a heading of a Markdown file, so that tests run what a page shows.

python tools/code_blocks.py README.md "Command line" console
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path


def blocks_of(page: str) -> Iterator[tuple[str, str, str]]:
    """Heading, language and content of each code block, in the order of the page."""
    heading, language, lines = "", None, list[str]()
    for line in page.splitlines(keepends=True):
        if language is None and line.startswith("```"):
            language, lines = line[3:].strip(), []
        elif line.startswith("```"):
            yield heading, language or "", "".join(lines)
            language = None
        elif language is not None:
            lines.append(line)
        elif found := re.match(r"#+ +(.+)", line):
            heading = found[1]


def code_blocks(page: str, heading: str, language: str) -> list[str]:
    """The blocks of a language directly below a heading, at any level."""
    blocks = [text for head, lang, text in blocks_of(page) if (head, lang) == (heading, language)]
    if not blocks:
        raise SystemExit(f"code_blocks: expected {language} below `{heading}`, but found none")
    return blocks


if __name__ == "__main__":
    file, heading, language = sys.argv[1:]
    print("\n".join(code_blocks(Path(file).read_text(), heading, language)), end="")
