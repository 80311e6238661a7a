"""Checks that every operator has the kernels that its kind needs (HACKING.md, "Life of an operator").

A leaf needs CPU and Meta: without Meta, torch.compile and torch.export break. A composite is one kernel,
CompositeImplicitAutograd, and needs no other. An operator that takes no tensor is a plain function.
"""

from __future__ import annotations

import sys

import torch

import torchvq  # noqa: F401  (registers the operators)

# Dispatch keys of a leaf's CPU kernel; the second is the any-device path, for operators without a faster CPU kernel.
CPU_KERNELS = ("CPU", "CompositeExplicitAutograd")
META_KERNELS = ("Meta",)


def takes_tensors(schema: torch.FunctionSchema) -> bool:
    return any("Tensor" in str(argument.type) for argument in schema.arguments)


def missing_kernels(name: str) -> list[str]:
    def has(key: str) -> bool:
        return torch._C._dispatch_has_kernel_for_dispatch_key(name, key)

    if has("CompositeImplicitAutograd"):
        return []
    return [kinds[0] for kinds in (CPU_KERNELS, META_KERNELS) if not any(map(has, kinds))]


def main() -> int:
    schemas = {
        schema.name: schema
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("torchvq::")
    }
    failures = 0
    for name, schema in sorted(schemas.items()):
        missing = missing_kernels(name) if takes_tensors(schema) else []
        if missing:
            print(f"  {name}: no {' and no '.join(missing)} kernel")
            failures += 1
    if not schemas:
        print("  no operator is registered")
        return 1
    if failures == 0:
        print(f"  kernels: {len(schemas)} operators complete")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
