"""Rows of the residual stacks that an oracle decides: random options, and defects of the reference that we do not
repeat.
"""

from __future__ import annotations

import torch

from . import oracles_residual_vq as oracle
from .harness import Row
from .setup_residual_vq import (
    DIM,
    DROPOUT,
    IMAGE,
    LEARNABLE,
    LEVELS,
    QINCO,
    STRAIGHT,
    bridge,
    dropped,
    mask,
    masked,
    not_initialised,
    sgd,
    targets,
    unit_codes,
)

NOTHING = torch.zeros(2, 6, dtype=torch.bool)
SHARED = dict(shared_codebook=True)
DIVEQ = dict(diveq=True)
GAIN = dict(differs="gain of the number of levels", oracle=oracle.output_gain_is_one)
LAYOUT = dict(differs="channel-first layouts fail", oracle=oracle.any_layout)


def row(name: str, kwargs=None, **more) -> Row:
    return Row(name, kwargs or {}, **more)


def quiet_diveq(**kwargs) -> dict:
    return dict(directional_reparam_variance=1e-18, **DIVEQ, **kwargs)


RANDOM = [
    row(
        "sampling",
        dict(stochastic_sample_codes=True, codebook_size=5),
        oracle=oracle.sampling_frequencies,
    ),
    row(
        "sampling, temperature per call",
        dict(stochastic_sample_codes=True, codebook_size=5),
        forward=dict(sample_codebook_temp=0.4),
        oracle=oracle.sampling_frequencies,
    ),
    row("diveq", DIVEQ, oracle=oracle.simulated_error),
    row("drawn depths", dict(num_quantizers=4, **DROPOUT), oracle=oracle.drawn_depths),
    row(
        "drawn depths, cutoff",
        dict(num_quantizers=6, quantize_dropout_cutoff_index=2, **DROPOUT),
        oracle=oracle.drawn_depths,
    ),
    row(
        "k-means on residuals",
        dict(kmeans_init=True, kmeans_iters=60, codebook_size=5),
        shape=(1, 80, DIM),
        prepare=not_initialised,
        oracle=oracle.kmeans_fixed_point,
    ),
]

RANDOM_GROUPED = [
    row("drawn depths of groups", dict(num_quantizers=4, **DROPOUT), oracle=oracle.drawn_depths),
]

