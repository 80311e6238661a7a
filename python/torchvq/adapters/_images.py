"""The vector quantizers of image tokenizers: Chameleon, Emu3, Janus, GLM-Image, and VQModel of diffusers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from torchvq.adapters._registry import Adapter, register
from torchvq.adapters._search import nearest, nearest_by_angle

_TRANSFORMERS = "transformers.models"


@register(f"{_TRANSFORMERS}.chameleon.modeling_chameleon.ChameleonVQVAEVectorQuantizer")
@register(f"{_TRANSFORMERS}.janus.modeling_janus.JanusVQVAEVectorQuantizer")
class ImageQuantizer(Adapter):
    """The codebook of a ChameleonVQVAE or JanusVQVAE."""

    embedding: Any
    beta: float

    def forward(self, hidden_state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = hidden_state.permute(0, 2, 3, 1).contiguous()
        indices = nearest(hidden, self.embedding.weight)
        chosen = self.embedding(indices)
        to_encoder, to_codes = _losses(hidden, chosen)
        return _straight(hidden, chosen), to_encoder + self.beta * to_codes, indices.flatten()


@register(f"{_TRANSFORMERS}.glm_image.modeling_glm_image.GlmImageVQVAEVectorQuantizer")
class UnitImageQuantizer(Adapter):
    """The codebook of a GlmImageVQVAE: unit vectors on both sides."""

    embedding: Any
    beta: float

    def forward(self, hidden_state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        latents = hidden_state.permute(0, 2, 3, 1).contiguous()
        indices = nearest_by_angle(latents, self.embedding.weight)
        hidden = functional.normalize(latents, dim=-1)
        codes = functional.normalize(self.embedding.weight, dim=-1)
        chosen = functional.embedding(indices, codes)
        to_encoder, to_codes = _losses(hidden, chosen)
        return _straight(hidden, chosen), to_encoder + self.beta * to_codes, indices.flatten()


@register(f"{_TRANSFORMERS}.emu3.modeling_emu3.Emu3VQVAEVectorQuantizer")
class VideoQuantizer(Adapter):
    """The codebook of an Emu3VQVAE, for images (B, T, C, H, W)."""

    embedding: Any

    def forward(self, hidden_state: Tensor) -> Tensor:
        return nearest(hidden_state.permute(0, 1, 3, 4, 2), self.embedding.weight)


@register("diffusers.models.autoencoders.vae.VectorQuantizer")
class DiffusersQuantizer(Adapter):
    """The codebook of a VQModel of diffusers."""

    embedding: Any
    beta: float
    legacy: bool
    remap: Any
    remap_to_used: Any
    sane_index_shape: bool

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor, tuple[None, None, Tensor]]:
        hidden = z.permute(0, 2, 3, 1).contiguous()
        indices = nearest(hidden, self.embedding.weight)
        chosen = self.embedding(indices)
        to_encoder, to_codes = _losses(hidden, chosen)
        if self.legacy:
            loss = to_encoder + self.beta * to_codes
        else:
            loss = self.beta * to_encoder + to_codes
        return _straight(hidden, chosen), loss, (None, None, self._tokens(indices))

    def _tokens(self, indices: Tensor) -> Tensor:
        tokens = indices.flatten()
        if self.remap is not None:
            tokens = self.remap_to_used(indices.flatten(1)).reshape(-1, 1)
        return tokens.reshape(indices.shape) if self.sane_index_shape else tokens


def _losses(hidden: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Mean squared distances with gradient to the encoder, and with gradient to the codes; their values are equal."""
    if not (torch.is_grad_enabled() and (hidden.requires_grad or chosen.requires_grad)):
        distance = ((chosen - hidden) ** 2).mean()
        return distance, distance
    return ((chosen.detach() - hidden) ** 2).mean(), ((chosen - hidden.detach()) ** 2).mean()


def _straight(hidden: Tensor, chosen: Tensor) -> Tensor:
    """The codes, features on axis 1, with the gradient passed to ``hidden``, by the arithmetic of these packages."""
    return (hidden + (chosen - hidden).detach()).permute(0, 3, 1, 2).contiguous()
