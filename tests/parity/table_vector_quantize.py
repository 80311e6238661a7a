"""VectorQuantize rows that must give the reference's numbers.

docs/design/reference-behaviour.md says what each option does. Every row takes three training steps and one eval forward
unless it says otherwise.
"""

from __future__ import annotations

import torch

from .harness import Row
from .setup_vector_quantize import (
    BREAKDOWN,
    CHANNEL_FIRST,
    CODES,
    DIM,
    GUMBEL,
    IMAGE,
    LEARNABLE,
    QUIET_DIRECTION,
    READ,
    SEPARATE,
    SHARED,
    STRAIGHT,
    VOLUME,
    bridge,
    codebook,
    frozen,
    mask,
    per_token_codes,
    scattered_mask,
    sgd,
    targets,
)
from .table_vector_quantize_learning import LEARNED, UPDATES

ESTIMATORS = [
    Row("defaults", probes=READ, forward=BREAKDOWN),
    Row("straight-through", STRAIGHT),
    Row("rotation trick by name", dict(rotation_trick=True)),
    Row("rotation trick, cosine", dict(rotation_trick=True, use_cosine_sim=True)),
    Row(
        "straight-through, cosine",
        dict(rotation_trick=False, use_cosine_sim=True),
        probes=READ,
        forward=BREAKDOWN,
    ),
    Row("rotation trick, small inputs", data=lambda x: x * 3e-2),
    Row("rotation trick, large inputs", data=lambda x: x * 1e2),
    Row("synchronised update", dict(sync_update_v=0.3, **STRAIGHT, **LEARNABLE)),
    Row("synchronised update, rotation", dict(sync_update_v=0.7, **LEARNABLE)),
    Row("synchronised update of one", dict(sync_update_v=1.0, **LEARNABLE)),
    Row("directional", QUIET_DIRECTION, forward=BREAKDOWN),
    Row("directional, masked", QUIET_DIRECTION, forward=lambda step: dict(mask=mask(step))),
    Row("directional, projected", dict(codebook_dim=4, **QUIET_DIRECTION)),
    Row("directional, separate heads", dict(**SEPARATE, **QUIET_DIRECTION)),
    Row("directional, synchronised", dict(sync_update_v=0.4, **QUIET_DIRECTION)),
    Row(
        "directional, no gradient to input", dict(route_gradients_to_input=False, **QUIET_DIRECTION)
    ),
    Row(
        "directional, codes by EMA",
        dict(learnable_codebook=False, ema_update=True, **QUIET_DIRECTION),
    ),
    Row("no gradient to input", dict(route_gradients_to_input=False)),
    Row("no gradient to input, learnable", dict(route_gradients_to_input=False, **LEARNABLE)),
    Row("no gradient to input, projected", dict(route_gradients_to_input=False, codebook_dim=4)),
    Row(
        "no gradient to input, learnable, frozen",
        frozen(route_gradients_to_input=False, **LEARNABLE),
    ),
    # An input that takes no gradient leaves the output's to codes that are parameters.
    Row("codes take the gradient", LEARNABLE, input_grad=False),
    Row(
        "codes take the gradient, straight-through", dict(**STRAIGHT, **LEARNABLE), input_grad=False
    ),
    Row("codes take the gradient, frozen", frozen(**LEARNABLE), input_grad=False),
    Row(
        "codes take the gradient, synchronised",
        dict(sync_update_v=0.3, **LEARNABLE),
        input_grad=False,
    ),
    Row(
        "codes take the gradient, separate heads",
        dict(heads=2, codebook_dim=4, separate_codebook_per_head=True, **LEARNABLE),
        input_grad=False,
    ),
    Row("codes take the gradient, bridge", bridge(), input_grad=False),
    Row(
        "codes take the gradient, orthogonal",
        dict(orthogonal_reg_weight=2.0, ema_update=False),
        input_grad=False,
    ),
    Row("codes take the gradient, topk", LEARNABLE, input_grad=False, forward=dict(topk=2)),
    Row(
        "codes take the gradient, masked",
        LEARNABLE,
        input_grad=False,
        forward=lambda step: dict(mask=mask(step)),
    ),
    Row(
        "codes take the gradient, given indices",
        LEARNABLE,
        input_grad=False,
        forward=lambda step: dict(indices=targets((2, 6), step)),
    ),
    Row("codes take the gradient, projected", dict(codebook_dim=4, **LEARNABLE), input_grad=False),
    Row("projected input without gradient", dict(codebook_dim=4), input_grad=False),
    Row(
        "Gumbel gradient, projected input without gradient",
        frozen(codebook_dim=4, straight_through=True, rotation_trick=False),
        input_grad=False,
    ),
    Row(
        "codes take the gradient, Gumbel",
        dict(orthogonal_reg_weight=2.0, ema_update=False, **GUMBEL),
        input_grad=False,
    ),
    Row("Gumbel gradient", frozen(**GUMBEL)),
    Row("Gumbel gradient, temperature 2", frozen(sample_codebook_temp=2.0, **GUMBEL)),
    Row(
        "Gumbel gradient, temperature per call",
        frozen(**GUMBEL),
        forward=dict(sample_codebook_temp=0.5),
    ),
    Row("Gumbel gradient, cosine", frozen(use_cosine_sim=True, **GUMBEL)),
    Row("Gumbel gradient, separate heads", frozen(**SEPARATE, **GUMBEL)),
    Row("Gumbel routed to input", dict(straight_through=True, rotation_trick=False)),
    Row(
        "sampling at temperature zero",
        dict(stochastic_sample_codes=True),
        forward=dict(sample_codebook_temp=0.0),
    ),
    Row("sampling, eval only", dict(stochastic_sample_codes=True), steps=0),
    Row("temperature without sampling", forward=dict(sample_codebook_temp=5.0)),
]

