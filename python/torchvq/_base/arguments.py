"""Arguments that users give, by their type."""

from operator import index
from typing import SupportsFloat, SupportsIndex

import torch
from torch import Tensor


def integer(owner: str, name: str, value: SupportsIndex) -> int:
    """An integer of any type as Python's; TypeError for anything else, ValueError beyond 64 bits."""
    try:
        whole = index(value)
    except TypeError as error:
        raise TypeError(f"{owner}: expected {name} to be an integer, but got {value!r}") from error
    if not -(2**63) <= whole < 2**63:
        raise ValueError(f"{owner}: expected {name} to be an integer of 64 bits, but got {whole}")
    return whole


def number(owner: str, name: str, value: SupportsFloat) -> float:
    """A number of any type as Python's; TypeError for anything else."""
    if not hasattr(value, "__float__"):
        raise TypeError(f"{owner}: expected {name} to be a number, but got {value!r}")
    return float(value)


def expect_kind(
    owner: str, name: str, value: object, kinds: type | tuple[type, ...], condition: str
) -> None:
    """Raises TypeError unless a value is of one of these classes."""
    if not isinstance(value, kinds):
        got = type(value).__name__
        raise TypeError(f"{owner}: expected {name} to be {condition}, but got {got}")


def expect_tensor(owner: str, name: str, value: object) -> None:
    """Raises TypeError unless a value is a tensor."""
    expect_kind(owner, name, value, Tensor, "a tensor")


def expect_floating(owner: str, name: str, value: object) -> None:
    """Raises TypeError unless a value is a dense tensor of a floating dtype that torch computes in."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        got = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"{owner}: expected {name} to be a floating-point tensor, but got {got}")
    if value.dtype.itemsize == 1:
        raise TypeError(
            f"{owner}: expected {name} to be float16, bfloat16, float32 or float64, but got {value.dtype}"
        )
    expect_dense(owner, name, value)


def expect_dense(owner: str, name: str, tensor: Tensor) -> None:
    """Raises TypeError for a sparse or nested tensor, which operators refuse only after a generator has advanced."""
    # Nested tensors may have the layout of dense ones.
    if tensor.layout != torch.strided or tensor.is_nested:
        got = "a nested one" if tensor.is_nested else f"layout {tensor.layout}"
        raise TypeError(f"{owner}: expected {name} to be a dense tensor, but got {got}")
