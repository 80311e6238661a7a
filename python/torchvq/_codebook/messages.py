"""The handshake before the first training forward that sends certain messages to the other ranks.

Messages of unequal size or kind abort the process (Gloo) or hang (NCCL). So ranks compare, besides their options, which
messages the call sends. A module that alternates between kinds of calls makes one handshake for each.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from torchvq._base.ranks import Ranks, handshake, tokens_text
from torchvq._base.torch_private import as_constants
from torchvq._codebook.in_place import learns_in_place, optimizer_text
from torchvq._codebook.learning import trains
from torchvq._codebook.request import Request

if TYPE_CHECKING:
    from torchvq.codebook import Codebook
    from torchvq.vector_quantize import VectorQuantize


def agree(vq: "VectorQuantize", request: Request, dtype: torch.dtype) -> None:
    """The handshake of a forward of one quantizer, whose projected tokens have this dtype."""
    if request.ranks.alone:
        return
    codebook = vq._codebook
    begins = not codebook.initialised
    sent = _messages(
        vq,
        frozen=request.frozen,
        begins=begins,
        learns=codebook.training and request.topk is None,
        ema_update=request.ema_update or request.accumulate,
        apart=codebook.learns_apart(request.accumulate, request.weight),
    )
    call = _call(vq, sent, request.frozen, begins, dtype)
    # Ranks compare how a call uses its statistics when they exchange these. A call that sends k-means or the affine map
    # first compares that here, before anything is written.
    early = not request.frozen and (begins or codebook.affine_param)
    if early and (request.weight is not None or request.ema_update != vq.ema_update):
        call = f"moving averages {request.ema_update}, weight {request.weight is not None}, {call}"
    handshake([codebook], request.ranks, call, [vq.sync_affine_param])


def agree_to_learn(vq: "VectorQuantize", ranks: Ranks, dtype: torch.dtype, sent: str) -> None:
    """The handshake of an update outside of forward, which sends this, from projected tokens of this dtype."""
    if not ranks.alone:
        call = _call(vq, [sent], False, False, dtype)
        handshake([vq._codebook], ranks, call, [vq.sync_affine_param])


def agree_in_stack(
    levels: Sequence["VectorQuantize"],
    codebooks: Sequence["Codebook"],
    ranks: Ranks,
    stack: str,
    *,
    frozen: bool,
    dtype: torch.dtype,
    depth: int | None = None,
) -> None:
    """The handshake of a forward of a stack; there are ranks.

    Args:
        levels: all levels. What a call sends depends on the options of the first, and the others are compared.
        codebooks: of all levels.
        ranks: the ranks that learn together.
        stack: the stack's own options in which all ranks must agree, as text.
        frozen: whether the codebooks are frozen in this call.
        dtype: of the projected tokens.
        depth: the levels in use, if the caller's seed decides that and not the state that ranks share.
    """
    first = levels[0]
    begins = not all(codebook.begins_initialised for codebook in codebooks)
    sent = _messages(first, frozen=frozen, begins=begins, ema_update=first.ema_update)
    call = _call(first, sent, frozen, begins, dtype)
    resting = [n for n, vq in enumerate(levels) if not trains(vq, frozen=False)]
    if resting:
        call = f"levels {resting} in evaluation, {call}"
    if depth is not None:
        call = f"{depth} levels by seed, {call}"
    # Levels that share a codebook have the options of the first.
    affine = [vq.sync_affine_param for vq in levels[: len(codebooks)]]
    handshake(codebooks, ranks, f"{call}; {_other_levels(levels)}{stack}", affine)


def _call(
    vq: "VectorQuantize", sent: list[str], frozen: bool, begins: bool, dtype: torch.dtype
) -> str:
    prefix = "frozen, " if frozen and sent else ""
    if not sent and begins:
        sent = ["k-means"]
    elif not sent:
        # A call that sends nothing has the text of an ordinary call, so that a rank may make it alone without a
        # handshake of its own.
        frozen = vq.freeze_codebook
        sent = _messages(vq, frozen=frozen, begins=False, ema_update=vq.ema_update)
    shared = " and ".join(sent) or "nothing"
    return f"{prefix}{tokens_text(dtype)}, sharing {shared}; {_options_text(vq)}"


def _options_text(vq: "VectorQuantize") -> str:
    """The options in which all ranks must agree, besides those of the codebook."""
    own = _LEVEL.format(*_level_options(vq))
    return f"{own}, moving averages {vq.ema_update}, frozen {vq.freeze_codebook}"


_LEVEL = (
    "k-means of {} iterations over ranks {}, affine map over ranks {} with decays {} and {}, diversity {} at {}, "
    "own optimizer {}, manual {}, overlap {}"
)


def _level_options(vq: "VectorQuantize") -> tuple[object, ...]:
    """The values of ``_LEVEL``: those of the options that a stack does not list for all its levels."""
    codebook = vq._codebook
    values = (
        codebook.kmeans_iters,
        vq.sync_kmeans,
        vq.sync_affine_param,
        codebook.affine_param_batch_decay,
        codebook.affine_param_codebook_decay,
        vq.codebook_diversity_loss_weight,
        vq.codebook_diversity_temperature,
        optimizer_text(vq),
        vq.manual_in_place_optimizer_update,
        codebook.overlap_sync,
    )
    return as_constants(values)


def _other_levels(levels: Sequence["VectorQuantize"]) -> str:
    """The levels whose options are not those of the first, as text."""
    found = [_level_options(vq) for vq in levels]
    others = [n for n, own in enumerate(found) if own != found[0]]
    return "".join(f"level {n} with {_LEVEL.format(*found[n])}; " for n in others)


def _messages(
    vq: "VectorQuantize",
    *,
    frozen: bool,
    begins: bool,
    ema_update: bool,
    learns: bool = True,
    apart: bool = False,
) -> list[str]:
    """The messages of a training forward, in their order, besides those of k-means.

    Args:
        frozen: whether the codebook is frozen in this call.
        begins: whether k-means has not set all codes.
        ema_update: whether the statistics move the codes, now or later.
        learns: whether the call may learn.
        apart: whether Python code runs between the statistics and the update.
    """
    codebook, sent = vq._codebook, []
    if codebook.affine_param and vq.sync_affine_param and (begins or not frozen):
        sent.append("moments")
    if learns_in_place(vq, codebook) and not frozen:
        sent.append("gradients")
    if vq.has_codebook_diversity_loss and not vq.vqp_compat:
        sent.append("probabilities")
    if learns and not frozen and codebook.learns(ema_update):
        # "statistics" are a message that carries candidates for dead codes as well, "statistics alone" is one that
        # does not.
        sent.append("statistics alone" if apart else "statistics")
    return sent
