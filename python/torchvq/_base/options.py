"""Options as text for C++, which checks them for both languages (docs/design/options.md)."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import inf
from operator import index
from typing import Any

import torch
from torch import nn

_PLAIN = frozenset({bool, int, float, type(None)})
_HASHED = _PLAIN | {str}
_NO_OPTIONS = ("self", "__class__")


def check_options(owner: str, options: Mapping[str, Any]) -> list[int]:
    """The values of options left open, by the rules of class ``owner`` (``include/torchvq/options/by_name.h``).

    ``options`` may be the ``locals()`` of a constructor; a mapping among its values holds nested options.

    ValueError for options out of range or in conflict, TypeError for values of the wrong type and for unknown names.
    """
    given = {name: value for name, value in options.items() if name not in _NO_OPTIONS}
    types = tuple(map(type, given.values()))
    if _HASHED.issuperset(types):
        return list(_resolved(owner, tuple(given.items()), types))
    return list(_checked(owner, given))


# The levels of a stack have the same options, so one check serves all. lru_cache does not cache exceptions. Types are
# part of the key, because True equals 1. By value where that is possible: texts take longer than the rest of it.
@lru_cache(maxsize=64)
def _resolved(
    owner: str, options: tuple[tuple[str, Any], ...], types: tuple[type, ...]
) -> tuple[int, ...]:
    return _checked(owner, dict(options))


def _checked(owner: str, options: Mapping[str, Any]) -> tuple[int, ...]:
    names, texts = _flat(options)
    return _checked_texts(owner, tuple(names), tuple(texts))


@lru_cache(maxsize=64)
def _checked_texts(owner: str, names: tuple[str, ...], texts: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(torch.ops.torchvq.check_options(owner, names, texts))


def keep_values(module: nn.Module, **values: Any) -> None:
    """Sets attributes of a module that are neither tensors nor modules; its class declares them.

    ``Module.__setattr__`` would first look the name up among parameters, buffers and modules, which is half of the cost
    of constructing a level of a stack.
    """
    vars(module).update(values)


def named(options: Mapping[str, Any], names: str) -> dict[str, Any]:
    """The options of these names, which spaces separate; ``options`` may be the ``locals()`` of a constructor."""
    return {name: options[name] for name in names.split()}


def expect(owner: str, holds: bool, name: str, condition: str, value: object) -> None:
    """Raises ValueError unless ``holds``; for arguments that exist in Python only."""
    if not holds:
        raise ValueError(f"{owner}: expected {name} to be {condition}, but got {value}")


def take_out(
    owner: str, options: dict[str, Any], own: Mapping[str, str], **defaults: object
) -> None:
    """Removes the options that a class sets itself, given with what to do instead; ValueError for one that is set.

    One that has its default is not set: None, or False unless ``defaults`` say another value.
    """
    for name, instead in own.items():
        given = options.pop(name, None)
        unset = given in (None, defaults.get(name, False))
        expect(owner, unset, name, f"left out ({instead})", given)


def expect_temperature(owner: str, name: str, value: float, least: float = -inf) -> None:
    """Raises ValueError for a temperature below ``least``, NaN or infinity."""
    condition = "finite" if least == -inf else f"finite and at least {least:g}"
    # Comparisons, because compilers cannot trace `isfinite` of a symbolic number.
    expect(owner, -inf < value < inf and value >= least, name, condition, value)


def _flat(options: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Names and texts of the options."""
    names: list[str] = []
    texts: list[str] = []
    for name, value in options.items():
        if type(value) in _PLAIN:
            names.append(name)
            texts.append(str(value))
        elif isinstance(value, Mapping):
            names += [f"{name}.{inner}" for inner in value]
            texts += map(_text, value.values())
        else:
            names.append(name)
            texts.append(_text(value))
    return names, texts


def _text(value: Any) -> str:
    """A value as Python writes it, or "given" for one without a literal form."""
    if type(value) in _PLAIN:
        return str(value)
    if callable(value):
        return "given"
    if hasattr(value, "tolist"):
        # NumPy scalars and arrays, and tensors.
        return _text(value.tolist())
    if isinstance(value, str):
        # Quoted, because "False" is not False, and "8" is no number.
        return f"'{str.__str__(value)}'"
    if isinstance(value, Sequence):
        return f"[{', '.join(map(_text, value))}]"
    if hasattr(value, "__index__"):
        return str(index(value))
    if hasattr(value, "__float__"):
        return str(float(value))
    return str(value) if isinstance(value, torch.dtype) else "given"
