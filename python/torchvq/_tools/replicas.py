"""Comparison of the quantizers' state over ranks, bit for bit."""

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from torchvq._base.arguments import expect_kind
from torchvq._base.ranks import everybody, group_name, group_of
from torchvq._base.torch_private import is_in_shards
from torchvq.codebook import Codebook
from torchvq.finite_scalar_quantization import FSQ
from torchvq.latent_quantization import LatentQuantize
from torchvq.lookup_free_quantization import LFQ
from torchvq.residual_lfq import ResidualLFQ
from torchvq.residual_sim_vq import ResidualSimVQ
from torchvq.sim_vq import SimVQ
from torchvq.vector_quantize import VectorQuantize

_ops = torch.ops.torchvq

_BUFFERS = ("orthogonal_rot", "frozen_codebook", "rng")


class ReplicaDifference(NamedTuple):
    """One tensor on which ranks differ."""

    #: The quantizer's name in the module, empty for the module itself.
    quantizer: str
    #: The tensor's name in the quantizer's state.
    tensor: str
    #: The ranks of the group, those that agree together; the largest party first.
    parties: tuple[tuple[int, ...], ...]

    def __str__(self) -> str:
        name = f"{self.quantizer}.{self.tensor}" if self.quantizer else self.tensor
        return f"{name}: ranks {_spell(self.parties)}"


class _Entry(NamedTuple):
    quantizer: str
    tensor: str
    value: Tensor


def verify_replicas(
    module: nn.Module,
    process_group: "dist.ProcessGroup | str | None" = None,
    *,
    raise_on_difference: bool = True,
) -> list[ReplicaDifference]:
    """Compares the state of every quantizer inside a module over the ranks that share it, bit for bit.

    Every rank of the group must call it, in training or not. It sends hashes, 8 bytes per tensor (two all-gathers per
    process group), and changes nothing. Compared are the codes, moving averages and the generator of each
    codebook, the statistics of ``affine_param`` where they are synchronised, frozen codes of SimVQ, rotations of FSQ
    and LFQ, generators of LFQ and of residual stacks that ranks share, and values that an
    ``in_place_codebook_optimizer`` of LatentQuantize moves. Left out are quantizers with ``sync_codebook=False``, and
    parameters that FSDP2 has split over the ranks, which have no replicas, or that FSDP1 has flattened.

    Args:
        module: any module; a wrapper (DDP, a compiled module) is fine.
        process_group: the ranks to compare, as a group or by name. Default: each quantizer's own.
        raise_on_difference: whether a difference is an error; otherwise it is returned.

    Returns:
        The tensors that differ, and which ranks hold the same; empty where all are equal, and without a group. The
        same on every rank.

    Raises:
        torch.distributed.DistError: replicas differ; the message names quantizer, tensor and ranks.
        ValueError: ranks have other quantizers than each other. TypeError: no module. DistBackendError: a rank does not
            take part.
    """
    expect_kind("verify_replicas", "module", module, nn.Module, "a torch.nn.Module")
    found: list[ReplicaDifference] = []
    asked = group_name("verify_replicas", process_group)
    for group, entries in _by_group(module, asked).items():
        found += _differences(entries, group)
    if found and raise_on_difference:
        listed = "".join(f"\n  {difference}" for difference in found)
        raise dist.DistError(
            "verify_replicas: expected the quantizers to be equal on all ranks, but got different values of"
            f"{listed}\nLikely reasons: state was written to, or a checkpoint loaded, on some of the ranks only."
        )
    return found


def _by_group(module: nn.Module, asked: str | None) -> dict[str, list[_Entry]]:
    """The tensors to compare by process group, in the order of the module's names."""
    groups: dict[str, list[_Entry]] = {}
    seen: set[Codebook] = set()
    for name, part in module.named_modules():
        own = _group_of(part)
        if not own or (isinstance(part, VectorQuantize) and part._codebook in seen):
            continue
        if isinstance(part, VectorQuantize):
            seen.add(part._codebook)
        entries = [
            _Entry(name, tensor, value.detach())
            for tensor, value in _shared_state(part).items()
            if not is_in_shards(value)
        ]
        if entries:
            groups.setdefault(asked or own, []).extend(entries)
    return groups


def _group_of(part: nn.Module) -> str:
    """The ranks that share the state of a quantizer, or of a stack besides its levels; empty for other modules."""
    if isinstance(part, VectorQuantize | LFQ | SimVQ):
        return group_of(part)
    if isinstance(part, ResidualLFQ | ResidualSimVQ):
        return group_of(part.quantizers[0])
    # Without an optimizer of their own values learn as all parameters do, or not at all.
    learns = isinstance(part, LatentQuantize) and part.in_place_codebook_optimizer is not None
    shared = learns or isinstance(part, FSQ)
    return everybody(type(part).__name__).group if shared else ""


def _shared_state(part: nn.Module) -> dict[str, Tensor]:
    if isinstance(part, VectorQuantize):
        state = part._codebook.replicated_state(affine=part.sync_affine_param)
        return {f"_codebook.{name}": value for name, value in state.items()}
    if isinstance(part, LatentQuantize):
        return {f"values_per_latent.{i}": own for i, own in enumerate(part.values_per_latent)}
    # FSQ draws other numbers on each rank.
    names = ("orthogonal_rot",) if isinstance(part, FSQ) else _BUFFERS
    found = {name: part._buffers.get(name) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def _differences(entries: list[_Entry], group: str) -> list[ReplicaDifference]:
    options = {"group_name": group, "label": "verify_replicas"}
    # Names first, as one hash: gathering lists of different lengths would end the process.
    listed = "; ".join(
        f"{e.quantizer}.{e.tensor} {e.value.dtype} {[*e.value.shape]}" for e in entries
    )
    names = torch.frombuffer(bytearray(listed.encode()), dtype=torch.uint8)
    kinds = _ops.replica_hashes([names.to(entries[0].value.device)], **options)[:, 0].tolist()
    if len(set(kinds)) > 1:
        raise ValueError(
            "verify_replicas: expected all ranks to have the same quantizers, but got different ones on ranks "
            f"{_spell(_parties(kinds))}; this rank has {listed}"
        )
    hashes = _ops.replica_hashes([entry.value for entry in entries], **options)
    columns = zip(entries, hashes.t().tolist(), strict=True)
    return [
        ReplicaDifference(entry.quantizer, entry.tensor, _parties(column))
        for entry, column in columns
        if len(set(column)) > 1
    ]


def _parties(column: list[int]) -> tuple[tuple[int, ...], ...]:
    parties: dict[int, list[int]] = {}
    for rank, value in enumerate(column):
        parties.setdefault(value, []).append(rank)
    # The sort is stable, so of equally large parties the one with the lowest rank comes first.
    return tuple(tuple(party) for party in sorted(parties.values(), key=len, reverse=True))


def _spell(parties: tuple[tuple[int, ...], ...]) -> str:
    return " | ".join(", ".join(map(str, party)) for party in parties)
