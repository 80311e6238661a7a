"""Lightning on two ranks: sanity validation before the first step, validation on all ranks and on one, accumulation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from wrapped import check_states

PROGRAM = Path(__file__).with_name("lightning_program.py")


def train(folder: Path, validate: str, model: str) -> list[dict[str, Any]]:
    """The results of the two ranks; checks what holds for every model."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(PROGRAM), str(folder), validate, model],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results = [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]
    # Training forwards: the ranks have unequal data, but stop together.
    assert [result["steps"] for result in results] == [12, 12]
    assert results[0]["validated"] > 2
    assert (results[1]["validated"] > 2) == (validate == "both")
    for result in results:
        assert result["sent"] <= {(0, 0, 0, 0)}
    return results


on_rank_0 = pytest.param("rank0", marks=pytest.mark.exhaustive)


@pytest.mark.parametrize("validate", ["both", on_rank_0])
def test_lightning(tmp_path: Path, validate: str) -> None:
    results = train(tmp_path, validate, "codebooks")
    # The ranks had different seeds; all start from rank 0's state.
    check_states([(result["state"], result["inputs"]) for result in results], seed=0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("validate", ["both", "rank0"])
def test_quantizers_without_codebooks(tmp_path: Path, validate: str) -> None:
    first, second = train(tmp_path, validate, "scalar")
    assert first["inputs"] == second["inputs"], "the ranks dropped different levels"
    assert len({depths[0] for depths in first["inputs"]}) > 1
    assert first["state"].keys() == second["state"].keys()
    for name, value in first["state"].items():
        assert torch.equal(value, second["state"][name]), name
        assert value.isfinite().all(), name
