"""Flags whose values Python must not read at each use, or cannot read directly (under torch.vmap)."""

import torch
from torch import Tensor
from torch.autograd import forward_ad

from torchvq._base.ranks import distributed_training
from torchvq._base.torch_private import inside_reentrant_checkpoint, is_mapped, unmapped


def is_readable(tensor: Tensor) -> bool:
    """Whether Python reads the values of a tensor without waiting for a device; not under compilers."""
    return type(tensor) is Tensor and tensor.device.type == "cpu" and not is_mapped(tensor)


def is_readable_after_wait(tensor: Tensor) -> bool:
    """Whether Python can read the values of a tensor, if need be after a wait; not of fake ones, nor on "meta"."""
    if type(tensor) is not Tensor or tensor.is_meta or is_mapped(tensor):
        return False
    # In the mode of fake tensors every result is one, so the values of real ones cannot be read either.
    return type(tensor.detach()) is Tensor


def takes_gradient(tensor: Tensor) -> bool:
    """Whether results that depend on the tensor will have a gradient or a tangent; also below torch.vmap, which hides
    this, and in the first run of a reentrant checkpoint, which computes without gradients what backward repeats with
    them.
    """
    # Where gradients are off, a leaf still says that it requires one, but a padded copy of it does not.
    enabled = torch.is_grad_enabled()
    if torch.compiler.is_compiling() or (enabled and tensor.requires_grad):
        return enabled and tensor.requires_grad
    while is_mapped(tensor):
        tensor = unmapped(tensor)
    if enabled and tensor.requires_grad:
        return True
    dual = forward_ad.unpack_dual(tensor)  # type: ignore[no-untyped-call]
    return dual.tangent is not None or (not enabled and inside_reentrant_checkpoint())


def shared_flag(flag: Tensor) -> bool:
    """The value of a flag, if it is the same in all slices of a mapped tensor; RuntimeError otherwise."""
    while is_mapped(flag):
        flag = unmapped(flag)
    if bool(flag.any()) != bool(flag.all()):
        raise RuntimeError(
            "VectorQuantize: expected either all codebooks under torch.vmap to be initialised or none, but got some"
        )
    return bool(flag.all())


def version_of(flag: Tensor) -> int:
    """The number of writes to a tensor so far, except those through ``data``; inference tensors do not count theirs."""
    return -1 if flag.is_inference() else flag._version


def is_known_flag(flag: Tensor, known: tuple[Tensor, int] | None) -> bool:
    """Whether a flag is the known one, and was not written since."""
    if known is None or flag is not known[0]:
        return False
    if version_of(flag) == known[1]:
        return True
    # DDP writes all buffers before each forward, and reading this one would wait for the GPU each time.
    return not flag.is_cpu and distributed_training()
