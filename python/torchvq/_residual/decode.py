"""Decoding of a residual stack."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchvq._base.integers import as_int64
from torchvq._base.replaced import is_replaced
from torchvq._base.wide_buffers import widened
from torchvq._codebook.decoding import decoding_codes
from torchvq._residual.calls import check_levels

if TYPE_CHECKING:
    from torchvq.residual_vq import ResidualVQ

_ops = torch.ops.torchvq


def decode_levels(rvq: "ResidualVQ", indices: Tensor) -> list[Tensor]:
    """The codes (B, *, heads * D) of each level of indices (B, *, q) or (B, *, heads, q)."""
    indices = as_int64("ResidualVQ", indices)
    check_levels("ResidualVQ", indices, rvq.num_quantizers, rvq.quantize_dropout)
    levels, layout = indices.shape[-1], rvq.layout
    decoded: list[Tensor] = []
    total: Tensor | None = None
    for number, level in enumerate(rvq.levels[:levels]):
        rows = layout.split_indices(indices[..., number])
        codes = _ops.lookup_codes(level._codebook.codes(), rows)
        if total is not None and rvq.implicit_neural_codebook:
            made = rvq.mlp(number).rows(codes, total)
            codes = made.masked_fill((rows < 0).unsqueeze(-1), 0)
        total = widened(codes) if total is None else total + codes
        decoded.append(_by_position(rvq, codes, indices))
    return decoded


def decode_sum(rvq: "ResidualVQ", indices: Tensor) -> Tensor:
    """The sum of the codes (B, *, heads * D) of indices (B, *, q) or (B, *, heads, q)."""
    replaced = is_replaced(rvq, rvq.decoding)
    if replaced or rvq.implicit_neural_codebook:
        levels = rvq.get_codes_from_indices(indices) if replaced else decode_levels(rvq, indices)
        total, *others = map(widened, levels)
        for codes in others:
            total = total + codes
        return total
    check_levels("ResidualVQ", indices, rvq.num_quantizers, rvq.quantize_dropout)
    used = rvq.levels[: indices.shape[-1]]
    found = [decoding_codes(level._codebook) for level in used]
    affine = [own for _, of_level in found for own in of_level]
    return _ops.decode_residual(
        indices, [codes for codes, _ in found], affine, rvq.heads, rvq.layout.separate
    )


def _by_position(rvq: "ResidualVQ", codes: Tensor, indices: Tensor) -> Tensor:
    """Codes (H, T, D) of indices, as (B, *, heads * D)."""
    positions = indices.shape[: -1 if rvq.heads == 1 else -2]
    # With separate codebooks the heads are the first axis, with a shared one they are part of the token axis.
    by_token = codes.transpose(0, 1) if rvq.layout.separate else codes
    return by_token.reshape(*positions, codes.shape[-1] * rvq.heads)
