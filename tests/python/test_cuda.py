"""On a CUDA card: operators and searches against the CPU, steps that never wait, precisions, compilers, CUDA graphs.

Without a card, test_any_device.py uses a simulated one. docs/gpu.md lists what ran where.
"""

from __future__ import annotations

import cuda_checks
import pytest

pytestmark = pytest.mark.cuda
CHECKS = cuda_checks.all_checks()


@pytest.mark.parametrize("name", CHECKS)
def test_on_the_card(name: str) -> None:
    if lacking := cuda_checks.lacking(name):
        pytest.skip(f"needs {lacking}")
    CHECKS[name]()
