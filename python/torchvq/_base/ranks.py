"""Which ranks learn together in a training forward, and what they exchange outside the operators."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from torchvq.codebook import Codebook
    from torchvq.lookup_free_quantization import LFQ
    from torchvq.sim_vq import SimVQ
    from torchvq.vector_quantize import VectorQuantize

_ops = torch.ops.torchvq


class Ranks(NamedTuple):
    """The name of the process group of one forward, and the quantizer's name in error messages."""

    group: str = ""
    label: str = "VectorQuantize"
    reduction: str = "exact"

    @property
    def alone(self) -> bool:
        """Whether this process learns by itself. A group of one rank counts as a group, but never communicates."""
        return not self.group

    def options(self) -> dict[str, str]:
        """The arguments of operators that communicate."""
        return {"group_name": self.group, "label": self.label}


ALONE = Ranks()


def ranks_of(
    quantizer: "VectorQuantize | LFQ | SimVQ", owner: str, dim: int | None = None
) -> Ranks:
    """The ranks of one forward, asked at each call: the group may not exist at construction. Alone in evaluation.

    Args:
        quantizer: the quantizer, or a level of a stack.
        owner: the class that errors name.
        dim: the features of a stack. Default: those of the quantizer.
    """
    return sharing_ranks_of(quantizer, owner, dim) if quantizer.training else ALONE


def sharing_ranks_of(
    quantizer: "VectorQuantize | LFQ | SimVQ", owner: str, dim: int | None = None
) -> Ranks:
    """``ranks_of`` in evaluation, too: of an update outside of forward, which changes what ranks share in any mode."""
    group = group_of(quantizer)
    if not group:
        return ALONE
    features = quantizer.dim if dim is None else dim
    label = f"{owner}(dim={features}, codebook_size={quantizer.codebook_size})"
    return Ranks(group, label, getattr(quantizer, "reduction", "exact"))


def group_of(quantizer: "VectorQuantize | LFQ | SimVQ") -> str:
    """The name of the group of ranks that share a quantizer; empty where it belongs to this process."""
    if quantizer.sync_codebook is False or not distributed_training():
        return ""
    return default_group() if quantizer.process_group is None else quantizer.process_group


def distributed_training() -> bool:
    """Whether there is a process group; asked at each call, because modules are often built before it."""
    # Not is_initialized(), whose answer torch.compile takes for good.
    return dist.is_available() and dist.group.WORLD is not None


def default_group() -> str:
    """The name of the group of all ranks, once torch.distributed is initialised."""
    world = dist.group.WORLD
    assert world is not None
    return world.group_name


def group_name(owner: str, process_group: object) -> str | None:
    """The name under which operators find a group. Process group objects can be neither copied nor saved."""
    if process_group is None or isinstance(process_group, str):
        return process_group
    name = getattr(process_group, "group_name", None)
    if not isinstance(name, str):
        raise ValueError(
            f"{owner}: expected process_group to be a group that this rank belongs to, its name or None, "
            f"but got {process_group}"
        )
    return name


def joined_signature(quantizers: Iterable["Codebook | LFQ"]) -> str:
    """The options in which all ranks must agree, as text; error messages quote it."""
    # Levels of a stack mostly have the same options, and errors have little room.
    texts: list[str] = []
    counts: list[int] = []
    for quantizer in quantizers:
        if texts and texts[-1] == quantizer.signature:
            counts[-1] += 1
        else:
            texts.append(quantizer.signature)
            counts.append(1)
    runs = zip(texts, counts, strict=True)
    return "; ".join(text if count == 1 else f"{count} levels of {text}" for text, count in runs)


def tokens_text(dtype: torch.dtype) -> str:
    """The dtype in which tokens enter messages, as text for the handshake: it decides their size."""
    return "float64 tokens" if dtype == torch.float64 else "float32 tokens"


def on_device_of(tokens: Tensor) -> Tensor:
    """A tensor without elements, for handshakes of modules without state: notes travel on the device of the state."""
    return torch.empty(0, device=tokens.device, dtype=torch.float32)


def handshake(
    codebooks: Sequence["Codebook"], ranks: Ranks, call: str, affine: Sequence[bool]
) -> None:
    """Before the first synchronised step, compares options over the ranks and gives all ranks the same state.

    Args:
        codebooks: of the quantizer, or of all levels of a stack.
        ranks: the ranks that learn together.
        call: the kind of call, as text: what ranks must have in common besides the options of the codebooks. Each kind
            has a handshake of its own.
        affine: for each codebook whether ranks share the statistics of its affine map, if there is one.
    """
    if ranks.alone or codebooks[0].replaying:
        return
    state = [
        tensor.detach()
        for codebook, shares_affine in zip(codebooks, affine, strict=True)
        for tensor in codebook.replicated_state(shares_affine).values()
    ]
    signature = f"{call}, reduction {ranks.reduction}, {joined_signature(codebooks)}"
    _ops.handshake_(state, handle=codebooks[0].handle, signature=signature, **ranks.options())


def noise_rng(rng: Tensor, ranks: Ranks) -> Tensor:
    """The generator for draws per token: ranks hold different tokens, so each needs different numbers."""
    return rng if ranks.alone else _ops.noise_rng(rng, **ranks.options())


def everybody(label: str) -> Ranks:
    """All ranks, for modules that share no codebook; ``ALONE`` without a group."""
    return Ranks(default_group(), label) if distributed_training() else ALONE
