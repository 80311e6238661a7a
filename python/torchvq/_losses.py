"""The terms of the loss of VectorQuantize, each None where the module or the call does without it."""

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from torchvq._call import Call
from torchvq.outputs import LossBreakdown

if TYPE_CHECKING:
    from torchvq.vector_quantize import VectorQuantize

_ops = torch.ops.torchvq


class Chosen(NamedTuple):
    """What the search compared, and what it chose."""

    tokens: Tensor  # (B, N, dim), before the projection
    inputs: Tensor  # (H, T, D), what was compared with the codes
    codebook: Tensor  # (H, K, D), or codes of each token (H, T, K, D)
    mask: Tensor | None  # (H, T)
    codes: Tensor  # (H, T, D), or (H, T, k, D)
    indices: Tensor  # (H, T), or (H, T, k)


class Choice(NamedTuple):
    """What a search leaves: the output, what losses and learning need, the loss of the codebook's own optimizer."""

    quantized: Tensor  # (H, T, D), or (H, T, k, D), with the estimator's gradient
    chosen: Chosen
    in_place: Tensor | None


def commitment(vq: "VectorQuantize", chosen: Chosen, call: Call) -> Tensor | None:
    """The distance of tokens and codes; with targets the cross-entropy towards them; with topk one per candidate."""
    inputs, codebook, mask, metric = (
        chosen.inputs,
        chosen.codebook,
        chosen.mask,
        vq._codebook.metric,
    )
    if call.targets is not None:
        targets = vq._layout.split_indices(call.targets)
        return _ops.commitment_cross_entropy(inputs, codebook, targets, metric=metric, mask=mask)
    if not vq.has_commitment_loss:
        return None
    codes = chosen.codes
    if not vq.learnable_codebook or call.frozen:
        codes = codes.detach()
    if call.topk is not None:
        return _ops.candidate_commitment_loss(inputs, codes, mask=mask)
    if not vq.training:
        return None
    if vq.commitment_use_cross_entropy_loss:
        return _ops.commitment_cross_entropy(
            inputs, codebook, chosen.indices, metric=metric, mask=mask
        )
    if vq.vqp_compat and call.mask is not None and vq.heads == 1 and not vq.has_projections:
        tokens = chosen.tokens
        return _ops.vqp_masked_commitment(tokens, codes.view(tokens.shape), call.mask)
    return _ops.commitment_loss(inputs, codes, mask=mask)


def diversity(vq: "VectorQuantize", chosen: Chosen, totals: Tensor | None = None) -> Tensor | None:
    """Minus the entropy of the mean code distribution, over the ranks whose ``totals`` are given."""
    if not (vq.training and vq.has_codebook_diversity_loss):
        return None
    temperature, metric = vq.codebook_diversity_temperature, vq._codebook.metric
    if vq.vqp_compat:
        return _ops.vqp_diversity_loss(
            chosen.inputs,
            chosen.codebook,
            batch=chosen.tokens.shape[0],
            tokens=chosen.tokens.shape[1],
            heads=vq.heads,
            separate=vq.separate_codebook_per_head,
            temperature=temperature,
            metric=metric,
        )
    return _ops.codebook_diversity_loss(
        chosen.inputs,
        chosen.codebook,
        temperature=temperature,
        metric=metric,
        mask=chosen.mask,
        totals=totals,
    )


def orthogonal(vq: "VectorQuantize", indices: Tensor) -> Tensor | None:
    """The likeness of the codes to each other, as they are after this step."""
    if not (vq.training and vq.has_codebook_orthogonal_loss):
        return None
    return _ops.orthogonal_loss(
        vq._codebook.embed,
        indices=indices if vq.orthogonal_reg_active_codes_only else None,
        max_codes=vq.orthogonal_reg_max_codes,
        rng=vq._codebook.rng,
    )


def breakdown(inputs: Tensor, *terms: Tensor | None) -> LossBreakdown:
    """The terms by name, 0 for those that are absent."""
    zero = inputs.new_zeros(())
    return LossBreakdown(*(zero if term is None else term for term in terms))


def total(vq: "VectorQuantize", terms: LossBreakdown, call: Call) -> Tensor:
    """The weighted sum; with targets the cross-entropy alone."""
    if call.targets is not None:
        return _ops.weighted_loss([terms.commitment], [1.0], vq.training)
    weights = [vq.commitment_weight, vq.codebook_diversity_loss_weight, vq.orthogonal_reg_weight]
    return _ops.weighted_loss(list(terms[:3]), weights, vq.training)
