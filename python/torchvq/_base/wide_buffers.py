"""Buffers that stay float32 under a cast to half precision, in which averages stall and tables lose their values."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

HALF = (torch.float16, torch.bfloat16)


def wide_dtype() -> torch.dtype:
    """The dtype of state that is never half precision: torch's default dtype, or float32 if that is a half.

    Loaders of models set a default dtype of half precision while they build a model (Hugging Face's ``torch_dtype``).
    """
    default = torch.get_default_dtype()
    return torch.float32 if default in HALF else default


@contextmanager
def wide_default() -> Iterator[None]:
    """Context for operators and user functions that make such state in the default dtype."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(wide_dtype())
    try:
        yield
    finally:
        torch.set_default_dtype(default)


def keeps_dtype(old: Tensor, new: Tensor) -> bool:
    """Whether a buffer keeps its dtype: floats that would become half precision, and all others (``module.type()``)."""
    return new.dtype != old.dtype and (new.dtype in HALF or not old.is_floating_point())


class WideBuffers(nn.Module):
    """A module whose own float buffers stay float32 (float64 once the module was made double), and whose other buffers
    keep their dtype.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "WideBuffers":
        before = dict(self._buffers)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, old in before.items():
            new = self._buffers[name]
            if old is not None and new is not None and keeps_dtype(old, new):
                self._buffers[name] = old.to(new.device)
        return self
