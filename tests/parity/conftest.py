"""Which package is compared with the reference: torchvq, and the reference itself as a check of the
harness.
"""

import importlib
import os

import pytest


def pytest_generate_tests(metafunc):
    if "subject" in metafunc.fixturenames:
        metafunc.parametrize(
            "subject", ["torchvq", "vector_quantize_pytorch"], indirect=True, scope="session"
        )


@pytest.fixture(scope="session")
def reference():
    return importlib.import_module("vector_quantize_pytorch")


@pytest.fixture(scope="session")
def subject(request):
    try:
        return importlib.import_module(request.param)
    except ImportError as error:
        # A missing library must not look like a passed comparison where it was meant to be
        # compared.
        if os.environ.get("TORCHVQ_REQUIRE_PARITY") == "1":
            raise
        pytest.skip(f"{request.param} cannot be imported: {error}")
