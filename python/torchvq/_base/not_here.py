"""Names of ``vector_quantize_pytorch`` that torchvq has in another module, or not at all: those say so in an error."""

import importlib
import sys
from collections.abc import Callable
from types import MethodType
from typing import Any, NoReturn

_PAGE = 'docs/migrating.md, "Where names are"'


def explain_absent(module: str, names: str) -> None:
    """Lets a module raise an error of its own for names of the reference, separated by spaces, that it lacks.

    An ImportError, because ``from module import name`` replaces an AttributeError by a message of Python's. Type
    checkers, for which a ``__getattr__`` in the module's text would stand for any name, do not see it.
    """
    lacking = frozenset(names.split())

    def __getattr__(name: str) -> NoReturn:
        if name in lacking:
            raise ImportError(
                f"{module}: expected a name of torchvq, but got {name}, which only vector_quantize_pytorch has; "
                f"{_PAGE}, says what to use instead",
                name=module,
            )
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    vars(sys.modules[module])["__getattr__"] = __getattr__


def found_in(source: str, name: str, module: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module in which the reference keeps a class that torchvq has in another, ``source``.

    That one imports this module, so this module looks it up when it is asked for the class.
    """

    def __getattr__(wanted: str) -> Any:
        if wanted == name:
            return getattr(importlib.import_module(source), name)
        raise AttributeError(f"module {module!r} has no attribute {wanted!r}")

    return __getattr__


class _NotCalled:
    """A method that raises when it is called."""

    def __init__(self, name: str, instead: str) -> None:
        self.name, self.instead = name, instead

    def __get__(self, codebook: object, cls: type) -> Any:
        def method(*_: object, **__: object) -> NoReturn:
            self._refuse("called")

        method.__name__ = self.name
        return method if codebook is None else MethodType(method, codebook)

    def _refuse(self, how: str) -> NoReturn:
        raise NotImplementedError(
            f"Codebook: expected a method of torchvq to be {how}, but got {self.name}, which only "
            f"vector_quantize_pytorch has; {self.instead}"
        )


class _NotReplaced(_NotCalled):
    """One that also refuses another in its place, which nothing would call."""

    def __set__(self, codebook: object, value: object) -> NoReturn:
        self._refuse("replaced")


_LEARNS = "forward of the quantizer does it, by the quantizer's options"
_STARTS = "set sync_kmeans of the quantizer, or start from codes of your own (vq.codebook = codes)"


class MethodsOfReference:
    """The methods by which the reference's codebook computes, none of which can be called.

    They are methods that raise, not a ``__getattr__``, which would slow down every look-up of a buffer. Frameworks
    wrap the ``forward`` of all modules, so that one may be replaced.
    """

    forward = _NotCalled(
        "forward", "call the quantizer; distances to the codes are torch.cdist(x, vq.codebook)"
    )
    expire_codes_ = _NotReplaced("expire_codes_", "use expire_codes_ of the quantizer")
    update_ema_indices = _NotReplaced(
        "update_ema_indices", "use update_ema_indices of the quantizer"
    )
    init_embed_ = _NotReplaced(
        "init_embed_", "forward runs k-means until initted is True; vq.codebook = codes sets codes"
    )
    replace = _NotReplaced("replace", "use expire_codes_ of the quantizer, or vq.codebook = codes")
    update_codebook = _NotReplaced("update_codebook", _LEARNS)
    update_indices = _NotReplaced("update_indices", _LEARNS)
    update_with_decay = _NotReplaced("update_with_decay", _LEARNS)
    track_cluster_size_and_embed_avg = _NotReplaced("track_cluster_size_and_embed_avg", _LEARNS)
    transform_input = _NotReplaced(
        "transform_input", "for cosine codes it is torch.nn.functional.normalize(x, dim=-1)"
    )
    gumbel_sample = _NotReplaced(
        "gumbel_sample",
        "options of the quantizer are stochastic_sample_codes and sample_codebook_temp",
    )
    # Functions of the reference's instances, through which it samples tokens and adds up over ranks.
    sample_fn = _NotReplaced("sample_fn", _STARTS)
    kmeans_all_reduce_fn = _NotReplaced("kmeans_all_reduce_fn", _STARTS)
    replace_sample_fn = _NotReplaced(
        "replace_sample_fn", "use expire_codes_ of the quantizer, or its sync_codebook"
    )
    all_reduce_fn = _NotReplaced("all_reduce_fn", "set sync_codebook of the quantizer")
