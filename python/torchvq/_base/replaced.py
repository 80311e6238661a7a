"""Methods of a module that a derived class, or somebody who writes to the module or its class, has replaced.

The library computes by operators, which call no method of a module. Where the reference calls methods that users
replace, the module asks here, and calls them, or says that it does not.
"""

import warnings
from collections.abc import Mapping

from torch import nn

Methods = Mapping[str, object]


def methods_of(kind: type[nn.Module], *names: str) -> Methods:
    """The methods and properties of a class as the library has written them."""
    return {name: getattr(kind, name) for name in names}


def is_replaced(module: nn.Module, own: Methods) -> bool:
    """Whether the module has another one in place of one of these."""
    kind, attributes = type(module), module.__dict__
    # Stacks ask for every level, and a generator takes twice as long.
    for name, method in own.items():  # noqa: SIM110
        if name in attributes or getattr(kind, name) is not method:
            return True
    return False


def warn_of_replaced(module: nn.Module, own: Methods) -> None:
    """Warns of methods that a derived class replaces in vain."""
    kind = type(module)
    replaced = [name for name, method in own.items() if getattr(kind, name) is not method]
    if replaced:
        warnings.warn(
            f"{kind.__name__}: forward does not call {', '.join(replaced)}, which this class replaces; replace "
            "forward, or the module that comes before or after it",
            stacklevel=3,
        )
