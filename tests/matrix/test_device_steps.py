"""A step of every class on a device other than the CPU: the host does not wait, and codes learn as on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from device_steps import ALIKE, ROWS, TRAININGS

import torchvq

# The search in plain torch reads the number of undecided rows; the first step copies tables to the device
# (docs/design/any-device.md).
MAY_WAIT = ("nearest_code", "residual_beam_search")
MAY_WAIT_FIRST = (*MAY_WAIT, "_to_copy")


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    folder = Path(__file__).parent
    package = str(Path(torchvq.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, str(folder / "device_steps.py")],
        env=os.environ | {"PYTHONPATH": package, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("row", ROWS)
def test_step_waits_nowhere_but_in_the_search(report: dict[str, Any], row: str) -> None:
    for number, waits in enumerate(report[row]["waits"]):
        allowed = MAY_WAIT if number else MAY_WAIT_FIRST
        assert [wait for wait in waits if not any(name in wait for name in allowed)] == []
    assert len(report[row]["waits"]) == TRAININGS + 1


@pytest.mark.parametrize("row", sorted(ALIKE))
def test_learns_what_the_cpu_learns(report: dict[str, Any], row: str) -> None:
    assert report[row]["differs"] == []
