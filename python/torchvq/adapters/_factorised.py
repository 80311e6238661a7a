"""DAC, SNAC and what is built like them: codes of few features, compared by angle, between two projections."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchvq.adapters._registry import Adapter, register
from torchvq.adapters._search import nearest


@register("transformers.models.dac.modeling_dac.DacVectorQuantize")
class DacLevel(Adapter):
    """One level of a DacModel."""

    codebook: Any

    def decode_latents(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        # A codebook that accelerate has moved elsewhere comes back for the call of the package's own method.
        if hasattr(self.codebook, "_hf_hook"):
            return self.original.decode_latents(hidden_states)
        indices = _by_angle(hidden_states, self.codebook.weight, zero_code=0.5)
        return self.codebook(indices).transpose(1, 2), indices


@register("dac.nn.quantize.VectorQuantize")
@register("snac.vq.VectorQuantize")
class PackageLevel(Adapter):
    """One level of a DAC or SNAC of the packages descript-audio-codec and snac."""

    codebook: Any
    decode_code: Any

    def decode_latents(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        indices = _by_angle(latents, self.codebook.weight, zero_code=-0.5)
        return self.decode_code(indices), indices


def _by_angle(latents: Tensor, codebook: Tensor, *, zero_code: float) -> Tensor:
    """Indices (B, T) of the codes (K, D) at the smallest angle to ``latents`` (B, D, T).

    A code of zeros has no angle. Where it stands among the others is what its norm, 0, makes of the package's formula
    (squared distance of unit vectors): before those of a cosine below 0.5, or, where the formula adds the norm with the
    other sign, behind those above -0.5.
    """
    with torch.no_grad():
        bias = codebook.any(1).logical_not().to(codebook.dtype) * zero_code
    return nearest(latents.transpose(1, 2), codebook, metric="cosine", bias=bias)
