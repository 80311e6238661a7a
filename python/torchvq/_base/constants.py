"""Buffers whose values follow from the options. No checkpoint holds them; they are restored after the meta device."""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import torch
from torch import Tensor, nn

from torchvq._base.options import expect
from torchvq._base.wide_buffers import HALF, WideBuffers


def to_default_device(value: Tensor) -> Tensor:
    """Moves a tensor to the device of `with torch.device(...)`, which custom operators do not follow by themselves."""
    return value.to(torch.empty(0).device)  # get_default_device takes five times as long


class ConstantBuffers(WideBuffers):
    """A module that may have constant buffers, which follow it to its device and dtype.

    Checkpoints do not hold them, so they are rewritten wherever PyTorch leaves tensors uninitialised: after `to_empty`,
    and after `load_state_dict(assign=True)` on a module built on the meta device (see `materialise_constants`). Values
    that a user has put in their place are the constants from then on, as they would remain in a plain buffer.
    """

    #: False from construction on the meta device to the end of the first load. Until then what others write into the
    #: constants are placeholders.
    _has_values: bool = True

    def __init__(self) -> None:
        super().__init__()
        self._constants: dict[str, Tensor] = {}
        self._has_values = not self._awaits_values

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
                if buffer is None:
                    continue
                if not buffer.is_meta:
                    buffer.copy_(value)
                elif device is not None:
                    self._buffers[name] = value.to(device, buffer.dtype)

    def _keep_changes(self, buffers: Mapping[str, Tensor | None]) -> None:
        for name, buffer in buffers.items():
            if buffer is None or buffer.is_meta:
                continue
            held, value = buffer.detach().to("cpu"), self._constants[name]
            # Roundings are no change: loaders write half precision into buffers.
            roundings = (held.dtype, *HALF) if value.is_floating_point() else (held.dtype,)
            if not any(torch.equal(held, value.to(dtype).to(held.dtype)) for dtype in roundings):
                self._constants[name] = held.clone()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "ConstantBuffers":
        before = {name: self._buffers[name] for name in self._constants}
        super()._apply(fn, recurse)
        # Buffers that nothing has moved may be saved for a backward.
        if any(self._buffers[name] is not old for name, old in before.items()):
            if self._has_values:
                self._keep_changes(before)
            self.restore_constants()
        return self

    def _load_from_state_dict(self, *args: Any) -> None:
        # The hooks after a load restore the constants.
        if self._has_values:
            self._keep_changes({name: self._buffers[name] for name in self._constants})
        super()._load_from_state_dict(*args)
        self._has_values = True

    def complete_load(self, lacking: AbstractSet[str]) -> None:
        super().complete_load(lacking)
        self.restore_constants()
        self._has_values = True


def expect_same_codes(owner: str, name: str, codes: Tensor, computed: Tensor) -> None:
    """Raises ValueError unless ``codes`` are those that the module computes, in any dtype, up to its rounding.

    For assignments to what is a buffer in the reference: loaders write it anew, by a formula of their own.
    """
    same = isinstance(codes, Tensor) and codes.shape == computed.shape
    same = same and _round_alike(codes, computed)
    expect(owner, same, name, "the codes that the module computes", "others")


def _round_alike(codes: Tensor, computed: Tensor) -> bool:
    """Whether two tables differ by a few roundings of the largest code, in the coarser of their dtypes."""
    if not codes.is_floating_point() or not computed.is_floating_point():
        return torch.equal(codes, computed.to(codes.device, codes.dtype))
    if computed.numel() == 0:
        return True
    rounding = max(torch.finfo(table.dtype).eps for table in (codes, computed))
    largest = computed.abs().max().item()
    wide = computed.to(codes.device, torch.float64)
    return torch.allclose(codes.double(), wide, rtol=0, atol=4 * rounding * largest)


def materialise_constants(module: nn.Module, _: object = None) -> None:
    """Post-load hook: moves constants that are still on the meta device to the device of the loaded state."""
    tensors = [*module.parameters(), *module.buffers()]
    device = next((t.device for t in tensors if not t.is_meta), torch.device("cpu"))
    for part in module.modules():
        if isinstance(part, ConstantBuffers):
            part.restore_constants(device)
