"""The private names of torch that the package uses, each with what does not work without it.

If a version of torch has moved one, the package still imports: code that needs the name raises when it is used, or, if
every forward would need it, one warning at import names what does not work.
"""

import functools
import importlib
import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeVar, cast

import torch
import torch.utils.checkpoint
from torch import Tensor, nn

_Function = TypeVar("_Function", bound=Callable[..., Any])
_jit: Any = torch.jit  # has no types


class PrivateName(NamedTuple):
    """A private name of torch, and what does not work if torch lacks it."""

    module: str
    name: str
    without: str

    def get(self) -> Any:
        """The object of that name; NotImplementedError if this torch lacks it."""
        try:
            found: Any = importlib.import_module(self.module)
            for name in self.name.split("."):
                found = getattr(found, name)
        except (ImportError, AttributeError):
            raise NotImplementedError(
                f"torchvq: expected torch {torch.__version__} to have {self.module}.{self.name}, but it has not; "
                f"{self.without}"
            ) from None
        return found

    def get_or(self, instead: Callable[..., Any]) -> Any:
        """The same, but if torch lacks it, warns and returns ``instead``."""
        try:
            return self.get()
        except NotImplementedError as lost:
            warnings.warn(str(lost), RuntimeWarning, stacklevel=2)
            return instead


# What does not work, where it is the same of several names.
_VMAP = "torch.vmap of modules that train does not work"
_TWICE = "quantizers inside torch.utils.checkpoint learn from each step twice"
_REENTRANT = "quantizers inside torch.utils.checkpoint(use_reentrant=True) cannot train"
_SHARDED = "codebooks that fully_shard shards cannot learn"
_DAC = "adapted quantizers of DAC call their levels one by one"

REGISTER_NAMEDTUPLE = PrivateName(
    "torch.utils._pytree",
    "_register_namedtuple",
    "exported programs that return torchvq's named tuples cannot be saved",
)
IS_BATCHED = PrivateName("torch._C._functorch", "is_batchedtensor", _VMAP)
IS_WRAPPED = PrivateName("torch._C._functorch", "is_functorch_wrapped_tensor", _VMAP)
UNWRAPPED = PrivateName("torch._C._functorch", "get_unwrapped", _VMAP)
GRAPH_TASK = PrivateName("torch._C", "_current_graph_task_id", _TWICE)
SAVED_TENSOR_HOOKS = PrivateName("torch._C._autograd", "_top_saved_tensors_default_hooks", _TWICE)
CHECKPOINT_FORWARD = PrivateName(
    "torch.utils.checkpoint", "CheckpointFunction.forward.__code__", _REENTRANT
)
TRACED_CHECKPOINT = PrivateName(
    "torch._dynamo.variables.higher_order_ops",
    "CheckpointHigherOrderVariable",
    "quantizers inside torch.utils.checkpoint inside torch.compile get wrong gradients",
)
FRAME_CALLBACK = PrivateName(
    "torch._C._dynamo.eval_frame",
    "get_eval_frame_callback",
    "graphs that torch.compile is told to recompute are not refused, and get wrong gradients",
)
CHECKPOINT_BACKWARD = PrivateName(
    "torch.utils.checkpoint", "CheckpointFunction.backward.__code__", _REENTRANT
)
CHECKPOINT_HOOKS = PrivateName(
    "torch.utils.checkpoint",
    "_checkpoint_hook",
    "quantizers inside torch.utils.checkpoint cannot train",
)
KEEPS_GRAPH = PrivateName(
    "torch._C._autograd",
    "_get_current_graph_task_keep_graph",
    "records of torch.utils.checkpoint(use_reentrant=True) stay until its results are deleted",
)
BACKWARD_ENGINE = PrivateName(
    "torch.autograd",
    "Variable._execution_engine",
    "steps with overlap_sync cannot end with backward",
)
FSDP_STATES = PrivateName("torch.distributed._composable_state", "_module_state_mapping", _SHARDED)
FSDP_STATE = PrivateName("torch.distributed.fsdp._fully_shard._fsdp_state", "FSDPState", _SHARDED)
PLACE_OF_SHARD = PrivateName(
    "torch.distributed.tensor._utils", "compute_local_shape_and_global_offset", _SHARDED
)
DISPATCH_MODE = PrivateName(
    "torch.utils._python_dispatch",
    "_get_current_dispatch_mode",
    "selective checkpoints that save more than matrix products give wrong gradients",
)
WITHOUT_MODE = PrivateName(
    "torch.utils._python_dispatch",
    "_pop_mode_temporarily",
    "selective checkpoints cannot contain quantizers",
)
FORWARD_HOOKS = PrivateName("torch.nn.modules.module", "_global_forward_hooks", _DAC)
FORWARD_PRE_HOOKS = PrivateName("torch.nn.modules.module", "_global_forward_pre_hooks", _DAC)

