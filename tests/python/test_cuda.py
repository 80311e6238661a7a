"""On a CUDA card: every operator against the CPU, steps that never wait for the device, CUDA graphs.

Without a card, test_any_device.py uses a simulated one. docs/gpu.md lists what ran where.
"""

from __future__ import annotations

import cuda_checks as checks
import pytest
from cuda_checks import classes, nearest_code_rows
from device_cases import CASES

pytestmark = pytest.mark.cuda


def needs_search_kernel() -> None:
    if not checks.has_kernel("nearest_code"):
        pytest.skip(
            "this library has no CUDA kernel of nearest_code; the search in plain torch waits for the device"
        )


@pytest.mark.parametrize("name", CASES)
def test_operator_gives_the_cpus_results(name: str) -> None:
    checks.operator_gives_the_cpus_results(name)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("kind", nearest_code_rows.KINDS)
def test_search_is_exact(kind: str, metric: str) -> None:
    checks.search_is_exact(kind, metric)


@pytest.mark.parametrize("row", checks.LEARNS_ALIKE)
def test_learns_what_the_cpu_learns(row: str) -> None:
    checks.learns_what_the_cpu_learns(row)


@pytest.mark.parametrize("row", sorted(classes.ROWS.keys() - checks.HOST_DECIDES))
def test_step_does_not_wait(row: str) -> None:
    needs_search_kernel()
    checks.step_does_not_wait(row)


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("row", checks.LEARNS_ALIKE)
def test_graph_records(row: str, training: bool) -> None:
    needs_search_kernel()
    checks.graph_records(row, training)
