"""A forward of lookup-free quantization between its projections: one operator, for quantizers and levels of stacks."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from torchvq._base.arguments import expect_tensor
from torchvq._base.lean_call import without_defaults
from torchvq._base.options import expect
from torchvq._base.projection import projects_nothing
from torchvq._base.random_state import StepRecord, rng_beside
from torchvq._base.ranks import Ranks, joined_signature, on_device_of, tokens_text
from torchvq.outputs import LookupFreeLossBreakdown

if TYPE_CHECKING:
    from torchvq.lookup_free_quantization import LFQ

_ops = torch.ops.torchvq


class Signs(NamedTuple):
    """Latents and codes of a forward, one row per codebook."""

    latents: Tensor  # (C, T, D), float32 or float64
    codes: Tensor  # (C, T, D)
    mask: Tensor | None  # (B, N)
    entropy_mask: Tensor | None  # (C, T) or (T,): tokens that enter the entropies
    inv_temperature: float


class LFQResult(NamedTuple):
    """The result of a forward, in the layout of its input."""

    quantized: Tensor
    indices: Tensor
    loss: Tensor  # loss and terms are 0 in evaluation, and if they wait for other ranks
    terms: LookupFreeLossBreakdown
    signs: Signs


class LFQRequest(NamedTuple):
    """The arguments of a forward."""

    mask: Tensor | None  # (B, N)
    rng: Tensor | None  # (2,), draws the tokens that enter the entropies; None: all do
    ranks: Ranks
    inv_temperature: float = 100.0
    channel_first: bool = False
    estimates: bool = False  # whether codes have the gradient of the activation
    scores: bool = False  # whether to compute losses
    totals: Sequence[Tensor] = ()  # totals of the recorded forward, in a recomputation


def step(lfq: "LFQ", x: Tensor, request: LFQRequest) -> tuple[LFQResult, list[Tensor]]:
    """Takes the signs of projected tokens and computes the losses.

    Args:
        lfq: the quantizer that has the options.
        x: (B, *, C * D), or channel-first.
        request: the other arguments.

    Returns:
        The result, and the totals over the ranks.
    """
    # A user's activation lies between latents and output, so its gradient is applied in Python.
    activates = request.estimates and not projects_nothing(lfq.activation)
    quantized, indices, loss, *terms, latents, codes, counted, totals = _ops.lookup_free_quantize(
        x,
        rotation=lfq.orthogonal_rot if lfq.orthogonal_rotation else None,
        totals=list(request.totals),
        codebooks=lfq.num_codebooks,
        channel_first=request.channel_first,
        radius=lfq.codebook_scale if lfq.spherical else None,
        soft_clamp=lfq.soft_clamp_input_value,
        scale=lfq.code_value,
        inv_temperature=request.inv_temperature,
        **_step_options(
            "lookup_free_quantize", lfq, x, request, request.estimates and not activates
        ),
    )
    if activates:
        quantized = _activated(lfq, x, latents, codes, request)
    signs = Signs(
        latents, codes, request.mask, counted[0] if counted else None, request.inv_temperature
    )
    return LFQResult(quantized, indices, loss, LookupFreeLossBreakdown(*terms), signs), totals


def _step_options(
    operator: str, lfq: "LFQ", x: Tensor, request: LFQRequest, estimates: bool
) -> Mapping[str, Any]:
    """The options that steps of a quantizer and of a stack share, without those that equal their defaults."""
    if lfq.training and lfq.frac_per_sample_entropy < 1:
        draws = request.rng is not None
        condition = "given to the constructor, which makes the generator of the draws"
        expect("LFQ", draws, "frac_per_sample_entropy", condition, "set on the module")
    options = dict(
        mask=request.mask,
        rng=None if request.rng is None else rng_beside(x, request.rng),
        fraction=lfq.frac_per_sample_entropy,
        estimates=estimates,
        scores=request.scores,
        **_loss_options(lfq),
        **request.ranks.options(),
    )
    return without_defaults(operator, options)


def _activated(
    lfq: "LFQ", x: Tensor, latents: Tensor, codes: Tensor, request: LFQRequest
) -> Tensor:
    """The output with the gradient of a user's activation."""
    activated = lfq.activation(latents)
    expect_tensor("LFQ", "the result of straight_through_activation", activated)
    codes = _ops.straight_through(activated, codes)
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


def _loss_options(lfq: "LFQ") -> dict[str, Any]:
    return dict(
        entropy_weight=lfq.entropy_loss_weight,
        diversity_gamma=lfq.diversity_gamma,
        commitment_weight=lfq.commitment_loss_weight,
        softplus_offset=lfq.entropy_loss_offset if lfq.experimental_softplus_entropy_loss else None,
        vqp_compat=lfq.vqp_compat,
    )


class LFQLevels(NamedTuple):
    """The result of a stack of quantizers."""

    total: Tensor  # (B, N, D), the sum of the codes of all levels
    indices: Tensor  # (B, N, Q)
    losses: Tensor  # (Q,), zeros without scores
    codes: list[Tensor]  # (1, T, D) of each level
    signs: list[Signs]


def _shared_by_levels(lfq: "LFQ") -> tuple[object, ...]:
    return (
        lfq.training,
        lfq.num_codebooks,
        lfq.spherical,
        lfq.orthogonal_rotation,
        lfq.soft_clamp_input_value is None,
        lfq.frac_per_sample_entropy,
        lfq.entropy_loss_weight,
        lfq.diversity_gamma,
        lfq.commitment_loss_weight,
        lfq.experimental_softplus_entropy_loss,
        lfq.entropy_loss_offset,
        lfq.vqp_compat,
        lfq.sync_codebook,
        lfq.process_group,
    )


