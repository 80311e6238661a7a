"""Which package is compared with the reference: torchvq, and the reference itself as a check of the
harness.
"""

import importlib
from types import ModuleType

import pytest


def pytest_generate_tests(metafunc):
    if "subject" in metafunc.fixturenames:
        metafunc.parametrize(
            "subject", ["torchvq", "vector_quantize_pytorch"], indirect=True, scope="session"
        )


def package(name: str) -> ModuleType:
    """What is not there has not been compared: that is a failure, and no reason to skip."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        pytest.fail(f"parity needs {name}, which cannot be imported: {error}", pytrace=False)


@pytest.fixture(scope="session")
def reference():
    return package("vector_quantize_pytorch")


@pytest.fixture(scope="session")
def subject(request):
    return package(request.param)
