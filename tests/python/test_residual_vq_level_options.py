"""Options of single levels of a residual stack, set after construction; the oracle is a chain of its levels."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch

from torchvq import GroupedResidualVQ, ResidualVQ, VectorQuantize

DIM, CODES, LEVELS = 6, 16, 3
DIVERSE = dict(codebook_diversity_loss_weight=0.1, orthogonal_reg_weight=0.2)

# Options of the stack; an option of one level, and its value.
OPTIONS = {
    "frozen": ({}, "freeze_codebook", True),
    "commitment": ({}, "commitment_weight", 0.3),
    "cross-entropy": ({}, "commitment_use_cross_entropy_loss", True),
    "orthogonal": (DIVERSE, "orthogonal_reg_weight", 0.7),
    "active": (DIVERSE, "orthogonal_reg_active_codes_only", True),
    "diversity": (DIVERSE, "codebook_diversity_loss_weight", 0.9),
    "temperature": (DIVERSE, "codebook_diversity_temperature", 2.0),
}


def build(options: dict[str, object], case: str) -> ResidualVQ:
    torch.manual_seed(0)
    return ResidualVQ(
        dim=DIM,
        num_quantizers=LEVELS,
        codebook_size=CODES,
        decay=0.5,
        **OPTIONS[case][0],
        **options,
    )


def states(levels: list[torch.nn.Module]) -> list[torch.Tensor]:
    return [value for level in levels for value in level.state_dict().values()]


@pytest.mark.parametrize("changed", range(LEVELS))
@pytest.mark.parametrize("case", OPTIONS)
def test_each_level_has_its_own(case: str, changed: int, generator: torch.Generator) -> None:
    stack = build({}, case)
    setattr(stack.layers[changed], *OPTIONS[case][1:])
    chain = copy.deepcopy(list(stack.layers))
    for _ in range(3):
        x = torch.randn(2, 20, DIM, generator=generator)
        residual, losses, indices = x, [], []
        for level in chain:
            quantized, chosen, loss = level(residual)
            residual = residual - quantized.detach()
            losses.append(loss.sum())
            indices.append(chosen)
        output = stack(x)
        assert torch.equal(output.indices, torch.stack(indices, -1))
        torch.testing.assert_close(output.loss, torch.stack(losses))
    assert all(map(torch.equal, states(stack.layers), states(chain)))


def freeze(level: VectorQuantize, on: bool) -> None:
    level.freeze_codebook = on


def evaluate(level: VectorQuantize, on: bool) -> None:
    level.train(not on)


def leave_averages(level: VectorQuantize, on: bool) -> None:
    level._codebook.ema_update = not on


def replace_dead(level: VectorQuantize, on: bool) -> None:
    codebook = level._codebook
    codebook.threshold_ema_dead_code = codebook.reset_cluster_size = 2.0 if on else 0.0


def sample(level: VectorQuantize, on: bool) -> None:
    level.stochastic_sample_codes = on


KEPT = dict(sync_every=3, threshold_ema_dead_code=1)
LEARNT = dict(learnable_codebook=True, ema_update=False, codebook_size=64)
SAMPLED = dict(stochastic_sample_codes=True)

# Options of the stack, and what happens to one level of it for a while.
CHANGES: dict[str, tuple[dict[str, object], Callable[[VectorQuantize, bool], None]]] = {
    "frozen": ({}, freeze),
    "frozen, sampling": (SAMPLED, freeze),
    "frozen, of its own size": (
        dict(num_quantizers=None, codebook_size=(8, 16, 24), **SAMPLED),
        freeze,
    ),
    "frozen while statistics are kept": (KEPT, freeze),
    "evaluating": (SAMPLED, evaluate),
    "evaluating while statistics are kept": (KEPT, evaluate),
    "without averages": ({}, leave_averages),
    "without averages, sampling": (SAMPLED, leave_averages),
    "without averages while statistics are kept": (dict(sync_every=3), leave_averages),
    "replacing dead codes": (LEARNT, replace_dead),
    "sampling in a frozen stack": (dict(freeze_codebook=True), sample),
}


@pytest.mark.parametrize("changed", range(LEVELS))
@pytest.mark.parametrize("case", CHANGES)
def test_a_level_learns_and_draws_as_if_alone(
    case: str, changed: int, generator: torch.Generator
) -> None:
    options, change = CHANGES[case]
    torch.manual_seed(0)
    own = dict(dim=DIM, num_quantizers=LEVELS, codebook_size=CODES)
    stack = ResidualVQ(**own | options)
    for level in stack.layers:
        level._codebook.cluster_size.zero_()
    chain = copy.deepcopy(list(stack.layers))
    # Not as many steps as between two reductions, so that levels keep different numbers of them.
    for on in (False, True, True, False, False, False, False):
        for level in (stack.layers[changed], chain[changed]):
            change(level, on)
        x = torch.randn(2, 20, DIM, generator=generator)
        residual, indices = x, []
        for level in chain:
            quantized, chosen, _ = level(residual)
            residual = residual - quantized.detach()
            indices.append(chosen)
        assert torch.equal(stack(x).indices, torch.stack(indices, -1))
        assert all(map(torch.equal, states(stack.layers), states(chain)))


@pytest.mark.parametrize("options", [{"beam_size": 2}, {"affine_param": True}], ids=str)
def test_a_frozen_level_keeps_its_statistics(
    options: dict[str, object], generator: torch.Generator
) -> None:
    stack = build({"sync_every": 2} | options, "frozen")
    stack(torch.randn(2, 20, DIM, generator=generator))
    stack.layers[1].freeze_codebook = True
    before = copy.deepcopy(stack.layers[1]._codebook.state_dict())
    stack(torch.randn(2, 20, DIM, generator=generator))
    for name, value in stack.layers[1]._codebook.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert [int(level._codebook.kept_steps[0]) for level in stack.layers] == [0, 1, 0]


@pytest.mark.parametrize("changed", range(2))
def test_a_group_of_its_own(changed: int, generator: torch.Generator) -> None:
    stack = GroupedResidualVQ(
        dim=2 * DIM, groups=2, num_quantizers=2, codebook_size=CODES, affine_param=True
    )
    for level in stack.rvqs[changed].layers:
        leave_averages(level, True)
    before = copy.deepcopy(stack.state_dict())
    stack(torch.randn(2, 20, 2 * DIM, generator=generator))
    for name, value in stack.state_dict().items():
        if name.endswith("embed"):
            stays = name.startswith(f"rvqs.{changed}")
            assert torch.equal(value, before[name]) == stays, name


def test_a_frozen_first_level_draws_new_depths(generator: torch.Generator) -> None:
    stack = build({"quantize_dropout": True}, "frozen")
    stack.layers[0].freeze_codebook = True
    x = torch.randn(1, 4, DIM, generator=generator)
    depths = {int((stack(x).indices[0, 0] >= 0).sum()) for _ in range(20)}
    assert len(depths) > 1


@pytest.mark.parametrize("options", [{}, {"shared_codebook": True}], ids=["own", "shared"])
def test_a_frozen_level_teaches_and_learns_nothing(
    options: dict[str, object], generator: torch.Generator
) -> None:
    frozen, other = build(options, "frozen"), build(options, "frozen")
    frozen.layers[1].freeze_codebook = True
    other.layers[1].training = False  # the other way to say so
    for _ in range(3):
        x = torch.randn(2, 20, DIM, generator=generator)
        assert torch.equal(frozen(x).indices, other(x).indices)
    for name, value in frozen.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
    embed = build(options, "frozen").layers[1]._codebook.embed
    assert torch.equal(frozen.layers[1]._codebook.embed, embed) != frozen.shared_codebook


def test_a_stack_is_frozen_when_all_its_levels_are(generator: torch.Generator) -> None:
    stack = GroupedResidualVQ(dim=2 * DIM, groups=2, num_quantizers=2, codebook_size=CODES)
    for level in stack.rvqs[0].layers:
        level.freeze_codebook = True
    before = copy.deepcopy(stack.state_dict())
    stack(torch.randn(2, 20, 2 * DIM, generator=generator))
    for name, value in stack.state_dict().items():
        if name.endswith("embed"):
            assert torch.equal(value, before[name]) == name.startswith("rvqs.0"), name


def test_an_own_estimator_hands_its_gradient_on(generator: torch.Generator) -> None:
    stack = build({"rotation_trick": True}, "frozen").double()
    other = copy.deepcopy(stack)
    for level in other.layers:
        level.rotation_trick = False
    stack.layers[1].rotation_trick = False
    x = torch.randn(1, 4, DIM, generator=generator, dtype=torch.float64)
    gradients = []
    for module in (stack, build({"rotation_trick": True}, "frozen").double(), other):
        own = x.clone().requires_grad_()
        module(own).quantized.sum().backward()
        gradients.append(own.grad)
    assert not torch.equal(gradients[0], gradients[1])
    assert not torch.equal(gradients[0], gradients[2])