def can_step_levels(levels: Sequence["LFQ"], estimates: bool) -> bool:
    """Whether one operator can step all levels: options may be set for one of them, and the gradient of a user's
    activation is applied in Python."""
    shared = _shared_by_levels(levels[0])
    if levels[0].num_codebooks > 1 or any(_shared_by_levels(own) != shared for own in levels[1:]):
        return False
    return not estimates or projects_nothing(*[level.activation for level in levels])


def step_levels(levels: Sequence["LFQ"], tokens: Tensor, request: LFQRequest) -> LFQLevels:
    """``step`` of each level on the residual (B, N, D) that the levels before have left, by one operator; see
    ``can_step_levels``."""
    first = levels[0]
    clamps = [level.soft_clamp_input_value for level in levels]
    total, indices, losses, codes, latents, signs, counted = _ops.residual_lookup_free_quantize(
        tokens,
        rotations=[level.orthogonal_rot for level in levels] if first.orthogonal_rotation else [],
        scales=[level.code_value for level in levels],
        radii=[level.codebook_scale for level in levels] if first.spherical else [],
        soft_clamps=[] if clamps[0] is None else clamps,
        **_step_options("residual_lookup_free_quantize", first, tokens, request, request.estimates),
    )
    counts = counted or [None] * len(levels)
    parts = zip(latents, signs, counts, strict=True)
    found = [Signs(*part[:2], request.mask, part[2], request.inv_temperature) for part in parts]
    return LFQLevels(total, indices, losses, codes, found)


class Pending(NamedTuple):
    """A forward of a quantizer, or of a stack of them, whose losses wait for the totals of the other ranks."""

    quantizers: Sequence["LFQ"]
    signs: Sequence[Signs]  # of the quantizers in use, which are the first ones
    step: StepRecord | None  # the record of a checkpointed forward


def handshake(
    quantizers: Sequence["LFQ"], rng: Tensor | None, ranks: Ranks, tokens: Tensor, stack: str = ""
) -> None:
    """Before the first synchronised step, compares options over the ranks and gives all the same state and seed.

    Args:
        quantizers: all levels of a stack, or one quantizer.
        rng: the generator, if there is one.
        ranks: the ranks that share their entropies.
        tokens: projected; their dtype is that of the message, and their device must be one of the group.
        stack: options of the stack in which all ranks must agree, as text.
    """
    if ranks.alone:
        return
    # The first tensor says on which device the ranks talk. Compilers keep an operator without results only if it writes
    # to the module's state, which is why the mask of bits is there; it is equal on all ranks.
    own = [on_device_of(tokens), quantizers[0].mask] if rng is None else [rng]
    state = own + [buffer for lfq in quantizers for buffer in lfq.replicated_state()]
    signature = f"{tokens_text(tokens.dtype)}; {stack}{joined_signature(quantizers)}"
    _ops.handshake_(state, handle=quantizers[0].handle, signature=signature, **ranks.options())


def shared_totals(stacks: Sequence[Pending], ranks: Ranks) -> list[list[Tensor | None]]:
    """Sums over the ranks for the entropies, by stack and level: one all-reduce for all, None if nothing is shared.

    Quantizers beyond ``signs`` were dropped. They contribute zeros, so that the message does not depend on the depth.
    """
    none: list[list[Tensor | None]] = [[None] * len(stack.signs) for stack in stacks]
    if ranks.alone:
        return none
    if any(stack.step is not None and stack.step.replayed for stack in stacks):
        # The recomputation of a checkpointed step communicates nothing. Stacks in evaluation have no record.
        return [
            own if stack.step is None else list(stack.step.totals)
            for stack, own in zip(stacks, none, strict=True)
        ]
    parts = [part for stack in stacks for part in _own_totals(stack)]
    summed = _ops.all_reduce_statistics(torch.stack(parts), **ranks.options()).unbind()
    totals = []
    for stack in stacks:
        own, summed = summed[: len(stack.signs)], summed[len(stack.quantizers) :]
        if stack.step is not None:
            stack.step.keep_totals(own)
        totals.append(list(own))
    return totals


def _own_totals(stack: Pending) -> list[Tensor]:
    totals = [
        _ops.sign_entropy_totals(
            signs.latents.detach(),
            sharpness=4 * signs.inv_temperature * lfq.code_value,
            mask=signs.entropy_mask,
        )
        for lfq, signs in zip(stack.quantizers, stack.signs, strict=False)
    ]
    return totals + [torch.zeros_like(totals[0])] * (len(stack.quantizers) - len(totals))


def loss(lfq: "LFQ", signs: Signs, totals: Tensor | None) -> Tensor:
    """The weighted loss of a forward that did not compute losses itself."""
    mask = None if signs.mask is None else _ops.split_mask(signs.mask, lfq.num_codebooks, True)
    found, *_ = _ops.lookup_free_losses(
        signs.latents,
        signs.codes,
        mask=mask,
        entropy_mask=signs.entropy_mask,
        totals=totals,
        scale=lfq.code_value,
        inv_temperature=signs.inv_temperature,
        **_loss_options(lfq),
    )
    return found
