"""Prints the C++ files that differ from the main branch; on the main branch, from the commit before.

``changed_sources.py`` prints the files, one a line; with ``--reached FOLDER...`` the sources of these folders that
changed or include, however indirectly, a header that did.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SUFFIXES = (".cpp", ".h")
INCLUDE = re.compile(r'^#include [<"]([^">]+)[">]', re.MULTILINE)
# Folders that are searched for includes, besides the folder of the file.
ROOTS = (Path("include"), Path("src"), Path("cli"), Path("tests/cpp"))
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


def git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], capture_output=True, text=True, check=False
    ).stdout.strip()


def base() -> str:
    head = git("rev-parse", "HEAD")
    for branch in ("origin/main", "main"):
        merge_base = git("merge-base", "HEAD", branch)
        if merge_base not in ("", head):
            return merge_base
    return git("rev-parse", "--quiet", "--verify", "HEAD~1") or EMPTY_TREE


def changed() -> set[Path]:
    names = (
        git("diff", "--name-only", base())
        + "\n"
        + git("ls-files", "--others", "--exclude-standard")
    )
    return {Path(name) for name in names.splitlines() if name.endswith(SUFFIXES)}


def included(path: Path) -> set[Path]:
    """The files of the tree that a file includes directly."""
    names = INCLUDE.findall(path.read_text(encoding="utf-8"))
    places = [(path.parent / name, *(root / name for root in ROOTS)) for name in names]
    return {place for candidates in places for place in candidates if place.is_file()}


def reached(folders: list[str]) -> set[Path]:
    files = {
        path
        for root in {*ROOTS, *map(Path, folders)}
        for path in root.rglob("*")
        if path.suffix in SUFFIXES
    }
    includes = {path: included(path) for path in files}
    found = changed()
    before: set[Path] = set()
    while found != before:
        before = found
        found = before | {path for path, others in includes.items() if others & before}
    return {
        path
        for path in found
        if path.suffix == ".cpp" and path.parts[0] in {Path(f).parts[0] for f in folders}
    }


def main(arguments: list[str]) -> int:
    paths = reached(arguments[1:]) if arguments[:1] == ["--reached"] else changed()
    for path in sorted(paths):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
