"""The modules of a list."""

from typing import Any

from torch import nn

#: Where wrappers that leave the results alone keep their module: ``torch.compile``, ``checkpoint_wrapper``. Not FSDP1,
#: which gathers the parameters of its module only in a forward of its own.
_WITHIN = ("_orig_mod", "_checkpoint_wrapped_module")


def contained(
    owner: nn.Module, name: str, kind: type[nn.Module] | None = None, count: int | None = None
) -> list[Any]:
    """The modules, in their order, of the ``nn.ModuleList`` that a module has under a name.

    With ``kind`` they are of that class, and without what compiles them: TypeError for another class, ValueError for
    another number than ``count``, or for none. A lookup through the module and the list's own iterator take six times
    as long.
    """
    own: dict[str, Any] = owner._modules
    found = list(own[name]._modules.values())
    if kind is None:
        return found
    if not found or (count is not None and len(found) != count):
        condition = "at least one module" if count is None else f"{count} modules"
        raise ValueError(
            f"{type(owner).__name__}: expected {name} to be {condition}, but got {len(found)}"
        )
    for module in found:
        if not isinstance(module, kind):
            return [of_kind(owner, name, module, kind) for module in found]
    return found


def first_contained(owner: nn.Module, name: str, kind: type[nn.Module]) -> Any:
    """The first module of such a list, in a third of the time."""
    own: dict[str, Any] = owner._modules
    first = next(iter(own[name]._modules.values()), None)
    return first if isinstance(first, kind) else contained(owner, name, kind)[0]


def of_kind(owner: nn.Module, name: str, module: nn.Module | None, kind: type[nn.Module]) -> Any:
    """The module that another has under a name, without what compiles it; TypeError if it is of another class."""
    within: Any = module
    while not isinstance(within, kind):
        parts = {} if within is None else within._modules
        within = next((parts[key] for key in _WITHIN if key in parts), None)
        if within is None:
            raise TypeError(
                f"{type(owner).__name__}: expected {name} to be {kind.__name__}, "
                f"but got {type(module).__name__}"
            )
    return within
