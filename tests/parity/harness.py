"""Runs the reference and torchvq on the same rows and compares every number that a user can see.

A table (``table_<class>.py``) is a list of `Row`; `Table` says how to build the class, which output is which and how
far a code is from a token. Nothing here depends on a particular quantizer. A row is one of three:

* the same: both packages start from the reference's state dict, take the same training steps, then one eval forward;
  outputs, losses, gradients and the whole state must agree after every step;
* random: an oracle states what holds for every draw, and both packages must satisfy it;
* different on purpose: the row names the reason, and an oracle decides instead of the reference.

Every row runs twice, with `vqp_compat` (by `TORCHVQ_COMPAT`) and without. With it, equal rows are equal without
exception. Without it, a row that differs names its line of docs/migrating.md (`lines.py`), and what differs. A row that
is different on purpose names its line as well: if the switch restores the reference's behaviour, the oracle must reject
torchvq under the switch, and the numbers must be the reference's; otherwise it must accept torchvq both ways.

A new class needs a table, a `Table` that names its outputs, and a short test file; see those of VectorQuantize. Every
test also runs with the reference in torchvq's place, which checks the rows themselves: equal rows must be equal, and
every claimed difference must be one.
"""

from __future__ import annotations

import importlib
import inspect
import os
import traceback
import warnings
import zlib
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from .exceptions import BY_CHANCE, RAISES
from .lines import LINES, line_named
from .unlike import UNLIKE

REFERENCE = "vector_quantize_pytorch"
RELATIVE_TOLERANCE = 1e-5
LEARNING_RATE = 0.1


@dataclass(frozen=True)
class Row:
    """One configuration and its use. Values that must be new for each build come from a function."""

    id: str
    kwargs: Mapping[str, Any] | Callable[[], Mapping[str, Any]] = field(default_factory=dict)
    shape: tuple[int, ...] = (2, 6, 8)
    steps: int = 3
    forward: Mapping[str, Any] | Callable[[int], Mapping[str, Any]] = field(default_factory=dict)
    prepare: Callable[[nn.Module], None] | None = None  # None: the table's own; see Table
    data: Callable[[Tensor], Tensor] | None = None  # changes the standard normal input
    dtype: torch.dtype = torch.float32
    tolerance: float = RELATIVE_TOLERANCE
    input_grad: bool = True
    evaluate: bool = True  # compare an eval forward as well
    after_step: Callable[[nn.Module, Tensor], Any] | None = (
        None  # (module, input) -> tensors to compare
    )
    probes: Mapping[str, Callable[[nn.Module, dict[str, Tensor]], Any]] = field(
        default_factory=dict
    )
    oracle: Callable[[Callable[[], nn.Module], Row], None] | None = None  # (build, row); asserts
    differs: str | None = None  # the reference's behaviour

    def __post_init__(self):
        if self.differs is not None and self.oracle is None:
            raise ValueError(f"row {self.id}: a deliberate difference needs an oracle")

    def constructor_kwargs(self) -> dict[str, Any]:
        return dict(self.kwargs() if callable(self.kwargs) else self.kwargs)

    def forward_kwargs(self, step: int) -> dict[str, Any]:
        return dict(self.forward(step) if callable(self.forward) else self.forward)

    def input(self, step: int) -> Tensor:
        seed = zlib.crc32(f"{self.id}/{step}".encode())
        x = torch.randn(self.shape, generator=torch.Generator().manual_seed(seed))
        x = self.data(x) if self.data else x
        return x.to(self.dtype).requires_grad_(self.input_grad)


@dataclass(frozen=True)
class Table:
    """The common part of the rows of one class."""

    class_name: str
    defaults: Mapping[str, Any]
    outputs: Callable[[Row, Any], dict[str, Any]]  # names the results of forward
    prepare: Callable[[nn.Module], None] = lambda module: None
    # Squared float64 distance of every token to its code, from (module before the step, row, input, indices). It tells
    # a tie from an error if the packages choose different codes.
    distance: Callable[[nn.Module, Row, Tensor, Tensor], Tensor] | None = None

    def build(self, package: ModuleType, row: Row) -> nn.Module:
        kwargs = {**self.defaults, **row.constructor_kwargs()}
        if is_reference(package):
            kwargs.pop("vqp_compat", None)  # which the reference does not have
        torch.manual_seed(zlib.crc32(row.id.encode()))
        return getattr(package, self.class_name)(**kwargs)

    def build_prepared(self, package: ModuleType, row: Row) -> nn.Module:
        module = self.build(package, row)
        with torch.no_grad():
            (row.prepare or self.prepare)(module)
        return module


