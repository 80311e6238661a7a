"""Churn: quantizers on a stream of image patches, with the codebook from an eighth to four times the batch.

Nothing but the codebook learns here. Measured once it has settled: the share of codes replaced per step, the share of
fixed probes whose code changes per step, use, and the test error over that of k-means on all training patches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import faiss
import images
import torch
import torchvq
from learning_measures import codes_of, replaced_share, usage
from torch import Tensor, nn
from vector_quantize_pytorch import VectorQuantize as Reference


CODEBOOK = 1024
RATIOS = (0.25, 1.0, 8.0)
WATCHED = 50

Maker = Callable[[], nn.Module]


def quantizers(dim: int) -> dict[str, Maker]:
    """Each row's name, and how its quantizer is made."""
    common: dict[str, Any] = dict(dim=dim, codebook_size=CODEBOOK, kmeans_init=True)
    rows: dict[str, Maker] = {
        "reference, threshold 2": lambda: Reference(**common, threshold_ema_dead_code=2),
        "ours, threshold 2": lambda: torchvq.VectorQuantize(**common, threshold_ema_dead_code=2),
    }
    for decay, fraction in ((0.8, 0.01), (0.8, 0.1), (0.99, 0.01), (0.99, 0.03), (0.99, 0.1)):
        rows[f"ours, fraction {fraction}, decay {decay}"] = lambda d=decay, f=fraction: (
            torchvq.VectorQuantize(**common, decay=d, dead_code_threshold_fraction=f)
        )
    return rows


def search(codes: Tensor, tokens: Tensor) -> tuple[Tensor, float]:
    """Nearest codes of the tokens, and the mean squared error per value."""
    found = torch.ops.torchvq.nearest_code(tokens[None], codes[None], return_distances=True)
    return found[0][0], float(found[2].double().mean()) / tokens.shape[-1]


def kmeans_error(train: Tensor, test: Tensor) -> float:
    """Test error of faiss's k-means on all training patches: what a codebook of this size can reach."""
    trainer = faiss.Kmeans(
        train.shape[1], CODEBOOK, niter=25, seed=1, max_points_per_centroid=10**9
    )
    trainer.train(train.numpy())
    return search(torch.from_numpy(trainer.centroids), test)[1]


def run(make: Maker, train: Tensor, test: Tensor, batch: int, steps: int, seed: int) -> dict[str, float]:
    torch.manual_seed(seed)
    quantizer = make().train()
    probes = test[:4096]
    replaced, changed = [], []
    for step in range(steps):
        tokens = train[torch.randint(len(train), (batch,))]
        watched = step >= steps - WATCHED
        before = codes_of(quantizer) if watched else None
        with torch.no_grad():
            quantizer(tokens[None])
        if before is not None:
            after = codes_of(quantizer)
            replaced.append(replaced_share(before, after, tokens))
            moved = search(before, probes)[0] != search(after, probes)[0]
            changed.append(float(moved.double().mean()))
    indices, error = search(codes_of(quantizer), test)
    return {
        **usage(indices, CODEBOOK),
        "error": error,
        "replaced": sum(replaced) / len(replaced),
        "probes_changed": sum(changed) / len(changed),
    }


def measure(quick: bool, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """All rows at all ratios; quick uses fewer patches, steps and ratios."""
    train = images.patches(images.load()[0][: 1024 if quick else 4000])
    test = images.patches(images.load(test=True)[0][: 1024 if quick else 4096])
    best = kmeans_error(train, test)
    results = []
    for ratio in RATIOS:
        batch = int(CODEBOOK * ratio)
        steps = 100 if quick else 800 if ratio < 8 else 150
        for name, make in quantizers(train.shape[1]).items():
            row = run(make, train, test, batch, steps, seed=0)
            row["error_over_kmeans"] = row.pop("error") / best
            results.append({"name": name, "ratio": ratio, "batch": batch, "steps": steps, **row})
            say(f"  {name}, batch/codebook {ratio}: use {row['use']:.3f}, replaced {row['replaced']:.4f}, "
                f"probes {row['probes_changed']:.4f}, error {row['error_over_kmeans']:.3f}")
    return results
