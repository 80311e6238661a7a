"""Every example of the reference's README runs on torchvq with only its import changed.

The README is read from the metadata of the installed package; no copy is kept here.
"""

import importlib.metadata
import re

import pytest
import torch

PACKAGE = "vector-quantize-pytorch"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def readme() -> str:
    text = importlib.metadata.metadata(PACKAGE).get_payload()
    assert isinstance(text, str) and text, f"the metadata of {PACKAGE} has no README"
    return text


def name_of(block: str) -> str:
    found = re.search(r"import ([\w, ]+)", block.split("vector_quantize_pytorch")[-1])
    return found[1].strip() if found else "continued"


BLOCKS = [block for block in BLOCK.findall(readme()) if "vector_quantize_pytorch" in block]
# Three of its examples are wrong: an option that needs another, features on the other axis, an unknown name.
WRONG = 3


def run(block: str, package: str) -> Exception | None:
    code = block.replace("vector_quantize_pytorch", package)
    torch.manual_seed(0)
    try:
        exec(compile(code, "<the reference's README>", "exec"), {"__name__": "__main__"})
    except Exception as error:
        return error
    return None


def test_there_are_examples():
    assert len(BLOCKS) >= 20


@pytest.mark.exhaustive
def test_three_examples_are_wrong():
    assert sum(run(block, "vector_quantize_pytorch") is not None for block in BLOCKS) == WRONG


@pytest.mark.parametrize(
    "switch",
    [
        pytest.param("0", id="plain"),
        pytest.param("1", id="switched", marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.parametrize(
    "block", BLOCKS, ids=[f"{index}-{name_of(block)}" for index, block in enumerate(BLOCKS)]
)
def test_examples_run_with_only_the_import_changed(block, switch, monkeypatch):
    monkeypatch.setenv("TORCHVQ_COMPAT", switch)
    error = run(block, "torchvq")
    if error is not None and run(block, "vector_quantize_pytorch") is None:
        raise error
