"""The losses of VectorQuantize, and of each level of a stack of them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from torchvq._base.ranks import Ranks
from torchvq._codebook.request import Request

if TYPE_CHECKING:
    from torchvq.residual_vq import ResidualVQ
    from torchvq.vector_quantize import VectorQuantize

_ops = torch.ops.torchvq


class SearchedTokens(NamedTuple):
    """Inputs and result of a search."""

    tokens: Tensor  # (B, N, dim), before the projection
    inputs: Tensor  # (H, T, D), what was compared with the codes
    codebook: Tensor  # (H, K, D), or codes of each token (H, T, K, D)
    mask: Tensor | None  # (H, T)
    codes: Tensor  # (H, T, D), or (H, T, k, D)
    indices: Tensor  # (H, T), or (H, T, k)


class SearchResult(NamedTuple):
    """The output of a search, and its details for losses and learning."""

    quantized: Tensor  # (H, T, D), or (H, T, k, D), with the estimator's gradient
    searched: SearchedTokens


class Terms(NamedTuple):
    """Terms of the loss that are computed before the codes change; a term that is off is 0."""

    commitment: Tensor  # a scalar; (H, T, k) with topk
    diversity: Tensor


def sees_padding(owner: "ResidualVQ | VectorQuantize", first: "VectorQuantize") -> bool:
    """Whether padding is left as it is, because the diversity loss covers it, as in the reference.

    Args:
        owner: the quantizer, or a stack.
        first: the quantizer, or the first level of the stack.
    """
    return owner.training and owner.vqp_compat and first.has_codebook_diversity_loss


def loss_options(vq: "VectorQuantize", request: Request) -> dict[str, Any]:
    """Arguments of the operators that compute losses; features that are off are left out."""
    options: dict[str, Any] = dict(
        training=vq.training,
        metric=vq._codebook.metric,
        commitment_weight=vq.commitment_weight if vq.has_commitment_loss else 0.0,
        commitment_use_cross_entropy_loss=vq.commitment_use_cross_entropy_loss,
        pulls_codes=vq.learnable_codebook and not request.frozen,
    )
    if request.targets is not None:
        options["targets"] = vq._layout.split_indices(request.targets)
    if vq.has_codebook_diversity_loss:
        options |= dict(
            diversity_weight=vq.codebook_diversity_loss_weight,
            diversity_temperature=vq.codebook_diversity_temperature,
        )
    return options


def search_losses(
    vq: "VectorQuantize",
    searched: SearchedTokens,
    request: Request,
    totals: Tensor | None = None,
    *,
    commitment_weight: float | None = None,
) -> Terms:
    """Commitment and diversity loss, for the codes that were searched.

    Args:
        totals: sums of all ranks for the diversity loss; see ``shared_totals``.
        commitment_weight: instead of the module's own.
    """
    options = loss_options(vq, request)
    if commitment_weight is not None:
        options["commitment_weight"] = commitment_weight
    if vq.vqp_compat:
        options |= dict(
            tokens=searched.tokens,
            token_mask=request.mask,
            heads=vq.heads,
            separate=vq.separate_codebook_per_head,
            projected=vq.has_projections,
        )
    commitment, diversity = _ops.search_losses(
        searched.inputs,
        searched.codebook,
        searched.codes,
        searched.indices,
        mask=searched.mask,
        totals=totals,
        **options,
    )
    return Terms(commitment, diversity)


def shared_totals(
    quantizers: Sequence["VectorQuantize"], searched: Sequence[SearchedTokens], ranks: Ranks
) -> list[Tensor | None]:
    """Sums over the ranks for the diversity loss of each level: one all-reduce for all, None if nothing is shared.

    Args:
        quantizers: all levels of a stack; those beyond ``searched`` were dropped. They contribute nothing but take
            part, so that the message does not depend on the depth.
        searched: the search of each level in use.
    """
    first = quantizers[0]
    if ranks.alone or first.vqp_compat:
        return [None] * len(searched)
    if not any(vq.has_codebook_diversity_loss for vq in quantizers):
        return [None] * len(searched)
    codebook = first._codebook
    if codebook.replaying:
        # The recomputation of a checkpointed step communicates nothing.
        return list(codebook.recorded_totals())
    totals: list[Tensor] = _ops.shared_diversity_totals(
        [vq._codebook.embed.detach() for vq in quantizers],
        [part.inputs for part in searched],
        [part.codebook for part in searched],
        masks=[part.mask for part in searched if part.mask is not None],
        temperatures=[vq.codebook_diversity_temperature for vq in quantizers[: len(searched)]],
        metric=codebook.metric,
        **ranks.options(),
    )
    codebook.record_totals(totals)
    return list(totals)


def orthogonal_loss(vq: "VectorQuantize", indices: Tensor) -> Tensor:
    """The orthogonal regularisation of the codes after this step."""
    return _ops.orthogonal_loss(
        vq._codebook.settled_embed(),
        indices=indices if vq.orthogonal_reg_active_codes_only else None,
        max_codes=vq.orthogonal_reg_max_codes,
        rng=vq._codebook.step_rng,
    )


def orthogonal_options(vq: "VectorQuantize") -> dict[str, Any]:
    """Arguments for this loss in the operator of a step; empty if the loss is off."""
    if not vq.has_codebook_orthogonal_loss:
        return {}
    return dict(
        orthogonal_weight=vq.orthogonal_reg_weight,
        orthogonal_active_codes_only=vq.orthogonal_reg_active_codes_only,
        orthogonal_max_codes=vq.orthogonal_reg_max_codes,
    )


def level_loss(
    vq: "VectorQuantize", searched: SearchedTokens, terms: Terms, request: Request
) -> Tensor:
    """The weighted loss of one level of a stack, a scalar; call it when its codebook has learnt. With targets it is the
    cross-entropy alone.
    """
    parts, weights = [*terms], [vq.commitment_weight, vq.codebook_diversity_loss_weight]
    if request.targets is not None:
        parts, weights = [terms.commitment], [1.0]
    elif vq.training and vq.has_codebook_orthogonal_loss:
        parts.append(orthogonal_loss(vq, searched.indices))
        weights.append(vq.orthogonal_reg_weight)
    return _ops.weighted_loss(parts, weights, vq.training)
