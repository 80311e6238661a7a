"""Rows of VectorQuantize that an oracle decides: random options, and defects of the reference that we do not repeat."""

from __future__ import annotations

import torch

from . import oracles_vector_quantize as oracle
from .harness import Row
from .setup_vector_quantize import (
    BREAKDOWN,
    CHANNEL_FIRST,
    CODES,
    DIM,
    GUMBEL,
    IMAGE,
    LEARNABLE,
    SEPARATE,
    SHARED,
    bridge,
    frozen,
    mask,
    not_initialised,
    spread_codes,
    targets,
)

MASKED = dict(forward=lambda step: dict(mask=mask(step)))
NOTHING = torch.zeros(2, 6, dtype=torch.bool)
DIVERSITY = dict(codebook_diversity_loss_weight=0.5, codebook_diversity_temperature=2.0)
CROSS_ENTROPY = dict(commitment_use_cross_entropy_loss=True)


def all_counts(value: float):
    def prepare(module):
        spread_codes(module)
        module._codebook.cluster_size.fill_(value)
        module._codebook.embed_avg.copy_(module._codebook.embed * value)

    return prepare


def one_dead_code(module):
    """One dead code, and one token to replace it with, so that nothing is random."""
    all_counts(1000.0)(module)
    module._codebook.cluster_size[0, 3] = 0.5


def untouched(module):
    """As constructed."""


RANDOM = [
    Row("sampling", frozen(stochastic_sample_codes=True), oracle=oracle.sampling_frequencies),
    Row(
        "sampling, temperature per call",
        frozen(stochastic_sample_codes=True),
        forward=dict(sample_codebook_temp=0.4),
        oracle=oracle.sampling_frequencies,
    ),
    Row(
        "directional noise",
        dict(
            directional_reparam=True,
            directional_reparam_variance=0.25,
            threshold_ema_dead_code=1e-9,
        ),
        oracle=oracle.directional_noise,
    ),
    Row(
        "orthogonal, some codes",
        dict(orthogonal_reg_weight=1.0, orthogonal_reg_max_codes=3, codebook_size=6),
        oracle=oracle.orthogonal_over_a_subset,
    ),
    Row(
        "k-means",
        dict(kmeans_init=True, kmeans_iters=60, codebook_size=5),
        shape=(1, 80, DIM),
        prepare=not_initialised,
        oracle=oracle.kmeans_fixed_point,
    ),
    Row(
        "expiry on demand",
        dict(threshold_ema_dead_code=2),
        shape=(1, 3 * CODES, DIM),
        prepare=all_counts(0.0),
        oracle=oracle.expired_codes_become_tokens,
    ),
]

