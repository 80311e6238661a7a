"""Commands on pages: those of `torchvq` run here and print the same; a table says where the others run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cli_support import cli_path
from pages import Block, all_blocks

SESSION = "docs/cli.md"
# Prefixes of commands, and where they run; all of README.md is run by tools/roads.sh.
ELSEWHERE = {
    "make bench": "most of an hour; tests/python/test_benchmarks.py runs every suite a little",
    "python benchmarks/python/run.py": "the same",
    "python benchmarks/python/quantizers.py": "the same",
    "python benchmarks/python/learning_table.py": "an hour; tests/python/test_learning_table.py runs it a little",
    "tools/gpu.sh": "tests/python/test_benchmarks.py, without a card",
    "python benchmarks/python/gpu.py docs": "the same",
    "pytest tests/matrix": "the matrices themselves",
    "python examples/python/profile_step.py": "tests/python/test_examples.py",
    "torchrun --nproc-per-node 2 examples/python/profile_step.py": "tests/python/test_examples.py",
    "python examples/python/export_tokenizer.py": "tests/python/test_serving.py",
    "python -m torchvq.migrate": "tests/python/test_migrate.py",
    "python -m torchvq.convert": "tests/adapters/test_convert.py",
    "torchvq encode codec.safetensors": "the same",
    "torchvq decode codec.safetensors": "the same",
    "torchvq eval codec.safetensors": "the same",
    "cmake -S . -B build": "tests/consumer, and tools/roads.sh in README.md's words",
    "cmake --build build": "the same",
    "build/examples/cpp/serve": "tests/python/test_serving.py",
}


def commands(block: Block) -> list[str]:
    """The commands, without comments, with continuation lines joined."""
    if block.language == "console":
        return re.findall(r"^\$ (.*)", block.text, re.MULTILINE)
    lines = block.text.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def runs_elsewhere(command: str) -> str | None:
    return next((begins for begins in ELSEWHERE if command.startswith(begins)), None)


def test_every_command_runs_somewhere() -> None:
    shown = [
        command
        for block in all_blocks("sh", "console")
        if block.page not in ("README.md", SESSION, "examples/README.md")
        for command in commands(block)
    ]
    assert [command for command in shown if runs_elsewhere(command) is None] == []
    assert {runs_elsewhere(command) for command in shown} == set(ELSEWHERE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The vectors with which the session begins."""
    path = tmp_path_factory.mktemp("session")
    random = np.random.default_rng(0)
    for name, rows in (("vectors", 3000), ("held_out", 500), ("part-0", 1000), ("part-1", 2000)):
        np.save(path / f"{name}.npy", random.normal(size=(rows, 49)).astype("f4"))
    parts = [np.load(path / f"part-{rank}.npy") for rank in (0, 1)]
    np.save(path / "vectors.npy", np.concatenate(parts))
    (path / "bin").mkdir()
    (path / "bin" / "torchvq").symlink_to(cli_path().resolve())
    return path


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def labels(output: str) -> list[str]:
    """The labels of the lines of an output, without numbers and progress."""
    lines = [line for line in output.splitlines() if line and not line.startswith("fit ")]
    return [re.split(r"\s{2,}|: ", line.strip())[0].strip('",') for line in lines]


def differences(command: str, said: str, shown: str) -> list[str]:
    """Labels that the page lacks, and labels that the program does not print."""
    said_labels, shown_labels = labels(said), labels(shown)
    if said_labels == shown_labels:
        return []
    missing = [label for label in said_labels if label not in shown_labels]
    extra = [label for label in shown_labels if label not in said_labels]
    return [f"{command}: not on the page {missing}, only there {extra}"]


def answers(block: Block) -> list[tuple[str, str]]:
    """Each command of a session, and the output shown below it."""
    parts = re.split(r"^\$ (.*)\n", block.text, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def test_the_session_is_what_the_page_shows(folder: Path) -> None:
    ran, wrong = 0, []
    for block in all_blocks("console"):
        if block.page != SESSION:
            continue
        for command, shown in answers(block):
            done = run(command, folder)
            fails = shown.startswith("torchvq: ")
            assert done.returncode == (2 if fails else 0), (command, done.stderr)
            if command.startswith("sha256sum"):
                assert len({line.split()[0] for line in done.stdout.splitlines()}) == 1
            elif fails:
                wrong += differences(command, done.stderr, shown)
            else:
                wrong += differences(command, done.stdout, shown)
            ran += 1
    assert wrong == []
    assert ran > 15
