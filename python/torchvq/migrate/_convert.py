"""Converts modules of the reference to torchvq: their options, their state, and a comparison."""

import ast
import copy
import importlib
import inspect
import os
import runpy
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import torchvq
from torchvq._base.wide_buffers import HALF

REFERENCE = "vector_quantize_pytorch"
_TOKENS = 512
_NEAR = 1e-4
_OPTIONS = "_torchvq_options"  # attribute in which a quantizer of the reference keeps its options


class MigrationError(Exception):
    """An error that the user can correct; the program prints its message and no traceback."""


@dataclass
class ReferenceQuantizer:
    """A quantizer of the reference and how it was built."""

    path: str  # in the model, "" for the model itself
    module: nn.Module
    options: dict[str, Any] = field(default_factory=dict)  # those given by the caller

    @property
    def name(self) -> str:
        """The name of its class."""
        return type(self.module).__name__

    def with_defaults(self) -> dict[str, Any]:
        """All options, including those of a stack's levels, and under "given" the names of those that were given."""
        options: dict[str, Any] = {}
        for cls in (_levels_of(self.name), self.name):
            if cls is not None:
                options |= _defaults(getattr(_reference(), cls))
        return options | self.options | {"given": frozenset(self.options)}

    def call(self) -> str:
        """The constructor call as Python writes it."""
        return (
            f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.options.items())})"
        )


class NotCompared(Exception):
    """The reference does not run with these options; the message says what it raised."""


class Agreement(NamedTuple):
    """A comparison of both modules on the same random tokens, in evaluation."""

    tokens: int
    equal: int
    difference: float | None  # largest difference of outputs of equal tokens; None: no output
    alike: bool = False  # all outputs agree, also those of different tokens

    @property
    def holds(self) -> bool:
        """Whether all tokens but ties are equal, and the outputs of equal tokens agree.

        Tokens of a level whose steps are below the precision of the output may be any.
        """
        near = self.difference is None or self.difference < _NEAR
        return near and (self.alike or self.equal >= 0.99 * self.tokens)


# Finding ---------------------------------------------------------------------------------------------------------


@contextmanager
def recorded_options() -> Iterator[None]:
    """While active, every quantizer of the reference that is built keeps its options, and so do copies of it."""
    classes = {name: getattr(_reference(), name) for name in _names()}
    originals = {name: cls.__init__ for name, cls in classes.items()}

    def recording(original: Any) -> Any:
        def __init__(self: nn.Module, *args: Any, **kwargs: Any) -> None:
            bound = inspect.signature(original).bind(self, *args, **kwargs)
            given = dict(list(bound.arguments.items())[1:])
            for name, parameter in inspect.signature(original).parameters.items():
                if parameter.kind is parameter.VAR_KEYWORD:
                    given |= given.pop(name, {})
            self.__dict__.setdefault(_OPTIONS, copy.deepcopy(given))
            original(self, *args, **kwargs)

        return __init__

    for name, cls in classes.items():
        cls.__init__ = recording(originals[name])
    try:
        yield
    finally:
        for name, cls in classes.items():
            cls.__init__ = originals[name]


def model_of_file(path: str, name: str) -> tuple[nn.Module, list[ReferenceQuantizer]]:
    """Runs a Python file; ``name`` in it is a module, or a function without arguments that returns one."""
    with recorded_options(), _as_a_program(path):
        with _errors_of_file(path):
            variables = runpy.run_path(path)
        if name not in variables:
            raise MigrationError(
                f"{path}: expected a module or a function named {name} (--name), but there is none"
            )
        model = variables[name]
        if not isinstance(model, nn.Module) and callable(model):
            with _errors_of_file(path):
                model = model()
    if not isinstance(model, nn.Module):
        raise MigrationError(
            f"{path}: expected {name} to be a module, but got {type(model).__name__}"
        )
    return model, quantizers_of(model)


@contextmanager
def _as_a_program(path: str) -> Iterator[None]:
    """The module path and the arguments with which `python path` runs a file; what it may change comes back."""
    before = sys.path[:], sys.argv[:]
    folder, output = os.getcwd(), sys.stdout
    sys.path.insert(0, str(Path(path).resolve().parent))
    sys.argv[:] = [path]
    try:
        yield
    finally:
        sys.path[:], sys.argv[:] = before
        sys.stdout = output
        os.chdir(folder)


@contextmanager
def _errors_of_file(path: str) -> Iterator[None]:
    """Turns what the user's own code raises into a message that names its line."""
    try:
        yield
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if frame.filename == path]
        line, said, inside = own[-1].lineno if own else None, str(error), ""
        if isinstance(error, SyntaxError) and not own:
            # The file does not parse, so no line of it ran.
            line, said = error.lineno, error.msg
        elif own and _beside(frames[-1].filename, path):
            inside = f" (in {frames[-1].filename}:{frames[-1].lineno})"
        place = path if line is None else f"{path}:{line}"
        raise MigrationError(f"{place}: it raised {_named(error, said)}{inside}") from error


