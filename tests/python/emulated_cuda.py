"""nearest_code on the emulated CUDA kernels against the oracle: `python tests/python/emulated_cuda.py [rows]`.

Run with TORCHVQ_LIBRARY=build/tests/cuda_shim/libtorchvq_emulated.so, whose CUDA kernels replace the CPU's. The cases
are those of exactness.py with fewer rows, because an emulated GPU is slow.
"""

from __future__ import annotations

import ctypes
import os
import sys

import nearest_code_oracle as oracle
import nearest_code_rows
import numpy as np
import torch

from torchvq.ops import nearest_code

# Sizes screened in float32 and in half precision; numbers of codes that are no multiple of a tile.
SHAPES = ((150, 12), (150, 40))
WORST_ROUNDING, SHUFFLED_THREADS = 2, 2
# Of the card, and the shared memory of a block.
CAPABILITIES = ((8, 99 * 1024), (9, 227 * 1024))


def wrong_rows(x: torch.Tensor, codebook: torch.Tensor) -> int:
    wrong = 0
    for metric in ("euclidean", "cosine"):
        indices = nearest_code(x, codebook, metric=metric).indices
        expected = oracle.nearest(x, codebook, metric)[:, 0]
        wrong += int(np.count_nonzero(indices.numpy() != expected))
    return wrong


def main() -> int:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    emulation = ctypes.CDLL(os.environ["TORCHVQ_LIBRARY"])
    emulation.torchvq_emulate_cuda(1)
    generator = torch.Generator().manual_seed(0)
    failures = 0
    for name, kind in nearest_code_rows.KINDS.items():
        for size, dim in SHAPES:
            x, codebook = kind(rows, size, dim, generator)
            for capability, shared in CAPABILITIES:
                emulation.torchvq_set_emulation(
                    WORST_ROUNDING, SHUFFLED_THREADS, capability, shared
                )
                wrong = wrong_rows(x, codebook)
                sizes = f"{len(x):6d} x {size} x {dim}"
                print(f"{name:14s} {sizes} at {capability}: {wrong} wrong", flush=True)
                failures += wrong
    emulation.torchvq_emulated_launches.restype = ctypes.c_longlong
    print(f"{emulation.torchvq_emulated_launches()} kernels launched, {failures} rows wrong")
    return 0 if failures == 0 and emulation.torchvq_emulated_launches() > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