def is_reference(package: ModuleType) -> bool:
    return package.__name__ == REFERENCE


def is_switched() -> bool:
    """Whether torchvq should give the reference's numbers."""
    return os.environ.get("TORCHVQ_COMPAT") == "1"


# --- running --------------------------------------------------------------------------------------


def record_step(
    table: Table, row: Row, module: nn.Module, step: int, optimizer
) -> dict[str, Tensor]:
    """One forward, backward and optimizer step; everything visible, by name."""
    x = row.input(step)
    torch.manual_seed(step)
    outputs = table.outputs(row, module(x, **row.forward_kwargs(step)))
    seen = flatten(outputs)
    objective = random_objective(outputs, step)
    if module.training and objective.requires_grad:
        # A module may set gradients itself (for its in-place optimizer); they are compared below as well.
        objective.backward()
    seen["grad.input"] = gradient_of(x)
    for name, parameter in module.named_parameters():
        seen[f"grad.{name}"] = gradient_of(parameter)
    if module.training and optimizer is not None:
        optimizer.step()
        optimizer.zero_grad()
    if module.training and row.after_step is not None:
        seen |= flatten({"after_step": row.after_step(module, x.detach())})
    seen |= {f"state.{name}": value.detach().clone() for name, value in module.state_dict().items()}
    return seen


def random_objective(outputs: dict[str, Any], step: int) -> Tensor:
    """A fixed random projection of the quantized output plus the losses, so that no symmetry hides a wrong gradient."""
    total = torch.zeros((), dtype=torch.float64)
    for name in ("quantized", "loss"):
        value = outputs.get(name)
        if value is None:
            continue
        generator = torch.Generator().manual_seed(1000 + step)
        weight = 0.5 + torch.rand(value.shape, generator=generator, dtype=torch.float64)
        total = total + (value.double() * weight).sum()
    return total


def gradient_of(tensor: Tensor) -> Tensor:
    # An undefined gradient and a gradient of zeros have the same effect, and C++ autograd functions return either.
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad.detach().clone()


def flatten(values: Any, prefix: str = "") -> dict[str, Tensor]:
    """Nested outputs as one dictionary of detached tensors; what is not a tensor is left out."""
    if isinstance(values, Tensor):
        return {prefix: values.detach().clone()}
    if isinstance(values, Mapping):
        items = values.items()
    elif hasattr(values, "_fields"):
        items = zip(values._fields, values, strict=False)
    elif isinstance(values, (tuple, list)):
        items = enumerate(values)
    else:
        return {}
    found: dict[str, Tensor] = {}
    for name, value in items:
        found |= flatten(value, f"{prefix}.{name}" if prefix else str(name))
    return found


def optimizer_for(module: nn.Module):
    parameters = list(module.parameters())
    return torch.optim.SGD(parameters, lr=LEARNING_RATE) if parameters else None


# --- comparing ------------------------------------------------------------------------------------


class Tie(Exception):
    """Two codes are equally near in float32: the packages may differ from here on, and the row ends."""


def assert_same_behaviour(
    table: Table, row: Row, reference: ModuleType, subject: ModuleType
) -> None:
    unlike = UNLIKE.get((table.class_name, row.id))
    if unlike is None or is_switched() or subject.__name__ != "torchvq":
        assert_same_numbers(table, row, reference, subject)
        return
    # Only the first step, because a difference in it changes everything after it.
    first = replace(row, steps=min(row.steps, 1), evaluate=False, probes={}, after_step=None)
    assert line_named(unlike.line).restored, f"{row.id}: nothing restores {unlike.line}"
    assert_same_numbers(table, first, reference, subject, apart=unlike.names)
    try:
        assert_same_numbers(table, row, reference, subject)
    except AssertionError:
        return
    raise AssertionError(f"{row.id}: nothing differs ({unlike.line})")


def assert_same_numbers(
    table: Table,
    row: Row,
    reference: ModuleType,
    subject: ModuleType,
    apart: tuple[str, ...] = (),
) -> None:
    expected_module = table.build_prepared(reference, row)
    actual_module = table.build(subject, row)
    assert_same_structure(expected_module, actual_module)
    actual_module.load_state_dict(deepcopy(expected_module.state_dict()), strict=True)
    try:
        follow_both(table, row, expected_module, actual_module, apart)
    except Tie as tie:
        warnings.warn(f"{row.id}: compared up to a tie ({tie})", stacklevel=1)


