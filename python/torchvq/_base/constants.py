"""Buffers whose values follow from the options: they are in no checkpoint, and yet survive the meta device."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from torchvq._base.wide_buffers import WideBuffers


def to_default_device(value: Tensor) -> Tensor:
    """To where `with torch.device(...)` puts new tensors; our operators do not follow it by themselves."""
    return value.to(torch.get_default_device())


class ConstantBuffers(WideBuffers):
    """A module that may have constant buffers, which follow it to its device and dtype.

    No checkpoint holds them, so they are written again wherever PyTorch leaves tensors without values: `to_empty`, and
    `load_state_dict(assign=True)` after construction on the meta device (see `materialise_constants`).
    """

    def __init__(self) -> None:
        super().__init__()
        self._constants: dict[str, Tensor] = {}

    def keep_constant(self, name: str, value: Tensor | None) -> None:
        """Registers a constant buffer; None is one that is absent. `value` is on the CPU."""
        if value is not None:
            self._constants[name] = value.clone()
            value = to_default_device(value)
        self.register_buffer(name, value, persistent=False)

    def restore_constants(self, device: torch.device | None = None) -> None:
        """Writes the values; `device` is for buffers that are on the meta device."""
        with torch.no_grad():
            for name, value in self._constants.items():
                buffer = self._buffers[name]
                assert buffer is not None
                if not buffer.is_meta:
                    buffer.copy_(value)
                elif device is not None:
                    self._buffers[name] = value.to(device, buffer.dtype)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "ConstantBuffers":
        super()._apply(fn, recurse)
        self.restore_constants()
        return self


def materialise_constants(module: nn.Module, _: object = None) -> None:
    """After a state was loaded: constants that are still on the meta device go to where that state is."""
    tensors = [*module.parameters(), *module.buffers()]
    device = next((t.device for t in tensors if not t.is_meta), torch.device("cpu"))
    for part in module.modules():
        if isinstance(part, ConstantBuffers):
            part.restore_constants(device)
