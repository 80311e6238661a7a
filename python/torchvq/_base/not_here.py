"""Names of ``vector_quantize_pytorch`` that torchvq does not have: errors that say so, in place of Python's own."""

import sys
from collections.abc import Callable
from typing import NoReturn

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


def _not_called(name: str, instead: str) -> Callable[..., NoReturn]:
    def method(*_: object, **__: object) -> NoReturn:
        raise NotImplementedError(
            f"Codebook: expected a method of torchvq to be called, but got {name}, which only "
            f"vector_quantize_pytorch has; {instead}"
        )

    method.__name__ = name
    return method


_LEARNS = "forward of the quantizer does it, by the quantizer's options"


class MethodsOfReference:
    """The methods by which the reference's codebook computes, none of which can be called.

    They are methods that raise, not a ``__getattr__``, which would slow down every look-up of a buffer.
    """

    forward = _not_called(
        "forward", "call the quantizer; distances to the codes are torch.cdist(x, vq.codebook)"
    )
    expire_codes_ = _not_called("expire_codes_", "use expire_codes_ of the quantizer")
    update_ema_indices = _not_called(
        "update_ema_indices", "use update_ema_indices of the quantizer"
    )
    init_embed_ = _not_called(
        "init_embed_", "forward runs k-means until initted is True; vq.codebook = codes sets codes"
    )
    replace = _not_called("replace", "use expire_codes_ of the quantizer, or vq.codebook = codes")
    update_codebook = _not_called("update_codebook", _LEARNS)
    update_indices = _not_called("update_indices", _LEARNS)
    update_with_decay = _not_called("update_with_decay", _LEARNS)
    track_cluster_size_and_embed_avg = _not_called("track_cluster_size_and_embed_avg", _LEARNS)
    transform_input = _not_called(
        "transform_input", "for cosine codes it is torch.nn.functional.normalize(x, dim=-1)"
    )
    gumbel_sample = _not_called(
        "gumbel_sample",
        "options of the quantizer are stochastic_sample_codes and sample_codebook_temp",
    )