SHAPES = [
    Row("codebook_dim", dict(codebook_dim=4), probes=READ, forward=BREAKDOWN),
    Row("codebook_dim equal to dim", dict(codebook_dim=DIM)),
    Row("layer norm after projection", dict(codebook_dim=4, layernorm_after_project_in=True)),
    Row("layer norm without projection", dict(layernorm_after_project_in=True)),
    Row("projection, cosine", dict(codebook_dim=4, use_cosine_sim=True)),
    Row(
        "heads, shared codebook",
        SHARED,
        forward=BREAKDOWN,
        probes=dict(codebook=codebook),
    ),
    Row("heads without projection", dict(heads=2, codebook_dim=4)),
    Row("heads wider than dim", dict(heads=2)),
    Row("heads, separate codebooks", SEPARATE, probes=READ, forward=BREAKDOWN),
    Row("heads, separate, cosine", dict(use_cosine_sim=True, **SEPARATE), probes=READ),
    Row("heads, shared, cosine", dict(use_cosine_sim=True, **SHARED)),
    Row("heads, layer norm", dict(layernorm_after_project_in=True, **SEPARATE)),
    Row(
        "separate codebooks with one head",
        dict(separate_codebook_per_head=True),
        probes=dict(codebook=codebook),
    ),
    Row("single tokens", shape=(12, DIM), probes=READ),
    Row("single tokens, heads", SHARED, shape=(12, DIM)),
    Row("single tokens, separate heads", SEPARATE, shape=(12, DIM), probes=READ),
    Row("single tokens, channel first", CHANNEL_FIRST, shape=(12, DIM)),
    Row("channel first", CHANNEL_FIRST, shape=(2, DIM, 6), probes=READ),
    Row("channel first, projected", dict(codebook_dim=4, **CHANNEL_FIRST), shape=(2, DIM, 6)),
    Row("channel first, heads", dict(**SHARED, **CHANNEL_FIRST), shape=(2, DIM, 6)),
    Row("image", IMAGE, shape=(2, DIM, 3, 4), probes=READ),
    Row("image, channel_last False", dict(**IMAGE, **CHANNEL_FIRST), shape=(2, DIM, 3, 4)),
    Row("image, projected", dict(codebook_dim=4, **IMAGE), shape=(2, DIM, 3, 4)),
    Row("image, shared heads", dict(**SHARED, **IMAGE), shape=(2, DIM, 3, 4)),
    Row("image, separate heads", dict(**SEPARATE, **IMAGE), shape=(2, DIM, 3, 4)),
    Row("image, cosine", dict(use_cosine_sim=True, **IMAGE), shape=(2, DIM, 3, 4)),
    Row("volume", VOLUME, shape=(2, DIM, 2, 3, 2), probes=READ),
    Row("volume, separate heads", dict(**SEPARATE, **VOLUME), shape=(2, DIM, 2, 3, 2)),
    Row("one code", dict(codebook_size=1)),
    Row("one feature", dict(dim=1), shape=(2, 6, 1)),
    Row("one feature, rotation by name", dict(dim=1, rotation_trick=True), shape=(2, 6, 1)),
    Row("one feature per head", dict(heads=DIM, codebook_dim=1, separate_codebook_per_head=True)),
    Row("one token", shape=(1, 1, DIM)),
    Row("more tokens than a block", dict(codebook_size=37), shape=(3, 171, DIM), steps=2),
    Row("non-contiguous input", shape=(DIM, 6, 2), data=lambda x: x.permute(2, 1, 0)),
    Row("repeated rows", data=lambda x: x[:, :1].expand(-1, 6, -1)),
    Row("input without gradient", input_grad=False),
    # The reference's evaluation loss is a float32 zero; ours has the dtype of the other float64 losses.
    Row("float64 input", dtype=torch.float64, evaluate=False),
    # The reference computes estimator and loss in the input's precision; ours stay in float32.
    Row("bfloat16 input", STRAIGHT, dtype=torch.bfloat16, tolerance=2e-2),
    Row("float16 input", STRAIGHT, dtype=torch.float16, tolerance=3e-3),
]

