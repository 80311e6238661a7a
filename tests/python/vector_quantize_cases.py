"""Configurations of VectorQuantize, its state, and one training step, for the tests of the module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchvq import VectorQuantize

DIM, CODES, BATCH, LENGTH = 8, 16, 3, 12

SHARED = dict(heads=2, codebook_dim=4)
SEPARATE = dict(heads=2, codebook_dim=4, separate_codebook_per_head=True)
PROJECTED = dict(heads=2, codebook_dim=3, separate_codebook_per_head=True)
LEARNABLE = dict(learnable_codebook=True, ema_update=False)
GUMBEL = dict(straight_through=True, rotation_trick=False, route_gradients_to_input=False)
DIVEQ = dict(directional_reparam=True, threshold_ema_dead_code=1e-3)

# The position of the features, and the kind of codebook. Every case decodes its own indices.
LAYOUTS: dict[str, dict[str, Any]] = {
    "default": {},
    "cosine": dict(use_cosine_sim=True),
    "shared_heads": SHARED,
    "separate_heads": SEPARATE,
    "separate_heads_cosine": dict(**SEPARATE, use_cosine_sim=True),
    "projections": PROJECTED,
    "shared_projections": dict(heads=2, codebook_dim=3),
    "layer_norm": dict(codebook_dim=5, layernorm_after_project_in=True),
    "image": dict(accept_image_fmap=True),
    "image_projections": dict(**PROJECTED, accept_image_fmap=True),
    "image_shared_heads": dict(**SHARED, accept_image_fmap=True),
    "volume": dict(**SEPARATE, accept_3d_fmap=True),
    "channel_first": dict(channel_last=False),
    "channel_first_projections": dict(**PROJECTED, channel_last=False),
    "one_code": dict(codebook_size=1),
    "one_feature": dict(codebook_dim=1),
}

# How the codebook learns, and the terms of the loss.
OPTIONS: dict[str, dict[str, Any]] = {
    "dead_codes": dict(threshold_ema_dead_code=2),
    "dead_code_fraction": dict(dead_code_threshold_fraction=0.5, **SEPARATE),
    "kmeans": dict(kmeans_init=True),
    "kmeans_cosine": dict(kmeans_init=True, use_cosine_sim=True, **SEPARATE),
    "affine": dict(affine_param=True),
    "affine_heads": dict(affine_param=True, **SEPARATE),
    "affine_kmeans_dead_codes": dict(
        affine_param=True, kmeans_init=True, threshold_ema_dead_code=2
    ),
    "learnable": LEARNABLE,
    "learnable_heads": dict(**LEARNABLE, **SEPARATE, sync_update_v=0.3),
    "bridge": dict(vq_bridge="linear"),
    "cross_entropy": dict(commitment_use_cross_entropy_loss=True),
    "diversity": dict(
        codebook_diversity_loss_weight=0.2, codebook_diversity_temperature=2.0, **SEPARATE
    ),
    "orthogonal": dict(orthogonal_reg_weight=0.5),
    "orthogonal_active": dict(
        orthogonal_reg_weight=0.5, orthogonal_reg_active_codes_only=True, **SEPARATE
    ),
    "orthogonal_some": dict(orthogonal_reg_weight=0.5, orthogonal_reg_max_codes=5),
    "directional": DIVEQ,
    "sampling": dict(stochastic_sample_codes=True),
    "sampling_cosine": dict(
        stochastic_sample_codes=True, use_cosine_sim=True, sample_codebook_temp=0.5
    ),
    "gumbel": GUMBEL,
    "copied_gradient": dict(rotation_trick=False, commitment_weight=0.25),
    "manual_ema": dict(manual_ema_update=True),
    "frozen": dict(freeze_codebook=True, threshold_ema_dead_code=2),
    "compat": dict(vqp_compat=True, threshold_ema_dead_code=2),
}

CASES = LAYOUTS | OPTIONS


class Bridge(nn.Module):
    """A residual linear layer over the codes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(DIM, DIM)

    def forward(self, codes: Tensor) -> Tensor:
        return codes + self.linear(codes)


