"""Checks that includes and imports go only to lower layers (HACKING.md, "Map of the tree").

A folder or module may use itself and lower layers. Imports only for annotations, or inside a function, do not count.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

# From bottom to top. Public headers belong to the layer of the sources of the same folder.
LAYERS = (
    "kernels",
    "detail",
    "ops",
    "distributed",
    "functional",
    "fit",
    "options",
    "modules",
    "io",
)
ROOTS = (Path("src"), Path("include/torchvq"))
INCLUDE = re.compile(r'^#include [<"](?:torchvq/)?(\w+)/', re.MULTILINE)
# Kernels use raw pointers; only the choice of the instruction set reads a setting of torch.
TORCH = re.compile(r"^#include <(?:ATen|c10|torch)/", re.MULTILINE)
MAY_INCLUDE_TORCH = {Path("src/kernels/cpu/cpu_level.cpp")}

# Layers of the package, from bottom to top; modules of one row import each other at most in one direction.
PACKAGE = Path("python/torchvq")
ROWS = (
    ("_torch_builds", "_library", "_version"),
    ("_base",),
    ("outputs",),
    ("_scalar",),
    ("ops", "codebook"),
    ("_codebook",),
    ("vector_quantize",),
    ("_residual",),
    ("_hierarchical",),
)


def sources() -> list[tuple[Path, str]]:
    """Every source of a layer, with the layer's name."""
    return [
        (path, layer)
        for root in ROOTS
        for layer in LAYERS
        for path in sorted((root / layer).rglob("*"))
        if path.suffix in {".h", ".cpp", ".cu"}
    ]


def faults_of(path: Path, layer: str) -> list[str]:
    text = path.read_text()
    own = LAYERS.index(layer)
    faults = [
        f"{path}: {layer} includes {included}, which stands above it"
        for included in INCLUDE.findall(text)
        if included in LAYERS and LAYERS.index(included) > own
    ]
    if layer == "kernels" and TORCH.search(text) and path not in MAY_INCLUDE_TORCH:
        faults.append(f"{path}: a kernel includes torch")
    return faults


def row_of(module: str) -> int:
    """The layer of a module, given its name below the package. Classes and tools are above all rows."""
    room = module.split(".")[0]
    return next((height for height, row in enumerate(ROWS) if room in row), len(ROWS))


def imports(statements: list[ast.stmt]) -> Iterator[str]:
    """The modules of the package that are imported on loading one, by their names below the package."""
    for statement in statements:
        if isinstance(statement, ast.ImportFrom) and statement.module:
            package, _, module = statement.module.partition(".")
            if package == "torchvq":
                yield from [module] if module else [alias.name for alias in statement.names]
        elif isinstance(statement, ast.If) and "TYPE_CHECKING" not in ast.dump(statement.test):
            yield from imports(statement.body + statement.orelse)


def faults_of_module(path: Path) -> list[str]:
    own = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    return [
        f"{path}: imports torchvq.{module}, which stands above it"
        for module in imports(ast.parse(path.read_text(encoding="utf-8")).body)
        if row_of(module) > row_of(own)
    ]


def main() -> int:
    files = sources()
    modules = sorted(PACKAGE.rglob("*.py"))
    faults = [fault for path, layer in files for fault in faults_of(path, layer)]
    faults += [fault for path in modules for fault in faults_of_module(path)]
    for fault in faults:
        print(f"  {fault}")
    print(f"  layers: {len(files) + len(modules)} files, {len(faults)} includes and imports go up")
    return 1 if faults or not files or not modules else 0


if __name__ == "__main__":
    sys.exit(main())
