"""The maps between the scales of HierarchicalVQ and the full resolution: interpolation, and a convolution."""

from collections.abc import Sequence
from typing import TypeGuard

import torch
from torch import Tensor, nn

from torchvq._base.projection import project
from torchvq._base.torch_private import is_jit_traced, is_observed_itself

_ops = torch.ops.torchvq
_CONVOLUTIONS: dict[int, type[nn.Conv1d | nn.Conv2d | nn.Conv3d]] = {
    1: nn.Conv1d,
    2: nn.Conv2d,
    3: nn.Conv3d,
}


class Phi(nn.Module):
    """Interpolates the tokens of a scale to a map, of which a fraction passes through a convolution.

    Args:
        dim: features.
        spatial_dims: axes of positions, 1 to 3.
        quant_resi: the fraction of the convolution; its absolute value is used.
    """

    conv: nn.Conv1d | nn.Conv2d | nn.Conv3d

    def __init__(self, dim: int, spatial_dims: int, quant_resi: float) -> None:
        super().__init__()
        self.resi_ratio = abs(quant_resi)
        self.conv = _CONVOLUTIONS[spatial_dims](dim, dim, 3, padding=1)

    def forward(
        self, tokens: Tensor, shape: Sequence[int] | None = None, full: Sequence[int] | None = None
    ) -> Tensor:
        """Tokens (B, L, D) of a grid of ``shape`` as a map (B, D, *full), in the dtype of the tokens.

        Without a grid, a map (B, D, *S) is only convolved, as in the reference.
        """
        if shape is None or full is None:
            return self._convolved(tokens)
        full = _plain(full)
        if not _is_of_torch(self.conv) and tokens.numel() > 0:
            # A forward or hook of the user must run, such as that of torch.nn.utils.prune, which sets the weight.
            return self._convolved(_ops.resample_scale(tokens, list(shape), full, "interpolate"))
        return _ops.spread_scale(
            tokens, list(shape), full, self.conv.weight, self.conv.bias, self.resi_ratio
        )

    def _convolved(self, maps: Tensor) -> Tensor:
        return torch.lerp(maps, project(self.conv, maps).to(maps.dtype), self.resi_ratio)


def is_plain(phi: nn.Module) -> TypeGuard[Phi]:
    """Whether the module of a scale is ours and nothing else happens when it is called, so that an operator may take
    its weights. Under FSDP2 it is of another class."""
    return type(phi) is Phi and not is_observed_itself(phi) and _is_of_torch(phi.conv)


def _is_of_torch(conv: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> bool:
    kind = _CONVOLUTIONS[len(conv.kernel_size)]
    return type(conv).forward is kind.forward and not is_observed_itself(conv)


def spread(phi: nn.Module, tokens: Tensor, shape: Sequence[int], full: Sequence[int]) -> Tensor:
    """Tokens (B, L, D) of a grid of ``shape`` as a map (B, D, *full), through the module of their scale."""
    if isinstance(phi, Phi):
        return phi(tokens, shape, full)
    # What a user put in its place, a wrapper around it or another module, takes a map, as in the reference.
    maps = _ops.resample_scale(tokens, list(shape), _plain(full), "interpolate")
    return project(phi, maps).to(maps.dtype)


def _plain(sizes: Sequence[int]) -> list[int]:
    # Under torch.jit.trace sizes are tensors, and operators take no lists of tensors as sizes.
    return [int(size) for size in sizes] if is_jit_traced() else list(sizes)
