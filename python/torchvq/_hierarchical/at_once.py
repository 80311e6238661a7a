"""The walk over the scales of HierarchicalVQ by one operator, where no Python code runs between them."""

from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor

from torchvq._base.torch_private import is_jit_traced
from torchvq._codebook.search import estimator_of, stored_codes
from torchvq._hierarchical.phi import is_plain

if TYPE_CHECKING:
    from torchvq._hierarchical.phi import Phi
    from torchvq._hierarchical.scales import ScaleRequest
    from torchvq.hierarchical_vq import HierarchicalVQ
    from torchvq.vector_quantize import VectorQuantize

_ops = torch.ops.torchvq
_ESTIMATORS = ("straight_through", "rotation_trick", "none")


class QuantizedScales(NamedTuple):
    """The result of the operator, for the scales in use, with N cells together."""

    quantized: Tensor  # (B, P, D)
    loss: Tensor  # (), the mean over the scales
    tokens: Tensor  # (B, N, D), scale after scale; in training
    token_indices: Tensor  # (B, N); in training
    indices: list[Tensor]  # (B, L) of each scale


def can_walk_at_once(hvq: "HierarchicalVQ", rows: Tensor, request: "ScaleRequest") -> bool:
    """Whether one operator gives the result: all scales are searched for the nearest codes with one estimator, and have
    no loss but the commitment loss."""
    if hvq.vqp_compat or request.mask is not None or request.targets is not None:
        return False
    if not isinstance(request.depth, int):
        return False
    if not hvq.training and (torch.compiler.is_compiling() or is_jit_traced()):
        return False  # exporters translate the operators of a search
    quantizers = hvq._quantizers()
    first = quantizers[0]
    if not (hvq.training == first.training and _is_plain(first, rows)):
        return False
    phis = hvq._phis()
    if not all(map(is_plain, phis)):
        return False
    if any(phi.resi_ratio != phis[0].resi_ratio for phi in phis[1:]):
        return False
    # A shared codebook has been prepared; the recomputation of a checkpointed step must not look whether it was.
    if not (hvq.shared_codebook or all(vq._codebook.begins_initialised for vq in quantizers)):
        return False
    others = quantizers[1:]
    return all(_options(vq) == _options(first) and _is_plain(vq, rows) for vq in others)


def _is_plain(vq: "VectorQuantize", rows: Tensor) -> bool:
    codebook = vq._codebook
    rules = (
        vq.stochastic_sample_codes,
        vq.sync_update_v,
        vq.has_codebook_orthogonal_loss,
        vq.has_codebook_diversity_loss,
        vq.commitment_use_cross_entropy_loss,
        vq.learnable_codebook,
        vq.in_place_codebook_optimizer,
        codebook.affine_param,
        codebook.use_cosine_sim,
        codebook.vq_bridge,
    )
    if any(rules) or vq.heads > 1 or "embed" in codebook._parameters:
        return False
    return estimator_of(vq, rows, rows) in _ESTIMATORS


def _options(vq: "VectorQuantize") -> tuple[object, ...]:
    """The options of a scale of which the operator has one value for all."""
    return (
        vq.training,
        vq.commitment_weight,
        vq.has_commitment_loss,
        vq.rotation_trick,
        vq.straight_through,
        vq.directional_reparam,
        vq.route_gradients_to_input,
    )


def quantize_scales(
    hvq: "HierarchicalVQ", rows: Tensor, positions: torch.Size, depth: int
) -> QuantizedScales:
    """Searches scale by scale; rows: (B, P, D), the map position by position."""
    quantizers, phis = hvq._quantizers(), cast("list[Phi]", hvq._phis())
    if not hvq.shared_codebook:  # which has begun when it was prepared
        for vq in quantizers:
            vq._codebook.begin_record()
    first = quantizers[0]
    codes = [stored_codes(vq._codebook, rows.dtype) for vq in quantizers[:depth]]
    found = _ops.hierarchical_quantize(
        rows,
        codes * depth if hvq.shared_codebook else codes,
        [phi.conv.weight for phi in phis],
        [phi.conv.bias for phi in phis],
        sizes=[size for shape in hvq.level_shapes[:depth] for size in shape],
        full=positions,
        convolutions=hvq._convolutions[:depth],
        ratio=phis[0].resi_ratio,
        estimator=estimator_of(first, rows, rows),
        commitment_weight=first.commitment_weight if first.has_commitment_loss else 0.0,
        training=hvq.training,
    )
    return QuantizedScales(*found)
