"""The number by which ranks know a module."""

from typing import Any

import torch
from torch import nn


class OwnHandle(nn.Module):
    """A module with a number among all modules of this process, ``handle``, by which its handshakes are remembered.

    A copy, or a module from a file, is another module: its ranks have yet to compare options and state.
    """

    handle: int

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.handle = torch.ops.torchvq.new_handle()
