"""Operators run on several threads, which equal results cannot show: a build without OpenMP gives the same numbers."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# In its own process, threads can be counted. A thread pool keeps its threads, so each operator gets two more than the
# one before, and has to start them.
PROGRAM = """
import json, os, torch, torchvq
ops = torch.ops.torchvq
x, codes = torch.randn(1, 20000, 64), torch.randn(1, 64, 64)
indices = torch.randint(64, (1, 20000))
exponents = torch.zeros(1, 64, dtype=torch.int32)
paths = x.unsqueeze(2), x.unsqueeze(2), torch.zeros(1, 20000, 1, dtype=torch.float64), indices[..., None, None]
projected = codes[0], codes[0], codes[0, 0], codes[0], codes[0, 0]
calls = dict(
    nearest_code=lambda: ops.nearest_code(x, codes),
    code_statistics=lambda: ops.code_statistics(x, indices, exponents),
    lookup_codes=lambda: ops.lookup_codes(codes, indices),
    commitment_loss=lambda: ops.commitment_loss(x, x),
    residual_beam_search=lambda: ops.residual_beam_search(x, [codes, codes], 4),
    extend_paths=lambda: ops.extend_paths(*paths, x[:, :, None, None], 1),
    residual_encode=lambda: ops.residual_encode(x, [codes, codes]),
    projected_residual_encode=lambda: ops.projected_residual_encode(x, *([t] for t in projected)),
    residual_decode=lambda: ops.residual_decode(indices.unsqueeze(-1), [codes]),
    residual_commit=lambda: ops.residual_commit(x, [codes], indices.unsqueeze(-1)),
    quantize_and_commit_backward=lambda: ops.quantize_and_commit_backward(x, torch.ones(()), x, x, rotates=True),
    commitment_loss_backward=lambda: ops.commitment_loss_backward(torch.ones(()), x, x),
    residual_commit_backward=lambda: ops.residual_commit_backward(torch.ones(1), x.unsqueeze(0)),
)
threads = lambda: len(os.listdir("/proc/self/task"))
started = {}
for number, (name, call) in enumerate(calls.items()):
    torch.set_num_threads(3 + 2 * number)
    before = threads()
    call()
    started[name] = threads() - before
print(json.dumps(started))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_operators_run_on_the_threads_that_torch_has() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    started = json.loads(done.stdout)
    assert started == dict.fromkeys(started, 2), done.stderr
