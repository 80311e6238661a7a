"""Lightning's precisions with every class in one model: in one process, and mixed precision on two ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import lightning_matrix
import pytest
import torch
from kinds import exhaustive

PROGRAM = Path(lightning_matrix.__file__)
# On CPU, Lightning turns 16-mixed into bf16-mixed.
OUTPUTS = {
    "bf16-mixed": torch.bfloat16,
    "16-mixed": torch.bfloat16,
    "bf16-true": torch.bfloat16,
    "32-true": torch.float32,
    "64-true": torch.float64,
}


first, *others = OUTPUTS


def check(result: dict[str, Any], precision: str) -> None:
    assert len(result["losses"]) == lightning_matrix.STEPS
    assert torch.tensor(result["losses"]).isfinite().all()
    # One sanity step before training, and two validations during it.
    assert result["validated"] == 3
    wide = torch.float64 if precision == "64-true" else torch.float32
    for name, value in result["state"].items():
        state = "_codebook" in name and not name.endswith(".embed")
        assert not state or not value.is_floating_point() or value.dtype == wide, name
        assert value.isfinite().all(), name
    # The output has the dtype of the latents, in which the encoder computes.
    assert set(result["outputs"].values()) == {OUTPUTS[precision]}


@pytest.mark.parametrize("precision", [first, *map(exhaustive, others)])
def test_one_process(precision: str) -> None:
    check(lightning_matrix.fit(precision, devices=1, seed=0), precision)


@pytest.mark.exhaustive
def test_two_ranks_in_mixed_precision(tmp_path: Path) -> None:
    """Ranks have different seeds; all shared state ends equal."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(PROGRAM), str(tmp_path), "bf16-mixed", "2"],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(2))
    for result in (first, second):
        check(result, "bf16-mixed")
    for name, value in first["state"].items():
        if not name.endswith("quantizer.rng"):
            assert torch.equal(value, second["state"][name]), name
