"""DAC, SNAC and similar: codes of few features, compared by angle, between two projections."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.weight_norm import WeightNorm

from torchvq._base.contained import contained
from torchvq._base.torch_private import is_observed
from torchvq.adapters._registry import Adapter, register
from torchvq.adapters._search import nearest_by_angle

_ops = torch.ops.torchvq
# The formula of transformers adds this to the distance of a code of zeros: it takes the code's norm with another sign.
_ZERO_CODE = 2.0
_COMPUTED = (torch.float32, torch.float64)


@register("transformers.models.dac.modeling_dac.DacVectorQuantize")
class DacLevel(Adapter):
    """One level of a DacModel."""

    codebook: Any

    def decode_latents(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        # If accelerate has offloaded the codebook, only the package's own method brings it back for the call.
        if hasattr(self.codebook, "_hf_hook"):
            return self.original.decode_latents(hidden_states)
        # In the formula of transformers, a code of zeros loses to every code with a cosine above -0.5.
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
        """All levels in one call. None if their modules must be called: under a graph or a gradient, with hooks, in
        reduced precision, or if the codes of levels differ in size.
        """
        count = self.n_codebooks if n_quantizers is None else n_quantizers
        if torch.compiler.is_compiling() or torch.is_grad_enabled() or not x.is_cpu:
            return None
        if x.dtype not in _COMPUTED or x.dim() != 3 or torch.is_autocast_enabled("cpu"):
            return None
        if not isinstance(count, int) or count < 1:
            return None
        levels = contained(self, "quantizers")[:count]
        parts = _parts_of_levels(levels, x)
        return None if parts is None else _encode(x, parts, zero_code)


@register("transformers.models.dac.modeling_dac.DacResidualVectorQuantizer")
class DacStack(_Stack):
    """All levels of a DacModel."""

    def forward(self, hidden_state: Tensor, n_quantizers: int | None = None) -> Any:
        found = self.encode_at_once(hidden_state, n_quantizers, _ZERO_CODE)
        if found is None:
            return self.original.forward(hidden_state, n_quantizers)
        # As in the package: the loss of the whole batch, once per clip.
        loss = found.loss.expand(len(hidden_state)).clone()
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


class _Parts(NamedTuple):
    """The arguments of the operator, for all levels."""

    codebooks: list[Tensor]
    in_weights: list[Tensor]
    in_biases: list[Tensor]
    out_weights: list[Tensor]
    out_biases: list[Tensor]


def _encode(x: Tensor, parts: _Parts, zero_code: float) -> _Encoded:
    found = _ops.projected_residual_encode(
        x.contiguous().transpose(1, 2), *parts, metric="cosine", zero_code=zero_code
    )
    quantized, indices, latents, errors = (part.transpose(1, 2) for part in found)
    # Levels have equally many errors, so the sum of their means is the mean of all times the number of levels.
    loss = errors.mean().mul_(len(parts.codebooks) / parts.codebooks[0].shape[1])
    return _Encoded(quantized, indices, latents, loss)


def _parts_of_levels(levels: list[Any], x: Tensor) -> _Parts | None:
    # Module.__getattr__ searches three dicts, which would take a fifth of the call.
    codebooks = [level._modules["codebook"] for level in levels]
    if is_observed(*levels, *codebooks):
        return None
    codes: list[Tensor] = [codebook._parameters.get("weight") for codebook in codebooks]
    if any(code is None for code in codes):
        codes = [codebook.weight for codebook in codebooks]
    if codes[0].dtype != x.dtype or len({code.shape[1] for code in codes}) > 1:
        return None
    into = [_projection(level._modules["in_proj"]) for level in levels]
    out = [_projection(level._modules["out_proj"]) for level in levels]
    if None in into or None in out:
        return None
    return _Parts(codes, *_turned(into), *_turned(out))


def _turned(pairs: list[Any]) -> tuple[list[Tensor], list[Tensor]]:
    return [weight for weight, _ in pairs], [bias for _, bias in pairs]


_OF_ONE_FRAME = dict(kernel_size=(1,), stride=(1,), padding=(0,), groups=1)


def _projection(module: Any) -> tuple[Tensor, Tensor] | None:
    """Weight and bias of a pointwise convolution; None for a module that may do anything else."""
    if type(module).forward is not nn.Conv1d.forward:
        return None
    own = vars(module)
    if own["_forward_hooks"] or "forward" in own or not _OF_ONE_FRAME.items() <= own.items():
        return None
    weight, bias = own["_parameters"].get("weight"), own["_parameters"].get("bias")
    before = own["_forward_pre_hooks"]
    if before:
        weight = _normed_weight(module, list(before.values()))
    elif weight is None:
        weight = module.weight  # computed by a parametrization
    return None if weight is None or bias is None else (weight, bias)


def _normed_weight(module: nn.Module, before: list[Any]) -> Tensor | None:
    """The weight of torch's older weight norm, which computes it in a pre-hook of each call."""
    hook = before[0]
    if len(before) > 1 or not isinstance(hook, WeightNorm) or hook.name != "weight":
        return None
    weight: Tensor = hook.compute_weight(module)
    return weight
