"""Training steps under frameworks: accumulation, recomputation, averages of models, hooks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from classes import ROWS, build, data, forward, learns, state
from framework_steps import (
    assert_same,
    assert_same_state,
    gradient,
    objective,
    same,
    sgd,
    train,
)
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from torchvq import BinaryMapper
from torchvq._base.replay import StepRecords
from torchvq.averaging import ema_multi_avg_fn
from torchvq.outputs import BinaryMapperOutput

Cell = Any
every_row = pytest.mark.parametrize("row", ROWS)


class OutputOnly(nn.Module):
    """A quantizer as one layer of nn.Sequential; its loss is kept as an attribute."""

    def __init__(self, quantizer: nn.Module) -> None:
        super().__init__()
        self.quantizer = quantizer
        self.loss = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        seen = forward(self.quantizer, x)
        self.loss = seen.loss.sum()
        return seen.quantized


# Results that users write to ----------------------------------------------------------------------------------------

# These end in a user module, which saves its output for backward.
OWN_END = ("sequential",)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("row", [row for row in ROWS if row not in OWN_END])
def test_results_may_be_written_to_before_backward(row: str, training: bool) -> None:
    """A decoder whose first operation is in place, and indices to which an offset is added."""
    gradients = []
    for writes in (False, True):
        module, x = build(row).train(training), data(row).requires_grad_()
        quantized, indices, loss = forward(module, x)
        if writes:
            quantized *= 2
            indices += 1
        else:
            quantized = quantized * 2
        # In evaluation the codes may give x no gradient.
        (quantized.square().sum() + loss.sum() + x.sum()).backward()
        gradients.append([gradient(x), *(gradient(p) for p in module.parameters())])
    assert_same(*gradients)


# Accumulation and recomputation ------------------------------------------------------------------------------------


@every_row
def test_gradients_accumulate(row: str, cell: Cell) -> None:
    """Gradients of micro-batches add up; each micro-batch is a training forward, so the state moves once for each."""
    cell("frameworks", row, "accumulation")
    module, apart = build(row), build(row)
    total: dict[str, Tensor] = {}
    for step in range(3):
        objective(forward(module, data(row, step).requires_grad_())).backward()
        objective(forward(apart, data(row, step).requires_grad_())).backward()
        for name, parameter in apart.named_parameters():
            total[name] = total.get(name, 0) + gradient(parameter)
        apart.zero_grad()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(gradient(parameter), total[name], rtol=1e-5, atol=1e-6)
    assert_same_state(module, apart.state_dict())


@every_row
@pytest.mark.parametrize("reentrant", [False, True], ids=["saved_tensors", "reentrant"])
def test_checkpointing_is_the_plain_step(row: str, reentrant: bool, cell: Cell) -> None:
    cell("frameworks", row, "activation checkpointing")
    plain, module = build(row), build(row)

    def recomputed(x: Tensor) -> Any:
        result = checkpoint(module, x, use_reentrant=reentrant)
        # The reentrant form turns named tuples into plain ones.
        return BinaryMapperOutput(*result) if isinstance(module, BinaryMapper) else result

    expected = train(plain, row, range(3), sgd(plain))
    assert_same(train(module, row, range(3), sgd(module), recomputed), expected)
    assert_same_state(module, plain.state_dict())


@every_row
@pytest.mark.parametrize("reentrant", [False, True], ids=["saved_tensors", "reentrant"])
def test_checkpointing_inside_a_sequential(row: str, reentrant: bool) -> None:
    """Two regions, the second of which has the quantizer and a layer; one backward for both."""
    results = []
    for wrap in (False, True):
        first, second = nn.Sequential(nn.Tanh()), nn.Sequential(OutputOnly(build(row)), nn.Tanh())
        x = data(row).requires_grad_()
        for _ in range(2):
            y = x * 1.0
            for part in (first, second):
                y = checkpoint(part, y, use_reentrant=reentrant) if wrap else part(y)
            y.square().sum().backward()
        results.append((gradient(x), [gradient(p) for p in second.parameters()], state(second)))
    (a, parameters, left), (b, others, right) = results
    assert_same([b, *others], [a, *parameters])
    assert_same(list(right.values()), list(left.values()))


def records_of(module: nn.Module) -> int:
    """The number of records that wait for a recomputation."""
    kept = (value for part in module.modules() for value in vars(part).values())
    return sum(len(value) for value in kept if isinstance(value, StepRecords))


@every_row
@pytest.mark.parametrize("balances", [False, True], ids=["backward", "balanced"])
def test_each_backward_recomputes_the_same_step(row: str, balances: bool) -> None:
    """One backward for each loss, or gradients of each loss before it, as weights that adapt need them."""
    results = []
    for wrap in (False, True):
        module, seen = build(row), []
        for step in range(2):
            leaf = data(row, step).requires_grad_()
            x = leaf * 1.0
            quantized, _, loss = checkpointed(module, x) if wrap else forward(module, x)
            first, loss = quantized.square().sum(), loss.sum() + quantized.sum()
            if balances:
                # Contiguous, because a norm adds up in the order of the memory.
                grads = [torch.autograd.grad(of, x, retain_graph=True)[0] for of in (first, loss)]
                norms = [grad.contiguous().norm() for grad in grads]
                loss = loss + first * norms[1] / (norms[0] + 1e-4)
                seen += norms
            else:
                first.backward(retain_graph=True)
            loss.backward()
            seen += [gradient(leaf), quantized.detach(), *map(gradient, module.parameters())]
        del quantized, first, loss
        assert records_of(module) == 0
        results.append((seen, state(module)))
    (expected, left), (actual, right) = results
    assert_same(actual, expected)
    assert_same(list(right.values()), list(left.values()))


def checkpointed(module: nn.Module, x: Tensor) -> Any:
    return checkpoint(lambda x: tuple(forward(module, x)), x, use_reentrant=False)


# Averages of models ------------------------------------------------------------------------------------------------


class Encoded(nn.Module):
    """A quantizer after a layer, because averages of models need parameters."""

    def __init__(self, quantizer: nn.Module) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.quantizer = quantizer

    def forward(self, x: Tensor) -> Any:
        return self.quantizer(x)


AVERAGES: dict[str, dict[str, Any]] = {
    "mean": dict(),
    "ema": dict(multi_avg_fn=get_ema_multi_avg_fn(0.5)),
    "ema, torch's, buffers": dict(multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=True),
    "ema, ours, buffers": dict(multi_avg_fn=ema_multi_avg_fn(0.5), use_buffers=True),
}


@every_row
@pytest.mark.parametrize("how", AVERAGES)
def test_averaged_model(row: str, how: str, cell: Cell) -> None:
    """An averaged model evaluates and learns; only PyTorch's own average of integer buffers makes seeds useless."""
    cell("frameworks", row, "AveragedModel")
    model = Encoded(build(row))
    averaged = AveragedModel(model, **AVERAGES[how])
    optimizer, seen = sgd(model), []
    for step in range(3):
        train(model.quantizer, row, [step], optimizer)
        averaged.update_parameters(model)
        seen.append(state(model))
    parameters = dict(model.named_parameters())
    for name, value in averaged.module.state_dict().items():
        every = torch.stack([one[name] for one in seen]).double()
        if how == "mean" and name in parameters:
            expected = every.mean(0)
        elif (
            "ema" in how and value.is_floating_point() and (name in parameters or "buffers" in how)
        ):
            expected = every[0] / 4 + every[1] / 4 + every[2] / 2
        elif "torch" in how:
            continue
        else:
            assert same(value, seen[-1][name]), name
            continue
        torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-6)
    quantized, _, loss = forward(averaged.eval(), data(row, 9))
    assert quantized.isfinite().all() and loss.isfinite().all()
    # The average does not initialise again, and no seed or flag of it is unusable.
    before = averaged.module.quantizer.state_dict()
    train(averaged.module.quantizer.train(), row, [10])
    for name, value in averaged.module.quantizer.state_dict().items():
        if name.endswith("initted"):
            assert value and before[name]