PRIVATE_NAMES = tuple(own for own in list(vars().values()) if isinstance(own, PrivateName))

#: Names that torch's wrappers insert into the qualified names of the wrapped modules and parameters.
WRAPPER_NAMES = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


# Compiling ---------------------------------------------------------------------------------------------------------


def constant_in_graphs(function: _Function) -> _Function:
    """``torch.compiler.assume_constant_result`` without importing the compiler, which that function does."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def as_constants(values: Iterable[object]) -> tuple[object, ...]:
    """The values, whose numbers compilers take for constants: those of a graph with ``dynamic=True`` are its inputs,
    which no text can contain. Another value makes another graph.
    """
    if not torch.compiler.is_compiling():
        return tuple(values)
    return tuple([_as_constant(value) for value in values])


def _as_constant(value: object) -> object:
    if isinstance(value, tuple):
        return as_constants(value)
    if not isinstance(value, float):
        return value
    # The key of a group is a constant to compilers, which guard it.
    ((key, _),) = groupby((value,))
    return key


def outside_graphs(reason: str) -> Callable[[_Function], _Function]:
    """``torch.compiler.disable`` without importing the compiler before something is compiled."""

    def decorate(function: _Function) -> _Function:
        disabled: Callable[..., Any] | None = None

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal disabled
            if disabled is None:
                # A process that compiles has imported torch._dynamo, so without it a plain call is enough.
                if "torch._dynamo" not in sys.modules:
                    return function(*args, **kwargs)
                disabled = torch.compiler.disable(function, reason=reason)  # type: ignore[no-untyped-call]
            return disabled(*args, **kwargs)

        # The attribute at which the compiler ends its graph when it traces a call.
        call._torchdynamo_disable = True  # type: ignore[attr-defined]
        call._torchdynamo_disable_msg = reason  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return decorate


def is_jit_traced() -> bool:
    """Whether torch.jit.trace records the running code.

    It compares its graph with a second one, of a run without gradients. An operator that returns one tensor under two
    names there, and two tensors with gradients, must then be read by the second name in both.
    """
    return bool(_jit.is_tracing())


# Named tuples ------------------------------------------------------------------------------------------------------


def register_namedtuple(output: type, name: str) -> None:
    """Makes exported programs that return this named tuple savable, under a name of this package."""
    _register_namedtuple(output, serialized_type_name=name)


_register_namedtuple = REGISTER_NAMEDTUPLE.get_or(lambda output, serialized_type_name: None)

# torch.vmap --------------------------------------------------------------------------------------------------------

_is_batched: Callable[[Tensor], bool] = IS_BATCHED.get_or(lambda tensor: False)
_is_wrapped: Callable[[Tensor], bool] = IS_WRAPPED.get_or(_is_batched)


def is_mapped(tensor: Tensor) -> bool:
    """Whether the tensor stands for slices that may differ."""
    if _is_batched(tensor) or torch.compiler.is_compiling():
        return _is_batched(tensor)
    # Inside torch.func.grad every tensor is wrapped once more.
    return _is_wrapped(tensor) and is_mapped(UNWRAPPED.get()(tensor))


def unmapped(tensor: Tensor) -> Tensor:
    """The slices of a mapped tensor, as one tensor."""
    while not _is_batched(tensor):
        tensor = UNWRAPPED.get()(tensor)
    return UNWRAPPED.get()(tensor)


# torch.utils.checkpoint --------------------------------------------------------------------------------------------

_graph_task = GRAPH_TASK.get_or(lambda: -1)
_top_hooks = SAVED_TENSOR_HOOKS.get_or(lambda ignore_is_tracing: None)


def inside_backward() -> bool:
    """True while autograd runs a backward pass in this thread."""
    return bool(_graph_task() != -1)


def has_saved_tensor_hooks() -> bool:
    """Whether something treats saved tensors, as ``checkpoint(use_reentrant=False)`` does in the first forward."""
    return _top_hooks(True) is not None


def inside_reentrant_checkpoint() -> bool:
    """True in the first forward of a region of ``checkpoint(use_reentrant=True)``."""
    # The only trace of it is its frame: CheckpointFunction.forward runs the region under no_grad. Only training
    # forwards without gradient get here, so the search through the frames is rare.
    forward = CHECKPOINT_FORWARD.get()
    return any(frame.f_code is forward for frame in _frames())


_dispatch_mode: Callable[[], Any] = DISPATCH_MODE.get_or(lambda: None)


def inside_selective_checkpoint() -> bool:
    """True in a region of ``create_selective_checkpoint_contexts``, in either run; False while compiling."""
    return not torch.compiler.is_compiling() and (
        type(_dispatch_mode()).__module__ == torch.utils.checkpoint.__name__
    )


def records_results() -> bool:
    """Whether something may keep the results of operators, which then cannot be written to: a trace, which may run with
    a graph, a compiler, or a selective checkpoint.
    """
    return torch.compiler.is_compiling() or is_jit_traced() or inside_selective_checkpoint()


def uncounted(function: _Function) -> _Function:
    """Decorator of what only the first run of a region calls: selective checkpoints match the operators of both runs by
    the order of their calls.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not inside_selective_checkpoint():
            return function(*args, **kwargs)
        with WITHOUT_MODE.get()():
            return function(*args, **kwargs)

    return cast(_Function, call)


