"""Statistics of codebook usage: recording them in a training step, and reading them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from torchvq._base.ranks import Ranks, group_of

if TYPE_CHECKING:
    from torchvq._codebook.learning import StepTokens
    from torchvq._codebook.losses import SearchedTokens
    from torchvq.codebook import Codebook
    from torchvq.vector_quantize import VectorQuantize

_ops = torch.ops.torchvq


class CodebookStats(NamedTuple):
    """How one codebook was used in the last training forward; see ``VectorQuantize.stats``."""

    #: Fraction of the codes that at least one token chose, in [0, 1].
    usage: float
    #: ``2 ** entropy_bits``: the number of equally likely codes that would be as varied; 0 without tokens.
    perplexity: float
    #: Codes whose moving average is below the threshold of replacement; without replacement below 0.01 tokens.
    dead: int
    #: Codes that this step replaced.
    replaced: int
    #: Entropy of the codes' frequencies in bits, mean over the heads of separate codebooks.
    entropy_bits: float
    #: Tokens that chose a code, of all heads.
    tokens: int


def keep_counts(vq: "VectorQuantize") -> None:
    """Registers the counts of tokens per code of this rank's last training forward: (H, K), int64.

    They are a buffer, so that compiled and exported steps can write it, but not a persistent one.
    """
    counts = torch.zeros_like(vq._codebook.cluster_size, dtype=torch.long)
    vq.register_buffer("step_counts", counts, persistent=False)
    vq.register_load_state_dict_post_hook(forget_step)  # type: ignore[no-untyped-call]


# Tensors made in inference mode cannot be updated outside of it, and a load may run in it.
@torch.inference_mode(False)
def forget_step(vq: "VectorQuantize", _: object = None) -> None:
    """Clears the counts after a load: the loaded state has had no step, and to_empty leaves buffers uninitialised."""
    counts = torch.zeros_like(vq._codebook.cluster_size, dtype=torch.long)
    # Past Module.__setattr__, which inspects signatures for a buffer.
    vq._buffers["step_counts"] = counts
    # Not with the strides of a slice, for which a compiled step would be compiled again.
    vq._codebook._buffers["replaced"] = counts.new_zeros(len(counts))


def fit_to_codes(vq: "VectorQuantize") -> None:
    """Resizes the step counts to codes that were assigned in another number: the reference has none, so its users
    assign only codes and averages, or only codes if these do not follow averages."""
    codebook = vq._codebook
    codes = codebook.checked_embed()
    # A lookup through the module takes six times as long.
    sizes: Any = codebook._buffers["cluster_size"]
    counts: Any = vq._buffers["step_counts"]
    counted = len(sizes), codes.size(1)
    if counts.shape == counted:
        return
    forget_step(vq)
    vq.step_counts = counts.new_zeros(counted)


def begin_step(codebooks: Sequence["Codebook"]) -> None:
    """Clears the number of replaced codes, except in the recomputation of a checkpointed step."""
    for codebook in codebooks:
        if codebook.has_dead_code_replacement and not codebook.replaying:
            codebook.replaced.zero_()


def draws_frozen(vq: "VectorQuantize") -> bool:
    """Whether a frozen training forward of a quantizer draws random numbers."""
    some_codes = vq.has_codebook_orthogonal_loss and vq.orthogonal_reg_max_codes
    return bool(vq.stochastic_sample_codes or vq.directional_reparam or some_codes)


def finish_step(
    quantizers: Sequence["VectorQuantize"],
    searched: "Sequence[SearchedTokens | StepTokens]",
    counts: Sequence[Tensor | None],
    ranks: Ranks,
    uses: Sequence[Tensor] | None = None,
    drew: bool | Sequence[bool] = True,
    depth: int | Tensor | None = None,
) -> None:
    """Ends a training step: keeps the tokens per code, and advances the generators.

    Args:
        quantizers: all levels of a stack.
        searched: the tokens of each level in use; dropped levels have none.
        counts: tokens per code of all ranks for each codebook in use, which may be one for all levels; None, or left
            out, if it learnt nothing. A step without tokens on any rank is not counted.
        uses: receive the tokens per code of each level. Default: the quantizers' ``step_counts``.
        drew: whether to advance the generators, or that of each level in use; a frozen level that drew nothing leaves
            its own.
        depth: levels in use, where only the device knows their number; dropped levels keep their generators.
    """
    if quantizers[0]._codebook.replaying:
        return
    rng = [vq._codebook.rng for vq in quantizers[: len(searched)]]
    drawn = [drew] * len(rng) if isinstance(drew, bool) else drew
    if any(own is rng[0] for own in rng[1:]):
        rng, drawn = rng[:1], [any(drawn)]
    if not any(drawn):
        rng = []
    learnt = counts[: len(rng)]
    if not all(drawn) or any(own is not None for own in learnt):
        learnt = _tokens_that_count(rng, searched, learnt, ranks, drawn)
    _ops.finish_step_(
        [vq.step_counts for vq in quantizers] if uses is None else uses,
        [part.indices for part in searched],
        rng,
        counts=[own for own in learnt if own is not None],
        masks=[part.mask for part in searched if part.mask is not None],
        alone=ranks.alone,
        depth=depth if isinstance(depth, Tensor) else None,
    )


def _tokens_that_count(
    rng: Sequence[Tensor],
    searched: "Sequence[SearchedTokens | StepTokens]",
    counts: Sequence[Tensor | None],
    ranks: Ranks,
    drew: Sequence[bool],
) -> list[Tensor]:
    """For each generator what advances it if any element is above 0, by the rules of ``finish_step_``."""
    found = []
    for place, own in enumerate(rng):
        known = counts[place] if place < len(counts) else None
        if not drew[place]:
            known = own.new_zeros(1)
        elif known is None and not ranks.alone:
            # A rank does not know whether others have tokens, so its step counts as one with tokens.
            known = own.new_ones(1)
        elif known is None:
            mask = searched[place].mask
            known = torch.ones_like(searched[place].indices) if mask is None else mask
        found.append(known)
    return found


def read_stats(quantizers: Sequence["VectorQuantize"], synced: bool) -> list[CodebookStats]:
    """Statistics of quantizers that share a process group: at most one all-reduce for all of them."""
    group = group_of(quantizers[0]) if synced else ""
    counts = [vq.step_counts for vq in quantizers]
    return stats_of(counts, [vq._codebook for vq in quantizers], group)


def stats_of(
    counts: Sequence[Tensor], codebooks: Sequence["Codebook"], group: str
) -> list[CodebookStats]:
    """Statistics from the tokens per code (H, K) of each codebook, over a group's ranks; of this rank without one."""
    # Codes that were assigned in another number than the averages do not follow averages, so none of them is dead.
    follow = [c.cluster_size.shape == own.shape for c, own in zip(codebooks, counts, strict=True)]
    table = _ops.synced_usage(
        counts,
        [
            c.cluster_size if own_averages else c.cluster_size.new_ones(own.shape)
            for c, own_averages, own in zip(codebooks, follow, counts, strict=True)
        ],
        [codebook.replaced for codebook in codebooks],
        threshold=_of_each("threshold_ema_dead_code", codebooks, follow),
        threshold_fraction=_of_each("dead_code_threshold_fraction", codebooks, follow),
        group_name=group,
        label="stats",
    )
    return [
        CodebookStats(usage, perplexity, int(dead), int(replaced), entropy, int(tokens))
        for usage, perplexity, dead, replaced, entropy, tokens in table.tolist()
    ]


def _of_each(
    threshold: str, codebooks: Sequence["Codebook"], follow: Sequence[bool]
) -> list[float]:
    """A threshold of each codebook; 0 where codes do not follow averages."""
    return [float(getattr(c, threshold)) * own for c, own in zip(codebooks, follow, strict=True)]
