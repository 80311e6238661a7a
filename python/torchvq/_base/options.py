"""Options as text for C++, which checks them for both languages (docs/design/options.md)."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import index
from typing import Any

import torch
from torch import nn

_PLAIN = frozenset({bool, int, float, str, type(None)})
_NO_OPTIONS = ("self", "__class__")


def check_options(owner: str, options: Mapping[str, Any]) -> list[int]:
    """What open options of the class ``owner`` resolve to (``include/torchvq/options/by_name.h``).

    Options may be the ``locals()`` of a constructor; a mapping among them counts as options of its own.

    ValueError for options out of range or at odds, TypeError for values of the wrong kind and for unknown names.
    """
    names, texts = _flat(options)
    return list(_resolved(owner, tuple(names), tuple(texts)))


# Levels of a stack have the same options. What raises is not remembered.
@lru_cache(maxsize=64)
def _resolved(owner: str, names: tuple[str, ...], texts: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(torch.ops.torchvq.check_options(owner, names, texts))


def keep_values(module: nn.Module, **values: Any) -> None:
    """Makes values that are no tensors and no modules attributes of a module, which declares them.

    An assignment looks for its name among parameters, buffers and modules first: half of what constructing a level of
    a stack would cost.
    """
    vars(module).update(values)


def expect(owner: str, holds: bool, name: str, condition: str, value: object) -> None:
    """Raises ValueError unless an argument is what it must be; for those that only Python has."""
    if not holds:
        raise ValueError(f"{owner}: expected {name} to be {condition}, but got {value}")


def _flat(options: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Names and texts. Most values are plain, and every level of a stack comes here."""
    names: list[str] = []
    texts: list[str] = []
    for name, value in options.items():
        if type(value) in _PLAIN:
            names.append(name)
            texts.append(str(value))
        elif isinstance(value, Mapping):
            names += [f"{name}.{inner}" for inner in value]
            texts += map(_text, value.values())
        elif name not in _NO_OPTIONS:
            names.append(name)
            texts.append(_text(value))
    return names, texts


def _text(value: Any) -> str:
    """As Python writes it; what cannot be written is given or not."""
    if type(value) in _PLAIN:
        return str(value)
    if callable(value):
        return "given"
    if hasattr(value, "tolist"):
        # Of numpy, and tensors.
        return _text(value.tolist())
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Sequence):
        return f"[{', '.join(map(_text, value))}]"
    if hasattr(value, "__index__"):
        return str(index(value))
    if hasattr(value, "__float__"):
        return str(float(value))
    return str(value) if isinstance(value, torch.dtype) else "given"
