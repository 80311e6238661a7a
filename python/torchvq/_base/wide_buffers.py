"""Buffers that stay float32 under a cast to half precision, in which averages stall and tables lose their values."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

HALF = (torch.float16, torch.bfloat16)


class WideBuffers(nn.Module):
    """A module whose own float buffers stay float32 (float64 once the module was made double)."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "WideBuffers":
        before = dict(self._buffers)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, old in before.items():
            new = self._buffers[name]
            if old is not None and new is not None and new.dtype in HALF:
                self._buffers[name] = old.to(new.device)
        return self
