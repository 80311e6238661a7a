"""Gradients of lookups on a device that adds in an order of its own, against the CPU's; run by test_any_device.py.

It is a process of its own, because SimulatedDevice.prepare_autograd changes the process.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from simulated_device import SimulatedDevice
from torch import Tensor

import torchvq  # noqa: F401

ops = torch.ops.torchvq
generator = torch.Generator().manual_seed(0)
CODES = torch.randn(2, 5, 3, generator=generator)
X = torch.randn(2, 400, 3, generator=generator)
INDICES = torch.randint(-1, 5, (2, 400), generator=generator)
WEIGHT = torch.randn(2, 400, 3, generator=generator)

LOOKUPS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "lookup_codes": lambda codes, x, indices: ops.lookup_codes(codes, indices),
    "residual_decode": lambda codes, x, indices: ops.residual_decode(
        indices.unsqueeze(-1), [codes]
    ),
    "nearest_code": lambda codes, x, indices: ops.nearest_code(x, codes, return_codes=True)[1],
}


def gradient(lookup: Callable[[Tensor, Tensor, Tensor], Tensor], *tensors: Tensor) -> Tensor:
    codes, x, indices, weight = tensors
    codes.requires_grad_()
    (found,) = torch.autograd.grad(lookup(codes, x, indices), codes, weight)
    return found


def main() -> None:
    SimulatedDevice.prepare_autograd()
    # Autograd's device threads would outlive the simulated device that they refer to.
    torch.autograd.set_multithreading_enabled(False)
    for name, lookup in LOOKUPS.items():
        expected = gradient(lookup, CODES.clone(), X, INDICES, WEIGHT)
        for seed in range(3):
            device = SimulatedDevice("gpu", seed)
            with device:
                found = gradient(lookup, *device.put((CODES, X, INDICES, WEIGHT)))
            assert torch.equal(device.get(found), expected), name
        print(name)


if __name__ == "__main__":
    main()
