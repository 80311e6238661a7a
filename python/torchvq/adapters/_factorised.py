"""DAC, SNAC and what is built like them: codes of few features, compared by angle, between two projections."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from torchvq.adapters._registry import Adapter, register
from torchvq.adapters._search import nearest_by_angle


@register("transformers.models.dac.modeling_dac.DacVectorQuantize")
class DacLevel(Adapter):
    """One level of a DacModel."""

    codebook: Any

    def decode_latents(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        # A codebook that accelerate has moved elsewhere comes back for the call of the package's own method.
        if hasattr(self.codebook, "_hf_hook"):
            return self.original.decode_latents(hidden_states)
        # Its formula adds the norm of a code with the other sign: a code of zeros stands behind cosines above -0.5.
        indices = nearest_by_angle(
            hidden_states.transpose(1, 2), self.codebook.weight, zero_code=2.0
        )
        return self.codebook(indices).transpose(1, 2), indices


@register("dac.nn.quantize.VectorQuantize")
@register("snac.vq.VectorQuantize")
class PackageLevel(Adapter):
    """One level of a DAC or SNAC of the packages descript-audio-codec and snac."""

    codebook: Any
    decode_code: Any

    def decode_latents(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        indices = nearest_by_angle(latents.transpose(1, 2), self.codebook.weight)
        return self.decode_code(indices), indices