DIFFERENT = [
    # masks and empties
    Row(
        "masked, cosine",
        dict(use_cosine_sim=True),
        **MASKED,
        differs="masked commitment in the raw space",
        oracle=oracle.masked_commitment,
    ),
    Row(
        "masked, projected",
        dict(codebook_dim=4),
        **MASKED,
        differs="masked commitment fails behind a projection",
        oracle=oracle.masked_commitment,
    ),
    Row(
        "masked, shared heads",
        SHARED,
        **MASKED,
        differs="masked commitment fails with heads",
        oracle=oracle.masked_commitment,
    ),
    Row(
        "masked, separate heads",
        SEPARATE,
        **MASKED,
        differs="masked commitment fails with heads",
        oracle=oracle.masked_commitment,
    ),
    Row(
        "lengths, channel first",
        CHANNEL_FIRST,
        shape=(2, DIM, 6),
        forward=dict(lens=torch.tensor([5, 2])),
        differs="lengths are measured along the features",
        oracle=oracle.masked_commitment,
    ),
    Row(
        "everything masked",
        forward=dict(mask=NOTHING),
        differs="NaN loss, and counts decay",
        oracle=oracle.empty_selection,
    ),
    Row(
        "everything masked, separate heads",
        SEPARATE,
        forward=dict(mask=NOTHING),
        differs="NaN loss, and counts decay",
        oracle=oracle.empty_selection,
    ),
    Row(
        "no tokens",
        shape=(2, 0, DIM),
        differs="NaN loss, and counts decay",
        oracle=oracle.empty_selection,
    ),
    Row(
        "no items",
        shape=(0, DIM),
        differs="NaN loss, and counts decay",
        oracle=oracle.empty_selection,
    ),
    Row(
        "non-finite token",
        differs="E: one NaN makes every code NaN",
        oracle=oracle.non_finite_token,
    ),
    # gradients
    Row(
        "rotation near zero",
        differs="wrong value and gradient of 1e6",
        oracle=oracle.rotation_near_zero,
    ),
    Row(
        "cross-entropy commitment with EMA",
        CROSS_ENTROPY,
        differs="backward sees updated codes",
        oracle=oracle.backward_uses_forward_codes,
    ),
    Row(
        "diversity with EMA",
        DIVERSITY,
        shape=(12, DIM),
        differs="backward sees updated codes",
        oracle=oracle.backward_uses_forward_codes,
    ),
    Row(
        "Gumbel gradient with EMA",
        GUMBEL,
        differs="backward sees updated codes",
        oracle=oracle.backward_uses_forward_codes,
    ),
    Row(
        "bridge with EMA",
        bridge(decay=0.2),
        differs="backward sees updated codes",
        oracle=oracle.bridge_uses_forward_codes,
    ),
    # losses
    Row(
        "diversity of an image",
        frozen(**DIVERSITY, **IMAGE),
        shape=(2, DIM, 3, 4),
        differs="positions are not averaged",
        oracle=oracle.diversity_over_all_tokens,
    ),
    Row(
        "diversity of a sequence",
        frozen(**DIVERSITY),
        differs="positions are not averaged",
        oracle=oracle.diversity_over_all_tokens,
    ),
    Row(
        "cross-entropy commitment, image",
        frozen(**CROSS_ENTROPY, **IMAGE),
        shape=(2, DIM, 3, 4),
        differs="target and logits have different shapes",
        oracle=oracle.cross_entropy_of_any_layout,
    ),
    Row(
        "cross-entropy commitment, single tokens",
        frozen(**CROSS_ENTROPY),
        shape=(12, DIM),
        differs="target and logits have different shapes",
        oracle=oracle.cross_entropy_of_any_layout,
    ),
    Row(
        "loss is not state",
        differs="E: the loss can be a buffer",
        oracle=oracle.loss_is_nobodys_state,
    ),
    Row(
        "loss is not state, no commitment",
        dict(commitment_weight=0.0),
        differs="E: the loss can be a buffer",
        oracle=oracle.loss_is_nobodys_state,
    ),
    # decoding and access
    Row(
        "decode, affine",
        dict(affine_param=True),
        differs="raw codes",
        oracle=oracle.decode_equals_output,
    ),
    Row("decode, bridge", bridge(), differs="raw codes", oracle=oracle.decode_equals_output),
    Row(
        "decode, shared heads",
        SHARED,
        differs="heads not merged",
        oracle=oracle.decode_equals_output,
    ),
    Row(
        "decode, shared heads without projection",
        dict(heads=2, codebook_dim=4),
        differs="heads not merged",
        oracle=oracle.decode_equals_output,
    ),
    Row(
        "decode, projected image",
        dict(codebook_dim=4, **IMAGE),
        shape=(2, DIM, 3, 4),
        differs="axes moved before the projection",
        oracle=oracle.decode_equals_output,
    ),
    Row(
        "decode, projected channel first",
        dict(codebook_dim=4, **CHANNEL_FIRST),
        shape=(2, DIM, 6),
        differs="axes moved before the projection",
        oracle=oracle.decode_equals_output,
    ),
    Row(
        "decode, masked",
        **MASKED,
        differs="-1 is the last code",
        oracle=oracle.decode_equals_output,
    ),
    Row("decode, -1", differs="-1 is the last code", oracle=oracle.masked_tokens_decode_to_zero),
    Row(
        "decode, bad index",
        differs="E: negative indices decode",
        oracle=oracle.decode_rejects_bad_indices,
    ),
    Row(
        "codebook is set",
        differs="EMA restores the old codes",
        oracle=oracle.set_codebook_stays,
    ),
    Row(
        "codebook is set, learnable",
        LEARNABLE,
        differs="fails on parameters",
        oracle=oracle.set_codebook_stays,
    ),
    Row(
        "affine, eval",
        dict(affine_param=True),
        differs="statistics change in eval",
        oracle=oracle.eval_changes_no_buffer,
    ),
    Row(
        "affine, trained state",
        dict(affine_param=True),
        prepare=untouched,
        differs="a strict load fails",
        oracle=oracle.stepped_state_loads,
    ),
    # codebook dynamics
    Row(
        "k-means, few tokens",
        dict(kmeans_init=True),
        shape=(1, 5, DIM),
        prepare=not_initialised,
        differs="empty clusters at the origin",
        oracle=oracle.kmeans_with_few_tokens,
    ),
    Row(
        "used codes stay",
        dict(threshold_ema_dead_code=2),
        prepare=all_counts(1.0),
        differs="codes just used are replaced",
        oracle=oracle.used_codes_are_not_replaced,
    ),
    Row(
        "unused codes do not fade",
        dict(ema_update=True),
        differs="unused codes drift to zero",
        oracle=oracle.unused_codes_do_not_fade,
    ),
    # layouts
    *(
        Row(
            f"given indices, {name}",
            frozen(**kwargs),
            shape=shape,
            forward=dict(indices=targets(given, 0)),
            differs="un-projected, un-merged output",
            oracle=oracle.given_indices_in_any_layout,
        )
        for name, kwargs, shape, given in (
            ("projected", dict(codebook_dim=4), (2, 6, DIM), (2, 6)),
            ("shared heads", SHARED, (2, 6, DIM), (2, 6, 2)),
            ("channel first", CHANNEL_FIRST, (2, DIM, 6), (2, 6)),
        )
    ),
    Row(
        "decoded shared heads",
        frozen(**SHARED),
        differs="heads of a shared codebook are not merged",
        oracle=oracle.decoded_heads_are_merged,
    ),
    Row(
        "codebook behind a bridge",
        bridge(freeze_codebook=True),
        differs="the codebook reads as its raw codes",
        oracle=oracle.effective_codebook,
    ),
    Row(
        "regularised codes under EMA",
        dict(orthogonal_reg_weight=2.0),
        differs="EMA erases the optimizer's steps",
        oracle=oracle.optimizer_steps_survive,
    ),
    Row(
        "learnable codes under EMA",
        dict(codebook_size=1, **LEARNABLE),  # of which no step moves tokens to another
        forward=dict(ema_update=True),
        differs="EMA erases the optimizer's steps",
        oracle=oracle.optimizer_steps_survive,
    ),
    # precision
    Row(
        "far from the origin",
        dict(dim=64, codebook_size=64),
        shape=(1, 256, 64),
        differs="distances by expansion in float32",
        oracle=oracle.nearest_far_from_the_origin,
    ),
    Row("bfloat16 module", differs="EMA state in bfloat16", oracle=oracle.state_stays_float32),
    Row(
        "bfloat16 input, float32 projection",
        dict(codebook_dim=4),
        dtype=torch.bfloat16,
        differs="A2: dtype error at the projection",
        oracle=oracle.any_input_dtype,
    ),
    Row(
        "float64 input, float32 projection",
        dict(codebook_dim=4),
        dtype=torch.float64,
        differs="A2: dtype error at the projection",
        oracle=oracle.any_input_dtype,
    ),
    Row(
        "CPU autocast",
        dict(dim=32, codebook_size=256),
        shape=(4, 512, 32),
        differs="the distance is a bfloat16 matmul",
        oracle=oracle.autocast_changes_nothing,
    ),
    Row(
        "synchronised in one process",
        dict(sync_codebook=True),
        differs="needs a process group",
        oracle=oracle.one_process_needs_no_group,
    ),
    Row(
        "affine, synchronised in one process",
        dict(affine_param=True, sync_affine_param=True),
        differs="needs a process group",
        oracle=oracle.one_process_needs_no_group,
    ),
]

# With the switch, these rows give the reference's numbers, for users who need their old curves.
COMPATIBLE = [
    Row("compatible, masked cosine", dict(use_cosine_sim=True), **MASKED),
    Row(
        "compatible, diversity of an image",
        frozen(**DIVERSITY, **IMAGE),
        shape=(2, DIM, 3, 4),
        forward=BREAKDOWN,
    ),
    Row("compatible, rotation near zero", {}, data=lambda x: x * 1e-7, steps=1),
    Row(
        "compatible, dead code",
        dict(threshold_ema_dead_code=2),
        shape=(1, 1, DIM),
        steps=1,
        prepare=one_dead_code,
    ),
    Row(
        "compatible, dead code, cosine",
        dict(threshold_ema_dead_code=2, use_cosine_sim=True),
        shape=(1, 1, DIM),
        steps=1,
        prepare=one_dead_code,
    ),
    Row(
        "compatible, dead code, learnable",
        dict(threshold_ema_dead_code=2, **LEARNABLE),
        shape=(1, 1, DIM),
        steps=1,
        prepare=one_dead_code,
    ),
]
