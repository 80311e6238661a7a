"""The learning table's mixture: a small network around residual stacks, whose gradient decides what is learnt."""

from __future__ import annotations

import math
from typing import Any

import torch
from learning_measures import usage
from learning_rows import Options, Row, make, seeded
from torch import Tensor, nn
from torch.nn import functional as F

TASK = "mixture"
DIM, HIDDEN, CENTRES, SPREAD, NOISE = 16, 64, 40, 2.0, 0.3
BATCH, TESTED = 256, 4096
LEVELS, CODES = 3, 16
STEPS, QUICK_STEPS = 600, 4

STACK: Options = dict(dim=DIM, codebook_size=CODES, num_quantizers=LEVELS)
THRESHOLD: Options = dict(threshold_ema_dead_code=1)
SETTINGS: list[tuple[str, str, Options]] = [
    ("ResidualVQ", "defaults", {}),
    ("ResidualVQ", "rotation trick", dict(rotation_trick=True)),
    ("ResidualVQ", "no rotation trick", dict(rotation_trick=False)),
    ("ResidualVQ", "k-means, threshold 1", dict(kmeans_init=True) | THRESHOLD),
    ("ResidualVQ", "learnable", dict(learnable_codebook=True, ema_update=False)),
    ("ResidualVQ", "cosine", dict(use_cosine_sim=True)),
    ("ResidualVQ", "cosine, no rotation trick", dict(use_cosine_sim=True, rotation_trick=False)),
    ("ResidualVQ", "shared codebook, threshold 1", dict(shared_codebook=True) | THRESHOLD),
    ("ResidualVQ", "quantize dropout", dict(quantize_dropout=True)),
    ("ResidualVQ", "implicit codebooks", dict(implicit_neural_codebook=True)),
    ("GroupedResidualVQ", "defaults", dict(groups=2, num_quantizers=2)),
    ("ResidualSimVQ", "defaults", {}),
    ("ResidualSimVQ", "no rotation trick", dict(rotation_trick=False)),
]


def rows() -> list[Row]:
    return [_row(f"{kind}: {name}", kind, STACK | options) for kind, name, options in SETTINGS]


def _row(name: str, kind: str, options: Options) -> Row:
    return Row(TASK, name, kind, options, options, kind)


def _network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(DIM, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, DIM))


def _tokens(count: int, seed: int) -> Tensor:
    """(8, count / 8, DIM), from clusters that are the same for every seed."""
    centres = torch.randn(CENTRES, DIM, generator=torch.Generator().manual_seed(0)) * SPREAD
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randint(CENTRES, (count,), generator=generator)
    noise = torch.randn(count, DIM, generator=generator) * NOISE
    return (centres[chosen] + noise).view(8, -1, DIM)


def run(row: Row, who: str, seed: int, quick: bool) -> dict[str, Any]:
    """Trains once and evaluates on tokens that training has not seen."""
    seeded(seed)
    encoder, decoder = _network(), _network()
    quantizer = make(row, who, seed)
    parts = nn.ModuleList([encoder, quantizer, decoder]).train()
    seeded(seed)
    optimizer = torch.optim.AdamW(parts.parameters(), lr=3e-3)
    for step in range(QUICK_STEPS if quick else STEPS):
        x = _tokens(BATCH, 1 + step + 1_000_000 * seed)
        output, _, losses = quantizer(encoder(x))[:3]
        (F.mse_loss(decoder(output), x) + losses.sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
    parts.eval()
    with torch.no_grad():
        x = _tokens(TESTED, 0)
        output, indices, _ = quantizer(encoder(x))[:3]
        error = float(F.mse_loss(decoder(output), x))
    first = indices[0] if row.class_name.startswith("Grouped") else indices
    decibels = 10 * math.log10(float(x.var()) / error)
    return {"error": error, "decibels": decibels, **usage(first[..., 0].flatten(), CODES)}
