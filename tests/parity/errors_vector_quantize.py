"""Arguments that VectorQuantize refuses: both packages raise, each its own type of error."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from .setup_vector_quantize import CODES, DIM, IMAGE, LEARNABLE, SEPARATE, SHARED, VOLUME, sgd


@dataclass(frozen=True)
class Refused:
    id: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    input: Any = None  # None: the constructor raises
    forward: dict[str, Any] = field(default_factory=dict)


X = torch.zeros(2, 6, DIM)
KEEP = torch.ones(2, 6, dtype=torch.bool)
TARGETS = torch.zeros(2, 6, dtype=torch.long)
DIRECTION = dict(directional_reparam=True, threshold_ema_dead_code=2)

CONSTRUCTION = [
    Refused("learnable with EMA by default", dict(learnable_codebook=True)),
    Refused("learnable with EMA", dict(learnable_codebook=True, ema_update=True)),
    Refused("learnable cosine", dict(use_cosine_sim=True, **LEARNABLE)),
    Refused("affine cosine", dict(affine_param=True, use_cosine_sim=True)),
    Refused("directional without replacement", dict(directional_reparam=True)),
    Refused("directional and rotation", dict(rotation_trick=True, **DIRECTION)),
    Refused(
        "directional and Gumbel", dict(straight_through=True, rotation_trick=False, **DIRECTION)
    ),
    Refused("directional and EMA", dict(ema_update=True, **DIRECTION)),
    Refused("directional and cosine", dict(use_cosine_sim=True, **DIRECTION)),
    Refused("Gumbel and rotation by default", dict(straight_through=True)),
    Refused("Gumbel and learnable", dict(straight_through=True, rotation_trick=False, **LEARNABLE)),
    Refused("synchronised update without learnable", dict(sync_update_v=0.5)),
    Refused("synchronised update above one", dict(sync_update_v=1.5, **LEARNABLE)),
    Refused("synchronised update below zero", dict(sync_update_v=-0.5, **LEARNABLE)),
    Refused(
        "bridge that is not learnable",
        dict(vq_bridge=torch.nn.Linear(DIM, DIM), learnable_codebook=False),
    ),
    Refused("bridge with EMA", dict(vq_bridge=torch.nn.Linear(DIM, DIM), ema_update=True)),
    Refused("in-place optimizer without parameters", dict(in_place_codebook_optimizer=sgd)),
]

FORWARD = [
    Refused("wrong feature size", {}, torch.zeros(2, 6, DIM + 1)),
    Refused("wrong feature size, projected", dict(codebook_dim=4), torch.zeros(2, 6, DIM + 1)),
    Refused("channel last given channel first", {}, torch.zeros(2, DIM, 6)),
    Refused("channel first given channel last", dict(channel_last=False), X),
    Refused("vector", {}, torch.zeros(DIM)),
    Refused("sequence as image", IMAGE, X),
    Refused("image as volume", VOLUME, torch.zeros(2, DIM, 3, 4)),
    Refused("integers", {}, torch.zeros(2, 6, DIM, dtype=torch.long)),
    Refused("not a tensor", {}, [[0.0] * DIM]),
    Refused("mask and lengths", {}, X, dict(mask=KEEP, lens=torch.tensor([6, 6]))),
    Refused("mask of numbers", {}, X, dict(mask=KEEP.float())),
    Refused("mask too short", {}, X, dict(mask=KEEP[:, :5])),
    Refused("mask per feature", {}, X, dict(mask=KEEP[..., None].expand(-1, -1, DIM))),
    Refused("mask without batch", {}, X, dict(mask=KEEP[0])),
    Refused("mask for an image", IMAGE, torch.zeros(2, DIM, 2, 3), dict(mask=KEEP)),
    Refused("topk of none", {}, X, dict(topk=0)),
    Refused("topk with shared heads", SHARED, X, dict(topk=2)),
    Refused("topk with separate heads", SEPARATE, X, dict(topk=2)),
    Refused(
        "topk with cross-entropy", dict(commitment_use_cross_entropy_loss=True), X, dict(topk=2)
    ),
    Refused(
        "topk with an in-place optimizer",
        dict(in_place_codebook_optimizer=sgd, **LEARNABLE),
        X,
        dict(topk=2),
    ),
    Refused("given index beyond the codebook", {}, X, dict(indices=TARGETS + CODES)),
    Refused("given indices as floats", {}, X, dict(indices=TARGETS.float())),
    Refused("EMA weight per token", {}, X, dict(ema_update_weight=torch.ones(2, 6))),
    Refused(
        "codes per token of the wrong rank", {}, X, dict(codebook_transform_fn=lambda codes: codes)
    ),
]
