"""Writes the table of docs/versions.md from the reports that `make test` leaves in its build tree.

python tools/versions_table.py record build/reports           what was tested: torch, Python, commit (`make test` does)
python tools/versions_table.py write build*/reports           the rows of these reports; the others stay as they are
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/versions.md"
HEAD = "| torch | build | C++ tests | Python tests | Python | commit | date |\n|---|---|---|---|---|---|---|\n"


def record(folder: Path) -> None:
    """Writes about.json beside the reports: versions, commit and date of the run."""
    import torch

    cuda = torch.version.cuda
    git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    about = {
        "torch": torch.__version__.split("+")[0],
        "build": f"CUDA {cuda}, on the CPU"
        if cuda and not torch.cuda.is_available()
        else f"CUDA {cuda}"
        if cuda
        else "CPU",
        "python": platform.python_version(),
        "commit": subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip(),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
    }
    (folder / "about.json").write_text(json.dumps(about, indent=2) + "\n")


def cpp_reports(folder: Path) -> list[Path]:
    """The reports of the C++ sources; if one of them left none, because it crashed, the report of ctest."""
    sources = sorted((folder / "cpp").rglob("*.xml"))
    written = {str(path.relative_to(folder / "cpp").with_suffix("")) for path in sources}
    names = {
        case.get("name", "") for case in ElementTree.parse(folder / "cpp.xml").iter("testcase")
    }
    ran = {name for name in names if name.endswith("_test")}
    return sources if ran <= written else [folder / "cpp.xml"]


def counts(reports: list[Path]) -> str:
    """A summary such as "12674 passed", which also names failures and skipped tests."""
    cases = [case for path in reports for case in ElementTree.parse(path).iter("testcase")]
    failed = sum(
        case.find("failure") is not None or case.find("error") is not None for case in cases
    )
    left_out = sum(case.find("skipped") is not None for case in cases)
    words = [f"{len(cases) - failed - left_out} passed"]
    words += [f"**{failed} failed**"] if failed else []
    words += [f"{left_out} left out"] if left_out else []
    return ", ".join(words)


def row(folder: Path) -> tuple[str, str]:
    """The minor version, and its row of the table."""
    about = json.loads((folder / "about.json").read_text())
    cells = [
        about["torch"],
        about["build"],
        counts(cpp_reports(folder)),
        counts([folder / "python.xml"]),
        about["python"],
        about["commit"],
        about["date"],
    ]
    return minor(about["torch"]), "| " + " | ".join(cells) + " |\n"


def minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def write(folders: list[Path]) -> None:
    """Replaces the rows of the versions that have reports."""
    page = PAGE.read_text()
    before = re.search(rf"{re.escape(HEAD)}((?:\|.*\n)*)", page)
    if before is None:
        raise SystemExit(
            f"versions_table: expected the head of the table in {PAGE}, but found none"
        )
    rows = {minor(line.split("|")[1].strip()): line for line in before[1].splitlines(keepends=True)}
    rows |= dict(row(folder) for folder in folders)
    ordered = sorted(rows, key=lambda version: [int(part) for part in version.split(".")])
    PAGE.write_text(page.replace(before[0], HEAD + "".join(rows[version] for version in ordered)))


if __name__ == "__main__":
    step, *names = sys.argv[1:]
    if step == "record":
        record(Path(names[0]))
    else:
        write([Path(name) for name in names])