class Recomputation(NamedTuple):
    """One run of a checkpointed region inside a backward pass."""

    region: Any  # what autograd keeps of the region: an object that lives as long as its graph
    run: object  # differs from run to run of the region
    last: bool  # whether no other run can follow


class Regions(NamedTuple):
    """The checkpointed regions around the running code, innermost first."""

    opened: list[Any]  # in their first run, which backward repeats
    recomputation: Recomputation | None  # the innermost that backward is repeating


@outside_graphs("torchvq: looks for the checkpointed regions around the running code")
def checkpointed_regions() -> Regions:
    """The regions that will recompute the running code, and the one whose recomputation is running.

    Regions that enclose a recomputation are left out: their own recomputation runs the inner one anew.
    """
    opened = _regions_of_hooks()
    forward, backward = CHECKPOINT_FORWARD.get(), CHECKPOINT_BACKWARD.get()
    unpack = _code_of_hook("unpack_hook")
    for frame in _frames():
        code = frame.f_code
        if code is forward:
            opened.append(frame.f_locals["ctx"])
        elif code is backward:
            run = Recomputation(frame.f_locals["ctx"], _graph_task(), not _keeps_graph())
            return Regions(opened, run)
        elif code is unpack:
            # A backward pass over a part of the graph leaves the rest to others, even if it keeps nothing.
            run = Recomputation(frame.f_locals["frame"], frame.f_locals["gid"], last=False)
            return Regions(opened, run)
    return Regions(opened, None)


@constant_in_graphs
def traces_checkpoint() -> bool:
    """Whether the code that torch.compile traces is inside a checkpointed region, or runs in one; asked at tracing."""
    kind = TRACED_CHECKPOINT.get()
    if any(isinstance(frame.f_locals.get("self"), kind) for frame in _frames()):
        return True
    opened, recomputation = checkpointed_regions()
    return bool(opened) or recomputation is not None


_frame_callback = FRAME_CALLBACK.get_or(lambda: None)


def is_beside_graphs() -> bool:
    """True where torch.compile runs code uncompiled between its graphs; False in code that is kept out of them."""
    return _frame_callback() not in (None, False)


@constant_in_graphs
def recomputes_in_graphs() -> bool:
    """Whether torch.compile is configured to recompute more in backward than by default."""
    config = importlib.import_module("torch._functorch.config")
    return config.activation_memory_budget < 1 or config.aggressive_recomputation


def _frames() -> Iterator[FrameType]:
    """The frames of the running code, innermost first."""
    frame = inspect.currentframe()
    while frame is not None:
        yield frame
        frame = frame.f_back


