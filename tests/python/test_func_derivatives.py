"""Derivatives of operators at several levels: torch.func inside autograd, autograd inside torch.func, and nested."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import torchvq  # noqa: F401  (registers the operators)

ops = torch.ops.torchvq
Function = Callable[[Tensor], Tensor]

INDICES = torch.tensor([[0, 2, 1, 0]])
CODES = torch.randn(1, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
RNG = torch.tensor([1, 2])

# Of (1, 4, 3), float64; each has derivatives of any order.
TWICE: dict[str, Function] = {
    "lookup_codes": lambda x: ops.lookup_codes(x, INDICES).pow(3).sum(),
    "residual_decode": lambda x: ops.residual_decode(INDICES.unsqueeze(-1), [x]).pow(3).sum(),
    "snapshot": lambda x: ops.snapshot(x).pow(3).sum(),
    "unit_vectors": lambda x: ops.unit_vectors(x).pow(3).sum(),
    "nearest_code distances": lambda x: (
        ops.nearest_code(x, CODES, return_distances=True)[2].pow(2).sum()
    ),
    "resample_scale": lambda x: ops.resample_scale(x, [2], [3], "average").pow(3).sum(),
    "commitment_loss": lambda x: ops.commitment_loss(x, CODES[:, :4]).pow(2),
    "straight_through": lambda x: ops.straight_through(x, CODES[:, :4]).mul(x.square()).sum(),
}
# The gradients of these are constants.
ONCE: dict[str, Function] = {
    "sign_entropy": lambda x: ops.sign_entropy(x, sharpness=2.0)[1].square(),
    "rotation_trick": lambda x: ops.rotation_trick(x, CODES[:, :4]).pow(3).sum(),
    "latent_quantize": lambda x: ops.latent_quantize(
        x[0], torch.linspace(-1, 1, 9).double(), [3, 3, 3], commitment=1.0
    )[2],
    "orthogonal_loss": lambda x: ops.orthogonal_loss(x).square(),
    "codebook_diversity_loss": lambda x: ops.codebook_diversity_loss(
        x, CODES, temperature=1.0, metric="euclidean"
    ).square(),
}


def tokens() -> Tensor:
    return torch.randn(1, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def by_autograd(f: Function, x: Tensor) -> Tensor:
    return torch.autograd.grad(f(x), x, create_graph=True)[0]


def by_func(f: Function, x: Tensor) -> Tensor:
    return torch.func.grad(f)(x)


def second(f: Function, inner: Callable[..., Tensor], outer: Callable[..., Tensor]) -> Tensor:
    """The gradient of the squared gradient of f."""
    x = tokens()
    if outer is by_autograd:
        x.requires_grad_()
    return outer(lambda v: inner(f, v).square().sum(), x).detach()


LEVELS = {
    "func in func": (by_func, by_func),
    "func in autograd": (by_func, by_autograd),
    "autograd in func": (by_autograd, by_func),
}


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("name", TWICE)
def test_a_second_derivative_is_that_of_autograd(name: str, levels: str) -> None:
    expected = second(TWICE[name], by_autograd, by_autograd)
    assert expected.abs().max() > 0
    found = second(TWICE[name], *LEVELS[levels])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


# The gradient of an estimator is not that of its values.
@pytest.mark.parametrize("name", sorted(TWICE.keys() - {"straight_through"}))
def test_a_second_derivative_is_that_of_finite_differences(name: str) -> None:
    def squared(v: Tensor) -> Tensor:
        return by_func(TWICE[name], v).square().sum()

    x, step = tokens(), 1e-5
    found = torch.func.grad(squared)(x)
    for place in range(x.numel()):
        moved = torch.zeros(x.numel(), dtype=torch.float64)
        moved[place] = step
        moved = moved.view_as(x)
        expected = (squared(x + moved) - squared(x - moved)) / (2 * step)
        torch.testing.assert_close(found.flatten()[place], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("name", ONCE)
def test_a_derivative_that_does_not_exist_is_an_error(name: str, levels: str) -> None:
    """The first derivative is right all the same."""
    x = tokens().requires_grad_()
    expected = torch.autograd.grad(ONCE[name](x), x)[0]
    torch.testing.assert_close(by_func(ONCE[name], tokens()), expected, rtol=0, atol=0)
    with pytest.raises(NotImplementedError, match="has no derivative of its own"):
        second(ONCE[name], *LEVELS[levels])


@pytest.mark.parametrize("name", [*TWICE, *ONCE])
def test_values_of_a_transform_keep_the_graph_around_it(name: str) -> None:
    f = TWICE[name] if name in TWICE else ONCE[name]
    x = tokens().requires_grad_()
    gradient, value = torch.func.grad_and_value(f)(x)
    expected = torch.autograd.grad(f(x), x)[0]
    torch.testing.assert_close(torch.autograd.grad(value, x)[0], expected, rtol=0, atol=0)
    assert gradient.requires_grad
    with torch.no_grad():
        assert not torch.func.grad(f)(x).requires_grad


def test_vmap_in_vmap_of_what_only_the_outer_one_maps() -> None:
    x, y = torch.randn(4, 1, 5, 6), torch.randn(3)
    found = torch.vmap(lambda a: torch.vmap(lambda b: ops.unit_vectors(a).sum() + b)(y))(x)
    expected = torch.stack([torch.stack([ops.unit_vectors(a).sum() + b for b in y]) for a in x])
    torch.testing.assert_close(found, expected)
    # Written by one slice of the outer vmap, the same for all of the inner one.
    states = RNG.expand(4, 2).clone()

    def draw(rng: Tensor) -> Tensor:
        return torch.vmap(lambda b: (b, ops.advance_rng_(rng))[0])(y)

    torch.vmap(draw)(states)
    assert torch.equal(states, torch.tensor([1, 3]).expand(4, 2))
