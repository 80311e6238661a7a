"""The C++ of every page, and the examples in the comments of the headers, compile against the current headers."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from cli_support import BUILD
from pages import ROOT, all_blocks
from torch.utils.cpp_extension import include_paths

# Declarations that a page has described in words.
BEFORE = {
    "docs/distributed.md": "c10::intrusive_ptr<c10d::ProcessGroup> group;\n",
    "evo_lfq.h": "auto fitness = [](const torch::Tensor& decoded, const torch::Tensor&) {\n"
    "  return decoded.flatten(1).sum(-1);\n};\n",
}


def of_headers() -> list[tuple[str, str]]:
    """Name and code of the fenced examples in the comments of the public headers."""
    found = []
    for header in sorted((ROOT / "include" / "torchvq").rglob("*.h")):
        for code in re.findall(r"/// ```\n(.*?)/// ```", header.read_text(), re.DOTALL):
            lines = [re.sub(r"^\s*/// ?", "", line) for line in code.splitlines()]
            found.append((header.name, "\n".join(lines) + "\n"))
    return found


def unit(blocks: list[tuple[str, str]]) -> str:
    """One source with all blocks, each in a namespace and, if it needs one, a function."""
    includes, bodies = dict[str, None](), []
    for place, (name, code) in enumerate(blocks):
        includes |= dict.fromkeys(re.findall(r"^#include .*", code, re.MULTILINE))
        code = re.sub(r"^#include .*\n", "", code, flags=re.MULTILINE)
        is_whole = re.search(r"^(int|void|auto) \w+\(.*\{$", code, re.MULTILINE)
        body = code if is_whole else f"void run() {{\n{BEFORE.get(name, '')}{code}}}\n"
        bodies.append(f"namespace block_{place} {{  // {name}\n{body}}}\n")
    return "\n".join(
        ["#include <torch/torch.h>", "#include <torchvq/torchvq.h>", *includes, *bodies]
    )


@pytest.mark.timeout(900)
def test_cpp_compiles(tmp_path: Path) -> None:
    shown = [(block.page, block.text) for block in all_blocks("cpp")]
    examples = of_headers()
    assert len(shown) > 20
    assert len(examples) > 15
    source = tmp_path / "blocks.cpp"
    source.write_text(unit([*shown, *examples]))
    folders = [*include_paths(), str(ROOT / "include"), str(BUILD / "include")]
    compiler = shutil.which("c++") or "g++"
    done = subprocess.run(
        [compiler, "-std=c++20", "-fsyntax-only", "-DUSE_DISTRIBUTED", "-DUSE_C10D_GLOO"]
        + [f"-isystem{folder}" for folder in folders]
        + [str(source)],
        capture_output=True,
        text=True,
        timeout=880,
        check=False,
    )
    assert done.returncode == 0, done.stderr[:6000]


def test_cmake_is_that_of_the_first_page() -> None:
    """tools/roads.sh builds README.md's block; others may differ from it only in the program's name."""

    def plain(text: str) -> str:
        name = re.search(r"project\((\w+)", text)
        assert name
        return re.sub(r"\w+\.cpp", "SOURCE", text.replace(name[1], "NAME"))

    blocks = all_blocks("cmake")
    known = {plain(block.text) for block in blocks if block.page == "README.md"}
    assert {plain(block.text) for block in blocks} <= known
