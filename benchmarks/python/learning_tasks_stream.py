"""The learning table's streams: codebooks and stacks alone, on patches of images and on embeddings.

There is no network, so only the codebook learns. Errors are relative to those of faiss, which sees all tokens at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import faiss
import images
import torch
from learning_measures import codes_of, replaced_share, usage
from learning_residual_data import load
from learning_rows import (
    FRACTION,
    RECOMMENDED,
    Options,
    Row,
    both,
    codes_in,
    levels_of,
    make,
    recommended,
    seeded,
)
from torch import Tensor, nn

STREAM, RESIDUAL = "stream", "residual stream"
WATCHED, QUICK_STEPS = 20, 3
DIMS = {"patches": images.PATCH**2, "embeddings": 384}
# Ratio of a step's tokens to codes; codes by data; steps by ratio: as many as a row can run within seconds.
CODES = {"patches": 1024, "embeddings": 512}
STEPS = {0.0625: 1600, 0.25: 800, 1.0: 300, 8.0: 300}
RATIOS = (0.25, 1.0, 8.0)
# So few tokens that a code in use waits many steps for one.
FEWEST = 0.0625
DECAYS = (0.8, 0.95, 0.99)
THRESHOLDS: dict[str, Options] = {
    "no threshold": {},
    f"threshold fraction {FRACTION}": dict(dead_code_threshold_fraction=FRACTION),
    "threshold 2": dict(threshold_ema_dead_code=2),
    "threshold 8": dict(threshold_ema_dead_code=8),
}
# A stack of the reference takes a second per ten steps on embeddings at full size.
STACK_LEVELS, STACK_CODES, STACK_BATCH = 8, 256, 512
STACK_STEPS = {"patches": 400, "embeddings": 300}
BEAM_STEPS = 130
STACKS: dict[str, Options] = {
    "recommended": RECOMMENDED,
    "defaults": {},
    "k-means": dict(kmeans_init=True),
    "k-means, threshold 2": dict(kmeans_init=True, threshold_ema_dead_code=2),
    "k-means, threshold 2, decay 0.95": dict(
        kmeans_init=True, threshold_ema_dead_code=2, decay=0.95
    ),
    f"threshold fraction {FRACTION}": dict(dead_code_threshold_fraction=FRACTION),
    "decay 0.99": dict(decay=0.99),
}


def rows() -> list[Row]:
    return [*_flat(), *_stacked()]


def _flat() -> Iterator[Row]:
    """The recommended settings, every pair of settings at least once, and those in docs/choosing.md at each ratio."""
    found: dict[str, Row] = {}
    for data, ratio, options in _recommended():
        row = _flat_row(data, ratio, options, "recommended")
        found.setdefault(row.name, row)
    for data, ratio, options in [*_pairs(), *_shown(), *_few()]:
        row = _flat_row(data, ratio, options, _name(options))
        found.setdefault(row.name, row)
    yield from found.values()


def _recommended() -> Iterator[tuple[str, float, Options]]:
    for ratio in (FEWEST, *RATIOS):
        for data in DIMS:
            codes = _codes(data, ratio)
            yield data, ratio, recommended(int(codes * ratio), codes)


def _pairs() -> Iterator[tuple[str, float, Options]]:
    """A Latin square: thresholds by decays, with ratios and k-means such that all pairs occur."""
    for t, dead in enumerate(THRESHOLDS.values()):
        for d, decay in enumerate(DECAYS):
            even = (t + d) % 2 == 0
            yield "patches", RATIOS[(t + d) % 3], dead | dict(decay=decay, kmeans_init=even)
            ratio = RATIOS[(t + 2 * d + 1) % 3]
            yield "embeddings", ratio, dead | dict(decay=decay, kmeans_init=not even)


def _shown() -> Iterator[tuple[str, float, Options]]:
    for ratio in RATIOS:
        for decay in DECAYS:
            yield "patches", ratio, RECOMMENDED | dict(decay=decay)
        popular = THRESHOLDS["threshold 2"] | dict(kmeans_init=True, decay=0.8)
        yield "patches", ratio, popular


def _few() -> Iterator[tuple[str, float, Options]]:
    for data in DIMS:
        for decay in DECAYS[:2]:
            yield data, FEWEST, dict(kmeans_init=False, decay=decay)


def _name(options: Options) -> str:
    dead = {k: v for k, v in options.items() if k not in ("kmeans_init", "decay")}
    threshold = next(name for name, value in THRESHOLDS.items() if value == dead)
    start = "k-means, " if options["kmeans_init"] else ""
    return f"{start}decay {options['decay']}, {threshold}"


def _codes(data: str, ratio: float) -> int:
    """With large batches a quarter of the codes, so that the number of steps can stay the same."""
    return CODES[data] // (4 if ratio == 8 else 1)


def _flat_row(data: str, ratio: float, options: Options, name: str) -> Row:
    codes = _codes(data, ratio)
    batch = int(codes * ratio)
    ours, theirs = both(dict(dim=DIMS[data], codebook_size=codes) | options, batch, codes)
    family = f"{data}, {codes} codes, batch/codebook {ratio:g}"
    setting = dict(data=data, codes=codes, batch=batch, steps=STEPS[ratio])
    return Row(
        STREAM,
        f"{family}: {name}",
        "VectorQuantize",
        ours,
        theirs,
        family,
        name == "recommended",
        setting=setting,
    )


def _stacked() -> Iterator[Row]:
    for data in DIMS:
        for name, options in STACKS.items():
            yield _stack(data, data, name, options, STACK_STEPS[data])
    # Four times the cost of a greedy step, so fewer steps, and hence a separate family.
    beam = RECOMMENDED | dict(beam_size=2)
    yield _stack("patches", "patches, beam 2", "recommended", beam, BEAM_STEPS)


def _stack(data: str, family: str, name: str, options: Options, steps: int) -> Row:
    base = dict(dim=DIMS[data], codebook_size=STACK_CODES, num_quantizers=STACK_LEVELS)
    ours, theirs = both(base | options, STACK_BATCH, STACK_CODES)
    setting = dict(data=data, codes=STACK_CODES, levels=STACK_LEVELS)
    setting |= dict(batch=STACK_BATCH, steps=steps)
    full = f"{family}: {name}"
    best = name == "recommended"
    return Row(RESIDUAL, full, "ResidualVQ", ours, theirs, family, best, setting=setting)


@cache
def tokens_of(data: str, quick: bool) -> tuple[Tensor, Tensor]:
    """Training and test tokens, (N, D), float32."""
    if data == "embeddings":
        return load(data, quick)
    few, tested = (512, 64) if quick else (4000, 1024)
    train, test = images.load()[0], images.load(test=True)[0]
    if data == "patches":
        return images.patches(train[:few]), images.patches(test[:tested])
    # Two distributions: the first five classes and the last five.
    late = data == "late patches"
    chosen = (images.labels()[: 2 * few] >= 5) == late
    chosen_test = (images.labels(test=True)[: 2 * tested] >= 5) == late
    return images.patches(train[: 2 * few][chosen]), images.patches(test[: 2 * tested][chosen_test])


def yardstick_of(row: Row) -> str:
    """The name of faiss's run to which a row's error is relative."""
    setting = row.setting
    levels = f"{setting['levels']} levels of " if "levels" in setting else ""
    return f"{setting['data']}, {levels}{setting['codes']} codes"


def yardstick(row: Row, quick: bool) -> dict[str, Any]:
    """faiss on all training tokens: k-means, or a greedy residual quantizer for stacks."""
    train, test = tokens_of(row.setting["data"], quick)
    codes = row.setting["codes"]
    if "levels" in row.setting:
        residual = faiss.ResidualQuantizer(
            train.shape[1], row.setting["levels"], codes.bit_length() - 1
        )
        residual.max_beam_size = 1
        residual.train(train.numpy())
        found = torch.from_numpy(residual.decode(residual.compute_codes(test.numpy())))
        return {"error": float((test - found).double().square().mean())}
    trainer = faiss.Kmeans(
        train.shape[1],
        codes,
        niter=2 if quick else 20,
        seed=1,
        max_points_per_centroid=10**9,
    )
    trainer.train(train.numpy())
    error = error_of(torch.from_numpy(trainer.centroids), test)
    return {"error": error}


def error_of(codes: Tensor, tokens: Tensor) -> float:
    """Mean squared error per value of the nearest codes."""
    distance = torch.ops.torchvq.nearest_code(tokens, codes, return_distances=True)[2]
    return float(distance.double().mean()) / tokens.shape[-1]


@torch.no_grad()
def run(row: Row, who: str, seed: int, quick: bool) -> dict[str, Any]:
    """One stream. The seed fixes the batches, the same for every quantizer."""
    train, test = tokens_of(row.setting["data"], quick)
    quantizer = make(row, who, seed).train()
    batches = torch.Generator().manual_seed(seed)

    def tokens_at(_: int) -> Tensor:
        return train[torch.randint(len(train), (row.setting["batch"],), generator=batches)]

    seeded(seed)
    steps = QUICK_STEPS if quick else row.setting["steps"]
    replaced = learn(quantizer, tokens_at, steps, watched=row.task != RESIDUAL)
    return evaluate(quantizer, row, test) | replaced


def learn(
    quantizer: nn.Module, tokens_at: Callable[[int], Tensor], steps: int, watched: bool
) -> dict[str, float]:
    """Trains a quantizer on the tokens of each step; counts replaced codes in the last steps."""
    replaced = []
    for step in range(steps):
        tokens = tokens_at(step)
        before = codes_of(quantizer) if watched and step >= steps - WATCHED else None
        quantizer(tokens[None])
        if before is not None:
            replaced.append(replaced_share(before, codes_of(quantizer), tokens))
    return {"replaced": sum(replaced) / len(replaced)} if replaced else {}


@torch.no_grad()
def evaluate(quantizer: nn.Module, row: Row, test: Tensor) -> dict[str, Any]:
    """Error and use on tokens that training has not seen, by the quantizer's own search."""
    quantizer.eval()
    error, firsts, lasts = 0.0, [], []
    for tokens in torch.split(test, 2048):
        quantized, indices = quantizer(tokens[None])[:2]
        error += float((quantized[0] - tokens).double().square().sum())
        first, last = levels_of(row, indices)
        firsts.append(first.flatten())
        if last is not None:
            lasts.append(last.flatten())
    result = {"error": error / test.numel(), **usage(torch.cat(firsts), codes_in(row))}
    if lasts:
        result["use_last"] = usage(torch.cat(lasts), codes_in(row))["use"]
    return result
