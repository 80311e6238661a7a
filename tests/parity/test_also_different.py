"""The section "Also different" of docs/migrating.md, checked on both packages."""

from __future__ import annotations

import pytest
import torch
import vector_quantize_pytorch as reference
from torch import nn

import torchvq

STACK = dict(dim=4, codebook_size=16, num_quantizers=8)
SCALARS = dict(levels=[4] * 4, num_quantizers=8)


def tokens() -> torch.Tensor:
    return torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(1))


def calls(module: nn.Module, inner: nn.Module, x: torch.Tensor) -> int:
    """How often a forward of the module calls the inner one."""
    found: list[int] = []
    inner.register_forward_hook(lambda *_: found.append(1))
    module(x)
    return len(found)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ResidualVQ", STACK),
        ("ResidualLFQ", STACK),
        ("ResidualSimVQ", STACK),
        ("ResidualFSQ", SCALARS),
    ],
)
def test_inner_modules_are_not_called(name: str, options: dict[str, object]) -> None:
    for package, expected in ((reference, 1), (torchvq, 0)):
        stack = getattr(package, name)(**options)
        assert calls(stack, stack.layers[1], tokens()) == expected
    own = getattr(torchvq, name)(**options)
    assert calls(own, own, tokens()) == 1


def test_the_quantizer_of_scales_and_the_codebook_are_not_called() -> None:
    options = dict(dim=4, codebook_size=16, scales=(2, 6), kmeans_init=False)
    for package, expected in ((reference, 2), (torchvq, 0)):
        hvq = package.HierarchicalVQ(**options)
        assert calls(hvq, hvq.vq, tokens().transpose(1, 2)) == expected
    reference.VectorQuantize(4, 16)._codebook(tokens())
    with pytest.raises(NotImplementedError):
        torchvq.VectorQuantize(4, 16)._codebook(tokens())


@pytest.mark.parametrize(("name", "options"), [("ResidualLFQ", STACK), ("ResidualFSQ", SCALARS)])
def test_levels_are_dropped_without_gradient_too(name: str, options: dict[str, object]) -> None:
    for package, expected in ((reference, False), (torchvq, True)):
        stack = getattr(package, name)(**options, quantize_dropout=True)
        with torch.no_grad():
            drops = [bool(stack(tokens())[1].lt(0).any()) for _ in range(30)]
        assert any(drops) == expected


def test_second_derivatives() -> None:
    def twice(package) -> None:
        x = tokens().requires_grad_()
        quantized = package.FSQ([4] * 4)(x)[0]
        (gradient,) = torch.autograd.grad(quantized.square().sum(), x, create_graph=True)
        gradient.square().sum().backward()

    twice(reference)
    with pytest.raises(NotImplementedError, match="create_graph"):
        twice(torchvq)


def test_fitness_is_computed_in_evaluation() -> None:
    for package, expected in ((reference, True), (torchvq, False)):
        evo = package.EvoLFQ(nn.Linear(6, 8), nn.Linear(8, 6), dim=8, codebook_size=256)
        modes: list[bool] = []

        def fitness(decoded, bits, evo=evo, modes=modes):
            modes.append(evo.training)
            return decoded.flatten(1).sum(1)

        evo.step(evo.init_random_population(3, (5, 8)), fitness)
        assert modes == [expected]


def test_affine_statistics_of_a_shared_codebook_are_those_of_the_first_level() -> None:
    x = tokens() + 10
    means = []
    for package in (torchvq, reference):
        torch.manual_seed(0)
        options = dict(num_quantizers=3, shared_codebook=True, affine_param=True)
        stack = package.ResidualVQ(dim=4, codebook_size=16, **options)
        stack(x)
        means.append(stack.layers[0]._codebook.batch_mean.flatten())
    torch.testing.assert_close(means[0], x.mean((0, 1)))
    assert (means[1] - x.mean((0, 1))).abs().max() > 1e-3


@pytest.mark.parametrize("compat", [False, True])
def test_own_optimizers_count_affine_statistics_once_or_as_the_reference(compat: bool) -> None:
    options = dict(affine_param=True, learnable_codebook=True, ema_update=False)
    options |= dict(in_place_codebook_optimizer=lambda own: torch.optim.SGD(list(own), lr=0.1))
    ours = torchvq.VectorQuantize(dim=4, codebook_size=7, vqp_compat=compat, **options)
    theirs = reference.VectorQuantize(dim=4, codebook_size=7, **options)
    theirs.load_state_dict(ours.state_dict(), strict=False)
    for step in range(3):
        found, expected = ours(tokens() + step), theirs(tokens() + step)
        if compat:
            torch.testing.assert_close(tuple(found), tuple(expected))
    decay = 0.99**2 if compat else 0.99
    mean = tokens().mean((0, 1))
    second = mean * decay + (mean + 1) * (1 - decay)
    last = second * decay + (mean + 2) * (1 - decay)
    torch.testing.assert_close(ours._codebook.batch_mean.flatten(), last)