def test_an_average_does_not_initialise_again() -> None:
    """The copy was made before k-means ran in the model, and learns of it only through the buffers."""
    model = Encoded(build("vq_kmeans"))
    averaged = AveragedModel(model)
    train(model.quantizer, "vq_kmeans", [0])
    averaged.update_parameters(model)
    x = data("vq_kmeans", 1)
    expected = forward(model.quantizer, x)
    assert_same(
        [part.detach() for part in forward(averaged.module.quantizer, x)],
        [part.detach() for part in expected],
    )
    assert_same_state(averaged.module.quantizer, model.quantizer.state_dict())


def test_decay_is_checked() -> None:
    with pytest.raises(ValueError, match=r"expected decay to be in \[0, 1\], but got 1.5"):
        ema_multi_avg_fn(1.5)


# Hooks and parametrizations ----------------------------------------------------------------------------------------


@every_row
def test_hooks_see_what_passes(row: str, cell: Cell) -> None:
    cell("frameworks", row, "hooks")
    plain, module = build(row), build(row)
    calls: list[str] = []
    module.register_forward_pre_hook(lambda *_: calls.append("before"))
    module.register_forward_hook(lambda *_: calls.append("after"))
    expected = train(plain, row, range(2))
    assert_same(train(module, row, range(2)), expected)
    assert calls == ["before", "after"] * 2
    assert_same_state(module, plain.state_dict())


