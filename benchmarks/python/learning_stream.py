"""Churn: a codebook alone on a stream of image patches, from a quarter of a batch to eight batches per codebook.

No network, so nothing but the codebook learns. Measured once it has settled: the share of codes replaced per step, the
share of fixed probes whose code changes per step, use, and the test error over that of k-means on all training patches.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import faiss
import images
import torch
from learning_autoencoder import RECOMMENDED, Row
from learning_measures import codes_of, replaced_share, usage
from torch import Tensor
from vector_quantize_pytorch import VectorQuantize as Reference

import torchvq

CODEBOOK = 1024
# Tokens of a step over codes: the codebook is four times the batch at first, an eighth of it at last.
RATIOS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
PATCHES = images.PATCH**2
WATCHED = 50


def rows() -> list[Row]:
    """The recommended settings, how much their numbers matter, and what the reference offers."""
    fixed: dict[str, Any] = dict(dim=PATCHES, codebook_size=CODEBOOK)
    ours = torchvq.VectorQuantize
    return [
        Row("recommended", "ours", ours, fixed | RECOMMENDED),
        *(
            Row(f"recommended, decay {decay}", "ours", ours, fixed | RECOMMENDED | {"decay": decay})
            for decay in (0.8, 0.99)
        ),
        *(
            Row(
                "k-means, threshold 2",
                who,
                make,
                dict(fixed, kmeans_init=True, threshold_ema_dead_code=2),
            )
            for who, make in (("ours", ours), ("reference", Reference))
        ),
    ]


@cache
def _data(quick: bool) -> tuple[Tensor, Tensor]:
    train = images.load()[0][: 512 if quick else 4000]
    return images.patches(train), images.patches(images.load(test=True)[0][: 64 if quick else 4096])


@cache
def kmeans_error(quick: bool) -> float:
    """Test error of faiss's k-means on all training patches: what a codebook of this size can reach."""
    train, test = _data(quick)
    trainer = faiss.Kmeans(
        PATCHES, CODEBOOK, niter=2 if quick else 25, seed=1, max_points_per_centroid=10**9
    )
    trainer.train(train.numpy())
    return _search(torch.from_numpy(trainer.centroids), test)[1]


def _search(codes: Tensor, tokens: Tensor) -> tuple[Tensor, float]:
    """Nearest codes of the tokens, and the mean squared error per value."""
    found = torch.ops.torchvq.nearest_code(tokens, codes, return_distances=True)
    return found[0], float(found[2].double().mean()) / tokens.shape[-1]


def steps_at(ratio: float, quick: bool) -> int:
    """Enough for the averages to settle: a few of their time constants, and enough tokens per code."""
    if quick:
        return 4
    return 800 if ratio < 2 else 400 if ratio < 8 else 250


@torch.no_grad()
def run(row: Row, ratio: float, seed: int, quick: bool) -> dict[str, float]:
    """One stream; what changes is watched over its last steps."""
    train, test = _data(quick)
    torch.manual_seed(seed)
    quantizer = row.make(**row.options).train()
    batches = torch.Generator().manual_seed(seed)
    batch, probes = int(CODEBOOK * ratio), test[:4096]
    replaced, changed = [], []
    steps = steps_at(ratio, quick)
    for step in range(steps):
        tokens = train[torch.randint(len(train), (batch,), generator=batches)]
        before = codes_of(quantizer) if step >= steps - WATCHED else None
        quantizer(tokens[None])
        if before is not None:
            after = codes_of(quantizer)
            replaced.append(replaced_share(before, after, tokens))
            moved = _search(before, probes)[0] != _search(after, probes)[0]
            changed.append(float(moved.double().mean()))
    indices, error = _search(codes_of(quantizer), test)
    return {
        **usage(indices, CODEBOOK),
        "error_over_kmeans": error / kmeans_error(quick),
        "replaced": sum(replaced) / len(replaced),
        "probes_changed": sum(changed) / len(changed),
    }
