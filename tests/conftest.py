"""What holds for every test: PyTorch's warnings about operators that will become errors are errors."""

from __future__ import annotations

import os

# Outputs of an operator that share memory: torch.compile warns on a user's machine and raises
# where CI is set. Read when torch is imported, here and in the processes that tests start.
os.environ["TORCHINDUCTOR_ERROR_ON_CUSTOM_OP_ALIASING"] = "1"