# A class that returns only indices has no backward for a hook.
@pytest.mark.parametrize("row", [row for row in ROWS if row != "random_projection"])
def test_full_backward_hooks(row: str) -> None:
    plain, module = build(row), build(row)
    seen: list[Tensor] = []

    def keep(_: nn.Module, inputs: tuple[Tensor | None, ...], __: Any) -> None:
        assert inputs[0] is not None
        seen.append(inputs[0].clone())

    module.register_full_backward_hook(keep)
    expected = train(plain, row, range(2))
    assert_same(train(module, row, range(2)), expected)
    assert len(seen) == 2 and all(part.shape == data(row).shape for part in seen)
    assert_same_state(module, plain.state_dict())


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight

    def right_inverse(self, weight: Tensor) -> Tensor:
        return weight / 2


@pytest.mark.parametrize("how", ["parametrize", "weight_norm", "spectral_norm"])
@pytest.mark.parametrize("row", [row for row in ROWS if hasattr(build(row), "project_in")])
def test_parametrized_projections(row: str, how: str) -> None:
    """A parametrization that is the identity changes only where the gradient goes."""
    from torch.nn.utils import parametrizations, parametrize

    module, plain = build(row), build(row)
    layers = [m for m in module.modules() if isinstance(m, nn.Linear)]
    for layer in layers:
        if how == "parametrize":
            parametrize.register_parametrization(layer, "weight", Doubled())
        else:
            getattr(parametrizations, how)(layer)
    x = data(row).requires_grad_()
    found = forward(module, x)
    objective(found).backward()
    assert all(p.grad is not None for layer in layers for p in layer.parametrizations.parameters())
    if how != "spectral_norm":
        expected = forward(plain, data(row).requires_grad_())
        torch.testing.assert_close(found.quantized, expected.quantized, rtol=1e-5, atol=1e-5)
    assert_same_state(copy.deepcopy(module), state(module))


# Everything else that modules do -----------------------------------------------------------------------------------


@every_row
def test_conventions_of_modules(row: str, cell: Cell) -> None:
    cell("frameworks", row, "module conventions")
    module = build(row)
    names = [name for name, _ in module.named_parameters()], [n for n, _ in module.named_buffers()]
    train(module, row, [0], sgd(module))
    after = [name for name, _ in module.named_parameters()], [n for n, _ in module.named_buffers()]
    assert names == after, "names change with a step"
    text = repr(module)
    assert text.startswith(ROWS[row].name + "(") and repr(copy.deepcopy(module)) == text
    assert all(part.training for part in module.modules())
    module.eval().eval()
    assert not any(part.training for part in module.modules())
    before = state(module)
    assert_same(forward(module, data(row)), forward(module, data(row)))
    assert_same_state(module, before)
    visited: list[nn.Module] = []
    assert module.apply(visited.append) is module
    assert {id(part) for part in visited} == {id(part) for part in module.modules()}
    for moved in (
        module.to(memory_format=torch.channels_last),
        module.to("cpu"),
        module.share_memory(),
        module.to(torch.float32),
    ):
        assert moved is module
        assert_same_state(module, before)
    assert all(t.is_shared() for t in module.state_dict().values())
    assert_same(train(module.train(), row, [4]), train(copy.deepcopy(build_like(row)), row, [4]))


def build_like(row: str) -> nn.Module:
    module = build(row)
    train(module, row, [0], sgd(module))
    return module


@every_row
def test_without_gradients_nothing_asks_for_one(row: str) -> None:
    """`requires_grad_(False)` stops parameters, but neither the gradient to the encoder nor moving averages."""
    module, plain = build(row).requires_grad_(False), build(row)
    before = state(module)
    x, y = data(row).requires_grad_(), data(row).requires_grad_()
    found = forward(module, x)
    objective(found).backward()
    objective(forward(plain, y)).backward()
    assert all(parameter.grad is None for parameter in module.parameters())
    torch.testing.assert_close(gradient(x), gradient(y), rtol=1e-5, atol=1e-6)
    for name, _ in module.named_parameters():
        assert learns(module) or same(module.state_dict()[name], before[name]), name
    module.zero_grad()
    module.zero_grad(set_to_none=False)


@every_row
@pytest.mark.parametrize("how", ["no_grad", "inference_mode"])
def test_training_forwards_without_autograd(row: str, how: str) -> None:
    """A forward in training mode without gradients moves the state like one with them."""
    module, plain = build(row), build(row)
    context: Callable[[], Any] = getattr(torch, how)
    with context():
        found = forward(module, data(row))
    expected = forward(plain, data(row))
    assert same(found.quantized.clone(), expected.quantized.detach())
    assert_same_state(module, plain.state_dict())
    assert_same(train(module, row, [1]), train(plain, row, [1]))
