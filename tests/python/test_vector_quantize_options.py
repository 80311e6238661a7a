"""One list of options: the fields of the C++ option structs and the keywords of the Python class."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchvq import GroupedResidualVQ, ResidualVQ, VectorQuantize

HEADERS = [
    Path(__file__).resolve().parents[2] / "include/torchvq/options" / name
    for name in ("vector_quantize.h", "residual_vq.h")
]

# Names that one side alone has, with the reason.
ONLY_PYTHON = {
    "VectorQuantizeOptions": {},
    "VectorQuantizeForwardOptions": {
        "x": "the first argument of forward, not an option",
        "return_loss_breakdown": "the C++ result is a struct, which always has the breakdown",
    },
    "ResidualVQOptions": {"vq_kwargs": "a struct of its own in C++, vq"},
    "ResidualVQForwardOptions": {"x": "the first argument of forward, not an option"},
    "GroupedResidualVQOptions": {"kwargs": "a struct of its own in C++, rvq"},
}
ONLY_CPP: dict[str, dict[str, str]] = {
    "VectorQuantizeOptions": {},
    "VectorQuantizeForwardOptions": {},
    "ResidualVQOptions": {"vq": "vq_kwargs"},
    "ResidualVQForwardOptions": {},
    "GroupedResidualVQOptions": {"rvq": "kwargs"},
}
CALLABLES: dict[str, Callable[..., Any]] = {
    "VectorQuantizeOptions": VectorQuantize.__init__,
    "VectorQuantizeForwardOptions": VectorQuantize.forward,
    "ResidualVQOptions": ResidualVQ.__init__,
    "ResidualVQForwardOptions": ResidualVQ.forward,
    "GroupedResidualVQOptions": GroupedResidualVQ.__init__,
}
# C++ spells a default of Python's None as an empty optional, function or module.
NUMBER = re.compile(r"-?[0-9.]+(e-?[0-9]+)?")


def cpp_options(struct: str) -> dict[str, str | None]:
    """Names and defaults of the TORCH_ARG lines of a struct."""
    text = "".join(header.read_text() for header in HEADERS)
    start = text.index(f"struct TORCHVQ_API {struct} {{")
    body = re.sub(r"//[^\n]*", "", text[start : text.index("\n};", start)])
    fields = re.findall(r"TORCH_ARG\((.*?),\s*(\w+)\)\s*(?:=\s*([^;]+))?;", body, re.DOTALL)
    assert len(fields) == body.count("TORCH_ARG")
    return {name: default or None for _, name, default in fields}


def python_options(struct: str) -> dict[str, Any]:
    parameters = dict(inspect.signature(CALLABLES[struct]).parameters)
    del parameters["self"]
    return {name: parameter.default for name, parameter in parameters.items()}


def value_of(text: str | None) -> Any:
    if text is None:
        return None
    if NUMBER.fullmatch(text):
        return float(text)
    if text.startswith('"'):
        return text.strip('"')
    return {"true": True, "false": False}[text]


@pytest.mark.parametrize("struct", CALLABLES)
def test_cpp_and_python_have_the_same_options(struct: str) -> None:
    cpp, python = cpp_options(struct), python_options(struct)
    assert cpp.keys() - python.keys() == ONLY_CPP[struct].keys()
    assert python.keys() - cpp.keys() == ONLY_PYTHON[struct].keys()


# dim is the constructor's argument; codebook_size has a default in C++, where options are set by name; the options of
# networks are a struct with defaults of its own.
NO_COMMON_DEFAULT = {"dim", "codebook_size", "mlp_kwargs"}


@pytest.mark.parametrize("struct", CALLABLES)
def test_cpp_and_python_have_the_same_defaults(struct: str) -> None:
    cpp, python = cpp_options(struct), python_options(struct)
    compared = cpp.keys() & python.keys() - NO_COMMON_DEFAULT
    different = {
        name: (cpp[name], python[name]) for name in compared if value_of(cpp[name]) != python[name]
    }
    assert not different
    assert len(compared) >= {"GroupedResidualVQOptions": 2, "ResidualVQForwardOptions": 7}.get(
        struct, 9
    )


def test_every_option_is_documented_in_both_languages() -> None:
    documentation = VectorQuantize.__doc__ or ""
    for name in python_options("VectorQuantizeOptions"):
        assert f"        {name}: " in documentation, name
    for header in HEADERS:
        lines = header.read_text().splitlines()
        for number, line in enumerate(lines):
            if "TORCH_ARG(" in line:
                assert lines[number - 1].lstrip().startswith("///"), line
