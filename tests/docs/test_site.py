"""The site has a page for every class and every old name, and examples in docstrings run."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from pages import ROOT

import torchvq

DOCS = ROOT / "docs"
CLASSES = {
    name: value
    for name in torchvq.__all__
    if isinstance(value := getattr(torchvq, name), type) and issubclass(value, torch.nn.Module)
}


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_has_a_page(name: str) -> None:
    pages = [path.read_text() for path in (DOCS / "classes").glob("*.md")]
    (page,) = [text for text in pages if text.startswith(f"# {name}\n")]
    assert f"autoclass:: torchvq.{name}\n" in page
    assert f"single: vector_quantize_pytorch; {name}\n" in page
    assert "```python" in page
    assert "```cpp" in page


def test_everything_else_is_on_a_page() -> None:
    page = (DOCS / "api" / "python.md").read_text()
    rest = set(torchvq.__all__) - set(CLASSES) - {"__version__"}
    assert {name for name in rest if f":: torchvq.{name}\n" not in page} == set()


def test_old_names_lead_to_pages() -> None:
    """Each name of the reference, including its modules, is in the table and can be imported from torchvq."""
    reference = pytest.importorskip("vector_quantize_pytorch")
    table = (DOCS / "names.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)`, `\.(\w+)` \|", table, re.MULTILINE))
    wanted = {name: value for name, value in vars(reference).items() if isinstance(value, type)}
    assert set(rows) == set(wanted)
    for name, module in rows.items():
        assert wanted[name].__module__ == f"{reference.__name__}.{module}"
        ours = importlib.import_module(f"torchvq.{module}")
        assert getattr(ours, name) is getattr(torchvq, name)


def examples() -> list[Any]:
    finder = doctest.DocTestFinder(recurse=True)
    shown = [getattr(torchvq, name) for name in torchvq.__all__]
    found = [
        test
        for value in shown
        if callable(value)
        for test in finder.find(value, value.__name__, globs={})
        if test.examples
    ]
    return list({test.name: test for test in found}.values())


@pytest.mark.parametrize("example", examples(), ids=lambda test: test.name)
def test_examples_in_docstrings(example: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    example.globs = {"torch": torch, "nn": torch.nn, "torchvq": torchvq}
    example.globs |= {name: getattr(torchvq, name) for name in torchvq.__all__}
    said: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=said.append)
    assert said == []


def test_there_are_examples() -> None:
    assert len(examples()) > 15
