"""Checkpointed first steps on ranks, with dropped levels, and around compiled code are the plain steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from torchvq import (
    FSP,
    FSQ,
    LFQ,
    GroupedResidualVQ,
    HierarchicalVQ,
    ResidualVQ,
    VectorQuantize,
)

DIM = 6
Step = Callable[[Tensor], Any]
DROPS = dict(dim=DIM, codebook_size=8, num_quantizers=3, quantize_dropout=True)
BY_GRADIENT = dict(learnable_codebook=True, ema_update=False)
SCALES = dict(dim=DIM, codebook_size=8, scales=(2, 4), channel_first=False)
STACKS: dict[str, Callable[[], nn.Module]] = {
    "plain": partial(ResidualVQ, **DROPS),
    "groups": partial(GroupedResidualVQ, groups=2, **DROPS),
    "k-means": partial(ResidualVQ, kmeans_init=True, **DROPS),
    "affine": partial(ResidualVQ, affine_param=True, **DROPS),
    "implicit": partial(ResidualVQ, implicit_neural_codebook=True, **DROPS),
    "implicit beam": partial(
        ResidualVQ, implicit_neural_codebook=True, kmeans_init=True, beam_size=2, **DROPS
    ),
    "beam": partial(ResidualVQ, kmeans_init=True, beam_size=2, **DROPS),
    "learnable beam": partial(ResidualVQ, kmeans_init=True, beam_size=2, **BY_GRADIENT, **DROPS),
    "DiVeQ": partial(ResidualVQ, diveq=True, codebook_dim=4, **DROPS),
    "scales": partial(HierarchicalVQ, shared_codebook=False, nested_dropout=0.9, **SCALES),
}
FIRST_STEPS: dict[str, dict[str, Any]] = {
    "default": {},
    "diversity": dict(codebook_diversity_loss_weight=1.0),
    "cross-entropy": dict(commitment_use_cross_entropy_loss=True),
    "dead codes": dict(threshold_ema_dead_code=2),
    "orthogonal": dict(orthogonal_reg_weight=1.0),
    "learnable": BY_GRADIENT,
    "affine": dict(affine_param=True),
    "heads": dict(heads=2, codebook_dim=3),
}


@pytest.fixture(params=["alone", "group"])
def group(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    if request.param == "alone":
        yield
        return
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def forward(module: nn.Module, x: Tensor, **call: Any) -> tuple[Tensor, Tensor]:
    output = module(x, **call)
    return output[0], output[2] if len(output) > 2 else output[0].new_zeros(())


def assert_same_steps(module: nn.Module, around: Callable[[Step], Step], **call: Any) -> None:
    """Two steps with something around the forward leave what two plain steps leave."""
    plain = deepcopy(module)
    for step in range(2):
        x = torch.randn(2, 8, DIM, generator=torch.Generator().manual_seed(step))
        inputs = []
        for own, way in [(plain, lambda step: step), (module, around)]:
            inputs.append(x.clone().requires_grad_())
            quantized, loss = way(lambda x, own=own: forward(own, x, **call))(inputs[-1])
            (quantized.square().sum() + loss.sum()).backward()
        torch.testing.assert_close(inputs[1].grad, inputs[0].grad)
        found = module.state_dict()
        for name, value in plain.state_dict().items():
            assert torch.equal(found[name], value), name


def checkpointed(reentrant: bool) -> Callable[[Step], Step]:
    return lambda step: lambda x: checkpoint(step, x, use_reentrant=reentrant)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("case", STACKS)
@pytest.mark.usefixtures("group")
def test_levels_that_are_dropped(case: str, reentrant: bool) -> None:
    for seed in range(4):
        torch.manual_seed(seed)
        assert_same_steps(STACKS[case](), checkpointed(reentrant))


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("case", FIRST_STEPS)
def test_k_means_of_masked_tokens(case: str, reentrant: bool) -> None:
    torch.manual_seed(0)
    module = VectorQuantize(DIM, 8, kmeans_init=True, **FIRST_STEPS[case])
    mask = torch.arange(8) < torch.tensor([[8], [5]])
    assert_same_steps(module, checkpointed(reentrant), mask=mask)


def test_a_noisy_estimator_behind_a_projection_is_noisy_in_the_first_run() -> None:
    options = dict(codebook_dim=4, directional_reparam=True, threshold_ema_dead_code=0.1)
    outputs = []
    for reentrant in (None, False, True):
        torch.manual_seed(0)
        module = VectorQuantize(DIM, 8, **options)
        x = torch.randn(2, 8, DIM, generator=torch.Generator().manual_seed(0)).requires_grad_()
        step = partial(forward, module)
        outputs.append((step if reentrant is None else checkpointed(reentrant)(step))(x)[0])
    assert torch.equal(outputs[1], outputs[0]) and torch.equal(outputs[2], outputs[0])


LEVELS = dict(dim=DIM, codebook_size=8, num_quantizers=3, orthogonal_reg_weight=1.0)
ORTHOGONAL: dict[str, Callable[[], nn.Module]] = {
    "VectorQuantize": partial(VectorQuantize, DIM, 8, orthogonal_reg_weight=1.0),
    "ResidualVQ": partial(ResidualVQ, **LEVELS),
    "beam": partial(ResidualVQ, beam_size=2, **LEVELS),
    "shared": partial(ResidualVQ, shared_codebook=True, **LEVELS),
    "scales": partial(HierarchicalVQ, orthogonal_reg_weight=1.0, **SCALES),
}


def gradient_of_codes(module: nn.Module, around: Callable[[Step], Step], **call: Any) -> Tensor:
    """That of two forwards whose backward comes after both."""
    generator, loss = torch.Generator().manual_seed(0), torch.zeros(())
    for _ in range(2):
        x = torch.randn(2, 8, DIM, generator=generator).requires_grad_()
        loss = loss + around(lambda x: forward(module, x, **call))(x)[1].sum()
    loss.backward()
    return torch.cat([own.grad.flatten() for own in module.parameters() if own.grad is not None])


@pytest.mark.parametrize("case", ORTHOGONAL)
def test_losses_of_codes_that_averages_move_are_those_of_their_step(case: str) -> None:
    gradients = []
    for around in (lambda step: step, checkpointed(False)):
        torch.manual_seed(0)
        gradients.append(gradient_of_codes(ORTHOGONAL[case](), around))
    assert torch.equal(gradients[1], gradients[0])


@pytest.mark.parametrize(
    "call",
    [dict(accum_ema_update=True), dict(ema_update_weight=lambda _, counts: counts.clamp(1, 1))],
)
def test_codes_drawn_for_a_loss_of_a_step_that_learns_apart(call: dict[str, Any]) -> None:
    gradients = []
    for around in (lambda step: step, checkpointed(False)):
        torch.manual_seed(0)
        module = VectorQuantize(DIM, 8, orthogonal_reg_weight=1.0, orthogonal_reg_max_codes=3)
        gradients.append(gradient_of_codes(module, around, **call))
    torch.testing.assert_close(gradients[1], gradients[0])


# Compiled code -------------------------------------------------------------------------------------------------

COMPILED: dict[str, Callable[[], nn.Module]] = {
    "VectorQuantize": partial(VectorQuantize, DIM, 8),
    "ResidualVQ": STACKS["plain"],
    "FSQ": partial(FSQ, [3, 4], dim=DIM, noise_dropout=0.5, preserve_symmetry=True),
    "LFQ": partial(LFQ, dim=DIM, codebook_size=16, frac_per_sample_entropy=0.5),
    "FSP": partial(FSP, [3, 4], dim=DIM),
}


def compiled(step: Step, fullgraph: bool = False) -> Step:
    torch.compiler.reset()
    return torch.compile(step, backend="aot_eager", fullgraph=fullgraph)


AROUND: dict[str, Callable[..., Step]] = {
    "region in compiled code": lambda step, **how: compiled(checkpointed(False)(step), **how),
    "compiled code in a region": lambda step, **how: checkpointed(False)(compiled(step, **how)),
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("case", COMPILED)
def test_compiled_regions_are_the_plain_step(case: str, around: str) -> None:
    torch.manual_seed(0)
    assert_same_steps(COMPILED[case](), AROUND[around])


@pytest.mark.parametrize("around", AROUND)
def test_one_graph_of_a_region_is_refused(around: str) -> None:
    module = VectorQuantize(DIM, 8)
    step = AROUND[around](partial(forward, module), fullgraph=True)
    with pytest.raises(Exception, match=r"outside of torch\.utils\.checkpoint in compiled code"):
        step(torch.randn(2, 8, DIM, requires_grad=True))
    assert module._codebook.rng[1] == 0
