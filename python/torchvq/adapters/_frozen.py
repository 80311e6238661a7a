"""Frozen codes: copies of them in 8 bits, for the search of a few frames (docs/adapters.md).

The copies are kept outside the modules, so state dicts, pickles and copies of a model do not have them.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchvq._base.torch_private import is_jit_traced

_prepare = torch.ops.torchvq.prepare_codes
_version = operator.attrgetter("_version")

# The operator uses copies for at most this many rows; for more, none are made.
_MOST_ROWS = 191


class _Copies(NamedTuple):
    """The copies of one stack, and what identifies the codes from which they were made."""

    codes: Sequence[Tensor]
    memory: list[Tensor]
    """Theirs, held so that no other codes come to lie at the same address."""
    pointers: list[int]
    versions: list[int]
    sizes: list[int]
    """Numbers in each: with as many features as the search wants, these are its shape."""
    prepared: list[Tensor]

    def are_of(self, codes: Sequence[Tensor]) -> bool:
        """Whether these are the same tensors, or the first of them, unchanged."""
        count = len(codes)
        return (
            count <= len(self.codes)
            and all(map(operator.is_, codes, self.codes))
            and list(map(Tensor.data_ptr, codes)) == self.pointers[:count]
            and _versions(codes) == self.versions[:count]
            and list(map(Tensor.numel, codes)) == self.sizes[:count]
        )


class _FrozenModel:
    """The copies of the stacks of one model, shared by its adapted modules."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        # A new dict: a thread that is making copies stores them in the old one, which nobody reads any more.
        self.stacks: weakref.WeakKeyDictionary[nn.Module, _Copies] = weakref.WeakKeyDictionary()


_frozen: weakref.WeakKeyDictionary[nn.Module, _FrozenModel] = weakref.WeakKeyDictionary()


def freeze(modules: Iterable[nn.Module]) -> None:
    """Marks modules of one model as frozen: their codes are copied at the first use."""
    model = _FrozenModel()
    for module in modules:
        _frozen[module] = model


def thaw(module: nn.Module) -> None:
    """Removes a module and its copies, if it is there."""
    model = _frozen.pop(module, None)
    if model is not None:
        model.stacks.pop(module, None)


def forget(module: nn.Module) -> None:
    """Drops the copies of the model that a module belongs to; they are made again at the next use."""
    model = _frozen.get(module)
    if model is not None:
        model.forget()


def prepared_codes(stack: nn.Module, x: Tensor, codebooks: Sequence[Tensor]) -> list[Tensor] | None:
    """Copies of the codebooks of a stack for the search of ``x`` (B, D, T), or None if they do not apply.

    They are made at the first use, and again whenever a codebook is another tensor, has another address or size, or has
    been written to.
    """
    # A compiled or traced graph must use the codes of each call; copies would be constants of the first.
    if torch.compiler.is_compiling() or not _frozen or is_jit_traced():
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
    # Read before the copy, so that a write during it is noticed later.
    versions = _versions(codebooks)
    memory = [codes.detach() for codes in codebooks]
    pointers, sizes = list(map(Tensor.data_ptr, memory)), list(map(Tensor.numel, memory))
    return _Copies(list(codebooks), memory, pointers, versions, sizes, list(map(_prepare, memory)))


def _versions(codes: Sequence[Tensor]) -> list[int]:
    try:
        return list(map(_version, codes))
    except RuntimeError:
        # Tensors made under inference_mode have no version counter.
        return [-1 if one.is_inference() else one._version for one in codes]


def _are_plain(codebooks: Sequence[Tensor]) -> bool:
    """Whether they are on the CPU, with memory of their own: not fake tensors of a tracer, and not DTensors."""
    return codebooks[0].is_cpu and type(codebooks[0]) in (Tensor, nn.Parameter, nn.Buffer)
