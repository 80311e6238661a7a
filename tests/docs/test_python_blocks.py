"""The Python of every page runs in the order of the page, in its own process and folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cli_support import cli_path
from pages import all_blocks, blocks
from run_page import ELSEWHERE

import torchvq

# README.md is run by tests/python/test_readme.py, which also compares the output.
PAGES = sorted({block.page for block in all_blocks("python")} - {"README.md"})


def test_there_are_pages() -> None:
    assert len(PAGES) > 25


@pytest.mark.parametrize("page", PAGES)
def test_python(page: str, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "torchvq").symlink_to(cli_path().resolve())
    package = str(Path(torchvq.__file__).parents[1])
    environment = os.environ | {
        "PYTHONPATH": package,
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        # A fresh cache, because the default one may hold code compiled for another build of the library.
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "compiled"),
    }
    script = Path(__file__).parent / "run_page.py"
    answer = subprocess.run(
        [sys.executable, str(script), page],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr[-4000:]
    elsewhere = sum((page, b.heading) in ELSEWHERE for b in blocks(page) if b.language == "python")
    wanted = sum(block.language == "python" for block in blocks(page)) - elsewhere
    assert re.search(rf"^ran {wanted}$", answer.stdout, re.MULTILINE)


def test_what_runs_elsewhere_is_there() -> None:
    shown = {(block.page, block.heading) for block in all_blocks("python")}
    assert set(ELSEWHERE) <= shown