def options_of(case: str) -> dict[str, Any]:
    options = dict(CASES[case])
    if options.get("vq_bridge") == "linear":
        options["vq_bridge"] = Bridge()
    return {"codebook_size": CODES, **options}


def build(case: str = "default", seed: int = 0, **more: Any) -> VectorQuantize:
    """The module of a case, with codes of the size of the data; the same for the same seed."""
    torch.manual_seed(seed)
    module = VectorQuantize(DIM, **{**options_of(case), **more})
    if not module._codebook.initted.item():
        return module
    with torch.no_grad():
        codes = torch.randn(module._codebook.embed.shape)
        module.codebook = nn.functional.normalize(codes, dim=-1) if module.use_cosine_sim else codes
    return module


def shape_of(module: VectorQuantize, batch: int = BATCH) -> tuple[int, ...]:
    if module.accept_3d_fmap:
        return (batch, DIM, 2, 2, 3)
    if module.accept_image_fmap:
        return (batch, DIM, 3, 4)
    return (batch, LENGTH, DIM) if module.channel_last else (batch, DIM, LENGTH)


def positions_of(module: VectorQuantize, batch: int = BATCH) -> tuple[int, ...]:
    shape = shape_of(module, batch)
    return shape[:-1] if module._layout.channel_first is False else (shape[0], *shape[2:])


def data(module: VectorQuantize, step: int = 0, batch: int = BATCH) -> Tensor:
    return torch.randn(shape_of(module, batch), generator=torch.Generator().manual_seed(100 + step))


def state(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def same(a: Tensor, b: Tensor) -> bool:
    """Bit for bit, NaN included."""
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and bool(
            torch.equal(a, b)
            or (
                torch.equal(a.isnan(), b.isnan())
                and torch.equal(a.nan_to_num(0, 1, -1), b.nan_to_num(0, 1, -1))
            )
        )
    )


def assert_same_state(module: nn.Module, expected: dict[str, Tensor]) -> None:
    actual = state(module)
    assert actual.keys() == expected.keys()
    different = [name for name in expected if not same(actual[name], expected[name])]
    assert not different, f"state differs: {different}"


class Step(NamedTuple):
    quantized: Tensor
    indices: Tensor
    loss: Tensor
    gradient: Tensor
    parameters: dict[str, Tensor]


def train_step(
    forward: Callable[..., Any],
    module: nn.Module,
    x: Tensor,
    learning_rate: float = 0.1,
    **kwargs: Any,
) -> Step:
    """One forward, backward and plain gradient step on the parameters."""
    x = x.detach().clone().requires_grad_()
    quantized, indices, loss = forward(x, **kwargs)[:3]
    weight = torch.linspace(-1, 1, quantized.numel()).view(quantized.shape)
    (loss.sum() + (quantized.float().nan_to_num() * weight).sum()).backward()
    gradients = {}
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            gradients[name] = parameter.grad.clone()
            parameter.data.sub_(parameter.grad, alpha=learning_rate)
            parameter.grad = None
    gradient = torch.zeros_like(x) if x.grad is None else x.grad
    return Step(quantized.detach(), indices, loss.detach(), gradient, gradients)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.05)


def train(module: VectorQuantize, steps: range) -> list[Tensor]:
    seen = []
    for step in steps:
        result = train_step(module, module, data(module, step))
        seen += [
            result.quantized,
            result.indices,
            result.loss,
            result.gradient,
            *result.parameters.values(),
        ]
    return seen


def assert_continues_alike(module: VectorQuantize, expected: VectorQuantize) -> None:
    """The next steps are equal bit for bit, including noise, dead codes, cool-downs and evaluation."""
    for a, b in zip(train(module, range(10, 13)), train(expected, range(10, 13)), strict=True):
        assert same(a, b)
    assert_same_state(module, state(expected))
    x = data(expected, 20)
    module.eval(), expected.eval()
    for a, b in zip(module(x), expected(x), strict=True):
        assert same(a, b)
