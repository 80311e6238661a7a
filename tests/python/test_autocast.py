"""Autocast stops at every operator, and vmap maps each: src/ops/operators.h against the registered schemas."""

from __future__ import annotations

import pytest
import torch

import support  # noqa: F401  (registers the operators)

# Operators that take tensors but need no protection from autocast, and why.
LAYOUT = "moves and selects elements, no arithmetic that autocast knows"
INTEGERS = "reads int64 state alone and makes its numbers from it"
UNSHIELDED = {
    "pack_tokens": LAYOUT,
    "unpack_tokens": LAYOUT,
    "unpack_positions": LAYOUT,
    "restore_positions": LAYOUT,
    "restore_tokens": LAYOUT,
    "split_heads": LAYOUT,
    "merge_heads": LAYOUT,
    "split_mask": LAYOUT,
    "split_indices": LAYOUT,
    "fill_masked": LAYOUT,
    "fill_padding": LAYOUT,
    "lens_to_mask": LAYOUT,
    "zero_absent": LAYOUT,
    "no_second_derivative": "copies, in any dtype",
    "random_bits": INTEGERS,
    "random_numbers": INTEGERS,
    "drawn_depth": INTEGERS,
    "drawn_scales": INTEGERS,
    "level_rng": INTEGERS,
    "noise_rng": INTEGERS,
    "pool_scale_mask": "asks whether averages of zeros and ones are above 0, which they are in any dtype",
}
KEYS = ["AutocastCPU", "AutocastCUDA", "AutocastXPU", "AutocastMPS"]


def operators() -> list[str]:
    """Every operator of the library that takes a tensor.

    Operators whose names end in _forward or _backward are parts of others, called inside these and by autograd.
    """
    return [name for name in all_operators() if not name.endswith(("_forward", "_backward"))]


def all_operators() -> list[str]:
    names = {
        schema.name.removeprefix("torchvq::")
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("torchvq::")
        and any("Tensor" in str(argument.type) for argument in schema.arguments)
    }
    return sorted(names)


@pytest.mark.parametrize("key", KEYS)
def test_every_operator_is_shielded_or_has_a_reason(key: str) -> None:
    shielded = {
        name
        for name in operators()
        if torch._C._dispatch_has_kernel_for_dispatch_key(f"torchvq::{name}", key)
    }
    assert set(operators()) - shielded == set(UNSHIELDED)


@pytest.mark.parametrize("name", all_operators())
def test_vmap_maps_every_operator(name: str) -> None:
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"torchvq::{name}", "FuncTorchBatched")
