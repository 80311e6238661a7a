"""Codes of indices."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torchvq.codebook import Codebook

_ops = torch.ops.torchvq


def decode(codebook: "Codebook", indices: Tensor, heads: int, separate: bool) -> Tensor:
    """Codes (*, heads * D) of int64 indices (*), or (*, heads); -1 gives zeros."""
    codes, affine = decoding_codes(codebook)
    return _ops.decode_indices(codes, indices, affine, heads, separate)


def decoding_codes(codebook: "Codebook") -> tuple[Tensor, list[Tensor]]:
    """The codes (H, K, D) as ``decode_indices`` takes them, with the affine map that it applies, if any."""
    if codebook.affine_param and codebook.vq_bridge is None and codebook._replay is None:
        return codebook.checked_embed(), codebook.affine_state()
    return codebook.codes(), []
