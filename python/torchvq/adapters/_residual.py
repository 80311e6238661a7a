"""Residual quantizers with Euclidean codebooks: EnCodec, Mimi, X-Codec and similar.

A stack of levels is one call of `residual_encode` or `residual_decode`. Levels that are called in another way (by a
loop of the package, or between projections) use the exact search of their codebook.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from torchvq.adapters._frozen import prepared_codes
from torchvq.adapters._registry import Adapter, register
from torchvq.adapters._search import nearest, residual_nearest, residual_sum

_TRANSFORMERS = "transformers.models"


@register(f"{_TRANSFORMERS}.encodec.modeling_encodec.EncodecEuclideanCodebook")
@register(f"{_TRANSFORMERS}.mimi.modeling_mimi.MimiEuclideanCodebook")
@register(f"{_TRANSFORMERS}.xcodec.modeling_xcodec.XcodecEuclideanCodebook")
@register(
    f"{_TRANSFORMERS}.higgs_audio_v2_tokenizer.modeling_higgs_audio_v2_tokenizer"
    ".HiggsAudioV2TokenizerEuclideanCodebook"
)
@register("encodec.quantization.core_vq.EuclideanCodebook")
class Codebook(Adapter):
    """The search of one codebook."""

    embed: Tensor

    def quantize(self, hidden_states: Tensor) -> Tensor:
        return nearest(hidden_states, self.embed)


@register("moshi.quantization.core_vq.EuclideanCodebook")
class MoshiCodebook(Adapter):
    """The search of one codebook."""

    embedding: Tensor

    def _quantize(self, x: Tensor) -> Tensor:
        return nearest(x, self.embedding)


class _Levels(Adapter):
    """All levels of a stack whose levels have no projections."""

    levels: str  # the attribute with the levels
    get_num_quantizers_for_bandwidth: Any

    def encode(self, embeddings: Tensor, bandwidth: float | None = None) -> Tensor:
        count = self.get_num_quantizers_for_bandwidth(bandwidth)
        return _tokens(self, embeddings, _embeds(getattr(self, self.levels))[:count])

    def decode(self, codes: Tensor) -> Tensor:
        if len(codes) == 0:
            return self.original.decode(codes)
        return residual_sum(codes, _embeds(getattr(self, self.levels))[: len(codes)])


@register(f"{_TRANSFORMERS}.encodec.modeling_encodec.EncodecResidualVectorQuantizer")
class EncodecStack(_Levels):
    """All levels of an EncodecModel."""

    levels = "layers"


@register(f"{_TRANSFORMERS}.xcodec.modeling_xcodec.XcodecResidualVectorQuantization")
class XcodecStack(_Levels):
    """All levels of an XcodecModel."""

    levels = "quantizers"


@register(f"{_TRANSFORMERS}.mimi.modeling_mimi.MimiResidualVectorQuantizer")
class MimiStack(Adapter):
    """All levels of one of the two stacks of a MimiModel, semantic and acoustic."""

    layers: nn.ModuleList
    input_proj: Any
    output_proj: Any
    num_quantizers: int

    def encode(self, embeddings: Tensor, num_quantizers: int | None = None) -> Tensor:
        levels = self.num_quantizers if num_quantizers is None else num_quantizers
        if levels < 1:
            return self.original.encode(embeddings, num_quantizers)
        if self.input_proj is not None:
            embeddings = self.input_proj(embeddings)
        return _tokens(self, embeddings, _embeds(self.layers)[:levels])

    def decode(self, codes: Tensor) -> Tensor:
        levels = codes.shape[1]
        if levels == 0:
            return self.original.decode(codes)
        total = residual_sum(codes.transpose(0, 1), _embeds(self.layers)[:levels])
        return total if self.output_proj is None else self.output_proj(total)


class _Stack(Adapter):
    """All levels of a stack whose levels may have projections; with projections the package's own methods run."""

    layers: nn.ModuleList

    def encode(self, x: Tensor, n_q: int | None = None) -> Tensor:
        codebooks = self.codes_of_levels()
        if codebooks is None:
            return self.original.encode(x, n_q)
        return _tokens(self, x, codebooks[: n_q or len(codebooks)])

    def codes_of_levels(self) -> list[Tensor] | None:
        """The codes of all levels, or None if a level has projections."""
        plain = all(
            isinstance(layer.project_in, nn.Identity) and isinstance(layer.project_out, nn.Identity)
            for layer in self.layers
        )
        return [self.codes_of(layer) for layer in self.layers] if plain else None

    def codes_of(self, layer: Any) -> Tensor:
        return layer._codebook.embed


@register("encodec.quantization.core_vq.ResidualVectorQuantization")
class EncodecPackageStack(_Stack):
    """All levels of an EncodecModel of the package encodec."""

    def decode(self, q_indices: Tensor) -> Tensor:
        codebooks = self.codes_of_levels()
        if codebooks is None or len(q_indices) == 0:
            return self.original.decode(q_indices)
        return residual_sum(q_indices, codebooks[: len(q_indices)])


@register("moshi.quantization.core_vq.ResidualVectorQuantization")
class MoshiStack(_Stack):
    """All levels of one of the two stacks of Mimi in the package moshi."""

    def decode(self, codes: Tensor) -> Tensor:
        codebooks = self.codes_of_levels()
        if codebooks is None or len(codes) == 0:
            return self.original.decode(codes)
        return residual_sum(codes, codebooks[: len(codes)])

    def codes_of(self, layer: Any) -> Tensor:
        return layer._codebook.embedding


def _tokens(stack: nn.Module, x: Tensor, codebooks: list[Tensor]) -> Tensor:
    """Indices (Q, B, T) of all levels of a stack for ``x`` (B, D, T)."""
    return residual_nearest(x, codebooks, prepared=prepared_codes(stack, x, codebooks))[1]


def _embeds(layers: nn.ModuleList) -> list[Tensor]:
    if torch.compiler.is_compiling():
        return [cast(Any, layer).codebook.embed for layer in layers]
    # Module.__getattr__ searches three dicts, which for one frame and 32 levels would take a tenth of the call.
    codebooks: list[Any] = [layer._modules["codebook"] for layer in layers._modules.values()]
    if "embed" in codebooks[0]._buffers:
        return [codebook._buffers["embed"] for codebook in codebooks]
    return [codebook.embed for codebook in codebooks]
