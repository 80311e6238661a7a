"""Options as text for C++, which checks them for both languages (docs/design/options.md)."""

from collections.abc import Iterator, Mapping, Sequence
from operator import index
from typing import Any

import torch

_PLAIN = (bool, int, float, str, type(None))
_NO_OPTIONS = ("self", "__class__")


def check_options(owner: str, options: Mapping[str, Any]) -> list[int]:
    """What open options of the class ``owner`` resolve to (``include/torchvq/options/by_name.h``).

    Options may be the ``locals()`` of a constructor; a mapping among them counts as options of its own.

    ValueError for options out of range or at odds, TypeError for values of the wrong kind and for unknown names.
    """
    texts = dict(_flat(options))
    found: list[int] = torch.ops.torchvq.check_options(owner, list(texts), list(texts.values()))
    return found


def expect(owner: str, holds: bool, name: str, condition: str, value: object) -> None:
    """Raises ValueError unless an argument is what it must be; for those that only Python has."""
    if not holds:
        raise ValueError(f"{owner}: expected {name} to be {condition}, but got {value}")


def _flat(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in options.items():
        if isinstance(value, Mapping):
            for inner, inner_value in value.items():
                yield f"{name}.{inner}", _text(inner_value)
        elif name not in _NO_OPTIONS:
            yield name, _text(value)


def _text(value: Any) -> str:
    """As Python writes it; what cannot be written is given or not."""
    if type(value) in _PLAIN:
        return str(value)
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
