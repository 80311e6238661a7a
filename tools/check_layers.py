"""Includes of the library go down only (HACKING.md, "Map of the tree"): a folder includes itself and what is below."""

from __future__ import annotations

import re
import sys
from pathlib import Path

# From the bottom up. Public headers stand with the sources of the same folder.
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
# Kernels are raw pointers; only the choice of the instruction set asks torch what the user has set.
TORCH = re.compile(r"^#include <(?:ATen|c10|torch)/", re.MULTILINE)
MAY_INCLUDE_TORCH = {Path("src/kernels/cpu/cpu_level.cpp")}


def sources() -> list[tuple[Path, str]]:
    """Every source of a layer, and the layer's name."""
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


def main() -> int:
    files = sources()
    faults = [fault for path, layer in files for fault in faults_of(path, layer)]
    for fault in faults:
        print(f"  {fault}")
    print(f"  layers: {len(files)} files, {len(faults)} includes go up")
    return 1 if faults or not files else 0


if __name__ == "__main__":
    sys.exit(main())
