"""Tensors under torch.vmap, whose values Python cannot read directly."""

from torch import Tensor

from torchvq._base.torch_private import is_mapped, unmapped

__all__ = ["is_mapped", "reads_at_once", "shared_flag"]


def reads_at_once(tensor: Tensor) -> bool:
    """Whether Python reads the values of a tensor without waiting for a device; not under compilers."""
    return type(tensor) is Tensor and tensor.device.type == "cpu" and not is_mapped(tensor)


def shared_flag(flag: Tensor) -> bool:
    """The value of a flag, if it is the same in all slices of a mapped tensor; RuntimeError otherwise."""
    while is_mapped(flag):
        flag = unmapped(flag)
    if bool(flag.any()) != bool(flag.all()):
        raise RuntimeError(
            "VectorQuantize: expected either all codebooks under torch.vmap to be initialised or none, but got some"
        )
    return bool(flag.all())
