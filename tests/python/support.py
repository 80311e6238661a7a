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
# Dtypes of modules and inputs, and the casts that users apply to modules.
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
CASTS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "none": lambda module: module,
    "half": nn.Module.half,
    "bfloat16": nn.Module.bfloat16,
    "double": nn.Module.double,
    "to": lambda module: module.to(torch.bfloat16),
}
HALF_CASTS = {"half": torch.float16, "bfloat16": torch.bfloat16, "to": torch.bfloat16}


def seed_everything(seed: int = 0) -> torch.Generator:
    """Seeds torch and returns a separate generator for the test's data; the only place that fixes seeds."""
    torch.manual_seed(seed)
    return torch.Generator().manual_seed(seed)


def op_packet(op: str) -> Any:
    """The overload `torch.ops.torchvq.<op>.default`."""
    return getattr(torch.ops.torchvq, op).default


def any_path(op: str) -> Callable[..., Any]:
    """The any-device kernel of an operator, on CPU tensors, for which the dispatcher would choose the CPU kernel."""
    packet = op_packet(op)

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            return packet._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)

    return call


def cuda_required() -> bool:
    """True if a missing GPU is a failure instead of a skip; GPU runners set the variable."""
    return os.environ.get(FAIL_WITHOUT_CUDA, "0") not in ("", "0")


def bit_for_bit(actual: Tensor, expected: Tensor) -> None:
    """For results that only our operators have computed."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def assert_close_to_rounding(actual: Tensor, expected: Tensor, roundings: int = 16) -> None:
    """Equal up to rounding by torch: for results that involve products, sums, norms or exponentials of torch.

    Their order of additions, and the library that does them, depend on the processor and on how the tensor was made (by
    a compiler, with a mask, in a batch). Terms may cancel, so the unit is the last place of the largest number. Results
    of our operators alone have the same bits on every machine; compare those with torch.equal.
    """
    if not expected.is_floating_point():
        assert torch.equal(actual, expected)
        return
    unit = roundings * torch.finfo(expected.dtype).eps
    largest = expected.detach().nan_to_num(0, 0, 0).abs().max().item() if expected.numel() else 0
    torch.testing.assert_close(actual, expected, rtol=unit, atol=unit * largest, equal_nan=True)


def assert_cpp_state_loads(module: nn.Module, found: dict[str, Tensor]) -> None:
    """The state that C++ saved as `state.<name>` loads strictly into such a module, without unused keys."""
    state = {n.removeprefix("state."): t for n, t in found.items() if n.startswith("state.")}
    fresh = copy.deepcopy(module)
    for tensor in fresh.state_dict().values():
        tensor.zero_()
    fresh.load_state_dict(state, strict=True)
    for name, value in fresh.state_dict().items():
        assert torch.equal(value.nan_to_num(7), state[name].nan_to_num(7)), name
