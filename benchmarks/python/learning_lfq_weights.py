"""Weights of LFQ on the sphere, by the bits of its codes, in the learning table's autoencoder.

`python benchmarks/python/learning_lfq_weights.py` takes a quarter of an hour. Every run is written as it ends;
`--resume` continues the file of an interrupted one.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import learning_tasks_autoencoder as autoencoder
from harness import RESULTS, machine, read_json, write_json
from learning_rows import OURS, Row

import torchvq

NAME = "learning_lfq_weights"
# Weights of entropy and commitment. At 9 bits the full grid, at others the likely best and its neighbours.
GRID = [
    (0.002, 0.1),
    (0.005, 0.1),
    (0.005, 0.25),
    (0.01, 0.1),
    (0.02, 0.25),
    (0.05, 0.25),
]
# Bits: seeds. The cost of a step is proportional to tokens times codes.
SEEDS = {9: 3, 12: 3, 16: 2}

Run = dict[str, Any]


def row_of(bits: int, entropy: float, commitment: float) -> Row:
    settings = torchvq.recommended("lfq", bits=bits)
    settings |= dict(entropy_loss_weight=entropy, commitment_loss_weight=commitment)
    name = f"LFQ: {bits} bits, entropy {entropy}, commitment {commitment}"
    return Row(autoencoder.TASK, name, "LFQ", dict(dim=autoencoder.DIM) | settings, None)


def jobs(sizes: list[int]) -> Iterator[Run]:
    """All weights of a seed before the next seed, so that an interrupted grid is a complete grid of fewer seeds."""
    for bits in sizes:
        for seed in range(SEEDS[bits]):
            for entropy, commitment in GRID:
                yield dict(bits=bits, entropy=entropy, commitment=commitment, seed=seed)


def one(job: Run, quick: bool) -> Run:
    row = row_of(job["bits"], job["entropy"], job["commitment"])
    found = autoencoder.run(row, OURS, job["seed"], quick)
    kept = {key: found[key] for key in ("psnr", "use", "perplexity")}
    return {**job, **kept, "entropy_bits": math.log2(found["perplexity"])}


def is_recommended(run: Run) -> bool:
    settings = torchvq.recommended("lfq", bits=run["bits"])
    weights = settings["entropy_loss_weight"], settings["commitment_loss_weight"]
    return weights == (run["entropy"], run["commitment"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--quick", action="store_true", help="see that it runs; the numbers are noise")
    add("--bits", type=int, nargs="+", choices=SEEDS, default=list(SEEDS))
    add("--resume", action="store_true", help="keep the runs that the file holds")
    add("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    arguments = parser.parse_args()
    file = arguments.output / f"{NAME}.json"
    runs = read_json(file)["runs"] if arguments.resume and file.exists() else []
    document = dict(name=NAME, quick=arguments.quick, machine=machine(), runs=runs)
    for job in jobs(arguments.bits):
        if any(job.items() <= run.items() for run in runs):
            continue
        runs.append(one(job, arguments.quick))
        write_json(file, document)
        print("  " + ", ".join(f"{key} {value}" for key, value in runs[-1].items()), flush=True)


if __name__ == "__main__":
    main()
