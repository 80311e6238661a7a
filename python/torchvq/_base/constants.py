"""Buffers whose values follow from the options. No checkpoint holds them; they are restored after the meta device."""

from collections.abc import Callable
from collections.abc import Set as AbstractSet

import torch
from torch import Tensor, nn

from torchvq._base.options import expect
from torchvq._base.wide_buffers import WideBuffers


def to_default_device(value: Tensor) -> Tensor:
    """Moves a tensor to the device of `with torch.device(...)`, which custom operators do not follow by themselves."""
    return value.to(torch.empty(0).device)  # get_default_device takes five times as long


class ConstantBuffers(WideBuffers):
    """A module that may have constant buffers, which follow it to its device and dtype.

    Checkpoints do not hold them, so they are rewritten wherever PyTorch leaves tensors uninitialised: after `to_empty`,
    and after `load_state_dict(assign=True)` on a module built on the meta device (see `materialise_constants`).
    """

    def __init__(self) -> None:
        super().__init__()
        self._constants: dict[str, Tensor] = {}

    def keep_constant(self, name: str, value: Tensor | None) -> None:
        """Registers a constant buffer, or with None an absent one. `value` is on the CPU."""
        if value is not None:
            self._constants[name] = value.clone()
            value = to_default_device(value)
        self.register_buffer(name, value, persistent=False)

    def restore_constants(self, device: torch.device | None = None) -> None:
        """Rewrites the values; buffers that are on the meta device move to `device`, if given."""
        with torch.no_grad():
            for name, value in self._constants.items():
                buffer = self._buffers[name]
                assert buffer is not None
                if not buffer.is_meta:
                    buffer.copy_(value)
                elif device is not None:
                    self._buffers[name] = value.to(device, buffer.dtype)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "ConstantBuffers":
        before = {name: self._buffers[name] for name in self._constants}
        super()._apply(fn, recurse)
        # Buffers that nothing has moved may be saved for a backward.
        if any(self._buffers[name] is not old for name, old in before.items()):
            self.restore_constants()
        return self

    def complete_load(self, lacking: AbstractSet[str]) -> None:
        super().complete_load(lacking)
        self.restore_constants()


def expect_same_codes(owner: str, name: str, codes: Tensor, computed: Tensor) -> None:
    """Raises ValueError unless ``codes`` are those that the module computes, in any dtype.

    For assignments to what is a buffer in the reference: loaders write it anew.
    """
    same = isinstance(codes, Tensor) and codes.shape == computed.shape
    same = same and torch.equal(codes, computed.to(codes.device, codes.dtype))
    expect(owner, same, name, "the codes that the module computes", "others")


def materialise_constants(module: nn.Module, _: object = None) -> None:
    """Post-load hook: moves constants that are still on the meta device to the device of the loaded state."""
    tensors = [*module.parameters(), *module.buffers()]
    device = next((t.device for t in tensors if not t.is_meta), torch.device("cpu"))
    for part in module.modules():
        if isinstance(part, ConstantBuffers):
            part.restore_constants(device)
