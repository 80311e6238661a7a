"""Which ranks learn together in a training forward, and the steps of it that they take together."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from torchvq._torch_private import constant_in_graphs, rank_in

if TYPE_CHECKING:
    from torchvq.codebook import Codebook, Statistics
    from torchvq.lookup_free_quantization import LFQ
    from torchvq.sim_vq import SimVQ
    from torchvq.vector_quantize import VectorQuantize

_ops = torch.ops.torchvq


class Ranks(NamedTuple):
    """The process group of one forward, by name, and what errors call the quantizer."""

    group: str = ""
    label: str = "VectorQuantize"
    reduction: str = "exact"

    @property
    def alone(self) -> bool:
        """Whether this process learns by itself. A group of one is no exception, and never communicates."""
        return not self.group

    def named(self) -> dict[str, str]:
        """The arguments by which operators take part."""
        return {"group_name": self.group, "label": self.label}


ALONE = Ranks()


def ranks_of(vq: "VectorQuantize", owner: str = "VectorQuantize") -> Ranks:
    """Decided at each call, because modules are often built before their group exists. Evaluation is always alone."""
    group = group_of(vq) if vq.training else ""
    if not group:
        return ALONE
    label = f"{owner}(dim={vq.dim}, codebook_size={vq.codebook_size})"
    return Ranks(group, label, vq.reduction)


def group_of(vq: "VectorQuantize | LFQ | SimVQ") -> str:
    """The name of the group of ranks that share a quantizer, in training; empty where it belongs to this process."""
    if vq.sync_codebook is False or not distributed_training():
        return ""
    return default_group() if vq.process_group is None else vq.process_group


def distributed_training() -> bool:
    """Whether there is a process group at all; asked at each call, because modules are often built before it."""
    return dist.is_available() and dist.is_initialized()


def default_group() -> str:
    """The name of the group of all ranks, once torch.distributed is initialised."""
    world = dist.group.WORLD
    assert world is not None
    return world.group_name


def group_name(process_group: object) -> str | None:
    """The name under which operators find a group. Groups themselves can be neither copied nor saved."""
    if process_group is None or isinstance(process_group, str):
        return process_group
    name = getattr(process_group, "group_name", None)
    if not isinstance(name, str):
        raise ValueError(
            "VectorQuantize: expected process_group to be a group that this rank belongs to, its name or None, "
            f"but got {process_group}"
        )
    return name


def shake_hands(codebooks: Sequence["Codebook"], ranks: Ranks) -> None:
    """Before the first synchronised step: ranks that do not fit together find out, those that do start alike."""
    if ranks.alone or codebooks[0].replaying:
        return
    state = [tensor for codebook in codebooks for tensor in codebook.replicated_state()]
    signature = "; ".join(codebook.signature for codebook in codebooks)
    _ops.handshake_(state, handle=codebooks[0].handle, signature=signature, **ranks.named())


def noise_rng(rng: Tensor, ranks: Ranks) -> Tensor:
    """What draws per token use: ranks hold different tokens, so they draw different numbers."""
    if ranks.alone:
        return rng
    # A prime below 2^40: seeds of levels, which are consecutive, stay apart.
    return torch.stack([rng[0] + _rank_in(ranks.group) * 1099511627689, rng[1]])


def everybody() -> Ranks:
    """All ranks, for modules that learn nothing together but draw noise; alone where there is no group."""
    if not dist.is_available() or not dist.is_initialized():
        return ALONE
    return Ranks(default_group())


@constant_in_graphs
def _rank_in(group: str) -> int:
    """The rank of this process in a group, as in C++, where there is no other."""
    return rank_in(group)


class Tokens(NamedTuple):
    """The tokens of one level and the codebook that they teach."""

    codebook: "Codebook"
    x: Tensor  # (H, T, D), in the space of the raw codes
    indices: Tensor  # (H, T)
    mask: Tensor | None


def collect(levels: Sequence[Tokens], ranks: Ranks) -> list["Statistics"]:
    """Statistics of the tokens of all ranks, one all-reduce for all levels."""
    if ranks.alone:
        return [
            _ops.code_statistics(
                level.x, level.indices, level.codebook.exponents(), mask=level.mask
            )
            for level in levels
        ]
    first = levels[0].codebook
    counts, sums, exponents = _ops.synced_code_statistics(
        [level.x for level in levels],
        [level.indices for level in levels],
        [level.codebook.exponents() for level in levels],
        mask=_masks(levels),
        state=[tensor for level in levels for tensor in level.codebook.compared_state()],
        rng=first.rng,
        signature="; ".join(level.codebook.signature for level in levels),
        reduction=ranks.reduction,
        **ranks.named(),
    )
    return list(zip(counts, sums, exponents, strict=True))


def replace_dead_codes(levels: Sequence[Tokens], counts: Sequence[Tensor], ranks: Ranks) -> None:
    """Puts tokens of this step, of all ranks, in the place of codes that fell out of use."""
    first = levels[0].codebook
    if not first.has_dead_code_replacement:
        return
    wide = [level.codebook.wide_embed() for level in levels]
    options = {
        "threshold": first.threshold_ema_dead_code,
        "threshold_fraction": first.dead_code_threshold_fraction,
        "reset_cluster_size": first.reset_cluster_size,
        "cooldown_steps": first.cooldown_steps,
        "metric": first.metric,
    }
    if ranks.alone:
        for embed, level, used in zip(wide, levels, counts, strict=True):
            state = level.codebook
            replaced = _ops.replace_dead_codes_(
                embed,
                state.embed_avg,
                state.cluster_size,
                state.cooldown,
                level.x,
                used,
                state.rng,
                mask=level.mask,
                **options,
            )
            state.replaced.add_(replaced)
    else:
        states = [level.codebook for level in levels]
        replaced = _ops.synced_replace_dead_codes_(
            wide,
            [state.embed_avg for state in states],
            [state.cluster_size for state in states],
            [state.cooldown for state in states],
            [level.x for level in levels],
            list(counts),
            [state.rng for state in states],
            mask=_masks(levels),
            **options,
            **ranks.named(),
        )
        for state, heads in zip(
            states, replaced.split([state.num_codebooks for state in states]), strict=True
        ):
            state.replaced.add_(heads)
    for embed, level in zip(wide, levels, strict=True):
        level.codebook.store_embed(embed)


def _masks(levels: Sequence[Tokens]) -> list[Tensor]:
    """One mask per level, or none at all."""
    if all(level.mask is None for level in levels):
        return []
    return [
        torch.ones_like(level.indices, dtype=torch.bool) if level.mask is None else level.mask
        for level in levels
    ]


def advance_rng(
    rng: Tensor, counts: Tensor | None, mask: Tensor | None, x: Tensor, ranks: Ranks
) -> None:
    """Counts a step, so that the next draws are new ones; a step without tokens on any rank does not count."""
    if counts is not None:
        _ops.advance_rng_(rng, counts > 0)
    elif not ranks.alone:
        # Nothing was exchanged, so nobody knows of the others' tokens: all count.
        _ops.advance_rng_(rng)
    elif x.shape[1] > 0:
        _ops.advance_rng_(rng, mask)
