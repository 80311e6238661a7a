"""Codes that stay as they are: copies of them in 8 bits, for the search of a few frames (docs/adapters.md).

Nothing is kept in a module: states, pickles and copies of a model have none of this.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_jit: Any = torch.jit
_prepare = torch.ops.torchvq.prepare_codes
_version = operator.attrgetter("_version")

# The operator uses copies up to so many rows; for more, none are made.
_MOST_ROWS = 191


class _Copies(NamedTuple):
    """What is kept of one stack, and what the codes were when it was made."""

    codes: Sequence[Tensor]
    memory: list[Tensor]
    """Theirs, held so that no other codes come to lie at the same address."""
    pointers: list[int]
    versions: list[int]
    sizes: list[int]
    """Numbers in each: with as many features as the search wants, these are its shape."""
    prepared: list[Tensor]

    def are_of(self, codes: Sequence[Tensor]) -> bool:
        """Whether these are the same tensors, or the first of them, and as they were."""
        count = len(codes)
        return (
            count <= len(self.codes)
            and all(map(operator.is_, codes, self.codes))
            and list(map(Tensor.data_ptr, codes)) == self.pointers[:count]
            and _versions(codes) == self.versions[:count]
            and list(map(Tensor.numel, codes)) == self.sizes[:count]
        )


class _FrozenModel:
    """What is kept of the stacks of one model, which its adapted modules share."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        # A thread that is just making copies puts them where nobody looks any more.
        self.stacks: weakref.WeakKeyDictionary[nn.Module, _Copies] = weakref.WeakKeyDictionary()


_frozen: weakref.WeakKeyDictionary[nn.Module, _FrozenModel] = weakref.WeakKeyDictionary()


def freeze(modules: Iterable[nn.Module]) -> None:
    """From now on the codes of these modules of one model are copied at their first use."""
    model = _FrozenModel()
    for module in modules:
        _frozen[module] = model


def thaw(module: nn.Module) -> None:
    """Takes a module out, and what is kept of it; one that is not in is left alone."""
    model = _frozen.pop(module, None)
    if model is not None:
        model.stacks.pop(module, None)


def forget(module: nn.Module) -> None:
    """Drops the copies of the whole model that a module belongs to; they are made anew at the next use."""
    model = _frozen.get(module)
    if model is not None:
        model.forget()


def prepared_codes(stack: nn.Module, x: Tensor, codebooks: Sequence[Tensor]) -> list[Tensor] | None:
    """Copies of the codebooks of a stack for the search of ``x`` (B, D, T), or None where they would not serve.

    They are made at the first use, and again whenever a codebook is another tensor, lies elsewhere, has another size
    or has been written to.
    """
    # A graph of a compiler or a tracer has the codes of every call, and not those of the first.
    if torch.compiler.is_compiling() or not _frozen or _jit.is_tracing():
        return None
    model = _frozen.get(stack)
    if model is None or x.numel() > _MOST_ROWS * x.shape[1] or not _are_plain(codebooks):
        return None
    stacks = model.stacks
    kept = stacks.get(stack)
    if kept is None or not kept.are_of(codebooks):
        kept = stacks[stack] = _copies_of(codebooks)
    return kept.prepared[: len(codebooks)]


def _copies_of(codebooks: Sequence[Tensor]) -> _Copies:
    versions = _versions(codebooks)  # as they were before the copy is made
    memory = [codes.detach() for codes in codebooks]
    pointers, sizes = list(map(Tensor.data_ptr, memory)), list(map(Tensor.numel, memory))
    return _Copies(list(codebooks), memory, pointers, versions, sizes, list(map(_prepare, memory)))


def _versions(codes: Sequence[Tensor]) -> list[int]:
    try:
        return list(map(_version, codes))
    except RuntimeError:
        # Made under inference_mode, a tensor counts no writes.
        return [-1 if one.is_inference() else one._version for one in codes]


def _are_plain(codebooks: Sequence[Tensor]) -> bool:
    """On the CPU, with memory of their own: no tensor of a tracer or of several processes."""
    return codebooks[0].is_cpu and type(codebooks[0]) in (Tensor, nn.Parameter, nn.Buffer)
