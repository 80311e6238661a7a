"""Helpers shared by the Python tests; fixtures are in conftest.py."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import torchvq  # noqa: F401  (registers the operators)

FAIL_WITHOUT_CUDA = "TORCHVQ_FAIL_WITHOUT_CUDA"
# What users give to a module, and what they make of it.
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
CASTS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "none": lambda module: module,
    "half": nn.Module.half,
    "bfloat16": nn.Module.bfloat16,
    "double": nn.Module.double,
    "to": lambda module: module.to(torch.bfloat16),
}


def seed_everything(seed: int = 0) -> torch.Generator:
    """The one place that fixes random numbers: seeds torch, returns a generator of its own for the data."""
    torch.manual_seed(seed)
    return torch.Generator().manual_seed(seed)


def op_packet(op: str) -> Any:
    """The overload `torch.ops.torchvq.<op>.default`, without the dispatcher choosing a kernel yet."""
    return getattr(torch.ops.torchvq, op).default


def any_path(op: str) -> Callable[..., Any]:
    """The any-device kernel of an operator, callable on CPU tensors, where the CPU kernel would be chosen instead."""
    packet = op_packet(op)

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            return packet._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)

    return call


def cuda_required() -> bool:
    """True where a missing GPU is a failure and not a reason to skip (GPU runners set the variable)."""
    return os.environ.get(FAIL_WITHOUT_CUDA, "0") not in ("", "0")


def bit_for_bit(actual: Tensor, expected: Tensor) -> None:
    """For numbers that nothing but our operators has computed."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def assert_close_to_rounding(actual: Tensor, expected: Tensor, roundings: int = 16) -> None:
    """Equal but for rounding by torch: for numbers with products, sums, norms or exponentials of torch behind them.

    In which order these add up, and which library does, depends on the processor and on the way a tensor came there
    (a compiler's, a mask's, a batch's). Terms may cancel, so the unit is the last place of the largest number. Where
    nothing but our operators computes, the bits are equal on every machine, and torch.equal is what to claim.
    """
    if not expected.is_floating_point():
        assert torch.equal(actual, expected)
        return
    unit = roundings * torch.finfo(expected.dtype).eps
    largest = expected.detach().nan_to_num(0, 0, 0).abs().max().item() if expected.numel() else 0
    torch.testing.assert_close(actual, expected, rtol=unit, atol=unit * largest, equal_nan=True)


def assert_cpp_state_loads(module: nn.Module, found: dict[str, Tensor]) -> None:
    """What C++ has saved as `state.<name>` loads strictly into such a module, all of it."""
    state = {n.removeprefix("state."): t for n, t in found.items() if n.startswith("state.")}
    fresh = copy.deepcopy(module)
    for tensor in fresh.state_dict().values():
        tensor.zero_()
    fresh.load_state_dict(state, strict=True)
    for name, value in fresh.state_dict().items():
        assert torch.equal(value.nan_to_num(7), state[name].nan_to_num(7)), name
