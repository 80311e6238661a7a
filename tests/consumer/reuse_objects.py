"""Compiler launcher of a project that has the checkout as a subdirectory: objects of the library come from build/.

    reuse_objects.py BUILD INSIDE COMPILER ARGUMENT...

BUILD is the tree of `make build`, INSIDE the folder where the project builds the same library. A command for a file in
INSIDE must be, but for that folder, one of BUILD's: then its object is the same too, and is copied. Anything else is an
error that names the difference. Files of the project itself are compiled, and those by which CMake tries the compiler.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from pathlib import Path

# What Ninja adds for itself: dependencies of a file, which compile_commands.json leaves out.
DEPENDENCIES = {"-MD": 1, "-MT": 2, "-MF": 2}


def without_dependencies(command: list[str]) -> tuple[list[str], str | None]:
    """The command as compile_commands.json has it, and the file that is to hold dependencies."""
    kept, depfile, at = [], None, 0
    while at < len(command):
        if command[at] == "-MF":
            depfile = command[at + 1]
        words = DEPENDENCIES.get(command[at], 0)
        kept += [] if words else [command[at]]
        at += max(words, 1)
    return kept, depfile


def output(command: list[str]) -> str:
    return command[command.index("-o") + 1]


def commands(build: Path) -> dict[str, list[str]]:
    """Commands of a tree by their output."""
    entries = json.loads((build / "compile_commands.json").read_text())
    split = [shlex.split(entry["command"]) for entry in entries]
    return {output(command): command for command in split}


def as_in(build: Path, inside: Path, command: list[str]) -> list[str]:
    """The command with the names that the files of `inside` have in `build`."""
    here = os.path.relpath(inside) + "/"
    at = command.index("-o") + 1
    moved = [*command[:at], command[at].removeprefix(here), *command[at + 1 :]]
    return [word.replace(str(inside), str(build)) for word in moved]


def main() -> None:
    build, inside = (Path(folder).resolve() for folder in sys.argv[1:3])
    command, depfile = without_dependencies(sys.argv[3:])
    target = output(command)
    # CMake tries the compiler from within the folder, the build compiles from above it.
    probe = Path.cwd().is_relative_to(inside)
    if probe or not Path(target).resolve().is_relative_to(inside):
        os.execvp(sys.argv[3], sys.argv[3:])
    wanted = as_in(build, inside, command)
    found = commands(build).get(output(wanted))
    if found != wanted:
        differ = sorted(set(wanted) ^ set(found or []))
        sys.exit(f"{target}: expected the command of {build}, but these words differ: {differ}")
    copied = build / output(wanted)
    shutil.copyfile(copied, target)
    if depfile is not None:
        Path(depfile).write_text(f"{target}: {copied}\n")


if __name__ == "__main__":
    main()
