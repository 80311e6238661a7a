"""The packages that are compared with the reference: torchvq, torchvq under the switch, and the reference itself, which
checks the harness.
"""

import importlib
from types import ModuleType

import pytest


def pytest_generate_tests(metafunc):
    if "subject" in metafunc.fixturenames:
        subjects = ["torchvq", SWITCHED, "vector_quantize_pytorch"]
        metafunc.parametrize("subject", subjects, indirect=True)


SWITCHED = "torchvq, switched"


def package(name: str) -> ModuleType:
    """A missing package is a failure instead of a skip, because nothing would be compared."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        pytest.fail(f"parity needs {name}, which cannot be imported: {error}", pytrace=False)


@pytest.fixture(scope="session")
def reference():
    return package("vector_quantize_pytorch")


@pytest.fixture
def subject(request, monkeypatch):
    # For this test alone: tests of other folders run in the same process.
    if request.param == SWITCHED:
        monkeypatch.setenv("TORCHVQ_COMPAT", "1")
    else:
        monkeypatch.delenv("TORCHVQ_COMPAT", raising=False)
    return package("torchvq" if request.param == SWITCHED else request.param)
