"""Checks file sizes: warns above 500 lines, fails above 800."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LOOK_AGAIN = 500
TOO_LONG = 800
SUFFIXES = {".cpp", ".cu", ".h", ".py", ".sh", ".cmake"}


def source_files() -> list[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\n")
    return [path for path in map(Path, names) if path.suffix in SUFFIXES and path.is_file()]


def main() -> int:
    sizes = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in source_files()}
    too_long = 0
    for path, lines in sorted(sizes.items(), key=lambda item: -item[1]):
        if lines > TOO_LONG:
            print(f"  {path}: {lines} lines, over {TOO_LONG}; split it")
            too_long += 1
        elif lines > LOOK_AGAIN:
            print(f"  {path}: {lines} lines; can it be split?")
    if too_long == 0:
        print(f"  sizes: {len(sizes)} files, the longest of {max(sizes.values())} lines")
    return 1 if too_long else 0


if __name__ == "__main__":
    sys.exit(main())
