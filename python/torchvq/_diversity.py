"""The codebook diversity loss of several ranks: what they add up so that each has the loss of all their tokens."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchvq._losses import Chosen
from torchvq._ranks import Ranks

if TYPE_CHECKING:
    from torchvq.vector_quantize import VectorQuantize

_ops = torch.ops.torchvq


def shared_totals(
    quantizers: Sequence["VectorQuantize"], chosen: Sequence[Chosen], ranks: Ranks
) -> list[Tensor | None]:
    """Sums over the ranks for the diversity loss of each level: one all-reduce for all, None where nothing is shared.

    Args:
        quantizers: all levels of a stack; those beyond ``chosen`` were dropped, and take part with nothing, so that
            what ranks exchange does not depend on the depth.
        chosen: what each level in use has searched.
    """
    first = quantizers[0]
    if ranks.alone or not first.has_codebook_diversity_loss or first.vqp_compat:
        return [None] * len(chosen)
    codebook = first._codebook
    if codebook.replaying:
        # The recomputation of a checkpointed step communicates nothing.
        return list(codebook.recorded_totals())
    parts = [_totals(vq, part) for vq, part in zip(quantizers, chosen, strict=False)]
    parts += [_no_totals(vq, parts[0]) for vq in quantizers[len(chosen) :]]
    flat = torch.cat([part.flatten() for part in parts])
    summed = _ops.all_reduce_statistics(flat, **ranks.named()).split([p.numel() for p in parts])
    totals = [whole.view_as(part) for whole, part in zip(summed, parts, strict=True)][: len(chosen)]
    codebook.record_totals(totals)
    return list(totals)


def _totals(vq: "VectorQuantize", chosen: Chosen) -> Tensor:
    return _ops.codebook_diversity_totals(
        chosen.inputs.detach(),
        chosen.codebook.detach(),
        temperature=vq.codebook_diversity_temperature,
        metric=vq._codebook.metric,
        mask=chosen.mask,
    )


def _no_totals(vq: "VectorQuantize", like: Tensor) -> Tensor:
    return like.new_zeros(vq._codebook.num_codebooks, vq.codebook_size + 2)
