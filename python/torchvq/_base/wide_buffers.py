"""Buffers that stay float32 under a cast to half precision, in which averages stall and tables lose their values."""

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from torchvq._base.marked_load import MarkedLoad

_Module = TypeVar("_Module", bound="WideBuffers")

HALF = (torch.float16, torch.bfloat16)
# The entry in the metadata of a state dict that names the half precision of the module.
_HALF_NAME = "half_dtype"


def wide_dtype() -> torch.dtype:
    """The dtype of state that is never half precision: torch's default dtype, or float32 if that is a half.

    Loaders of models set a default dtype of half precision while they build a model (Hugging Face's ``torch_dtype``).
    """
    default = torch.get_default_dtype()
    return torch.float32 if default in HALF else default


def widened(x: Tensor) -> Tensor:
    """At least float32: half precision as float32, others as they are."""
    return x.float() if x.dtype in HALF else x


@contextmanager
def wide_default() -> Iterator[None]:
    """Context for operators and user functions that make such state in the default dtype."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(wide_dtype())
    try:
        yield
    finally:
        torch.set_default_dtype(default)


def in_half_dtype(half: torch.dtype | None, codes: Tensor) -> Tensor:
    """Decoded codes in the half precision that their module was cast to, if it was: what follows was cast with it."""
    return codes if half is None else codes.to(half)


def keeps_dtype(old: Tensor, new: Tensor) -> bool:
    """Whether a buffer keeps its dtype: floats that would become half precision, and all others (``module.type()``)."""
    return new.dtype != old.dtype and (new.dtype in HALF or not old.is_floating_point())


class WideBuffers(MarkedLoad):
    """A module whose own float buffers stay float32 (float64 once the module was made double), and whose other buffers
    keep their dtype.
    """

    #: The half precision that the module was cast to, in which it decodes; None: it is not in half precision.
    half_dtype: torch.dtype | None = None

    def __init__(self) -> None:
        super().__init__()
        self._note_cast(torch.get_default_dtype())

    def _note_cast(self, dtype: torch.dtype) -> None:
        half = dtype if dtype in HALF else None
        if self.half_dtype != half:
            self.half_dtype = half

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "WideBuffers":
        before = dict(self._buffers)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        # Buffers keep their dtype, and some modules have none: a tensor without elements shows what the cast is to.
        before_cast = self.half_dtype or wide_dtype()
        self._note_cast(fn(torch.empty(0, dtype=before_cast, device="cpu")).dtype)
        for name, old in before.items():
            new = self._buffers[name]
            if old is None or new is None:
                continue
            if keeps_dtype(old, new):
                self._buffers[name] = old.to(new.device)
            if old.is_meta and not new.is_meta:
                self._awaits_values = False
        return self

    def widen(self) -> None:
        """Makes buffers float32 that a loader has assigned in half precision."""
        for name, buffer in self._buffers.items():
            if buffer is not None and buffer.dtype in HALF:
                self._note_cast(buffer.dtype)
                # A tensor made in inference mode could not be updated outside of it.
                with torch.inference_mode(False):
                    self._buffers[name] = buffer.float()

    def train(self: _Module, mode: bool = True) -> _Module:
        """As for any module. Loaders such as diffusers' write half precision into buffers, and end with ``eval()``."""
        self.widen()
        return super().train(mode)

    def complete_load(self, lacking: AbstractSet[str]) -> None:
        super().complete_load(lacking)
        self.widen()

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        metadata = getattr(destination, "_metadata", {}).get(prefix[:-1])
        if metadata is not None and self.half_dtype is not None:
            # The buffers do not show it. By name, so that it needs no type of torch to be read.
            metadata[_HALF_NAME] = str(self.half_dtype).removeprefix("torch.")

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *args: Any
    ) -> None:
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)
        # A checkpoint that is assigned brings its dtype.
        if local_metadata.get("assign_to_params_buffers") and "version" in local_metadata:
            own = self._buffers.keys() - self._non_persistent_buffers_set
            if not own or any(prefix + name in state_dict for name in own):
                half = local_metadata.get(_HALF_NAME)
                self._note_cast(getattr(torch, half) if half else wide_dtype())
        self.widen()
