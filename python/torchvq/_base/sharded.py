"""Parameters that FSDP2 shards: read by a stack that does not call their modules, and written by a forward.

``fully_shard`` gathers the parameters of a module before its forward and frees them afterwards, and with them the
values written there by a k-means start, moving averages, the replacement of dead codes or a quantizer's own optimizer.
"""

import functools
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from torchvq._base.torch_private import (
    any_sharded,
    constant_in_graphs,
    place_of_shard,
    shards_of,
)

_Method = TypeVar("_Method", bound=Callable[..., Any])
_Result = TypeVar("_Result")
_gathered: list[nn.Module] = []  # by a method that is running


def gathers(*names: str) -> Callable[[_Method], _Method]:
    """Decorator of a method that reads the parameters of the modules under these names, without calling these.

    FSDP2 takes the method for the forward of those of them that it shards by themselves.
    """

    def decorate(method: _Method) -> _Method:
        @functools.wraps(method)
        def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not _in_use():
                return method(self, *args, **kwargs)
            lists = (self._modules[name] for name in names if name in self._modules)
            parts = (part for own in lists if own is not None for part in own.modules())
            run = functools.partial(method, self, *args, **kwargs)
            # Modules of the user are called, so FSDP2 gathers those itself.
            return gathered(filter(_is_ours, _shards(parts)), run)

        return cast(_Method, call)

    return decorate


def gathered(modules: Iterable[nn.Module], function: Callable[[], _Result]) -> _Result:
    """The function's result; those of the modules that are shards by themselves are gathered while it runs."""
    found = _shards(modules) if _in_use() else []
    if not found:
        return function()
    # A module before its parts: FSDP2 takes the first that it sees for the root.
    for module in reversed(found):
        function = functools.partial(_as_forward, module, function)
    _gathered.extend(found)
    try:
        return function()
    finally:
        del _gathered[len(_gathered) - len(found) :]


@constant_in_graphs
def _in_use() -> bool:
    # Compilers import FSDP2, too.
    return "torch.distributed.fsdp" in sys.modules and any_sharded()


def _shards(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Those with which ``fully_shard`` was called, unless they are gathered already."""
    kind = sys.modules["torch.distributed.fsdp"].FSDPModule
    shards = [module for module in modules if isinstance(module, kind)]
    return [module for module in shards if not any(module is other for other in _gathered)]


def _is_ours(module: nn.Module) -> bool:
    return any(base.__module__.startswith("torchvq.") for base in type(module).__mro__)


def _as_forward(module: nn.Module, function: Callable[[], _Result]) -> _Result:
    """Calls the function as FSDP2 calls the module's forward: parameters are gathered, and again before backward."""
    own = vars(module)
    own["_read_by_stack"] = function
    sys.modules["torch.distributed.fsdp"].register_fsdp_forward_method(module, "_read_by_stack")
    return cast(_Result, own.pop("_read_by_stack")())


def keep_in_shards(module: nn.Module) -> None:
    """Writes this module's own parameters, as they are, to this rank's shards of them.

    Does nothing without FSDP2. No communication: every rank has written the same numbers to the full parameter.
    """
    if "torch.distributed.fsdp" not in sys.modules or torch.compiler.is_compiling():
        return
    with torch.no_grad():
        for name, shard in shards_of(module):
            whole = module._parameters[name]
            if whole is not None and whole is not shard:
                _write(shard, whole)


def _write(shard: Any, whole: Tensor) -> None:
    part = whole.detach()
    for axis, (size, start) in enumerate(zip(*place_of_shard(shard), strict=True)):
        part = part.narrow(axis, min(start, part.shape[axis]), size)
    shard.to_local().copy_(part)