def _beside(other: str, path: str) -> bool:
    """Whether another file lies in the folder of a file: it is the user's, too, and its line says more."""
    return other != path and Path(path).resolve().parent in Path(other).resolve().parents


def _named(error: BaseException, said: str) -> str:
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def model_of_call(text: str) -> tuple[nn.Module, list[ReferenceQuantizer]]:
    """Builds a module from a constructor call with literal options, as text: ``ResidualVQ(dim=8, ...)``."""
    try:
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError(text)
        name = call.func.id
        args = [ast.literal_eval(value) for value in call.args]
        if any(word.arg is None for word in call.keywords):
            raise ValueError(text)
        options = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    except (SyntaxError, ValueError, TypeError) as error:
        raise MigrationError(
            f"--build: expected a call like VectorQuantize(dim=256), but got {text}"
        ) from error
    if name not in _names():
        raise MigrationError(f"--build: expected one of {', '.join(_names())}, but got {name}")
    with recorded_options():
        try:
            model = getattr(_reference(), name)(*args, **options)
        except Exception as error:
            raise MigrationError(f"--build: {text} raised {_named(error, str(error))}") from error
    return model, quantizers_of(model)


def quantizers_of(model: nn.Module) -> list[ReferenceQuantizer]:
    """The outermost quantizers of the reference in a model."""
    found: list[ReferenceQuantizer] = []
    classes = tuple(getattr(_reference(), name) for name in _names())
    for path, module in model.named_modules():
        inside = any(path.startswith(f"{other.path}.") or other.path == "" for other in found)
        if inside or not isinstance(module, classes):
            continue
        if type(module) not in classes:
            raise MigrationError(
                f"expected the reference's own classes, but {path or 'the model'} is a {type(module).__name__}, "
                "which is derived from one; derive it from torchvq's instead"
            )
        if _OPTIONS not in module.__dict__:
            raise MigrationError(
                f"{path or 'the model'}: expected a quantizer that the file builds, but got one that was unpickled, "
                "which does not say its options; build it in the file and load its state dict, or use --build"
            )
        found.append(ReferenceQuantizer(path, module, module.__dict__[_OPTIONS]))
    return found


# Converting ------------------------------------------------------------------------------------------------------


def converted(found: ReferenceQuantizer, compat: bool | None = None) -> nn.Module:
    """The same quantizer in torchvq, with the same options and state."""
    cls = getattr(torchvq, found.name, None)
    if cls is None:
        raise MigrationError(f"torchvq has no {found.name}")
    options = copy.deepcopy(found.options)
    if compat is not None:
        options["vqp_compat"] = compat
    try:
        ours: nn.Module = cls(**options)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise MigrationError(f"{found.call()}: {error}") from error
    state = {name: value.detach().clone() for name, value in found.module.state_dict().items()}
    if any(value.is_meta for value in state.values()):
        raise MigrationError(
            f"{found.call()}: expected a state with data, but got one on the meta device"
        )
    if any(value.dtype == torch.float64 for value in state.values()):
        ours.double()
    try:
        ours.load_state_dict(state, strict=True)
    except RuntimeError as error:
        raise MigrationError(
            f"{found.call()}: expected the state of these options, but the module was changed after it was built; "
            f"change torchvq's in the same way ({' '.join(str(error).split())})"
        ) from error
    return ours.train(found.module.training)


def agreement(found: ReferenceQuantizer, ours: nn.Module) -> Agreement:
    """Compares both on the same random tokens, in evaluation.

    Raises:
        NotCompared: when the reference fails.
    """
    options = found.with_defaults()
    generator = torch.Generator("cpu").manual_seed(0)
    keywords = (
        {"deterministic": True, "return_indices": True} if found.name == "BinaryMapper" else {}
    )
    with torch.no_grad(), _float32_on_cpu():
        x = torch.randn(_shape_of(options), generator=generator)
        twins = [_twin_of(found), copy.deepcopy(ours).float().cpu().eval()]
        try:
            results = [twins[0](x, **keywords)]
        except Exception as error:
            raise NotCompared(_named(error, str(error).partition("\n")[0])) from error
        results.append(twins[1](x, **keywords))
    if isinstance(results[0], Tensor):  # a class that returns only indices
        equal = results[0] == results[1]
        return Agreement(equal.numel(), int(equal.sum()), None)
    (theirs, their_indices), (output, indices) = (_parts(result) for result in results)
    difference = (theirs - output).abs().max().item()
    if isinstance(their_indices, list | tuple):
        # One for each scale, whose tokens have no position of their own in the output.
        pairs = zip(their_indices, indices, strict=True)
        equal = torch.cat([(a == b).flatten() for a, b in pairs])
        return Agreement(equal.numel(), int(equal.sum()), difference)
    if their_indices is None:
        return Agreement(0, 0, difference)
    if options.get("is_channel_first"):
        # The reference puts the levels on the axis of the features.
        their_indices = their_indices.movedim(1, -1)
    equal = their_indices.long() == indices.long()
    # The outputs of different tokens differ, too; they already count as different tokens.
    by_position = equal.movedim(0, -1) if found.name.startswith("Grouped") else equal
    apart = (theirs - output).abs().movedim(1 if _features_first(options) else -1, -1)
    same = by_position.reshape(apart.shape[:-1].numel(), -1).all(1)
    alike = difference < _NEAR * theirs.abs().max().item()
    if same.any():
        difference = apart.flatten(0, -2)[same].max().item()
    return Agreement(equal.numel(), int(equal.sum()), difference, alike)


