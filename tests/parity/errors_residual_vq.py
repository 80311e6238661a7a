"""Arguments that residual stacks refuse: both packages raise, each its own type of error."""

from __future__ import annotations

import torch

from .errors_vector_quantize import Refused
from .setup_residual_vq import DIM, IMAGE, LEARNABLE, LEVELS, QINCO, sgd

X = torch.zeros(2, 6, DIM)
IN_PLACE = dict(in_place_codebook_optimizer=sgd, **LEARNABLE)
KEEP = torch.ones(2, 6, dtype=torch.bool)

CONSTRUCTION = [
    Refused("no levels", dict(num_quantizers=0)),
    Refused("unknown number of levels", dict(num_quantizers=None)),
    Refused("no codebook sizes", dict(num_quantizers=None, codebook_size=())),
    Refused("more sizes than levels", dict(codebook_size=(4, 8, 16, 32))),
    Refused(
        "shared codebook of several sizes",
        dict(num_quantizers=None, codebook_size=(4, 8), shared_codebook=True),
    ),
    Refused("cutoff below zero", dict(quantize_dropout_cutoff_index=-1)),
    Refused("unknown option", dict(no_such_option=1)),
    Refused(
        "shared codebook with an optimizer and nothing to learn",
        dict(shared_codebook=True, in_place_codebook_optimizer=sgd, ema_update=False),
    ),
    Refused("implicit cosine", dict(use_cosine_sim=True, **QINCO)),
    Refused("implicit Gumbel", dict(straight_through=True, rotation_trick=False, **QINCO)),
    Refused("diveq cosine", dict(use_cosine_sim=True, diveq=True)),
    Refused("diveq Gumbel", dict(straight_through=True, rotation_trick=False, diveq=True)),
    Refused("network with unknown options", dict(mlp_kwargs=dict(width=3), **QINCO)),
    Refused("learnable with EMA", dict(learnable_codebook=True, ema_update=True)),
]

FORWARD = [
    Refused("wrong feature size", {}, torch.zeros(2, 6, DIM + 1)),
    Refused("wrong feature size, projected", dict(codebook_dim=4), torch.zeros(2, 6, DIM + 1)),
    Refused("vector", {}, torch.zeros(DIM)),
    Refused("sequence as image", IMAGE, X),
    Refused("integers", {}, X.long()),
    Refused("nothing", {}, None),
    Refused("mask of numbers", {}, X, dict(mask=KEEP.float())),
    Refused("mask too short", {}, X, dict(mask=KEEP[:, :5])),
    Refused(
        "given indices of too few levels",
        {},
        X,
        dict(indices=torch.zeros(2, 6, LEVELS - 1, dtype=torch.long)),
    ),
    Refused("beam with an in-place optimizer", dict(beam_size=2, **IN_PLACE), X),
    Refused("given indices of one level", {}, X, dict(indices=torch.zeros(2, 6, dtype=torch.long))),
]

DECODING = [
    Refused("fewer levels without dropout", {}, torch.zeros(2, 6, LEVELS - 1, dtype=torch.long)),
    Refused("more levels", {}, torch.zeros(2, 6, LEVELS + 1, dtype=torch.long)),
    Refused("index beyond the codebook", {}, torch.full((2, 6, LEVELS), 99)),
]

GROUPED_CONSTRUCTION = [
    Refused("no groups", dict(groups=0)),
    Refused("features that groups do not divide", dict(groups=3)),
]
