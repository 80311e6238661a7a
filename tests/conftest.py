"""Set-up of every test: one thread, no graphs of other tests, an error where outputs of an operator share memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

# If outputs of an operator share memory, torch.compile warns on a user's machine and raises where CI is set. The
# variable is read when torch is imported, here and in the processes that tests start.
os.environ["TORCHINDUCTOR_ERROR_ON_CUSTOM_OP_ALIASING"] = "1"
# pytest runs in several processes, which must not compete for the cores; neither must the programs that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

if os.environ.get("TORCHVQ_OTHER_ROUNDING") == "1":
    import other_rounding  # noqa: F401  (wraps torch's kernels)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """A test may set more threads; the next one starts with one again."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    """Graphs are kept by the code of a class, not by module: after too many of them, of other tests, the compiler
    leaves the next module of the class uncompiled, without an error.
    """
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
