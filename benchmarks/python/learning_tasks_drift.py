"""The learning table's moving data: a stream that rotates, one that jumps, and codes overwritten with noise."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from learning_measures import codes_of
from learning_rows import RECOMMENDED, Options, Row, both, make, recommended, seeded
from learning_tasks_stream import DIMS, QUICK_STEPS, error_of, evaluate, learn, tokens_of
from torch import Tensor, nn

DRIFT, DISTURBANCE = "drift", "disturbance"
BATCH = 512
# Codes: steps. A step of the reference with 4096 codes takes twenty times as long as one of ours.
SIZES = {1024: 400, 4096: 150}
# Radians per step of the fastest plane: codes move by a tenth of their spacing in some tens of steps.
TURN = 0.002
SETTINGS: dict[str, Options] = {
    "recommended": RECOMMENDED,
    "defaults": {},
    "k-means": dict(kmeans_init=True),
    "threshold 2": dict(threshold_ema_dead_code=2),
    "threshold 2, decay 0.99": dict(threshold_ema_dead_code=2, decay=0.99),
}
DISTURBED: dict[str, Options] = {
    "recommended": RECOMMENDED,
    "k-means": dict(kmeans_init=True),
    "k-means, threshold 2": dict(kmeans_init=True, threshold_ema_dead_code=2),
}
# Share of codes that are overwritten, share of the error that may remain, and steps to wait for that.
OVERWRITTEN, SLACK, PATIENCE = 0.1, 0.01, 300
PROBES = 4096


def rows() -> list[Row]:
    return [*_drift(), *_disturbance()]


def _drift() -> Iterator[Row]:
    for move in ("turn", "jump"):
        for codes, steps in SIZES.items():
            for name, options in SETTINGS.items():
                if name == "recommended":
                    options = recommended(BATCH, codes, moving=True)
                yield _row(DRIFT, f"{move}, {codes} codes", name, options, codes, steps, move)


def _disturbance() -> Iterator[Row]:
    for name, options in DISTURBED.items():
        yield _row(DISTURBANCE, "patches, 512 codes", name, options, 512, 300, "still")


def _row(
    task: str, family: str, name: str, options: Options, codes: int, steps: int, move: str
) -> Row:
    base = dict(dim=DIMS["patches"], codebook_size=codes)
    ours, theirs = both(base | options, BATCH, codes)
    # A rotation preserves all distances, so k-means of the patches is a valid yardstick there, too.
    data = "late patches" if move == "jump" else "patches"
    setting = dict(data=data, codes=codes, batch=BATCH, steps=steps, move=move)
    return Row(
        task,
        f"{family}: {name}",
        "VectorQuantize",
        ours,
        theirs,
        family,
        name == "recommended",
        setting=setting,
    )


@cache
def _turning() -> Tensor:
    """A fixed antisymmetric matrix of norm 1; its exponentials are the rotations of the data."""
    dim = DIMS["patches"]
    random = torch.randn(dim, dim, generator=torch.Generator().manual_seed(0))
    skew = random - random.mT
    return skew / torch.linalg.matrix_norm(skew, 2)


def turned(tokens: Tensor, step: int) -> Tensor:
    return tokens @ torch.linalg.matrix_exp(TURN * step * _turning())


class Stream:
    """Tokens of each step, and the test tokens in the distribution of a step."""

    def __init__(self, row: Row, seed: int, steps: int, quick: bool) -> None:
        self.move, self.steps, self.batch = row.setting["move"], steps, row.setting["batch"]
        self.early, _ = tokens_of(
            "early patches" if self.move == "jump" else row.setting["data"], quick
        )
        self.late, self.test = tokens_of(row.setting["data"], quick)
        self.batches = torch.Generator().manual_seed(seed)

    def at(self, step: int) -> Tensor:
        tokens = self.late if 2 * step >= self.steps else self.early
        chosen = tokens[torch.randint(len(tokens), (self.batch,), generator=self.batches)]
        return turned(chosen, step) if self.move == "turn" else chosen

    def tests(self, step: int) -> Tensor:
        return turned(self.test, step) if self.move == "turn" else self.test


@torch.no_grad()
def run(row: Row, who: str, seed: int, quick: bool) -> dict[str, Any]:
    """One stream; the error is that on the distribution of its last step."""
    steps = QUICK_STEPS if quick else row.setting["steps"]
    stream = Stream(row, seed, steps, quick)
    quantizer = make(row, who, seed).train()
    seeded(seed)
    found: dict[str, Any] = learn(quantizer, stream.at, steps, watched=True)
    if row.task == DISTURBANCE:
        found |= _recovery(quantizer, stream, steps, QUICK_STEPS if quick else PATIENCE)
    return evaluate(quantizer, row, stream.tests(steps - 1)) | found


def _recovery(quantizer: nn.Module, stream: Stream, settled: int, patience: int) -> dict[str, Any]:
    """Steps until the error is back within 1 % after codes were overwritten, or PATIENCE."""
    probes = stream.test[:PROBES]
    wanted = error_of(codes_of(quantizer), probes) * (1 + SLACK)
    overwrite(quantizer)
    disturbed = error_of(codes_of(quantizer), probes)
    steps = 0
    while steps < patience and error_of(codes_of(quantizer), probes) > wanted:
        quantizer(stream.at(settled + steps)[None])
        steps += 1
    return {"recovery": steps, "recovered": steps < patience, "disturbed": disturbed}


def overwrite(quantizer: nn.Module) -> None:
    """Writes noise to the first tenth of the codes, and to their averages, from which the next step computes codes."""
    book: Any = quantizer._codebook
    hit = int(book.embed.shape[1] * OVERWRITTEN)
    shape = (hit, book.embed.shape[-1])
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    book.embed[:, :hit] = noise
    book.embed_avg[:, :hit] = noise * book.cluster_size[:, :hit, None]