def follow_both(
    table: Table,
    row: Row,
    expected_module: nn.Module,
    actual_module: nn.Module,
    apart: tuple[str, ...] = (),
) -> None:
    optimizers = optimizer_for(expected_module), optimizer_for(actual_module)
    phases = [(True, step) for step in range(row.steps)] + [(False, row.steps)] * row.evaluate
    for training, step in phases:
        before = deepcopy_state(expected_module)
        pair = []
        for module, optimizer in zip((expected_module, actual_module), optimizers, strict=False):
            module.train(training)
            pair.append(record_step(table, row, module, step, optimizer))
        expected, actual = (
            {name: value for name, value in seen.items() if not name.startswith(apart)}
            if apart
            else seen
            for seen in pair
        )
        where = f"{row.id}, {'training step' if training else 'eval after step'} {step}"
        assert_same_indices(table, row, expected_module, before, expected, actual, step, where)
        assert_same_values(expected, actual, where, row.tolerance)
    with torch.no_grad():
        for name, probe in row.probes.items():
            results = [
                flatten({name: probe(m, expected)}) for m in (expected_module, actual_module)
            ]
            assert_same_values(*results, f"{row.id}, probe {name}")


def deepcopy_state(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def assert_same_indices(table, row, module, before, expected, actual, step, where) -> None:
    a, b = expected.get("indices"), actual.get("indices")
    if a is None or torch.equal(a, b):
        return
    assert a.shape == b.shape and a.dtype == b.dtype, (
        f"{where}: indices {describe(a)} against {describe(b)}"
    )
    assert torch.equal(a < 0, b < 0), f"{where}: different tokens are masked"
    assert table.distance is not None, f"{where}: indices differ"
    after = deepcopy_state(module)
    module.load_state_dict(before, strict=False)
    x = row.input(step).detach()
    da, db = (table.distance(module, row, x, i) for i in (a, b))
    module.load_state_dict(after, strict=False)
    # The rounding error of a float32 distance by expansion, as the reference computes it, grows with the squared norms.
    allowed = 8 * torch.finfo(torch.float32).eps * (x.double().pow(2).sum(-1).max() + da.max())
    worse = (da - db).abs().max().item()
    assert worse <= allowed, (
        f"{where}: indices differ and are not ties, squared distances are {worse:.3e} apart"
    )
    raise Tie(f"{int((a != b).sum())} tokens, squared distances within {worse:.1e}")


def assert_same_values(
    expected: dict, actual: dict, where: str, tolerance: float = RELATIVE_TOLERANCE
) -> None:
    missing = [name for name in expected if name not in actual]
    assert not missing, f"{where}: missing {missing}"
    # torchvq may add state (generator step, cool-downs), but no other results.
    added = [name for name in actual if name not in expected and not name.startswith("state.")]
    assert not added, f"{where}: unexpected {added}"
    for name, value in expected.items():
        assert_close(actual[name], value, f"{where}: {name}", tolerance)


def assert_close(
    actual: Tensor, expected: Tensor, what: str, tolerance: float = RELATIVE_TOLERANCE
) -> None:
    """Equal shape and dtype; values within `tolerance` of the tensor's largest magnitude; NaN matches nothing."""
    assert actual.shape == expected.shape, (
        f"{what}: {describe(actual)}, expected {describe(expected)}"
    )
    assert actual.dtype == expected.dtype, (
        f"{what}: {describe(actual)}, expected {describe(expected)}"
    )
    if expected.numel() == 0:
        return
    if not expected.is_floating_point():
        assert torch.equal(actual, expected), f"{what}: values differ"
        return
    tolerance = max(tolerance, torch.finfo(expected.dtype).eps * 2)
    a, b = actual.double(), expected.double()
    assert torch.isfinite(b).all(), (
        f"{what}: the expected value is not finite, this row needs an oracle"
    )
    error, scale = (a - b).abs().max().item(), b.abs().max().item()
    # A tensor that is only rounding error (a gradient that cancels) has no scale of its own; other values here are of
    # order one.
    assert error <= tolerance * max(scale, 1e-2), (
        f"{what}: off by {error:.3e} at magnitude {scale:.3e}"
    )


def assert_same_structure(expected: nn.Module, actual: nn.Module) -> None:
    """Same keys, shapes, dtypes and parameters, so that a checkpoint and an optimizer fit both."""
    parameters = dict(actual.named_parameters())
    state = actual.state_dict()
    for name, value in expected.state_dict().items():
        assert name in state, f"state dict lacks {name}"
        assert describe(state[name]) == describe(value), (
            f"{name}: {describe(state[name])}, expected {describe(value)}"
        )
    expected_parameters = {name: p.requires_grad for name, p in expected.named_parameters()}
    assert expected_parameters == {name: p.requires_grad for name, p in parameters.items()}


def assert_same_signature(expected: Callable, actual: Callable) -> None:
    """The reference's parameters in its order with its defaults; ours may add keyword-only ones with defaults."""
    ours = dict(inspect.signature(actual).parameters)
    theirs = inspect.signature(expected).parameters
    for (name, parameter), position in zip(theirs.items(), range(len(theirs)), strict=False):
        assert name in ours, f"parameter {name} is missing"
        default = ours[name].default
        # In torchvq, None may stand for the reference's False, so that an explicit False can be told from the default.
        assert default == parameter.default or (default, parameter.default) == (None, False), (
            f"default of {name} is {default}"
        )
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD:  # comes last in any case
            assert list(ours).index(name) == position, f"parameter {name} is out of order"
    for name, parameter in ours.items():
        if name not in theirs:
            assert parameter.kind is inspect.Parameter.KEYWORD_ONLY, (
                f"added parameter {name} is not keyword-only"
            )
            assert parameter.default is not inspect.Parameter.empty, (
                f"added parameter {name} has no default"
            )


def describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


# --- oracles --------------------------------------------------------------------------------------


def assert_oracle_decides(table: Table, row: Row, subject: ModuleType) -> None:
    """The oracle accepts torchvq. For a row that differs, it must reject the reference, or there is no difference; and
    it must reject torchvq under the switch, if the row's line says that the switch restores the reference's numbers.
    """

    def build() -> nn.Module:
        return table.build_prepared(subject, row)

    if row.differs is None:
        row.oracle(build, row)
        return
    where = (table.class_name, row.id)
    assert where in LINES, f"{row.id}: names no line of docs/migrating.md"
    line = line_named(LINES[where])
    if is_reference(subject):
        assert_rejected(build, row, RAISES.get(where))
    elif is_switched() and line.restored and "vqp_compat" not in row.constructor_kwargs():
        assert_rejected(build, row, RAISES.get(where))
        if where not in BY_CHANCE:
            plain = replace(row, oracle=None, differs=None)
            assert_same_numbers(table, plain, importlib.import_module(REFERENCE), subject)
    else:
        row.oracle(build, row)


def assert_rejected(build: Callable[[], nn.Module], row: Row, raises: str | None) -> None:
    """The oracle fails; an exception of the module itself counts only if it is the one that the row names."""
    try:
        row.oracle(build, row)
    except Exception as error:
        # From torch 2.15 on the errors of matrix products name the operator first.
        text = str(error).strip().removeprefix("mm: ").removeprefix("addmm: ")
        found = f"{type(error).__name__}: {text}"
        if isinstance(error, AssertionError) and not raised_in_the_reference(error):
            assert raises is None, f"{row.id}: expected {raises}, but the oracle decided"
            return
        assert raises is not None, f"{row.id}: the oracle could not decide: {found}"
        assert found.startswith(raises), f"{row.id}: expected {raises}, but got {found}"
        return
    raise AssertionError(f"{row.id}: the oracle accepts it, so nothing differs ({row.differs})")


def raised_in_the_reference(error: Exception) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return any(f"{REFERENCE}/" in frame.filename for frame in frames)


def assert_same_levels(theirs: Any, ours: Any, dtype: torch.dtype) -> None:
    """``indices_to_level_indices`` of two quantizers with the levels [8, 5, 5], for indices of a dtype."""
    indices = torch.tensor([0, 3, 17], dtype=dtype)
    expected, found = (each.indices_to_level_indices(indices) for each in (theirs, ours))
    assert torch.equal(found.long(), expected.long())
    # Without the switch they are int64, as indices are.
    kept = is_switched() or type(ours) is type(theirs)
    assert found.dtype == (expected.dtype if kept else torch.int64)
