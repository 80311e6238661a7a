"""Fails if a link of the built site leads to a missing file or anchor.

python tools/check_site.py build/site
"""

from __future__ import annotations

import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links of a page, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name == "id" and value:
                self.places.add(value)
            elif name in ("href", "src") and value:
                self.links.append(value)


@cache
def page(path: Path) -> Page:
    return Page(path.read_text())


def broken(path: Path) -> list[str]:
    """Broken links of a page; links to other sites are not checked."""
    found = []
    for link in page(path).links:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        there = target.is_file()
        if there and parts.fragment and target.suffix == ".html":
            there = unquote(parts.fragment) in page(target).places
        if not there:
            found.append(link)
    return found


def main() -> None:
    site = Path(sys.argv[1]).resolve()
    pages = sorted(site.rglob("*.html"))
    if not pages:
        raise SystemExit(f"check_site: expected pages in {site}, but found none")
    wrong = [f"{path.relative_to(site)}: {link}" for path in pages for link in broken(path)]
    if wrong:
        raise SystemExit("check_site: links that lead nowhere:\n" + "\n".join(wrong))
    print(f"{len(pages)} pages, {sum(len(page(path).links) for path in pages)} links")


if __name__ == "__main__":
    main()
