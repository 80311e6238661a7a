"""Every class of the package, in the configurations that the matrices run. A new class is added by one line.

A row describes how a module is made, and its input. The functions below give every matrix the same view of the
results: output, indices, loss, and the output that the indices decode to.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import torchvq

BATCH, LENGTH, DIM, CODES = 3, 12, 8, 16
TOKENS = (BATCH, LENGTH, DIM)
IMAGES = (BATCH, DIM, 3, 4)
LEVELS = [5, 5, 3]


class Row(NamedTuple):
    """One configuration of one class."""

    name: str  # of the class
    options: dict[str, Any]
    shape: tuple[int, ...] = TOKENS
    channel_axis: int = -1


class Seen(NamedTuple):
    """The results of a forward, under the same names for every class."""

    quantized: Tensor
    indices: Tensor
    loss: Tensor  # zero for a class without a loss


def _vq(shape: tuple[int, ...] = TOKENS, axis: int = -1, **options: Any) -> Row:
    return Row("VectorQuantize", dict(dim=DIM, codebook_size=CODES) | options, shape, axis)


def _rvq(shape: tuple[int, ...] = TOKENS, axis: int = -1, **options: Any) -> Row:
    more = dict(dim=DIM, codebook_size=CODES, num_quantizers=3)
    return Row("ResidualVQ", more | options, shape, axis)


def _fsq(name: str = "FSQ", shape: tuple[int, ...] = TOKENS, axis: int = -1, **options: Any) -> Row:
    return Row(name, dict(levels=LEVELS, dim=DIM) | options, shape, axis)


def _lfq(name: str = "LFQ", shape: tuple[int, ...] = TOKENS, axis: int = -1, **options: Any) -> Row:
    # Without a commitment loss latents may diverge, and the class warns.
    more = dict(dim=DIM, codebook_size=CODES, commitment_loss_weight=0.25)
    return Row(name, more | options, shape, axis)


def _coded(name: str, shape: tuple[int, ...] = TOKENS, axis: int = -1, **options: Any) -> Row:
    return Row(name, dict(dim=DIM, codebook_size=CODES) | options, shape, axis)


STACK: dict[str, Any] = dict(num_quantizers=3)
SCALES: dict[str, Any] = dict(kmeans_init=False, threshold_ema_dead_code=0)
GROUPS: dict[str, Any] = dict(num_quantizers=2, groups=2)
DROPOUT: dict[str, Any] = dict(num_quantizers=4, quantize_dropout=True)
LEARNABLE: dict[str, Any] = dict(learnable_codebook=True, ema_update=False)

ROWS: dict[str, Row] = {
    "vq": _vq(),
    "vq_cosine": _vq(use_cosine_sim=True),
    "vq_projections": _vq(codebook_dim=4),
    "vq_heads": _vq(heads=2, codebook_dim=4, separate_codebook_per_head=True),
    "vq_image": _vq(IMAGES, 1, accept_image_fmap=True),
    "vq_learnable": _vq(**LEARNABLE),
    "vq_kmeans": _vq(kmeans_init=True),
    "vq_dead_codes": _vq(threshold_ema_dead_code=2),
    "vq_affine": _vq(affine_param=True),
    "vq_orthogonal": _vq(orthogonal_reg_weight=0.5),
    "vq_diversity": _vq(codebook_diversity_loss_weight=0.2),
    "vq_cross_entropy": _vq(commitment_use_cross_entropy_loss=True),
    "vq_directional": _vq(directional_reparam=True, threshold_ema_dead_code=1e-3),
    "vq_sampling": _vq(stochastic_sample_codes=True),
    "residual_vq": _rvq(),
    "residual_vq_projections": _rvq(codebook_dim=4),
    "residual_vq_image": _rvq(IMAGES, 1, accept_image_fmap=True),
    "residual_vq_shared": _rvq(shared_codebook=True),
    "residual_vq_dropout": _rvq(**DROPOUT),
    "residual_vq_beam": _rvq(beam_size=3),
    "residual_vq_sampled_beam": _rvq(beam_size=3, stochastic_sample_codes=True),
    "residual_vq_implicit": _rvq(implicit_neural_codebook=True),
    "residual_vq_implicit_beam": _rvq(
        beam_size=3, implicit_neural_codebook=True, stochastic_sample_codes=True
    ),
    "grouped_residual_vq": Row("GroupedResidualVQ", dict(dim=DIM, codebook_size=CODES, **GROUPS)),
    "fsq": _fsq(),
    "fsq_bare": Row("FSQ", dict(levels=[5] * DIM)),
    "fsq_symmetric": _fsq(preserve_symmetry=True, noise_dropout=0.5),
    "fsq_hard_clamp": _fsq(bound_hard_clamp=True, preserve_symmetry=True),
    "fsq_rotation": _fsq(levels=[5] * 3, orthogonal_rotation=True),
    "fsq_image": _fsq(shape=IMAGES, axis=1, num_codebooks=2),
    "residual_fsq": _fsq("ResidualFSQ", **STACK),
    "residual_fsq_dropout": _fsq("ResidualFSQ", **DROPOUT),
    "grouped_residual_fsq": _fsq("GroupedResidualFSQ", **GROUPS),
    "lfq": _lfq(),
    "lfq_bare": Row("LFQ", dict(codebook_size=2**DIM, commitment_loss_weight=0.25)),
    "lfq_spherical": _lfq(spherical=True),
    "lfq_soft_clamp": _lfq(soft_clamp_input_value=3.0, num_codebooks=2),
    "lfq_softplus": _lfq(experimental_softplus_entropy_loss=True),
    "lfq_part_of_tokens": _lfq(frac_per_sample_entropy=0.5),
    "lfq_image": _lfq(shape=IMAGES, axis=1),
    "residual_lfq": _lfq("ResidualLFQ", **STACK),
    "residual_lfq_dropout": _lfq("ResidualLFQ", **DROPOUT),
    "grouped_residual_lfq": _lfq("GroupedResidualLFQ", **GROUPS),
    "evo_lfq": _lfq("EvoLFQ", pop_size=4),
    "fsp": _fsq("FSP"),
    "fsp_kurt": _fsq("FSP", vector_norm="kurt", act_name="normal"),
    "latent": _fsq("LatentQuantize", channel_first=False),
    "latent_image": _fsq("LatentQuantize", shape=IMAGES, axis=1),
    "latent_fixed": _fsq("LatentQuantize", channel_first=False, optimize_values=False),
    "latent_in_place": _fsq(
        "LatentQuantize", channel_first=False, in_place_codebook_optimizer=torch.optim.SGD
    ),
    "binary_mapper": Row("BinaryMapper", dict(bits=DIM)),
    "sim_vq": _coded("SimVQ"),
    "sim_vq_image": _coded("SimVQ", IMAGES, 1, channel_first=True, frozen_codebook_dim=4),
    "residual_sim_vq": _coded("ResidualSimVQ", **STACK),
    "residual_sim_vq_dropout": _coded("ResidualSimVQ", **DROPOUT),
    "residual_sim_vq_beam": _coded("ResidualSimVQ", **STACK, eval_beam_size=3),
    "residual_sim_vq_heads": _coded("ResidualSimVQ", **STACK, heads=2),
    "random_projection": _coded("RandomProjectionQuantizer", codebook_dim=4),
    "sequential": _coded("Sequential"),
    "hierarchical_vq": _coded(
        "HierarchicalVQ", IMAGES, 1, **SCALES, scales=(1, 2, (3, 4)), accept_image_fmap=True
    ),
    "hierarchical_vq_dropout": _coded(
        "HierarchicalVQ",
        **SCALES,
        scales=(1, 3, 6, LENGTH),
        channel_first=False,
        shared_codebook=False,
        share_quant_resi=2,
        nested_dropout=0.6,
    ),
}
"""The configurations, by name."""
# Rows whose options act only in training: in evaluation their graph equals that of another row.
TRAIN_OTHERWISE = {
    "vq_learnable", "vq_kmeans", "vq_dead_codes", "vq_orthogonal", "vq_diversity", "vq_cross_entropy", "vq_directional",
    "residual_vq_dropout", "residual_fsq_dropout", "residual_lfq_dropout", "residual_sim_vq_dropout", "lfq_softplus",
    "lfq_part_of_tokens", "hierarchical_vq_dropout",
}  # fmt: skip


def construct(package: Any, name: str, options: dict[str, Any]) -> nn.Module:
    """A class of a package with its options, among user modules if it needs any."""
    if name == "EvoLFQ":
        return package.EvoLFQ(nn.Linear(DIM, DIM), nn.Linear(DIM, DIM), **options)
    if name == "Sequential":
        return package.Sequential(nn.Identity(), package.VectorQuantize(**options), nn.ReLU())
    return getattr(package, name)(**options)


def build(row: str, seed: int = 0, **more: Any) -> nn.Module:
    """The module of a row, with codes of the size of the data; the same for the same seed."""
    torch.manual_seed(seed)
    name = ROWS[row].name
    module = construct(torchvq, name, ROWS[row].options | more)
    if name == "EvoLFQ":
        return module
    for part in module.modules():
        if isinstance(part, torchvq.VectorQuantize) and part._codebook.initted.item():
            codes = torch.randn(part._codebook.embed.shape)
            part.codebook = nn.functional.normalize(codes, dim=-1) if part.use_cosine_sim else codes
    return module


def data(row: str, step: int = 0, batch: int = BATCH, dtype: torch.dtype = torch.float32) -> Tensor:
    """Input for a step, with values that every floating dtype represents exactly, so that tokens can be compared."""
    shape = (batch, *ROWS[row].shape[1:])
    x = torch.randn(shape, generator=torch.Generator().manual_seed(100 + step))
    return x.bfloat16().half().to(dtype)


def forward(call: Callable[..., Any], x: Tensor, **kwargs: Any) -> Seen:
    """A forward of any class; ``call`` is the module or a compiled version of it."""
    result = call(x, **kwargs)
    if isinstance(result, (torchvq.outputs.BinaryMapperOutput,)):
        # BinaryMapper's codes are one-hot.
        return Seen(result.one_hot, result.one_hot.argmax(-1), result.aux_kl_loss)
    if isinstance(result, Tensor):
        # A class that returns only indices: the input takes the place of the output, NaN for non-finite tokens.
        real = result.ge(0).unsqueeze(-1)
        return Seen(
            torch.where(real, x + 0 * x.sum(-1, keepdim=True), 0), result, x.new_zeros(()).float()
        )
    quantized, indices, *rest = result
    if isinstance(indices, tuple):
        # The indices of all scales, one after the other.
        indices = torch.cat([scale.flatten(1) for scale in indices], 1)
    return Seen(quantized, indices, rest[0] if rest else quantized.new_zeros(()).float())


def decode(module: nn.Module, indices: Tensor) -> Tensor | None:
    """The output for indices; None for a class whose output is not a function of them."""
    if isinstance(module, (torchvq.BinaryMapper, torchvq.RandomProjectionQuantizer)):
        return None
    if isinstance(module, torchvq.Sequential):
        return module.fns[2](module.quantizer.get_output_from_indices(indices))
    if isinstance(module, torchvq.HierarchicalVQ):
        shapes = module.level_shapes
        scales = indices.split([math.prod(shape) for shape in shapes], 1)
        return module.get_output_from_indices(
            [scale.unflatten(1, shape) for scale, shape in zip(scales, shapes, strict=True)]
        )
    if isinstance(module, torchvq.EvoLFQ):
        return module.decoder(module.lfq.indices_to_codes(indices))
    if hasattr(module, "get_output_from_indices"):
        return module.get_output_from_indices(indices)
    return module.indices_to_codes(indices)


def learns(module: nn.Module) -> bool:
    """Whether a training forward itself moves codes or values."""
    return any(isinstance(part, torchvq.VectorQuantize) for part in module.modules()) or (
        getattr(module, "in_place_codebook_optimizer", None) is not None
    )


def state(module: nn.Module) -> dict[str, Tensor]:
    """A copy of everything a checkpoint holds."""
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def positions(row: str, batch: int = BATCH) -> tuple[int, ...]:
    """The shape of a mask."""
    shape = (batch, *ROWS[row].shape[1:])
    return shape[:-1] if ROWS[row].channel_axis == -1 else (shape[0], *shape[2:])
