"""VectorQuantize rows of codebook learning that must give the reference's numbers.

docs/design/reference-behaviour.md says what each option does. Every row takes three training steps and one eval forward
unless it says otherwise.
"""

from __future__ import annotations

import torch

from .harness import Row
from .setup_vector_quantize import (
    BREAKDOWN,
    CODES,
    DIM,
    IMAGE,
    LEARNABLE,
    READ,
    SEPARATE,
    SHARED,
    STRAIGHT,
    adam,
    bridge,
    frozen,
    mask,
    not_initialised,
    per_token_codes,
    sgd,
    update_from,
    weight_by_size,
)

UPDATES = [
    Row("decay 0.5", dict(decay=0.5)),
    Row("decay 0.2", dict(decay=0.2), steps=2),
    Row("decay 1", dict(decay=1.0)),
    Row("eps 0.1", dict(eps=0.1)),
    Row("frozen at construction", frozen(), forward=BREAKDOWN),
    Row("frozen for a call", forward=lambda step: dict(freeze_codebook=step == 1)),
    Row("thawed for a call", frozen(), forward=lambda step: dict(freeze_codebook=step != 1)),
    Row("no EMA", dict(ema_update=False)),
    Row("no EMA for a call", forward=lambda step: dict(ema_update=step != 1)),
    Row("EMA for a call", dict(ema_update=False), forward=lambda step: dict(ema_update=step == 1)),
    Row("manual EMA, never applied", dict(manual_ema_update=True)),
    Row(
        "manual EMA",
        dict(manual_ema_update=True),
        after_step=lambda module, x: module._codebook.update_ema(),
    ),
    Row(
        "manual EMA, cosine",
        dict(manual_ema_update=True, use_cosine_sim=True),
        after_step=lambda module, x: module._codebook.update_ema(),
    ),
    Row("accumulated EMA", steps=4, forward=lambda step: dict(accum_ema_update=step % 3 != 2)),
    Row(
        "accumulated EMA, no update for a call",
        steps=4,
        forward=lambda step: dict(accum_ema_update=step < 2, ema_update=step != 0),
    ),
    Row(
        "accumulated EMA of dead codes alone",
        dict(threshold_ema_dead_code=1e-9, **LEARNABLE),
        steps=4,
        forward=lambda step: dict(accum_ema_update=step % 2 == 0),
    ),
    Row(
        "accumulated EMA, separate heads",
        SEPARATE,
        steps=4,
        forward=lambda step: dict(accum_ema_update=step % 2 == 0),
    ),
    Row(
        "accumulated EMA, masked",
        forward=lambda step: dict(accum_ema_update=step == 0, mask=mask(step)),
    ),
    Row(
        "EMA weight per code",
        forward=lambda step: dict(ema_update_weight=torch.linspace(0, 1, CODES)),
    ),
    Row(
        "EMA weight per code, batched",
        forward=lambda step: dict(ema_update_weight=torch.linspace(0, 1, CODES)[None]),
    ),
    Row(
        "EMA weight per head and code",
        SEPARATE,
        forward=lambda step: dict(
            ema_update_weight=torch.linspace(0, 1, 2 * CODES).reshape(2, CODES)
        ),
    ),
    Row("EMA weight number", forward=dict(ema_update_weight=0.25)),
    Row("EMA weight function", forward=dict(ema_update_weight=weight_by_size)),
    Row("nothing synchronised", dict(sync_codebook=False, sync_kmeans=False)),
    Row("update_ema_indices", steps=2, after_step=update_from("update_ema_indices")),
    Row("update_indices", steps=2, after_step=update_from("update_indices")),
    Row(
        "update_ema_indices, masked",
        steps=2,
        after_step=update_from("update_ema_indices", mask=mask()),
    ),
    Row(
        "update_ema_indices, cosine",
        dict(use_cosine_sim=True),
        steps=2,
        after_step=update_from("update_ema_indices"),
    ),
    Row(
        "update_ema_indices, projected",
        dict(codebook_dim=4),
        steps=2,
        after_step=update_from("update_ema_indices"),
    ),
    Row(
        "update_ema_indices, separate heads",
        SEPARATE,
        steps=2,
        after_step=update_from("update_ema_indices", shape=(2, 6, 2)),
    ),
    Row(
        "update_ema_indices, shared heads",
        SHARED,
        steps=2,
        after_step=update_from("update_ema_indices", shape=(2, 6, 2)),
    ),
    Row(
        "update_ema_indices, frozen",
        frozen(),
        steps=2,
        after_step=update_from("update_ema_indices"),
    ),
    Row(
        "update_ema_indices, no EMA",
        dict(ema_update=False),
        steps=2,
        after_step=update_from("update_ema_indices"),
    ),
    Row("threshold that no code falls below", dict(threshold_ema_dead_code=0.01)),
    Row("threshold, no EMA, no dead codes", dict(threshold_ema_dead_code=0.01, ema_update=False)),
    Row("threshold, learnable, no dead codes", dict(threshold_ema_dead_code=0.01, **LEARNABLE)),
    Row("threshold, frozen", frozen(threshold_ema_dead_code=100)),
    Row("threshold, eval only", dict(threshold_ema_dead_code=100), steps=0),
    Row(
        "expire_codes_ without a threshold",
        steps=1,
        after_step=lambda module, x: module.expire_codes_(x),
    ),
    Row("k-means with one code", dict(kmeans_init=True, codebook_size=1), prepare=not_initialised),
    Row(
        "k-means with one code, cosine",
        dict(kmeans_init=True, codebook_size=1, use_cosine_sim=True),
        prepare=not_initialised,
    ),
    Row(
        "k-means with one code, masked",
        dict(kmeans_init=True, codebook_size=1),
        prepare=not_initialised,
        forward=lambda step: dict(mask=mask(step)),
    ),
    Row(
        "k-means with one code per head",
        dict(kmeans_init=True, codebook_size=1, kmeans_iters=1, **SEPARATE),
        prepare=not_initialised,
    ),
    Row("EMA and projection train together", dict(codebook_dim=4, decay=0.9), steps=6),
]

