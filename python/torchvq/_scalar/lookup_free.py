"""A forward of lookup-free quantization between its projections: one operator, for one quantizer and a level alike."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from torchvq._base.projection import projects_nothing
from torchvq._base.random_state import Step
from torchvq._base.ranks import ALONE, Ranks, group_of, joined_signature
from torchvq.outputs import LookupFreeLossBreakdown

if TYPE_CHECKING:
    from torchvq.lookup_free_quantization import LFQ

_ops = torch.ops.torchvq


class Signs(NamedTuple):
    """Tokens of a forward and what they became, one row per codebook."""

    latents: Tensor  # (C, T, D), float32 or float64
    codes: Tensor  # (C, T, D)
    mask: Tensor | None  # (B, N)
    entropy_mask: Tensor | None  # (C, T) or (T,): tokens that enter the entropies
    inv_temperature: float


class Found(NamedTuple):
    """What a forward has found, in the layout that it was given."""

    quantized: Tensor
    indices: Tensor
    loss: Tensor  # this and its terms are 0 where they wait for other ranks, and in evaluation
    terms: LookupFreeLossBreakdown
    signs: Signs


class Request(NamedTuple):
    """What a forward was asked for."""

    mask: Tensor | None  # (B, N)
    rng: Tensor | None  # (2,): draws the tokens that enter the entropies; None: all do
    ranks: Ranks
    inv_temperature: float = 100.0
    channel_first: bool = False
    estimates: bool = False  # whether codes have the gradient of the activation
    scores: bool = False  # whether losses are due
    totals: Sequence[Tensor] = ()  # of the forward that this one repeats


def step(lfq: "LFQ", x: Tensor, request: Request) -> tuple[Found, list[Tensor]]:
    """Takes the signs of projected tokens and scores them.

    Args:
        lfq: whose options count.
        x: (B, *, C * D), or channel-first.
        request: the rest.

    Returns:
        What was found, and what the ranks have added up.
    """
    # A user's activation lies between latents and output.
    activates = request.estimates and not projects_nothing(lfq.activation)
    quantized, indices, loss, *terms, latents, codes, counted, totals = _ops.lookup_free_quantize(
        x,
        mask=request.mask,
        rotation=lfq._buffers.get("orthogonal_rot"),
        rng=request.rng,
        totals=list(request.totals),
        codebooks=lfq.num_codebooks,
        channel_first=request.channel_first,
        radius=lfq.codebook_scale if lfq.spherical else None,
        soft_clamp=lfq.soft_clamp_input_value,
        fraction=lfq.frac_per_sample_entropy,
        estimates=request.estimates and not activates,
        scores=request.scores,
        **_loss_options(lfq, request.inv_temperature),
        **request.ranks.named(),
    )
    if activates:
        quantized = _activated(lfq, x, latents, codes, request)
    signs = Signs(
        latents, codes, request.mask, counted[0] if counted else None, request.inv_temperature
    )
    return Found(quantized, indices, loss, LookupFreeLossBreakdown(*terms), signs), totals


def _activated(lfq: "LFQ", x: Tensor, latents: Tensor, codes: Tensor, request: Request) -> Tensor:
    """The output with the gradient of a user's activation."""
    codes = _ops.straight_through(lfq.activation(latents), codes)
    if lfq.orthogonal_rotation:
        codes = _ops.rotate_features(codes, lfq.orthogonal_rot, inverse=True)
    return _ops.restore_tokens(
        codes,
        x,
        mask=None if lfq.vqp_compat else request.mask,
        heads=lfq.num_codebooks,
        separate=True,
        channel_first=request.channel_first,
    )


def _loss_options(lfq: "LFQ", inv_temperature: float) -> dict[str, Any]:
    return dict(
        scale=lfq.code_value,
        inv_temperature=inv_temperature,
        entropy_weight=lfq.entropy_loss_weight,
        diversity_gamma=lfq.diversity_gamma,
        commitment_weight=lfq.commitment_loss_weight,
        softplus_offset=lfq.entropy_loss_offset if lfq.experimental_softplus_entropy_loss else None,
        vqp_compat=lfq.vqp_compat,
    )


def ranks_of(lfq: "LFQ", owner: str = "LFQ") -> Ranks:
    """Decided at each call, because modules are often built before their group exists. Evaluation is always alone."""
    group = group_of(lfq) if lfq.training else ""
    if not group:
        return ALONE
    return Ranks(group, f"{owner}(dim={lfq.dim}, codebook_size={lfq.codebook_size})")


class Pending(NamedTuple):
    """A forward of one quantizer, or of a stack of them, whose losses wait for what the other ranks know."""

    quantizers: Sequence["LFQ"]
    signs: Sequence[Signs]  # of the quantizers in use, which are the first ones
    step: Step | None  # the record of a checkpointed forward


def handshake(quantizers: Sequence["LFQ"], rng: Tensor | None, ranks: Ranks) -> None:
    """Before the first synchronised step: ranks that do not fit together find out; they share one seed."""
    if ranks.alone:
        return
    state = [buffer for lfq in quantizers for buffer in lfq.replicated_state()]
    if rng is not None:
        state.append(rng)
    signature = joined_signature(quantizers)
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


def loss(lfq: "LFQ", signs: Signs, totals: Tensor | None) -> Tensor:
    """The weighted loss of a forward that did not score."""
    mask = None if signs.mask is None else _ops.split_mask(signs.mask, lfq.num_codebooks, True)
    found, *_ = _ops.lookup_free_losses(
        signs.latents,
        signs.codes,
        mask=mask,
        entropy_mask=signs.entropy_mask,
        totals=totals,
        **_loss_options(lfq, signs.inv_temperature),
    )
    return found
