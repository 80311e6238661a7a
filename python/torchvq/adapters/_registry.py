"""Which adapter belongs to which class, and the classes made of both (docs/adapters.md)."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from torchvq.adapters._frozen import forget

_Adapter = TypeVar("_Adapter", bound="type[Adapter]")

# By qualified name, so that no package is imported before its user imports it.
_adapters: dict[str, type[Adapter]] = {}
_joined: dict[tuple[type[nn.Module], type[Adapter]], type[nn.Module]] = {}
# What Python itself adds to the body of every class.
_OF_EACH_CLASS = ("__dict__", "__weakref__")


class Adapter(nn.Module):
    """What a quantizer does differently once it is adapted; the base of every adapter.

    An adapter has no state and no constructor. The methods that it defines take the place of the methods of the same
    name while the module is in evaluation; in training the module's own run. ``self`` is the module itself, with
    all its parameters, buffers and other methods.
    """

    @property
    def original(self) -> Any:
        """The module with its own methods: ``self.original.encode(x)`` is what it did before."""
        return super()

    def train(self, mode: bool = True) -> Any:
        """As the module's own. Packages write to codes in training, by ways that nothing counts: copies are dropped."""
        if mode or self.training:
            forget(self)
        return super().train(mode)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and pickles name the original class, because the joined one cannot be imported."""
        reduced: Any = super().__reduce_ex__(protocol)
        if not is_joined(type(self)):  # a wrapper has derived this class, and says how it is copied
            return reduced
        return (_rebuild, (original_class(self),), *reduced[2:])


def register(target: type[nn.Module] | str) -> Callable[[_Adapter], _Adapter]:
    """Decorates an :class:`Adapter`: it is for quantizers of this class.

    Args:
        target: The class of the quantizers, or its qualified name, ``"package.module.Class"``, which imports nothing.
            Later registrations replace earlier ones. Subclasses are adapted as well unless they define one of the
            adapter's methods anew.

    Raises:
        TypeError: when ``target`` is neither a class of modules nor a name; when what is decorated is no subclass of
            :class:`Adapter`, defines no method, or defines a static method, a class method or a property, which would
            replace the module's in training as well.
    """
    if isinstance(target, str):
        name = target
    elif isinstance(target, type) and issubclass(target, nn.Module):
        name = _name(target)
    else:
        raise TypeError(
            f"register: expected target to be a subclass of nn.Module or its name, but got {target!r}"
        )

    def add(adapter: _Adapter) -> _Adapter:
        if not (isinstance(adapter, type) and issubclass(adapter, Adapter)):
            raise TypeError(
                "register: expected adapter to be a subclass of torchvq.adapters.Adapter, "
                f"but got {adapter!r}"
            )
        _check_kinds(adapter)
        if not _methods(adapter):
            raise TypeError(
                f"register: expected {adapter.__name__} to define a method, but got none"
            )
        _adapters[name] = adapter
        return adapter

    return add


def adapted_class(original: type[nn.Module]) -> type[nn.Module] | None:
    """The class that a module of class ``original`` gets, or None if there is no adapter for it."""
    adapter = _adapter_of(original)
    if adapter is None:
        return None
    key = (original, adapter)
    if key not in _joined:
        _joined[key] = _join(original, adapter)
    return _joined[key]


def original_class(module: nn.Module) -> type[nn.Module]:
    """The class of a module before it was adapted, also if a wrapper has derived another since; or its own class."""
    return getattr(type(module), "_torchvq_original", type(module))


def is_joined(cls: type) -> bool:
    """Whether a class is one that :func:`adapted_class` returns, not one derived from it."""
    return "_torchvq_original" in vars(cls)


def restored_class(cls: Any) -> Any:
    """A class without its adapter. Those that FSDP2 and parametrizations derive from ours are made anew, without it."""
    if not hasattr(cls, "_torchvq_original"):
        return cls
    if is_joined(cls):
        return cls._torchvq_original
    body = {name: value for name, value in vars(cls).items() if name not in _OF_EACH_CLASS}
    return type(cls)(cls.__name__, tuple(map(restored_class, cls.__bases__)), body)


def _adapter_of(original: type[nn.Module]) -> type[Adapter] | None:
    defined: set[str] = set()
    for base in original.__mro__:
        adapter = _adapters.get(_name(base))
        if adapter is not None:
            return None if defined & set(_methods(adapter)) else adapter
        defined |= set(vars(base))
    return None


def _join(original: type[nn.Module], adapter: type[Adapter]) -> type[nn.Module]:
    body: dict[str, Any] = {
        name: _in_evaluation(method, getattr(original, name))
        for name, method in _methods(adapter).items()
        if hasattr(original, name)
    }
    # The original name stays, because packages identify classes by it: in repr, in lists of modules not to be split.
    body |= dict(__module__=original.__module__, __doc__=original.__doc__)
    body |= dict(_torchvq_original=original, _torchvq_adapter=adapter)
    return type(original.__name__, (adapter, original), body)


def _in_evaluation(method: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if self.training:
            forget(self)  # code that sets `training` directly bypasses train()
            return original(self, *args, **kwargs)
        return method(self, *args, **kwargs)

    return call


def _methods(adapter: type[Adapter]) -> dict[str, Callable[..., Any]]:
    """The methods of an adapter and its bases up to `Adapter`, without dunder methods."""
    return {
        name: value
        for name, value in _contents(adapter).items()
        if isinstance(value, types.FunctionType)
    }


def _check_kinds(adapter: type[Adapter]) -> None:
    """Refuses what is looked up on the class, where nothing tells training from evaluation."""
    for name, value in _contents(adapter).items():
        if hasattr(value, "__get__") and not isinstance(value, types.FunctionType):
            raise TypeError(
                f"register: expected {adapter.__name__}.{name} to be a plain method, but got a {type(value).__name__}"
            )


def _contents(adapter: type[Adapter]) -> dict[str, Any]:
    """What an adapter and its bases up to `Adapter` define, without dunder names."""
    found: dict[str, Any] = {}
    for base in reversed(adapter.__mro__[: adapter.__mro__.index(Adapter)]):
        found |= {name: value for name, value in vars(base).items() if not name.startswith("__")}
    return found


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _rebuild(original: type[nn.Module]) -> nn.Module:
    cls = adapted_class(original) or original
    return cls.__new__(cls)
