"""Fixtures of the Python tests: seeds, devices, and the rule that a GPU runner must not skip silently."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import support


@pytest.fixture(autouse=True)
def generator() -> torch.Generator:
    """A generator for the test's data; it also seeds torch, for every test."""
    return support.seed_everything()


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture
def any_path() -> Callable[[str], Callable[..., Any]]:
    """`any_path("lookup_codes")(codebook, indices)` runs the any-device kernel on CPU tensors."""
    return support.any_path


@pytest.fixture(
    params=["aot_eager_decomp_partition", pytest.param("inductor", marks=pytest.mark.exhaustive)],
    ids=["partitioned", "inductor"],
)
def compiler(request: pytest.FixtureRequest) -> str:
    """A backend with inductor's recomputation in backward but no generated code, and inductor itself.

    Inductor takes seconds per graph. `make test` runs it on one graph of each kind, in test_snapshot.py and
    tests/matrix.
    """
    return request.param


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"cuda: needs a GPU; skipped without one, failed when {support.FAIL_WITHOUT_CUDA}=1",
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda") is None or torch.cuda.is_available():
        return
    if support.cuda_required():
        pytest.fail(f"{support.FAIL_WITHOUT_CUDA}=1, but torch finds no GPU", pytrace=False)
    pytest.skip("no GPU")