DIFFERENT = [
    # gradients
    row("gain", STRAIGHT, **GAIN),
    row("gain of eight levels", dict(num_quantizers=8, **STRAIGHT), **GAIN),
    row("gain, learnable", dict(**STRAIGHT, **LEARNABLE), **GAIN),
    row("gain, shared codebook", dict(**STRAIGHT, **SHARED), **GAIN),
    row(
        "gain, cosine",
        dict(use_cosine_sim=True, **STRAIGHT),
        prepare=unit_codes,
        differs="gain of the number of levels",
        oracle=oracle.mean_of_normalized,
    ),
    row("gain, implicit", dict(**STRAIGHT, **QINCO), **GAIN),
    row("gain, dropout", dict(**STRAIGHT, **DROPOUT), forward=dropped, **GAIN),
    row("gain, fraction of the gradient", dict(quant_grad_frac=0.5, **STRAIGHT), **GAIN),
    row("gain, default", **GAIN),
    row(
        "mean rotation",
        dict(rotation_trick=True),
        differs="gain of the number of levels",
        oracle=oracle.mean_rotation,
    ),
    row(
        "commitment beside a gain of one",
        STRAIGHT,
        differs="gain of the number of levels",
        oracle=oracle.commitment_divided_by_levels,
    ),
    row(
        "gradient of an implicit codebook's condition",
        dict(**STRAIGHT, **QINCO),
        differs="gain of the level's number",
        oracle=oracle.implicit_condition_gain,
    ),
    # outputs
    row(
        "all codes in training",
        differs="E: looked up after the update",
        oracle=oracle.codes_sum_to_the_output,
    ),
    row(
        "all codes, shared codebook",
        SHARED,
        differs="E: looked up after the update",
        oracle=oracle.codes_sum_to_the_output,
    ),
    row(
        "masked, cosine",
        dict(use_cosine_sim=True),
        prepare=unit_codes,
        forward=masked,
        differs="masked commitment in the raw space",
        oracle=oracle.masked_is_selection,
    ),
    row(
        "everything masked",
        forward=dict(mask=NOTHING),
        differs="NaN loss, and counts decay",
        oracle=oracle.empty_selection,
    ),
    row(
        "everything masked, shared codebook",
        SHARED,
        forward=dict(mask=NOTHING),
        differs="NaN loss, and counts decay",
        oracle=oracle.empty_selection,
    ),
    row(
        "everything masked, implicit",
        QINCO,
        forward=dict(mask=NOTHING),
        differs="NaN loss",
        oracle=oracle.empty_selection,
    ),
    row(
        "no tokens",
        shape=(2, 0, DIM),
        differs="NaN loss, and counts decay",
        oracle=oracle.empty_selection,
    ),
    row(
        "non-finite token",
        differs="E: one NaN makes every code NaN",
        oracle=oracle.non_finite_token,
    ),
    row(
        "non-finite token, shared codebook",
        SHARED,
        differs="E: one NaN makes every code NaN",
        oracle=oracle.non_finite_token,
    ),
    # layouts
    row("image", IMAGE, shape=(2, DIM, 3, 4), **LAYOUT),
    row("image, projected", dict(codebook_dim=4, **IMAGE), shape=(2, DIM, 3, 4), **LAYOUT),
    row(
        "image, channel_last False",
        dict(channel_last=False, **IMAGE),
        shape=(2, DIM, 3, 4),
        **LAYOUT,
    ),
    row("volume", dict(accept_3d_fmap=True), shape=(2, DIM, 2, 3, 2), **LAYOUT),
    row("channel first", dict(channel_last=False), shape=(2, DIM, 6), **LAYOUT),
    row(
        "channel first, projected",
        dict(channel_last=False, codebook_dim=4),
        shape=(2, DIM, 6),
        **LAYOUT,
    ),
    row("two position axes", shape=(2, 2, 3, DIM), **LAYOUT),
    row(
        "heads",
        dict(heads=2, codebook_dim=4, separate_codebook_per_head=True),
        differs="heads are refused",
        oracle=oracle.two_heads,
    ),
    # given indices
    row(
        "given indices",
        forward=dict(indices=targets((2, 6, LEVELS))),
        differs="fails",
        oracle=oracle.cross_entropy_of_given_indices,
    ),
    row(
        "given indices, some absent",
        forward=dict(
            indices=targets((2, 6, LEVELS)).masked_fill(targets((2, 6, LEVELS), 1) < 5, -1)
        ),
        differs="fails",
        oracle=oracle.cross_entropy_of_given_indices,
    ),
    row(
        "given indices, image",
        IMAGE,
        shape=(2, DIM, 3, 4),
        forward=dict(indices=targets((2, 3, 4, LEVELS))),
        differs="fails",
        oracle=oracle.cross_entropy_of_given_indices,
    ),
    # decoding
    row(
        "decode, diveq",
        DIVEQ,
        differs="noise in evaluation",
        oracle=oracle.decode_equals_output,
    ),
    row(
        "decode, diveq, shared codebook",
        dict(**DIVEQ, **SHARED),
        differs="noise in evaluation",
        oracle=oracle.decode_equals_output,
    ),
    row(
        "decode, affine",
        dict(affine_param=True),
        differs="raw codes",
        oracle=oracle.decode_equals_output,
    ),
    row(
        "decode, implicit affine",
        dict(affine_param=True, **QINCO),
        differs="raw codes",
        oracle=oracle.decode_equals_output,
    ),
    Row("decode, bridge", bridge, differs="raw codes", oracle=oracle.decode_equals_output),
    row(
        "decode, projected padding",
        dict(codebook_dim=4),
        forward=masked,
        differs="padding decodes to the projection's bias",
        oracle=oracle.decode_equals_output,
    ),
    row(
        "decode, bad index",
        differs="E: negative indices decode",
        oracle=oracle.decode_rejects_bad_indices,
    ),
    row(
        "decode in training, shared codebook",
        dict(threshold_ema_dead_code=2, **SHARED),
        differs="codes change between levels",
        oracle=oracle.decode_in_training,
    ),
    # learning
    row(
        "frozen at construction",
        dict(freeze_codebook=True),
        differs="ignored",
        oracle=oracle.frozen_is_frozen,
    ),
    row(
        "frozen at construction, shared codebook",
        dict(freeze_codebook=True, **SHARED),
        differs="ignored",
        oracle=oracle.frozen_is_frozen,
    ),
    row(
        "frozen at construction, dead codes",
        dict(freeze_codebook=True, threshold_ema_dead_code=2),
        differs="ignored",
        oracle=oracle.frozen_is_frozen,
    ),
    row(
        "one update of a shared codebook",
        SHARED,
        differs="one decay for each level",
        oracle=oracle.one_shared_update,
    ),
    row(
        "one update of a shared codebook, masked",
        SHARED,
        forward=dict(mask=mask()),
        differs="one decay for each level",
        oracle=oracle.one_shared_update,
    ),
    row(
        "shared codebook, manual EMA",
        dict(manual_ema_update=True, **SHARED),
        differs="manual mode is ignored",
        oracle=oracle.manual_shared_update,
    ),
    row(
        "shared codebook, in-place optimizer",
        dict(in_place_codebook_optimizer=sgd, rotation_trick=False, **SHARED, **LEARNABLE),
        differs="the step is never made",
        oracle=oracle.shared_in_place_step,
    ),
    row(
        "k-means in evaluation",
        dict(kmeans_init=True, codebook_size=4),
        prepare=not_initialised,
        differs="evaluation initialises",
        oracle=oracle.evaluation_initialises_nothing,
    ),
    row(
        "k-means, few tokens",
        dict(kmeans_init=True),
        shape=(1, 5, DIM),
        prepare=not_initialised,
        differs="empty clusters at the origin",
        oracle=oracle.kmeans_with_few_tokens,
    ),
    row(
        "diveq, variance",
        quiet_diveq(),
        differs="the option is ignored",
        oracle=oracle.noise_of_the_given_variance,
    ),
    row(
        "loss is not state",
        dict(commitment_weight=1.0),
        differs="E: evaluation losses require grad after training",
        oracle=oracle.loss_is_nobodys_state,
    ),
    # precision
    row("bfloat16 module", differs="EMA state in bfloat16", oracle=oracle.state_stays_float32),
    row(
        "bfloat16 input, eight levels",
        dict(num_quantizers=8),
        shape=(2, 200, DIM),
        dtype=torch.bfloat16,
        differs="the residual is bfloat16",
        oracle=oracle.half_input_keeps_a_float32_residual,
    ),
    row(
        "bfloat16 input, float32 projection",
        dict(codebook_dim=4),
        dtype=torch.bfloat16,
        differs="A2: dtype error at the projection",
        oracle=oracle.any_input_dtype,
    ),
    row(
        "float64 input, float32 projection",
        dict(codebook_dim=4),
        dtype=torch.float64,
        differs="A2: dtype error at the projection",
        oracle=oracle.any_input_dtype,
    ),
    row(
        "CPU autocast",
        dict(dim=32, codebook_size=256),
        shape=(4, 512, 32),
        differs="the distance is a bfloat16 matmul",
        oracle=oracle.autocast_changes_nothing,
    ),
]

GROUPED_LAYOUT = dict(differs="channel-first layouts fail", oracle=oracle.any_layout_in_groups)

DIFFERENT_GROUPED = [
    row("gain of groups", STRAIGHT, **GAIN),
    row(
        "all codes of groups in training",
        differs="E: looked up after the update",
        oracle=oracle.codes_sum_to_the_output,
    ),
    row("groups, image", IMAGE, shape=(2, DIM, 3, 4), **GROUPED_LAYOUT),
    row("groups, channel first", dict(channel_last=False), shape=(2, DIM, 6), **GROUPED_LAYOUT),
    row(
        "groups, everything masked",
        forward=dict(mask=NOTHING),
        differs="NaN loss, and counts decay",
        oracle=lambda build, r: oracle.empty_selection(build, r),
    ),
    row(
        "groups, decode, diveq",
        DIVEQ,
        differs="noise in evaluation",
        oracle=oracle.decode_equals_output,
    ),
    row(
        "groups, frozen at construction",
        dict(freeze_codebook=True),
        differs="ignored",
        oracle=oracle.frozen_is_frozen,
    ),
]
