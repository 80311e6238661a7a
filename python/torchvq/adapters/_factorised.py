"""DAC, SNAC and what is built like them: codes of few features, compared by angle, between two projections."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.weight_norm import WeightNorm

from torchvq._base.torch_private import is_observed
from torchvq.adapters._registry import Adapter, register
from torchvq.adapters._search import nearest_by_angle

_ops = torch.ops.torchvq
# What the formula of transformers adds to the distance of a code of zeros: the norm of a code has the other sign.
_ZERO_CODE = 2.0
_COMPUTED = (torch.float32, torch.float64)


@register("transformers.models.dac.modeling_dac.DacVectorQuantize")
class DacLevel(Adapter):
    """One level of a DacModel."""

    codebook: Any

    def decode_latents(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        # A codebook that accelerate has moved elsewhere comes back for the call of the package's own method.
        if hasattr(self.codebook, "_hf_hook"):
            return self.original.decode_latents(hidden_states)
        # A code of zeros stands behind cosines above -0.5.
        indices = nearest_by_angle(
            hidden_states.transpose(1, 2), self.codebook.weight, zero_code=_ZERO_CODE
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

    def encode_at_once(
        self, x: Tensor, n_quantizers: int | None, zero_code: float = 0.0
    ) -> _Encoded | None:
        """All levels in one call; None where their modules must be called: a graph or a gradient is wanted, hooks wait
        for calls, precision is reduced, codes of levels differ in their sizes."""
        count = self.n_codebooks if n_quantizers is None else n_quantizers
        if torch.compiler.is_compiling() or torch.is_grad_enabled() or not x.is_cpu:
            return None
        if x.dtype not in _COMPUTED or x.dim() != 3 or torch.is_autocast_enabled("cpu"):
            return None
        if not isinstance(count, int) or count < 1:
            return None
        levels = list(self.quantizers._modules.values())[:count]
        parts = _parts_of_levels(levels, x)
        return None if parts is None else _encode(x, parts, zero_code)


@register("transformers.models.dac.modeling_dac.DacResidualVectorQuantizer")
class DacStack(_Stack):
    """All levels of a DacModel."""

    def forward(self, hidden_state: Tensor, n_quantizers: int | None = None) -> Any:
        found = self.encode_at_once(hidden_state, n_quantizers, _ZERO_CODE)
        if found is None:
            return self.original.forward(hidden_state, n_quantizers)
        # One loss of the whole batch, as many times as there are clips.
        loss = found.loss.repeat(len(hidden_state))
        return found.quantized, found.indices, found.latents, loss, loss.clone()


@register("dac.nn.quantize.ResidualVectorQuantize")
class PackageStack(_Stack):
    """All levels of a DAC of the package descript-audio-codec."""

    def forward(self, z: Tensor, n_quantizers: int | None = None) -> Any:
        found = self.encode_at_once(z, n_quantizers)
        if found is None:
            return self.original.forward(z, n_quantizers)
        return found.quantized, found.indices, found.latents, found.loss, found.loss.clone()


class _Encoded(NamedTuple):
    quantized: Tensor
    """(B, C, T)"""
    indices: Tensor
    """(B, Q, T)"""
    latents: Tensor
    """(B, Q d, T)"""
    loss: Tensor
    """Of all levels, added up: without a gradient the losses of encoder and codebook are the same number."""


# Codebook, weight and bias into the level, weight and bias out of it.
_Parts = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def _encode(x: Tensor, parts: list[_Parts], zero_code: float) -> _Encoded:
    dim = parts[0][0].shape[1]
    quantized, indices, latents, errors = (
        part.transpose(1, 2)
        for part in _ops.projected_residual_encode(
            x.contiguous().transpose(1, 2),
            *map(list, zip(*parts, strict=True)),
            metric="cosine",
            zero_code=zero_code,
        )
    )
    return _Encoded(quantized, indices, latents, errors.mean() * (len(parts) / dim))


def _parts_of_levels(levels: list[Any], x: Tensor) -> list[_Parts] | None:
    parts = []
    for level in levels:
        # An attribute of a module is looked for in three places, which would be a tenth of the call.
        modules = level._modules
        codebook = modules["codebook"]
        into, out = _projection(modules["in_proj"]), _projection(modules["out_proj"])
        if into is None or out is None or is_observed(level, codebook):
            return None
        codes = codebook._parameters.get("weight")
        parts.append((codebook.weight if codes is None else codes, *into, *out))
    alike = all(
        codes.dtype == x.dtype and codes.shape[1] == parts[0][0].shape[1] for codes, *_ in parts
    )
    return parts if alike else None


def _projection(module: Any) -> tuple[Tensor, Tensor] | None:
    """Weight and bias by which a convolution multiplies each frame; None for a module that may do anything else."""
    plain = (
        isinstance(module, nn.Conv1d)
        and type(module).forward is nn.Conv1d.forward
        and module.kernel_size == module.stride == (1,)
        and module.padding == (0,)
        and module.groups == 1
        and module.bias is not None
    )
    if not plain or module._forward_hooks or "forward" in vars(module):
        return None
    before = list(module._forward_pre_hooks.values())
    if not before:
        return module.weight, module.bias
    # The older weight norm of torch makes the weight before each call.
    if len(before) == 1 and isinstance(before[0], WeightNorm) and before[0].name == "weight":
        return before[0].compute_weight(module), module.bias
    return None
