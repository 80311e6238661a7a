"""Configurations of the residual stacks, their input and one training step, for the tests of the modules."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchvq import GroupedResidualVQ, ResidualVQ

DIM, CODES, LEVELS, BATCH, LENGTH = 8, 16, 3, 3, 12

LEARNABLE = dict(learnable_codebook=True, ema_update=False)
QINCO = dict(implicit_neural_codebook=True, mlp_kwargs=dict(depth=2))

# Every case decodes its own indices.
STACKS: dict[str, dict[str, Any]] = {
    "default": {},
    "one_level": dict(num_quantizers=1),
    "eight_levels": dict(num_quantizers=8),
    "sizes": dict(num_quantizers=None, codebook_size=(4, 16, 7)),
    "projections": dict(codebook_dim=5),
    "shared_heads": dict(heads=2, codebook_dim=4),
    "separate_heads": dict(heads=2, codebook_dim=3, separate_codebook_per_head=True),
    "cosine": dict(use_cosine_sim=True),
    "image": dict(accept_image_fmap=True, codebook_dim=5),
    "volume": dict(accept_3d_fmap=True),
    "channel_first": dict(channel_last=False, codebook_dim=5),
    "shared": dict(shared_codebook=True),
    "shared_dead_codes": dict(shared_codebook=True, threshold_ema_dead_code=2),
    "shared_cosine": dict(shared_codebook=True, use_cosine_sim=True),
    "shared_affine": dict(shared_codebook=True, affine_param=True),
    "shared_kmeans": dict(shared_codebook=True, kmeans_init=True),
    "dead_codes": dict(threshold_ema_dead_code=2),
    "kmeans": dict(kmeans_init=True),
    "affine": dict(affine_param=True),
    "learnable": LEARNABLE,
    "gradient_fraction": dict(quant_grad_frac=0.5),
    "implicit": QINCO,
    "implicit_projections": dict(codebook_dim=5, **QINCO),
    "implicit_heads": dict(heads=2, codebook_dim=4, separate_codebook_per_head=True, **QINCO),
    "implicit_shared": dict(shared_codebook=True, **QINCO),
    "implicit_dead_codes": dict(threshold_ema_dead_code=2, **QINCO),
    "implicit_entropy": dict(commitment_use_cross_entropy_loss=True, **QINCO),
    "implicit_diversity": dict(codebook_diversity_loss_weight=0.2, **QINCO),
    "implicit_sampling": dict(stochastic_sample_codes=True, **QINCO),
    "diveq": dict(diveq=True),
    "directional": dict(directional_reparam=True, threshold_ema_dead_code=1e-3),
    "gumbel": dict(straight_through=True, rotation_trick=False, route_gradients_to_input=False),
    "sampling": dict(stochastic_sample_codes=True, sample_codebook_temp=0.5),
    "cross_entropy": dict(commitment_use_cross_entropy_loss=True),
    "diversity": dict(codebook_diversity_loss_weight=0.2, codebook_diversity_temperature=2.0),
    "orthogonal": dict(orthogonal_reg_weight=0.5),
    "dropout": dict(quantize_dropout=True),
    "dropout_kmeans": dict(quantize_dropout=True, kmeans_init=True),
    "rotation": dict(rotation_trick=True, commitment_weight=0.25),
    "rotation_dropout": dict(rotation_trick=True, quantize_dropout=True),
    "rotation_implicit": dict(rotation_trick=True, **QINCO),
    "manual_ema": dict(manual_ema_update=True),
    "compatible": dict(vqp_compat=True),
    "compatible_shared": dict(vqp_compat=True, shared_codebook=True),
    "groups": dict(groups=2),
    "groups_image": dict(groups=2, accept_image_fmap=True, codebook_dim=3),
    "groups_implicit": dict(groups=2, **QINCO),
    "groups_dropout": dict(groups=2, quantize_dropout=True),
}

Stack = ResidualVQ | GroupedResidualVQ


def build(case: str = "default", seed: int = 0, **more: Any) -> Stack:
    """The stack of a case, with codes of the size of the residuals; the same for the same seed."""
    torch.manual_seed(seed)
    options = {"dim": DIM, "num_quantizers": LEVELS, "codebook_size": CODES, **STACKS[case], **more}
    stack = GroupedResidualVQ(**options) if "groups" in options else ResidualVQ(**options)
    for index, layer in enumerate(layers_of(stack)):
        if layer._codebook.initialised and not (index and getattr(stack, "shared_codebook", False)):
            with torch.no_grad():
                codes = torch.randn(layer._codebook.embed.shape) * 0.7 ** (index % LEVELS)
                layer._codebook.set_codes(
                    nn.functional.normalize(codes, dim=-1) if layer.use_cosine_sim else codes
                )
    return stack


def layers_of(stack: Stack) -> list[Any]:
    """The levels of a stack, or of all groups."""
    stacks = stack.rvqs if isinstance(stack, GroupedResidualVQ) else [stack]
    return [layer for part in stacks for layer in part.layers]


def layout_of(stack: Stack) -> Any:
    return stack.rvqs[0].layout if isinstance(stack, GroupedResidualVQ) else stack.layout


def data(stack: Stack, step: int = 0) -> Tensor:
    layout = layout_of(stack)
    positions = {None: (LENGTH,), 4: (3, 4), 5: (2, 2, 3)}[layout.map_rank]
    shape = (BATCH, DIM, *positions) if layout.channel_first else (BATCH, *positions, DIM)
    return torch.randn(shape, generator=torch.Generator().manual_seed(100 + step))


def features_last(stack: Stack, x: Tensor) -> Tensor:
    return x.movedim(1, -1) if layout_of(stack).channel_first else x


def mask_of(stack: Stack, step: int = 0) -> Tensor:
    positions = layout_of(stack).positions(data(stack))
    generator = torch.Generator().manual_seed(7 + step)
    return torch.rand((BATCH, *positions), generator=generator) < 0.6


def train_step(stack: Stack, x: Tensor, **kwargs: Any) -> tuple[Any, Tensor]:
    """One forward, backward and plain gradient step on the parameters; returns the result and the gradient of x."""
    x = x.detach().clone().requires_grad_()
    result = stack(x, **kwargs)
    quantized, loss = result[0], result[-1] if len(result) == 2 else result[2]
    weight = torch.linspace(-1, 1, DIM)
    (loss.sum() + (features_last(stack, quantized).nan_to_num() * weight).sum()).backward()
    for parameter in stack.parameters():
        if parameter.grad is not None:
            parameter.data.sub_(parameter.grad, alpha=0.1)
            parameter.grad = None
    return result, torch.zeros_like(x) if x.grad is None else x.grad


def state(stack: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in stack.state_dict().items()}


def assert_same_state(
    stack: nn.Module, expected: dict[str, Tensor], tolerance: float = 0.0
) -> None:
    actual = state(stack)
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            actual[name],
            value,
            rtol=tolerance,
            atol=tolerance,
            equal_nan=True,
            msg=lambda text, name=name: f"{name}: {text}",
        )
