"""What lies between the scales of HierarchicalVQ and their map: interpolation, and a convolution."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

_ops = torch.ops.torchvq
_CONVOLUTIONS: dict[int, type[nn.Module]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


class Phi(nn.Module):
    """What makes the map of a scale's tokens: interpolation, and a convolution that has a fraction of the result.

    Args:
        dim: features.
        spatial_dims: axes of positions, 1 to 3.
        quant_resi: the convolution's fraction, its absolute value.
    """

    def __init__(self, dim: int, spatial_dims: int, quant_resi: float) -> None:
        super().__init__()
        self.resi_ratio = abs(quant_resi)
        self.conv = _CONVOLUTIONS[spatial_dims](dim, dim, 3, padding=1)

    def forward(self, tokens: Tensor, shape: Sequence[int], full: Sequence[int]) -> Tensor:
        """Tokens (B, L, D) of a grid of that shape, as a map (B, D, *full); in the dtype of the tokens."""
        spread: Tensor = _ops.spread_scale(
            tokens, list(shape), full, self.conv.weight, self.conv.bias, self.resi_ratio
        )
        return spread
