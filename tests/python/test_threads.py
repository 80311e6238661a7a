"""Operators really run on several threads: a build without OpenMP gives the same numbers, on one."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Counted in a process of its own: a pool of threads, once started, stays.
PROGRAM = """
import os, sys, torch, torchvq
torch.set_num_threads(3)
ops = torch.ops.torchvq
x, codes = torch.randn(1, 20000, 64), torch.randn(1, 64, 64)
indices = torch.randint(64, (1, 20000))
exponents = torch.zeros(1, 64, dtype=torch.int32)
rng = torch.tensor([1, 2])
calls = dict(
    nearest_code=lambda: ops.nearest_code(x, codes),
    code_statistics=lambda: ops.code_statistics(x, indices, exponents),
    lookup_codes=lambda: ops.lookup_codes(codes, indices),
    commitment_loss=lambda: ops.commitment_loss(x, x),
    residual_beam_search=lambda: ops.residual_beam_search(x, [codes, codes], 4),
    residual_encode=lambda: ops.residual_encode(x, [codes, codes]),
    residual_decode=lambda: ops.residual_decode(indices.unsqueeze(-1), [codes]),
)
threads = lambda: len(os.listdir("/proc/self/task"))
before = threads()
calls[sys.argv[1]]()
print(threads() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
@pytest.mark.parametrize(
    "op",
    [
        "nearest_code",
        "code_statistics",
        "lookup_codes",
        "commitment_loss",
        "residual_beam_search",
        "residual_encode",
        "residual_decode",
    ],
)
def test_runs_on_the_threads_that_torch_has(op: str) -> None:
    started = subprocess.run(
        [sys.executable, "-c", PROGRAM, op], capture_output=True, text=True, check=True
    )
    assert int(started.stdout) == 2, started.stdout + started.stderr
