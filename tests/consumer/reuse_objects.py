"""Compiler launcher for a project that has the checkout as a subdirectory: copies the library's objects from build/.

    reuse_objects.py BUILD INSIDE COMPILER ARGUMENT...

BUILD is the tree of `make build`, INSIDE the folder where the project builds the same library. Apart from that folder,
a command for a file in INSIDE must equal one of BUILD's, so that its object is the same too, and is copied. Anything
else is an error that names the difference. The project's own files are compiled, and CMake's probes of the compiler.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from pathlib import Path

# Ninja adds these to track the dependencies of a file; compile_commands.json leaves them out.
DEPENDENCIES = {"-MD": 1, "-MT": 2, "-MF": 2}


def without_dependencies(command: list[str]) -> tuple[list[str], str | None]:
    """The command as in compile_commands.json, and the file for dependencies, if any."""
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
    """The commands of a tree by their outputs."""
    entries = json.loads((build / "compile_commands.json").read_text())
    split = [shlex.split(entry["command"]) for entry in entries]
    return {output(command): command for command in split}


def as_in(build: Path, inside: Path, command: list[str]) -> list[str]:
    """The command with the paths of `inside` replaced by those of `build`."""
    here = os.path.relpath(inside) + "/"
    at = command.index("-o") + 1
    moved = [*command[:at], command[at].removeprefix(here), *command[at + 1 :]]
    return [word.replace(str(inside), str(build)) for word in moved]


def main() -> None:
    build, inside = (Path(folder).resolve() for folder in sys.argv[1:3])
    command, depfile = without_dependencies(sys.argv[3:])
    target = output(command)
    # CMake probes the compiler from within the folder; the build compiles from above it.
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
