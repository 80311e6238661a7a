"""k-means against faiss.Kmeans at equal error: ours runs as many iterations as it needs for faiss's error."""

from __future__ import annotations

import faiss
import images
import torch
from harness import OURS, Case, Contender, Settings, Target, compare, write
from torch import Tensor

import torchvq

FAISS_ITERATIONS = 25
TRIED = (4, 6, 8, 10, 12, 15, 18, 20, 22, 25, 28, 32, 36, 40, 50, 65, 80)
# Seeds of one trainer differ by half a percent; means over a few seeds count as equal up to this factor.
EQUAL = 1.001
SEEDS = 3


def run(settings: Settings) -> None:
    cases = []
    for threads in settings.threads:
        data = _data(settings.quick)
        # On two threads only the first two data sets.
        for name, x, k in data if threads == 1 else data[:2]:
            cases.append(_measure(name, x, k, threads, settings))
    write("kmeans", cases, settings)


def _data(quick: bool) -> list[tuple[str, Tensor, int]]:
    """Clustered vectors in 8 and 64 dimensions, and image patches."""
    if quick:
        return [("mixture", _mixture(2048, 16, 64), 64)]
    patches = images.patches(images.load()[0][:2048])
    return [
        ("mixture, D=8", _mixture(32768, 8, 1024), 512),
        ("mixture, D=64", _mixture(32768, 64, 1024), 512),
        ("Fashion-MNIST patches, D=49", patches, 512),
    ]


def _mixture(n: int, d: int, clusters: int) -> Tensor:
    generator = torch.Generator().manual_seed(d)
    centres = torch.randn(clusters, d, generator=generator)
    of = torch.randint(clusters, (n,), generator=generator)
    return centres[of] + 0.5 * torch.randn(n, d, generator=generator)


def _faiss(x: Tensor, k: int, seed: int) -> Tensor:
    trainer = faiss.Kmeans(
        x.shape[1], k, niter=FAISS_ITERATIONS, seed=seed, max_points_per_centroid=10**9
    )
    trainer.train(x.numpy())
    return torch.from_numpy(trainer.centroids)


def _error(x: Tensor, codes: Tensor) -> float:
    distances = torch.ops.torchvq.nearest_code(x, codes, return_distances=True)[2]
    return float(distances.double().mean()) / x.shape[1]


def _mean_error(x: Tensor, k: int, iterations: int, seeds: range) -> float:
    errors = [_error(x, torchvq.kmeans(x, k, iterations, seed=s).codebook) for s in seeds]
    return sum(errors) / len(errors)


def _measure(name: str, x: Tensor, k: int, threads: int, settings: Settings) -> Case:
    torch.set_num_threads(threads)
    faiss.omp_set_num_threads(threads)
    seeds = range(1 if settings.quick else SEEDS)
    wanted = sum(_error(x, _faiss(x, k, seed + 1)) for seed in seeds) / len(seeds)
    reached, iterations = float("inf"), 0
    for iterations in TRIED:
        reached = _mean_error(x, k, iterations, seeds)
        if reached <= wanted * EQUAL:
            break
    contenders = [
        Contender(OURS, lambda: torchvq.kmeans(x, k, iterations), threads),
        Contender("faiss", lambda: _faiss(x, k, 1), threads),
    ]
    case = Case(
        f"{name}, N={len(x)} K={k} threads={threads}",
        dict(data=name, N=len(x), K=k, D=x.shape[1], threads=threads),
        compare(contenders, settings),
        {
            "iterations": {OURS: iterations, "faiss": FAISS_ITERATIONS},
            "mean_squared_error": {OURS: reached, "faiss": wanted},
        },
    )
    case.expect("faiss", 2.0, "faiss.Kmeans at equal error")
    if not settings.quick:
        text = "error of k-means over that of faiss"
        case.targets.append(Target(text, EQUAL, reached / wanted, case.name, at_most=True))
    settings.say(
        f"  {case.name}: faiss takes {case.ratio('faiss'):.2f}x; {iterations} iterations to its "
        f"{FAISS_ITERATIONS}, error {reached:.6g} and {wanted:.6g}"
    )
    return case