LEARNED = [
    Row("learnable", LEARNABLE, probes=READ, forward=BREAKDOWN),
    Row("learnable, straight-through", dict(**STRAIGHT, **LEARNABLE)),
    Row("learnable, commitment weight", dict(commitment_weight=0.25, **LEARNABLE)),
    Row("learnable, no commitment", dict(commitment_weight=0.0, **LEARNABLE)),
    Row("learnable, projected", dict(codebook_dim=4, **LEARNABLE)),
    Row("learnable, shared heads", dict(**SHARED, **LEARNABLE)),
    Row("learnable, separate heads", dict(**SEPARATE, **LEARNABLE), probes=READ),
    Row("learnable, frozen", frozen(**LEARNABLE)),
    Row("learnable, masked", LEARNABLE, forward=lambda step: dict(mask=mask(step))),
    # Only in the first step, before an optimizer has moved the codes away from their averages.
    Row("learnable, EMA for a call", LEARNABLE, forward=lambda step: dict(ema_update=step == 0)),
    Row(
        "in-place optimizer", dict(in_place_codebook_optimizer=sgd, **LEARNABLE), forward=BREAKDOWN
    ),
    Row("in-place Adam", dict(in_place_codebook_optimizer=adam, **LEARNABLE), forward=BREAKDOWN),
    Row(
        "in-place, commitment weight",
        dict(in_place_codebook_optimizer=sgd, commitment_weight=0.25, **LEARNABLE),
    ),
    Row("in-place, projected", dict(in_place_codebook_optimizer=sgd, codebook_dim=4, **LEARNABLE)),
    Row("in-place, separate heads", dict(in_place_codebook_optimizer=sgd, **SEPARATE, **LEARNABLE)),
    Row(
        "in-place, masked",
        dict(in_place_codebook_optimizer=sgd, **LEARNABLE),
        forward=lambda step: dict(mask=mask(step)),
    ),
    # Averages and the sizes of dead codes follow the codes before the step.
    Row(
        "in-place, sizes of dead codes",
        dict(in_place_codebook_optimizer=sgd, threshold_ema_dead_code=1e-9, decay=0.9, **LEARNABLE),
    ),
    Row(
        "in-place, sizes of dead codes, masked",
        dict(in_place_codebook_optimizer=adam, threshold_ema_dead_code=1e-9, **LEARNABLE),
        forward=lambda step: dict(mask=mask(step)),
    ),
    Row("in-place, frozen", frozen(in_place_codebook_optimizer=sgd, **LEARNABLE)),
    Row(
        "in-place, manual",
        dict(in_place_codebook_optimizer=sgd, manual_in_place_optimizer_update=True, **LEARNABLE),
        forward=BREAKDOWN,
        after_step=lambda module, x: module.update_in_place_optimizer(),
    ),
    Row(
        "in-place, orthogonal codes",
        dict(in_place_codebook_optimizer=sgd, orthogonal_reg_weight=1.0, ema_update=False),
    ),
    Row(
        "in-place, orthogonal cosine codes",
        dict(
            in_place_codebook_optimizer=sgd,
            orthogonal_reg_weight=1.0,
            ema_update=False,
            use_cosine_sim=True,
        ),
        forward=BREAKDOWN,
    ),
    Row(
        "update_in_place_optimizer without one",
        steps=1,
        after_step=lambda module, x: module.update_in_place_optimizer(),
    ),
    Row("bridge", bridge(), forward=BREAKDOWN),
    Row("bridge, straight-through", bridge(rotation_trick=False)),
    Row("bridge, masked", bridge(), forward=lambda step: dict(mask=mask(step))),
    Row("bridge, topk", bridge(), forward=dict(topk=2)),
    Row(
        "bridge, separate heads", bridge(heads=2, codebook_dim=DIM, separate_codebook_per_head=True)
    ),
    Row("codes per token", forward=per_token_codes),
    Row(
        "codes per token, straight-through, no EMA",
        dict(ema_update=False, **STRAIGHT),
        forward=per_token_codes,
    ),
    Row("codes per token, cosine", dict(use_cosine_sim=True), forward=per_token_codes),
    Row("codes per token, learnable", LEARNABLE, forward=per_token_codes),
    Row(
        "codes per token, masked",
        forward=lambda step: dict(mask=mask(step), **per_token_codes(step)),
    ),
    Row("affine", dict(affine_param=True), evaluate=False, forward=BREAKDOWN, steps=4),
    Row(
        "affine, decays",
        dict(affine_param=True, affine_param_batch_decay=0.5, affine_param_codebook_decay=0.3),
        evaluate=False,
    ),
    Row("affine, separate heads", dict(affine_param=True, **SEPARATE), evaluate=False),
    Row("affine, shared heads", dict(affine_param=True, **SHARED), evaluate=False),
    Row(
        "affine, masked",
        dict(affine_param=True),
        evaluate=False,
        forward=lambda step: dict(mask=mask(step)),
    ),
    Row("affine, learnable", dict(affine_param=True, **LEARNABLE), evaluate=False),
    Row("affine, straight-through", dict(affine_param=True, **STRAIGHT), evaluate=False),
    Row("affine, image", dict(affine_param=True, **IMAGE), shape=(2, DIM, 3, 4), evaluate=False),
]
