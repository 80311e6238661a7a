"""Kernels return the strides that their Meta kernels promise to compiled code, for inputs of any layout."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from device_cases import CASES
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from support import any_path

ops = torch.ops.torchvq
# None keeps the dtypes of the case.
DTYPES = [None, torch.float32, torch.float64, torch.float16, torch.bfloat16]


def lie_reversed(x: Tensor) -> Tensor:
    """Equal to x, with the axes in memory in the opposite order."""
    axes = list(reversed(range(x.dim())))
    return x.permute(axes).contiguous().permute(axes)


def lie_transposed(x: Tensor) -> Tensor:
    return x.transpose(-1, -2).contiguous().transpose(-1, -2) if x.dim() >= 2 else x


def expanded(x: Tensor) -> Tensor:
    """The first row in place of all."""
    return x[:1].expand(x.shape) if x.dim() >= 2 and x.is_floating_point() else x


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "reversed": lie_reversed,
    "transposed": lie_transposed,
    "expanded": expanded,
}


def changed(name: str, dtype: torch.dtype | None, layout: str) -> Any:
    """Arguments and options of a case in another dtype and layout."""

    def change(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return LAYOUTS[layout](leaf.to(dtype) if dtype and leaf.is_floating_point() else leaf)

    return tree_map(change, (CASES[name].arguments, CASES[name].options))


def results(call: Callable[..., Any], inputs: Any) -> list[Tensor] | None:
    """The results of a call; None if it refuses these inputs."""
    arguments, options = copy.deepcopy(inputs)
    try:
        with torch.no_grad():
            returned = call(*arguments, **options)
    except (RuntimeError, TypeError, ValueError, IndexError):
        return None
    return [leaf for leaf in tree_leaves(returned) if isinstance(leaf, Tensor)]


def described(outputs: list[Tensor]) -> list[tuple[Any, ...]]:
    """Dtype, shape, and the strides of axes that have more than one place."""

    def strides(x: Tensor) -> list[int]:
        sizes = zip(x.stride(), x.shape, strict=True)
        return [stride for stride, size in sizes if size > 1 and x.numel() > 0]

    return [(x.dtype, tuple(x.shape), strides(x)) for x in outputs]


def kernels(name: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The kernel for the CPU, and the one for any device on tensors of the CPU."""
    op = getattr(ops, name).default
    yield "cpu", op
    if op.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeExplicitAutograd):
        yield "any", any_path(name)


@pytest.mark.parametrize("name", CASES)
def test_kernels_return_the_strides_of_meta(name: str) -> None:
    op = name.split()[0]
    compared = 0
    for dtype, layout in itertools.product(DTYPES, LAYOUTS):
        inputs = changed(name, dtype, layout)
        on_meta = tree_map(lambda x: x.to("meta") if isinstance(x, Tensor) else x, inputs)
        promised = results(getattr(ops, op).default, on_meta)
        for kind, kernel in kernels(op):
            returned = results(kernel, inputs)
            if returned is None:  # refuses this dtype
                continue
            assert promised is not None, (dtype, layout)
            assert described(returned) == described(promised), (kind, dtype, layout)
            compared += 1
    assert compared > 0
