"""Every class under torch.func: functional_call, grad, jacrev, vmap, ensembles."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from classes import ROWS, build, data, forward, state
from framework_steps import assert_same, assert_same_state, gradient, objective, same, train
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

import torchvq
from support import assert_close_to_rounding

Cell = Any
every_row = pytest.mark.parametrize("row", ROWS)


def tensors_of(module: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    parameters = {name: p.detach().clone() for name, p in module.named_parameters()}
    return parameters, {name: b.detach().clone() for name, b in module.named_buffers()}


@every_row
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_functional_call(row: str, training: bool, cell: Cell) -> None:
    """With the tensors of another module it computes like that module, and leaves its own tensors unchanged."""
    cell("frameworks", row, "functional_call")
    plain, module = build(row).train(training), build(row, seed=7).train(training)
    before, x = state(module), data(row).requires_grad_()
    parameters, buffers = tensors_of(plain)
    for parameter in parameters.values():
        parameter.requires_grad_()

    def call(x: Tensor) -> Any:
        # With `tie_weights`, PyTorch restores wrong tensors if one module has several names.
        tie = "shared" not in row
        return functional_call(module, (parameters, buffers), (x,), tie_weights=tie)

    found, expected = forward(call, x), forward(plain, x)
    assert_same([t.detach() for t in found], [t.detach() for t in expected])
    if training:
        objective(found).backward()
        objective(expected).backward()
        for name, parameter in plain.named_parameters():
            assert same(gradient(parameters[name]), gradient(parameter)), name
    assert_same_state(module, before)
    for name, buffer in plain.named_buffers():
        assert same(buffers[name], buffer), name
    # The module itself has learnt nothing, so its own first step equals that of a fresh twin.
    twin = build(row, seed=7)
    assert_same(train(module.train(), row, [3]), train(twin, row, [3]))
    assert_same_state(module, state(twin))


@every_row
def test_torch_func_grad(row: str, cell: Cell) -> None:
    """`torch.func.grad` with respect to parameters and input is the gradient of autograd."""
    in_place = row == "latent_in_place"
    cell("frameworks", row, "torch.func.grad", "error" if in_place else "yes")
    module = build(row)
    train(module, row, [0])
    twin = copy.deepcopy(module)
    parameters, buffers = tensors_of(module)

    def loss_of(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        own = {name: buffer.clone() for name, buffer in buffers.items()}
        return objective(forward(lambda x: functional_call(module, (parameters, own), (x,)), x))

    if in_place:
        # Its own optimizer runs a backward inside the forward, through which transforms cannot trace.
        with pytest.raises(RuntimeError, match="don't yet support saved tensor hooks"):
            torch.func.grad(loss_of)(parameters, data(row, 1))
        return
    by_parameters, by_input = torch.func.grad(loss_of, argnums=(0, 1))(parameters, data(row, 1))
    x = data(row, 1).requires_grad_()
    objective(forward(twin, x)).backward()
    torch.testing.assert_close(by_input, gradient(x), rtol=1e-5, atol=1e-6)
    for name, parameter in twin.named_parameters():
        torch.testing.assert_close(by_parameters[name], gradient(parameter), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("row", ["fsq", "lfq", "latent", "residual_fsq"])
def test_a_second_derivative_is_refused(row: str) -> None:
    """Transforms and autograd raise, instead of returning zero."""
    module = build(row)

    def slope(x: Tensor) -> Tensor:
        return torch.func.grad(lambda x: objective(forward(module, x)).square())(x).sum()

    with pytest.raises(
        NotImplementedError, match="the gradient of this operator has no derivative"
    ):
        torch.func.grad(slope)(data(row))
    x = data(row).requires_grad_()
    with pytest.raises(
        NotImplementedError, match="the gradient of this operator has no derivative"
    ):
        torch.autograd.grad(objective(forward(module, x)), x, create_graph=True)


@pytest.mark.parametrize("row", ["fsq", "residual_fsq", "latent"])
def test_jacrev(row: str) -> None:
    """The Jacobian of autograd, row by row; inside another transform an error."""
    module, x = build(row), data(row)[:1, :2]

    def summed(x: Tensor) -> Tensor:
        return forward(module, x).quantized.sum((0, 1))

    expected = torch.autograd.functional.jacobian(summed, x)
    torch.testing.assert_close(torch.func.jacrev(summed)(x), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(
        NotImplementedError, match="the gradient of this operator has no derivative"
    ):
        torch.func.jacrev(torch.func.jacrev(lambda x: summed(x).square()))(x)


def steps(row: str, count: int = 3) -> Tensor:
    return torch.stack([data(row, step) for step in range(count)])


@every_row
def test_vmap_in_evaluation(row: str, cell: Cell) -> None:
    """A module mapped over a further axis equals the module on each slice."""
    cell("frameworks", row, "vmap")
    module, x = build(row).eval(), steps(row)
    with torch.no_grad():
        expected = [forward(module, part) for part in x]
        found = torch.vmap(lambda part: tuple(forward(module, part)))(x)
    for part, others in zip(found, zip(*expected, strict=True), strict=True):
        torch.testing.assert_close(part, torch.stack(others), rtol=1e-6, atol=1e-6)


@every_row
def test_gradients_of_each_sample(row: str, cell: Cell) -> None:
    """`vmap(grad(...))` gives the gradients of each sample, of input and parameters."""
    cell("frameworks", row, "gradients per sample")
    module, x = build(row).eval(), steps(row)
    parameters, _ = tensors_of(module)

    def loss_of(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        tie = "shared" not in row
        return objective(
            forward(lambda x: functional_call(module, parameters, (x,), tie_weights=tie), x)
        )

    gradients = torch.func.grad(loss_of, argnums=(0, 1))
    by_parameters, by_input = torch.vmap(gradients, in_dims=(None, 0))(parameters, x)
    for index, part in enumerate(x):
        own_parameters, own_input = gradients(parameters, part)
        # Projections of one sample and of many are different matrix products.
        assert_close_to_rounding(by_input[index], own_input, roundings=32)
        for name, own in own_parameters.items():
            assert_close_to_rounding(by_parameters[name][index], own, roundings=32)


@every_row
def test_an_ensemble_trains_under_vmap(row: str, cell: Cell) -> None:
    """Modules stacked by `stack_module_state` do the same step, with the same state, as each of them alone."""
    in_place = row == "latent_in_place"
    cell("frameworks", row, "ensemble", "error" if in_place else "yes")
    modules, x = [build(row, seed=seed) for seed in range(3)], steps(row)
    base = copy.deepcopy(modules[0])
    parameters, buffers = stack_module_state(modules)

    def step(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Any:
        tie = "shared" not in row
        return tuple(
            forward(
                lambda x: functional_call(base, (parameters, buffers), (x,), tie_weights=tie), x
            )
        )

    if in_place:
        with pytest.raises(RuntimeError, match="LatentQuantize: expected no torch"):
            torch.vmap(step)(parameters, buffers, x)
        return
    with torch.no_grad():
        found = torch.vmap(step)(parameters, buffers, x)
        expected = [forward(module, part) for module, part in zip(modules, x, strict=True)]
    for part, others in zip(found, zip(*expected, strict=True), strict=True):
        torch.testing.assert_close(part, torch.stack(others), rtol=1e-5, atol=1e-6)
    for index, module in enumerate(modules):
        for name, buffer in module.named_buffers():
            torch.testing.assert_close(buffers[name][index], buffer, rtol=1e-5, atol=1e-6)


@every_row
def test_an_ensemble_quantizes_one_input(row: str) -> None:
    """Stacked modules in evaluation, of an input that all of them share: only parameters and buffers are mapped."""
    modules, x = [build(row, seed=seed).eval() for seed in range(3)], data(row)
    base = copy.deepcopy(modules[0])

    def quantized(*tensors: dict[str, Tensor]) -> Tensor:
        tie = "shared" not in row
        return forward(lambda x: functional_call(base, tensors, (x,), tie_weights=tie), x).quantized

    with torch.no_grad():
        found = torch.vmap(quantized)(*stack_module_state(modules))
        expected = torch.stack([forward(module, x).quantized for module in modules])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("row", ["vq", "vq_kmeans", "residual_vq", "lfq", "hierarchical_vq"])
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_an_ensemble_has_gradients_per_module(row: str, training: bool) -> None:
    """`vmap(grad(...))` of stacked modules: the gradients, and the states, of each of them alone."""
    modules, x = [build(row, seed=seed).train(training) for seed in range(3)], steps(row)
    for module, part in zip(modules, x, strict=True):
        forward(module.train(), part)
        module.train(training)
    base = copy.deepcopy(modules[0])
    parameters, buffers = stack_module_state(modules)

    def loss(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        return objective(forward(lambda x: functional_call(base, (parameters, buffers), (x,)), x))

    found = torch.vmap(torch.func.grad(loss, argnums=2))(parameters, buffers, x)
    for index, module in enumerate(modules):
        own = x[index].clone().requires_grad_()
        result = objective(forward(module, own))
        if result.requires_grad:  # codes in evaluation are constants
            result.backward()
        expected = torch.zeros_like(own) if own.grad is None else own.grad
        torch.testing.assert_close(found[index], expected, rtol=1e-5, atol=1e-6)
        for name, buffer in module.named_buffers():
            torch.testing.assert_close(buffers[name][index], buffer, rtol=1e-5, atol=1e-6)


def test_an_ensemble_replaces_dead_codes_with_gradients() -> None:
    modules = [torchvq.VectorQuantize(8, 16, threshold_ema_dead_code=2) for _ in range(2)]
    base, x = copy.deepcopy(modules[0]), torch.randn(2, 3, 5, 8)
    parameters, buffers = stack_module_state(modules)

    def loss(buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(base, ({}, buffers), (x,)).loss

    torch.vmap(torch.func.grad(loss, argnums=1))(buffers, x)
    for index, module in enumerate(modules):
        module(x[index])
        for name, buffer in module.named_buffers():
            torch.testing.assert_close(buffers[name][index], buffer, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_an_ensemble_has_gradients_of_one_input_with_targets(training: bool) -> None:
    """With targets, levels are walked in turn; members have codes of their own, and share the input."""
    modules = [build("residual_vq", seed=seed).train(training) for seed in range(3)]
    x = data("residual_vq")
    targets = torch.zeros_like(forward(copy.deepcopy(modules[0]), x).indices)
    base = copy.deepcopy(modules[0])

    def loss(x: Tensor, *state: dict[str, Tensor]) -> Tensor:
        return functional_call(base, state, (x,), dict(indices=targets))[1]

    expected = [
        torch.func.grad(lambda x, own=own: copy.deepcopy(own)(x, indices=targets)[1])(x)
        for own in modules
    ]
    found = torch.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(x, *stack_module_state(modules))
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-5, atol=1e-6)


def test_gradients_per_sample_with_mapped_targets() -> None:
    module, x = build("vq").eval(), steps("vq")
    targets = torch.stack([forward(module, part)[1] for part in x])

    def loss(x: Tensor, targets: Tensor) -> Tensor:
        return module(x, indices=targets)[1]

    found = torch.vmap(torch.func.grad(loss))(x, targets)
    for index, part in enumerate(x):
        torch.testing.assert_close(found[index], torch.func.grad(loss)(part, targets[index]))


def test_training_under_vmap_needs_a_state_for_each_slice() -> None:
    """One state cannot take the steps of several slices: an error, and nothing is written."""
    module = build("vq")
    before = state(module)
    with pytest.raises(RuntimeError, match="vector_quantize_: expected state to be mapped"):
        torch.vmap(lambda x: tuple(forward(module, x)))(steps("vq"))
    assert_same_state(module, before)


def test_an_ensemble_of_initialised_and_other_codebooks_is_refused() -> None:
    modules = [build("vq_kmeans", seed=seed) for seed in range(2)]
    forward(modules[0], data("vq_kmeans"))
    base = copy.deepcopy(modules[0])
    with pytest.raises(RuntimeError, match="expected either all codebooks under"):
        torch.vmap(
            lambda p, b, x: tuple(forward(lambda x: functional_call(base, (p, b), (x,)), x))
        )(*stack_module_state(modules), steps("vq_kmeans", 2))


def test_vmap_over_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="nearest_code: expected the axis that vmap maps to have"):
        torch.vmap(lambda x: torch.ops.torchvq.nearest_code(x, torch.zeros(1, 3, 2))[0])(
            torch.zeros(0, 1, 4, 2)
        )
