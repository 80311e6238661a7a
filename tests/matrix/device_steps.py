"""Steps of every class on a simulated device: `python device_steps.py` prints the results.

It runs in its own process, because autograd keeps the device registered for the life of the process.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.append(str(Path(__file__).resolve().parents[1] / "python"))

import classes
from simulated_device import SimulatedDevice

TRAININGS = 2
# A module reads its k-means flag only from plain tensors; test_any_device.py runs k-means itself.
ROWS = [row for row in classes.ROWS if row != "vq_kmeans"]
# Rows whose codes and indices only our operators compute; others involve torch's products and exponentials.
ALIKE = {"vq", "vq_cosine", "vq_dead_codes", "residual_vq", "residual_vq_shared", "residual_vq_beam",
         "grouped_residual_vq", "fsq_bare", "lfq_bare", "binary_mapper"}  # fmt: skip


def step(module: nn.Module, x: torch.Tensor) -> classes.Seen:
    seen = classes.forward(module, x)
    if module.training:
        (seen.quantized.float().sum() + seen.loss.sum()).backward()
    return seen


def steps_of(row: str) -> dict[str, Any]:
    """Waits of each step, and the differences from the same steps on the CPU."""
    gpu = SimulatedDevice("gpu")
    there, here = gpu.move(classes.build(row)), classes.build(row)
    waits, differs = [], []
    for number in range(TRAININGS + 1):
        training = number < TRAININGS
        gpu.waits.clear()
        with gpu:
            found = step(
                there.train(training), gpu.put(classes.data(row, number)).requires_grad_(training)
            )
            indices = gpu.get(found.indices)
        waits.append(sorted({" > ".join(wait) for wait in gpu.waits}))
        expected = step(here.train(training), classes.data(row, number).requires_grad_(training))
        if row in ALIKE and not torch.equal(indices, expected.indices):
            differs.append(f"indices of step {number}")
    if row in ALIKE:
        with gpu:
            state = gpu.get(dict(there.state_dict()))
        for name, tensor in here.state_dict().items():
            if not torch.equal(state[name].nan_to_num(7), tensor.nan_to_num(7)):
                differs.append(name)
    return dict(waits=waits, differs=differs)


def main() -> None:
    SimulatedDevice.prepare_autograd()
    with torch.autograd.set_multithreading_enabled(False):
        print(json.dumps({row: steps_of(row) for row in ROWS}))


if __name__ == "__main__":
    main()