LOSSES = [
    Row("commitment weight", dict(commitment_weight=0.25), forward=BREAKDOWN),
    Row("no commitment", dict(commitment_weight=0.0), forward=BREAKDOWN),
    Row(
        "cross-entropy commitment, frozen",
        frozen(commitment_use_cross_entropy_loss=True),
        forward=BREAKDOWN,
    ),
    Row(
        "cross-entropy commitment, cosine",
        frozen(commitment_use_cross_entropy_loss=True, use_cosine_sim=True),
    ),
    Row(
        "cross-entropy commitment, learnable",
        dict(commitment_use_cross_entropy_loss=True, **LEARNABLE),
    ),
    Row(
        "cross-entropy commitment, masked",
        frozen(commitment_use_cross_entropy_loss=True, commitment_weight=0.5),
        forward=lambda step: dict(mask=mask(step)),
    ),
    Row(
        "cross-entropy commitment, shared heads",
        frozen(commitment_use_cross_entropy_loss=True, **SHARED),
    ),
    Row(
        "cross-entropy commitment, separate heads",
        frozen(commitment_use_cross_entropy_loss=True, **SEPARATE),
    ),
    # One step, because in the second the reference's moving average discards the optimizer's step.
    Row("orthogonal", dict(orthogonal_reg_weight=2.0), forward=BREAKDOWN, steps=1),
    Row("orthogonal, no EMA", dict(orthogonal_reg_weight=2.0, ema_update=False), forward=BREAKDOWN),
    Row("orthogonal, cosine", dict(orthogonal_reg_weight=2.0, use_cosine_sim=True), steps=1),
    Row("orthogonal, shared heads", dict(orthogonal_reg_weight=2.0, **SHARED), steps=1),
    Row("orthogonal, separate heads", dict(orthogonal_reg_weight=2.0, **SEPARATE), steps=1),
    Row("orthogonal, frozen", frozen(orthogonal_reg_weight=2.0)),
    Row("orthogonal, learnable", dict(orthogonal_reg_weight=2.0, **LEARNABLE), forward=BREAKDOWN),
    Row(
        "orthogonal, active codes",
        dict(orthogonal_reg_weight=2.0, orthogonal_reg_active_codes_only=True),
        forward=BREAKDOWN,
        steps=1,
    ),
    Row(
        "orthogonal, active codes, shared heads",
        dict(orthogonal_reg_weight=2.0, orthogonal_reg_active_codes_only=True, **SHARED),
        steps=1,
    ),
    Row(
        "orthogonal, more codes allowed than there are",
        dict(orthogonal_reg_weight=2.0, orthogonal_reg_max_codes=CODES),
        steps=1,
    ),
    # One position per item: then averages over the batch and over all tokens agree.
    Row(
        "diversity, one position",
        frozen(codebook_diversity_loss_weight=0.5, codebook_diversity_temperature=1.0),
        shape=(12, DIM),
        forward=BREAKDOWN,
    ),
    Row(
        "diversity, default temperature",
        frozen(codebook_diversity_loss_weight=0.5),
        shape=(12, 1, DIM),
    ),
    Row(
        "diversity, cosine",
        frozen(
            codebook_diversity_loss_weight=0.5,
            codebook_diversity_temperature=3.0,
            use_cosine_sim=True,
        ),
        shape=(12, DIM),
    ),
    Row(
        "compatible, diversity, masked",
        frozen(codebook_diversity_loss_weight=0.5, codebook_diversity_temperature=1.0),
        forward=lambda step: dict(mask=mask(step), **BREAKDOWN),
    ),
    Row(
        "compatible, diversity, masked, separate heads",
        frozen(
            codebook_diversity_loss_weight=0.5,
            codebook_diversity_temperature=1.0,
            commitment_weight=0.0,
            heads=2,
            codebook_dim=4,
            separate_codebook_per_head=True,
        ),
        forward=lambda step: dict(mask=mask(step), **BREAKDOWN),
    ),
    Row(
        "compatible, diversity, masked, projections",
        frozen(
            codebook_diversity_loss_weight=0.5,
            codebook_diversity_temperature=1.0,
            commitment_weight=0.0,
            codebook_dim=4,
        ),
        forward=lambda step: dict(mask=mask(step), **BREAKDOWN),
    ),
    Row(
        "diversity, learnable",
        dict(codebook_diversity_loss_weight=0.5, codebook_diversity_temperature=1.0, **LEARNABLE),
        shape=(12, DIM),
    ),
    Row(
        "diversity, shared heads",
        frozen(codebook_diversity_loss_weight=0.5, codebook_diversity_temperature=1.0, **SHARED),
        shape=(12, DIM),
    ),
    Row(
        "all losses",
        dict(
            codebook_diversity_loss_weight=0.5,
            codebook_diversity_temperature=1.0,
            orthogonal_reg_weight=2.0,
            commitment_weight=0.25,
            **LEARNABLE,
        ),
        shape=(12, DIM),
        forward=BREAKDOWN,
    ),
]

