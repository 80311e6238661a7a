"""Products, sums, norms and exponentials of torch, rounded as on some other processor (`make test-processors`).

Importing this module wraps torch's CPU kernels: a third of their results move up by one unit in the last place, a third
move down, chosen by a hash. For kernels that sum many numbers, whose order is a library's choice, the hash is of shapes
and strides; for functions of one number, of the number itself. Equal calls give equal bits, as on any machine. All
other agreement between two computations in torch is an accident of one processor, and a test that relies on it fails.
Exact results are not moved; they are recognised by their few digits.
"""

from __future__ import annotations

import warnings
import zlib
from typing import Any

import torch
from torch import Tensor

SUMS = [
    "mm", "bmm", "addmm", "baddbmm", "addmv", "dot", "linalg_vector_norm", "_softmax", "_log_softmax",
    "native_layer_norm", "sum.dim_IntList", "mean.dim", "_cdist_forward",
]  # fmt: skip
FUNCTIONS = ["exp", "expm1", "log", "log1p", "tanh", "sigmoid", "erf", "softplus", "sin", "cos"]
BITS = {torch.float32: torch.int32, torch.float64: torch.int64}
_library = torch.library.Library("aten", "IMPL")


def _layout(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_layout(each) for each in value]
    return (value.dtype, value.shape, value.stride()) if isinstance(value, Tensor) else value


def _by_layout(name: str, result: Tensor, args: Any) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(f"{name} {_layout(args)}".encode()))
    return torch.randint(3, result.shape, generator=generator)


def _by_value(name: str, result: Tensor, _: Any) -> Tensor:
    return result.view(BITS[result.dtype]).remainder(3).long()


def _moved(result: Tensor, way: Tensor) -> Tensor:
    """Moves results by `way`: 0 stays, 1 goes up, 2 goes down. Results with few digits are exact and stay."""
    short = result.to(torch.bfloat16 if result.dtype == torch.float32 else torch.float32)
    stays = (short.to(result.dtype) == result) | (way == 0) | ~result.isfinite()
    target = torch.where(way == 1, torch.inf, -torch.inf).to(result.dtype)
    return torch.where(stays, result, torch.nextafter(result, target))


def _wrap(name: str, ways: Any) -> None:
    kernel = torch.library.get_kernel(f"aten::{name}", "CPU")

    def call(keys: Any, *args: Any, **kwargs: Any) -> Any:
        found = kernel.call_boxed(keys, *args, **kwargs)
        first, *rest = found if isinstance(found, tuple) else [found]
        if first.dtype not in BITS or first.numel() == 0:
            return found
        first = _moved(first, ways(name, first, args))
        return (first, *rest) if rest else first

    _library.impl(name, call, "CPU", with_keyset=True, allow_override=True)


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # warns that kernels are overridden
    for _names, _ways in ((SUMS, _by_layout), (FUNCTIONS, _by_value)):
        for _name in _names:
            _wrap(_name, _ways)
