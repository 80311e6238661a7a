"""Finds the quantizers of a model, exchanges them, and restores them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

from torch import nn

from torchvq._base.arguments import expect_kind
from torchvq.adapters._frozen import freeze, thaw
from torchvq.adapters._registry import (
    Adapter,
    adapted_class,
    is_joined,
    original_class,
    restored_class,
)

_Model = TypeVar("_Model", bound=nn.Module)
_NUMBER = re.compile(r"\b\d+\b")


class Found(NamedTuple):
    """A quantizer of a model: one row of :func:`describe`."""

    path: str
    """Where it is, ``"quantizer.layers.0.codebook"``; empty for the model itself."""
    kind: str
    """The qualified name of its class."""
    adapter: str
    """The qualified name of the adapter for it."""
    adapted: bool
    """Whether it is adapted now."""


class Description(list[Found]):
    """What :func:`describe` returns: a list, whose text has a line for levels alike."""

    def __repr__(self) -> str:
        def group(row: Found) -> tuple[str, str, bool]:
            return _NUMBER.sub("*", row.path) or "(the model)", row.kind, row.adapted

        lines = []
        for (path, kind, adapted), rows in Counter(map(group, self)).items():
            times = f" ({rows} of them)" if rows > 1 else ""
            state = "adapted" if adapted else "not adapted"
            lines.append(f"{path}{times}: {kind}, {state}")
        return "\n".join(lines) or "no quantizer that is known here"


def describe(model: nn.Module) -> Description:
    """The quantizers of a model that have an adapter, in the order of ``named_modules``; changes nothing.

    Printed, it has a line for each kind of quantizer at each place; as a list, a :class:`Found` for every quantizer.

    An empty list: the model has none that is known here.

    Raises:
        TypeError: when the model is no ``torch.nn.Module``.
    """
    rows = Description()
    for path, module, target in _quantizers(_checked("describe", model)):
        adapter = target._torchvq_adapter
        kind, by = original_class(module), f"{adapter.__module__}.{adapter.__qualname__}"
        rows.append(
            Found(path, f"{kind.__module__}.{kind.__qualname__}", by, isinstance(module, Adapter))
        )
    return rows


def adapt(model: _Model, *, frozen: bool = False) -> _Model:
    """Exchanges the quantizers of a model for ours, in place.

    In evaluation they search by :func:`torchvq.ops.nearest_code` and :func:`torchvq.ops.residual_encode`: exact in
    float32, in float64 for float64, and in float32 for half precision. In training they do what they did before.
    Parameters, buffers, names, hooks, dtypes and devices stay as they are: a module gets another class, which is a
    subclass of its own. A second call changes nothing but ``frozen``, also if FSDP2 or a parametrization has given the
    module yet another class in between.

    Args:
        model: Any ``torch.nn.Module``, a quantizer itself included.
        frozen: Whether the codes stay as they are from now on. Whole stacks of EnCodec, Mimi and X-Codec then keep a
            copy of their codes in 8 bits, a quarter of their memory, from the first call on that encodes a few frames;
            such calls are several times faster, and the tokens are the same. See docs/adapters.md for what of a change
            is noticed all the same. Copies and pickles of the model are not frozen. Default: False.

    Returns:
        ``model``.

    Raises:
        ValueError: when no quantizer with an adapter is found; nothing is changed then.
        TypeError: when the model is no ``torch.nn.Module``.
    """
    found = list(_quantizers(_checked("adapt", model)))
    if not found:
        raise ValueError(
            "adapt: expected model to have a quantizer with an adapter (torchvq.adapters.register adds one), "
            f"but got {type(model).__module__}.{type(model).__qualname__} without any"
        )
    for _, module, target in found:
        module.__class__ = target
        thaw(module)
    if frozen:
        freeze(module for _, module, _ in found)
    return model


def restore(model: _Model) -> _Model:
    """Puts back what :func:`adapt` has exchanged, in place; a model without is left as it is.

    What FSDP2 and parametrizations have added since stays.

    Raises:
        TypeError: when the model is no ``torch.nn.Module``.
    """
    for module in _checked("restore", model).modules():
        if isinstance(module, Adapter):
            thaw(module)
            module.__class__ = restored_class(type(module))
    return model


def _quantizers(model: nn.Module) -> Iterator[tuple[str, nn.Module, Any]]:
    """Paths, modules, and the classes that these get."""
    for path, module in model.named_modules():
        cls = type(module)
        # A class that a wrapper has derived from ours is as it should be.
        wrapped = hasattr(cls, "_torchvq_original") and not is_joined(cls)
        target = cls if wrapped else adapted_class(original_class(module))
        if target is not None:
            yield path, module, target


def _checked(what: str, model: _Model) -> _Model:
    expect_kind(what, "model", model, nn.Module, "a torch.nn.Module")
    return model