SELECTIONS = [
    Row("masked", forward=lambda step: dict(mask=mask(step), **BREAKDOWN)),
    Row("masked, scattered", forward=lambda step: dict(mask=scattered_mask(step))),
    Row("masked, nothing hidden", forward=dict(mask=torch.ones(2, 6, dtype=torch.bool))),
    Row("masked, one item empty", forward=dict(mask=torch.arange(6) < torch.tensor([[5], [0]]))),
    Row(
        "masked, padding kept",
        dict(return_zeros_for_masked_padding=False),
        forward=lambda step: dict(mask=mask(step)),
    ),
    Row(
        "masked, no commitment, cosine",
        dict(use_cosine_sim=True, commitment_weight=0.0),
        forward=lambda step: dict(mask=mask(step)),
    ),
    Row(
        "masked, no commitment, projected",
        dict(codebook_dim=4, commitment_weight=0.0),
        forward=lambda step: dict(mask=mask(step)),
    ),
    Row(
        "masked, no commitment, separate heads",
        dict(commitment_weight=0.0, **SEPARATE),
        forward=lambda step: dict(mask=mask(step)),
    ),
    Row(
        "masked, no commitment, shared heads",
        dict(commitment_weight=0.0, **SHARED),
        forward=lambda step: dict(mask=mask(step)),
    ),
    Row(
        "masked, projected, padding kept",
        dict(codebook_dim=4, commitment_weight=0.0, return_zeros_for_masked_padding=False),
        forward=lambda step: dict(mask=mask(step)),
    ),
    Row(
        "masked, channel first",
        CHANNEL_FIRST,
        shape=(2, DIM, 6),
        forward=lambda step: dict(mask=mask(step)),
    ),
    Row("masked, frozen", frozen(), forward=lambda step: dict(mask=mask(step))),
    Row(
        "masked, eval only, projected heads",
        SEPARATE,
        steps=0,
        forward=lambda step: dict(mask=mask(step)),
    ),
    Row("lengths", forward=dict(lens=torch.tensor([5, 2]))),
    Row("lengths, beyond the sequence", forward=dict(lens=torch.tensor([9, 2]))),
    Row(
        "lengths, padding kept",
        dict(return_zeros_for_masked_padding=False),
        forward=dict(lens=torch.tensor([5, 2])),
    ),
    Row("topk 1", forward=dict(topk=1)),
    Row("topk 3", forward=dict(topk=3, **BREAKDOWN)),
    Row("topk of all codes and more", forward=dict(topk=CODES + 3)),
    Row("topk, straight-through", STRAIGHT, forward=dict(topk=2)),
    Row("topk, cosine", dict(use_cosine_sim=True), forward=dict(topk=2)),
    Row("topk, projected", dict(codebook_dim=4), forward=dict(topk=2)),
    Row("topk, learnable", LEARNABLE, forward=dict(topk=2)),
    Row(
        "topk, weights",
        dict(commitment_weight=0.5, orthogonal_reg_weight=1.0),
        forward=dict(topk=2, **BREAKDOWN),
    ),
    Row(
        "topk, orthogonal, active codes only",
        dict(orthogonal_reg_weight=2.0, orthogonal_reg_active_codes_only=True),
        forward=dict(topk=2, **BREAKDOWN),
    ),
    # In evaluation the losses are unweighted here, and in training a scalar 0.
    Row("topk, no commitment", dict(commitment_weight=0.0), forward=dict(topk=2)),
    Row(
        "topk, eval only, in-place optimizer",
        dict(in_place_codebook_optimizer=sgd, **LEARNABLE),
        steps=0,
        forward=dict(topk=2, **BREAKDOWN),
    ),
    Row(
        "topk, active codes",
        dict(orthogonal_reg_weight=1.0, orthogonal_reg_active_codes_only=True, **LEARNABLE),
        forward=dict(topk=2, **BREAKDOWN),
    ),
    Row("topk, masked", forward=lambda step: dict(topk=2, mask=mask(step))),
    Row("topk, image", IMAGE, shape=(2, DIM, 3, 4), forward=dict(topk=2)),
    Row("topk, volume", VOLUME, shape=(2, DIM, 2, 3, 2), forward=dict(topk=2)),
    Row("topk, channel first", CHANNEL_FIRST, shape=(2, DIM, 6), forward=dict(topk=2)),
    Row("topk, single tokens", shape=(12, DIM), forward=dict(topk=2)),
    Row("topk, codes per token", forward=lambda step: dict(topk=2, **per_token_codes(step))),
    Row(
        "topk, sampling at temperature zero",
        dict(stochastic_sample_codes=True),
        forward=dict(topk=3, sample_codebook_temp=0.0),
    ),
    Row(
        "codes per token, shared heads",
        SHARED,
        forward=lambda step: per_token_codes(step, items=4, dim=3),
    ),
    Row(
        "codes per token, separate heads",
        SEPARATE,
        forward=lambda step: per_token_codes(step, heads=2, dim=3),
    ),
    Row(
        "codes per token, cross-entropy",
        frozen(commitment_use_cross_entropy_loss=True),
        forward=per_token_codes,
    ),
    Row(
        "codes per token, cross-entropy, cosine",
        frozen(commitment_use_cross_entropy_loss=True, use_cosine_sim=True),
        forward=per_token_codes,
    ),
    Row(
        "codes per token, given indices",
        frozen(),
        forward=lambda step: dict(indices=targets((2, 6), step), **per_token_codes(step)),
    ),
    Row(
        "codes per token, gumbel",
        frozen(straight_through=True, rotation_trick=False, route_gradients_to_input=False),
        forward=per_token_codes,
    ),
    Row(
        "compatible, codes per token, diversity",
        frozen(codebook_diversity_loss_weight=0.5, codebook_diversity_temperature=1.0),
        forward=per_token_codes,
    ),
    Row(
        "compatible, codes per token, diversity, cosine",
        frozen(
            codebook_diversity_loss_weight=0.5,
            codebook_diversity_temperature=3.0,
            use_cosine_sim=True,
        ),
        forward=per_token_codes,
    ),
    Row(
        "codes per token, sampling at temperature zero",
        dict(stochastic_sample_codes=True),
        forward=lambda step: dict(sample_codebook_temp=0.0, **per_token_codes(step)),
    ),
    Row("topk, eval only", STRAIGHT, steps=0, forward=dict(topk=2, **BREAKDOWN)),
    Row(
        "topk, masked, cosine",
        dict(use_cosine_sim=True),
        forward=lambda step: dict(topk=2, mask=mask(step)),
    ),
    Row("topk, threshold", dict(threshold_ema_dead_code=100), forward=dict(topk=2)),
    Row("given indices", frozen(), forward=lambda step: dict(indices=targets((2, 6), step))),
    Row(
        "given indices, cosine",
        frozen(use_cosine_sim=True),
        forward=lambda step: dict(indices=targets((2, 6), step)),
    ),
    Row(
        "given indices, learnable",
        LEARNABLE,
        forward=lambda step: dict(indices=targets((2, 6), step)),
    ),
    Row(
        "given indices, some ignored",
        frozen(),
        forward=lambda step: dict(indices=targets((2, 6), step) - 1),
    ),
]

SAME = ESTIMATORS + SHAPES + UPDATES + LEARNED + LOSSES + SELECTIONS
