"""README.md: its Python runs unchanged and prints what the page shows; its links lead to files.

tools/roads.sh runs its other blocks, each in its own environment.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from code_blocks import blocks_of, code_blocks  # noqa: E402

README = (ROOT / "README.md").read_text()
PYTHON = [text for _, language, text in blocks_of(README) if language == "python"]


def said_by(code: str, capsys: pytest.CaptureFixture[str]) -> str:
    exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})
    return capsys.readouterr().out


@pytest.mark.parametrize("number", range(len(PYTHON)))
def test_python_runs(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    said_by(PYTHON[number], capsys)


def test_the_ten_lines_print_what_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    (code,), (shown,) = (code_blocks(README, "Ten lines", kind) for kind in ("python", "text"))
    assert said_by(code, capsys) == shown
    assert (ROOT / "examples" / "python" / "ten_lines.py").read_text().endswith('"""\n\n' + code)


@pytest.mark.parametrize("page", ["README.md", "HACKING.md", "examples/README.md"])
def test_links_lead_to_files(page: str) -> None:
    path = ROOT / page
    links = re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text())
    assert links
    assert [link for link in links if not (path.parent / link).exists()] == []


@pytest.mark.parametrize(
    ("heading", "entries"),
    [
        ("Life of a forward", {"vector_quantize"}),
        ("Life of a loss on two ranks", {"lookup_free_quantization", "lfq"}),
    ],
)
def test_a_walk_is_a_way_down(heading: str, entries: set[str]) -> None:
    """Its files exist, and each file except the two languages' entry points is used by a file listed above it."""
    page = (ROOT / "HACKING.md").read_text()
    walk = page.split(f"## {heading}\n")[1].split("\n## ")[0]
    files = [Path(name) for name in re.findall(r"`((?:python|src)/[\w/]+\.(?:py|cpp))`", walk)]
    assert len(files) >= 8
    above = ""
    for file in files:
        text = (ROOT / file).read_text()
        # Operators are called by name, which ends in _ if they change state.
        names = {file.stem, file.stem.strip("_"), f"{file.stem}_"}
        names |= set(re.findall(r'm\.def\(\s*"(\w+)\(', text))
        first = file.stem in entries and "functional" not in file.parts
        assert first or any(re.search(rf"\b{name}\b", above) for name in names), file
        above += text


def test_blocks_of_a_page() -> None:
    page = "# One\n\n```sh\n# no heading\nls\n```\n\n## Two\n\n```\nplain\n```\n```sh\nid\n```\n"
    assert list(blocks_of(page)) == [
        ("One", "sh", "# no heading\nls\n"),
        ("Two", "", "plain\n"),
        ("Two", "sh", "id\n"),
    ]
    with pytest.raises(SystemExit, match="expected cpp below `Two`"):
        code_blocks(page, "Two", "cpp")


def test_the_roads_know_the_page() -> None:
    """README.md has each block that tools/roads.sh extracts; the script itself runs in CI."""
    script = (ROOT / "tools" / "roads.sh").read_text()
    wanted = re.findall(r"block ('[^']+'|[\w+]+) (sh|console|cmake|cpp|python|text)\b", script)
    assert len(wanted) > 8
    for heading, language in wanted:
        assert code_blocks(README, heading.strip("'"), language)
