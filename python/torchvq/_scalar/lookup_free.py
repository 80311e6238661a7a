"""The steps of lookup-free quantization that one quantizer and a stack of them share."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from torchvq._base.random_state import Step
from torchvq._base.ranks import Ranks, group_of
from torchvq.outputs import LookupFreeLossBreakdown

if TYPE_CHECKING:
    from torchvq.lookup_free_quantization import LFQ

_ops = torch.ops.torchvq


class Signs(NamedTuple):
    """Tokens of a forward and what they became, one row per codebook."""

    latents: Tensor  # (C, T, D), float32 or float64
    codes: Tensor  # (C, T, D)
    indices: Tensor  # (C, T)
    mask: Tensor | None  # (C, T)
    entropy_mask: Tensor | None  # tokens that enter the entropies
    inv_temperature: float


def ranks_of(lfq: "LFQ", owner: str = "LFQ") -> Ranks:
    """Decided at each call, because modules are often built before their group exists. Evaluation is always alone."""
    group = group_of(lfq) if lfq.training else ""
    return Ranks(group, f"{owner}(dim={lfq.dim}, codebook_size={lfq.codebook_size})")


class Pending(NamedTuple):
    """A forward of one quantizer, or of a stack of them, whose losses wait for what the other ranks know."""

    quantizers: Sequence["LFQ"]
    signs: Sequence[Signs]  # of the quantizers in use, which are the first ones
    step: Step | None  # the record of a checkpointed forward


def shake_hands(quantizers: Sequence["LFQ"], rng: Tensor | None, ranks: Ranks) -> None:
    """Before the first synchronised step: ranks that do not fit together find out; they share one seed."""
    if ranks.alone:
        return
    state = [buffer for lfq in quantizers for buffer in lfq.replicated_state()]
    if rng is not None:
        state.append(rng)
    signature = "; ".join(lfq.signature for lfq in quantizers)
    _ops.handshake_(state, handle=quantizers[0].handle, signature=signature, **ranks.named())


def shared_totals(stacks: Sequence[Pending], ranks: Ranks) -> list[list[Tensor | None]]:
    """Sums over the ranks for the entropies, by stack and level: one all-reduce for all, None where nothing is shared.

    Quantizers beyond ``signs`` were dropped, and take part with nothing, so that what ranks exchange does not depend
    on the depth.
    """
    if ranks.alone:
        return [[None] * len(stack.signs) for stack in stacks]
    recorded = [stack.step for stack in stacks if stack.step is not None]
    if recorded and recorded[0].replayed:
        # The recomputation of a checkpointed step communicates nothing.
        return [list(step.totals) for step in recorded]
    parts = [part for stack in stacks for part in _own_totals(stack)]
    summed = _ops.all_reduce_statistics(torch.stack(parts), **ranks.named()).unbind()
    totals = []
    for stack in stacks:
        own, summed = summed[: len(stack.signs)], summed[len(stack.quantizers) :]
        if stack.step is not None:
            stack.step.totals = list(own)
        totals.append(list(own))
    return totals


def _own_totals(stack: Pending) -> list[Tensor]:
    totals = [
        _totals(lfq, signs) for lfq, signs in zip(stack.quantizers, stack.signs, strict=False)
    ]
    return totals + [torch.zeros_like(totals[0])] * (len(stack.quantizers) - len(totals))


def _totals(lfq: "LFQ", signs: Signs) -> Tensor:
    return _ops.sign_entropy_totals(
        signs.latents.detach(),
        sharpness=4 * signs.inv_temperature * lfq.code_value,
        mask=signs.entropy_mask,
    )


def losses(
    lfq: "LFQ", signs: Signs, totals: Tensor | None
) -> tuple[Tensor, LookupFreeLossBreakdown]:
    """The weighted loss and its terms; zeros in evaluation."""
    zero = signs.latents.new_zeros(())
    if not lfq.training:
        return zero, LookupFreeLossBreakdown(zero, zero, zero)
    sharpness = 4 * signs.inv_temperature * lfq.code_value
    if lfq.vqp_compat:
        per_sample, batch = _ops.vqp_sign_entropy(
            signs.latents,
            sharpness=sharpness,
            masked=signs.mask is not None,
            mask=signs.entropy_mask,
        )
    else:
        per_sample, batch = _ops.sign_entropy(
            signs.latents, sharpness=sharpness, mask=signs.entropy_mask, totals=totals
        )
    commitment = zero
    if lfq.commitment_loss_weight > 0:
        commitment = _ops.commitment_loss(signs.latents, signs.codes, mask=signs.mask)
    loss = _ops.lookup_free_loss(
        per_sample,
        batch,
        commitment,
        entropy_weight=lfq.entropy_loss_weight,
        diversity_gamma=lfq.diversity_gamma,
        commitment_weight=lfq.commitment_loss_weight,
        softplus_offset=lfq.entropy_loss_offset if lfq.experimental_softplus_entropy_loss else None,
    )
    return loss, LookupFreeLossBreakdown(per_sample, batch, commitment)
