"""What holds for every test: one thread, and PyTorch's warnings about operators that will become errors are errors."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

# Outputs of an operator that share memory: torch.compile warns on a user's machine and raises
# where CI is set. Read when torch is imported, here and in the processes that tests start.
os.environ["TORCHINDUCTOR_ERROR_ON_CUSTOM_OP_ALIASING"] = "1"

import torch


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """pytest runs in several processes, which must not fight for the cores; a test may ask for more threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
