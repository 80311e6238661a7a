"""DAC, SNAC and what is built like them: codes of few features, compared by angle, between two projections."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchvq._base.torch_private import is_observed
from torchvq.adapters._registry import Adapter, register
from torchvq.adapters._search import nearest, nearest_by_angle

_SMALLEST_NORM = 1e-12  # what torch's normalize divides by instead


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


class _Stack(Adapter):
    """All levels of a DAC."""

    quantizers: nn.ModuleList
    n_codebooks: int

    def levels_in_use(self, x: Tensor, n_quantizers: int | None) -> list[Any] | None:
        """Levels that one walk may take; None where a graph is made, hooks wait for calls, a GPU would wait, or codes
        of levels differ in their sizes."""
        count = self.n_codebooks if n_quantizers is None else n_quantizers
        if torch.compiler.is_compiling() or torch.is_grad_enabled() or not x.is_cpu:
            return None
        if not isinstance(count, int) or count < 1:
            return None
        levels: list[Any] = list(self.quantizers)[:count]
        alike = len({level.codebook.weight.shape[1] for level in levels}) == 1
        observed = any(is_observed(level, level.codebook) for level in levels)
        return levels if alike and not observed else None


@register("transformers.models.dac.modeling_dac.DacResidualVectorQuantizer")
class DacStack(_Stack):
    """All levels of a DacModel."""

    def forward(self, hidden_state: Tensor, n_quantizers: int | None = None) -> Any:
        levels = self.levels_in_use(hidden_state, n_quantizers)
        found = levels and _walk(levels, hidden_state)
        # Codes of zeros stand elsewhere than by their angle (DacLevel).
        if not found or not bool(found.norms.all()):
            return self.original.forward(hidden_state, n_quantizers)
        # One loss of the whole batch, as many times as there are clips.
        loss = found.loss.repeat(len(hidden_state))
        return found.quantized, found.indices, found.latents, loss, loss.clone()


@register("dac.nn.quantize.ResidualVectorQuantize")
class PackageStack(_Stack):
    """All levels of a DAC of the package descript-audio-codec."""

    def forward(self, z: Tensor, n_quantizers: int | None = None) -> Any:
        levels = self.levels_in_use(z, n_quantizers)
        if not levels:
            return self.original.forward(z, n_quantizers)
        found = _walk(levels, z)
        return found.quantized, found.indices, found.latents, found.loss, found.loss.clone()


class _Walk(NamedTuple):
    quantized: Tensor
    """(B, C, T)"""
    indices: Tensor
    """(B, Q, T)"""
    latents: Tensor
    """(B, Q d, T)"""
    loss: Tensor
    """Of all levels, added up: without a gradient the losses of encoder and codebook are the same number."""
    norms: Tensor
    """Of the codes of all levels, (Q K, 1)."""


def _walk(levels: list[Any], x: Tensor) -> _Walk:
    """All levels, with the package's own projections and arithmetic, and the search among unit vectors between them."""
    codebooks = [level.codebook.weight for level in levels]
    units, norms = _unit_vectors(torch.cat(codebooks))
    units_of_level = torch.split(units, [len(codebook) for codebook in codebooks])
    quantized = torch.zeros((), dtype=x.dtype)
    residual = x
    indices, latents, codes = [], [], []
    for level, codebook, unit_codes in zip(levels, codebooks, units_of_level, strict=True):
        inside = level.in_proj(residual)
        vectors = inside.transpose(1, 2)
        tokens = nearest(_unit_vectors(vectors)[0], unit_codes)
        code = codebook.index_select(0, tokens.flatten()).view(vectors.shape).transpose(1, 2)
        # The packages' straight-through formula rounds.
        part = level.out_proj(inside + (code - inside))
        quantized = quantized + part
        residual = residual - part
        indices.append(tokens)
        latents.append(inside)
        codes.append(code)
    all_latents = torch.cat(latents, 1)
    # Levels have equal sizes, so the sum of their means is the mean of all, as many times as there are levels.
    loss = functional.mse_loss(all_latents, torch.cat(codes, 1)) * len(levels)
    return _Walk(quantized, torch.stack(indices, 1), all_latents, loss, norms)


def _unit_vectors(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """And their norms (*, 1), by the arithmetic of torch's normalize, in float32 or float64."""
    wide = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
    norms = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    return wide / norms.clamp_min(_SMALLEST_NORM), norms