def _regions_of_hooks() -> list[Any]:
    """The regions of ``checkpoint(use_reentrant=False)`` in their first run, up to the innermost recomputation."""
    pack_first = _code_of_hook("pack_hook")
    regions: list[Any] = []
    for pack, _ in _saved_tensor_hooks():
        if getattr(pack, "__code__", None) is pack_first:
            cells = dict(zip(pack_first.co_freevars, pack.__closure__, strict=True))
            regions.append(cells["frame"].cell_contents)
        elif getattr(pack, "__module__", None) == torch.utils.checkpoint.__name__:
            break
    return regions


def _saved_tensor_hooks() -> list[tuple[Any, Any]]:
    """The hooks of saved tensors in this thread, innermost first."""
    top = _top_hooks(True)
    if top is None:
        return []
    # Only the innermost can be asked for, so it is taken off for a moment.
    hooks = torch.autograd.graph.saved_tensors_hooks(*top)
    hooks.__exit__()
    try:
        return [top, *_saved_tensor_hooks()]
    finally:
        hooks.__enter__()


@functools.cache
def _code_of_hook(name: str) -> CodeType:
    """The code of a hook that ``checkpoint(use_reentrant=False)`` makes for the first run of a region."""
    made = CHECKPOINT_HOOKS.get().__init__.__code__.co_consts
    return next(code for code in made if isinstance(code, CodeType) and code.co_name == name)


def _keeps_graph() -> bool:
    """Whether the running backward pass leaves the graph for another one."""
    try:
        return bool(KEEPS_GRAPH.get()())
    except NotImplementedError:
        return True


def at_end_of_backward(function: Callable[[], None]) -> None:
    """Inside a backward pass: runs the function when the pass ends; an exception of it is raised by the pass."""
    BACKWARD_ENGINE.get().queue_callback(function)


# Hooks -------------------------------------------------------------------------------------------------------------


def is_observed(*modules: nn.Module) -> bool:
    """Whether calling one of these modules runs more than its class defines, global hooks included."""
    try:
        everywhere = bool(FORWARD_HOOKS.get() or FORWARD_PRE_HOOKS.get())
    except NotImplementedError:
        return True
    return everywhere or any(map(is_observed_itself, modules))


def is_observed_itself(module: nn.Module) -> bool:
    """Whether the module has a hook, or a ``forward`` of its own in its instance attributes."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in vars(module)
    )


# Process groups and FSDP2 ------------------------------------------------------------------------------------------


def any_sharded() -> bool:
    """False if ``fully_shard`` was not called in this process; in doubt True."""
    states = _states()
    return states is None or len(states) > 0


@functools.cache
def _states() -> Any:
    try:
        return FSDP_STATES.get()
    except NotImplementedError:
        return None


def is_in_shards(tensor: Tensor) -> bool:
    """Whether FSDP has taken a parameter over, so that it need not hold the same on all ranks, or anything."""
    # FSDP2 makes distributed tensors, FSDP1 marks the parameters that it flattens.
    if hasattr(tensor, "placements") or hasattr(tensor, "_fsdp_flattened"):
        return True
    # With use_orig_params=False views of FSDP1's flat parameter take their place, whose memory it frees between steps:
    # reading them ends the process.
    try:
        return tensor.numel() > 0 and tensor.untyped_storage().nbytes() == 0
    except NotImplementedError:  # of a tensor without a storage, which FSDP1 does not make
        return False


def shards_of(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Names of this module's own parameters that ``fully_shard`` shards, and their shards (DTensor)."""
    # PyTorch has no public way from a gathered parameter to its shard.
    states, fsdp = FSDP_STATES.get(), FSDP_STATE.get()
    for reference in list(states.values()):
        state = reference()
        for group in _parameter_groups(state) if isinstance(state, fsdp) else ():
            for parameter in group.fsdp_params:
                if parameter._module_info.module is module:
                    yield parameter._module_info.param_name, parameter.sharded_param


def _parameter_groups(state: Any) -> list[Any]:
    # Up to torch 2.11 a state has at most one group, in another attribute.
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is not None:
        return list(groups)
    return [] if state._fsdp_param_group is None else [state._fsdp_param_group]


def place_of_shard(shard: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The sizes of a shard, and its offsets in the full parameter."""
    compute = PLACE_OF_SHARD.get()
    return compute(shard.shape, shard.device_mesh, shard.placements)
