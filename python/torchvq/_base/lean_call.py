"""Operators are called without options that equal their defaults: torch takes 0.4 microseconds to read an option."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

_PLAIN = frozenset({bool, int, float, str, type(None)})
_NO_DEFAULT = object()


def without_defaults(operator: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options of ``torch.ops.torchvq.<operator>`` that differ from the defaults of its schema."""
    if torch.compiler.is_compiling():
        return options
    defaults = _defaults(operator)
    return {
        name: value
        for name, value in options.items()
        if type(value) not in _PLAIN or value != defaults.get(name, _NO_DEFAULT)
    }


@cache
def _defaults(operator: str) -> Mapping[str, Any]:
    schema = getattr(torch.ops.torchvq, operator).default._schema
    return {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