def _twin_of(found: ReferenceQuantizer) -> nn.Module:
    """A copy of the reference's module that computes in float32, and whose state evaluation leaves alone."""
    twin = copy.deepcopy(found.module).float().cpu().eval()
    stored = found.module.state_dict()
    half = {name for name, b in found.module.named_buffers() if b.dtype in HALF} - set(stored)
    if half:
        # Half precision rounds constants, too, which no cast brings back.
        fresh = getattr(_reference(), found.name)(**copy.deepcopy(found.options))
        for name in half:
            twin.get_buffer(name).copy_(fresh.get_buffer(name))
    for module in twin.modules():
        if getattr(module, "affine_param", False):
            # The reference's statistics move in evaluation.
            module.affine_param_batch_decay = module.affine_param_codebook_decay = 1.0  # type: ignore[assignment]
    return twin


@contextmanager
def _float32_on_cpu() -> Iterator[None]:
    """What is made in it is float32 on the CPU: the file may have set another default dtype or device."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu"):
            yield
    finally:
        torch.set_default_dtype(before)


def _parts(result: Any) -> tuple[Tensor, Any]:
    """The output, and the indices: a tensor, a list of one for each scale, or None."""
    indices = result[1]
    return result[0], indices if isinstance(indices, Tensor | list | tuple) else None


def _own_dim(options: Mapping[str, Any]) -> int:
    """Features of an input if the options do not give them: those of the codes."""
    own = (
        len(options["levels"])
        if "levels" in options
        else int(options["codebook_size"]).bit_length() - 1
    )
    return own * (options.get("num_codebooks") or 1)


def _shape_of(options: Mapping[str, Any]) -> tuple[int, ...]:
    dim = options.get("bits") or options.get("dim") or _own_dim(options)
    if options.get("accept_3d_fmap"):
        return (1, dim, 8, 8, 8)
    if options.get("accept_image_fmap"):
        return (2, dim, 16, 16)
    return (2, dim, _TOKENS // 2) if _features_first(options) else (2, _TOKENS // 2, dim)


def _features_first(options: Mapping[str, Any]) -> bool:
    """Whether features are on axis 1 of inputs and outputs, not the last."""
    names = ("accept_image_fmap", "accept_3d_fmap", "channel_first", "is_channel_first")
    named = any(options.get(name) for name in names)
    return named or options.get("channel_last") is False or "quantization_loss_weight" in options


# The reference ---------------------------------------------------------------------------------------------------


def _reference() -> Any:
    try:
        return importlib.import_module(REFERENCE)
    except ImportError as error:
        raise MigrationError(
            f"{REFERENCE} is needed: pip install vector-quantize-pytorch"
        ) from error


def _names() -> list[str]:
    """Class names of the quantizers, without those that only wrap one."""
    public = vars(_reference()).items()
    modules = [name for name, cls in public if isinstance(cls, type) and issubclass(cls, nn.Module)]
    return [name for name in modules if name not in ("Sequential", "EvoLFQ")]


def _levels_of(name: str) -> str | None:
    if name.startswith("Grouped"):
        return name.removeprefix("Grouped")
    return {
        "ResidualVQ": "VectorQuantize",
        "ResidualFSQ": "FSQ",
        "ResidualLFQ": "LFQ",
        "ResidualSimVQ": "SimVQ",
    }.get(name)


def _defaults(cls: type) -> dict[str, Any]:
    parameters = list(inspect.signature(cls).parameters.values())
    own = {p.name: p.default for p in parameters if p.kind is not p.VAR_KEYWORD}
    levels = _levels_of(cls.__name__)
    inner = _defaults(getattr(_reference(), levels)) if levels else {}
    empty = inspect.Parameter.empty
    return inner | {name: None if value is empty else value for name, value in own.items()}
