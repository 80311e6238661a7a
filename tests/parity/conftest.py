"""Which package is compared with the reference: torchvq, torchvq under the switch, and the reference itself as a check
of the harness.
"""

import importlib
from types import ModuleType

import pytest


def pytest_generate_tests(metafunc):
    if "subject" in metafunc.fixturenames:
        subjects = ["torchvq", SWITCHED, "vector_quantize_pytorch"]
        metafunc.parametrize("subject", subjects, indirect=True, scope="session")


SWITCHED = "torchvq, switched"


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
    with pytest.MonkeyPatch.context() as environment:
        if request.param == SWITCHED:
            environment.setenv("TORCHVQ_COMPAT", "1")
        else:
            environment.delenv("TORCHVQ_COMPAT", raising=False)
        yield package("torchvq" if request.param == SWITCHED else request.param)
