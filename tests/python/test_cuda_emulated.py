"""The CUDA kernels, emulated (docs/design/gpu.md), on the cases of the exactness suite.

It runs in its own process, because the emulation is another build of the library.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from cli_support import BUILD

LIBRARY = BUILD / "tests/cuda_shim/libtorchvq_emulated.so"


def test_nearest_code_is_exact() -> None:
    assert LIBRARY.exists(), f"{LIBRARY} is built with the C++ tests: `make compile`"
    script = Path(__file__).parent / "emulated_cuda.py"
    environment = os.environ | {
        "TORCHVQ_LIBRARY": str(LIBRARY),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    run = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
