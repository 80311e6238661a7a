"""What VectorQuantize learns, against the reference: rows of an autoencoder and of a stream without a network.

`python benchmarks/python/learning.py` takes about half an hour on one idle core. Every run is written as it ends, and
`--resume` continues a file that an interrupted one has left.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import learning_autoencoder as autoencoder
import learning_stream as stream
import torch
from harness import RESULTS, Target, machine, read_json, target_as_json, write_json

NAME = "learning_vector_quantize"
SEEDS = 3
# Decibels between seeds of the same row: what is smaller tells nothing.
NOISE = 0.3
SETTLED = 0.01
USED = 0.95

Key = dict[str, Any]
Run = Callable[[], dict[str, float]]
Runs = list[dict[str, Any]]


def measure(parts: Sequence[str], quick: bool, runs: Runs, save: Callable[[Runs], None]) -> None:
    """Adds the runs that are missing, and saves after each."""
    for part in parts:
        for key, run in PARTS[part](quick):
            if any(all(old.get(k) == v for k, v in key.items()) for old in runs):
                continue
            result = run()
            runs.append({**key, **result})
            save(runs)
            label = ", ".join(str(value) for value in key.values())
            numbers = ", ".join(f"{name} {value:.4g}" for name, value in result.items())
            print(f"  {label}: {numbers}", flush=True)


def _autoencoders(quick: bool) -> Iterator[tuple[Key, Run]]:
    for seed in range(1 if quick else SEEDS):
        for row in autoencoder.rows():
            key = dict(what="autoencoder", name=row.name, who=row.who, seed=seed)
            yield key, partial(autoencoder.run, row, seed, quick)


def _streams(quick: bool) -> Iterator[tuple[Key, Run]]:
    for ratio in (0.25, 8.0) if quick else stream.RATIOS:
        for row in stream.rows():
            key = dict(what="stream", name=row.name, who=row.who, seed=0, ratio=ratio)
            yield key, partial(stream.run, row, ratio, 0, quick)


PARTS = {"autoencoder": _autoencoders, "stream": _streams}


def rows(runs: Runs) -> list[dict[str, Any]]:
    """Means over the seeds, with the spread of the PSNR."""
    groups: dict[tuple[Any, ...], Runs] = {}
    # In the order of the code, whatever the order in which interrupted runs have come.
    order = [(row.name, row.who) for row in autoencoder.rows() + stream.rows()]
    place = {key: order.index(key) for key in order}
    for run in sorted(
        runs, key=lambda r: (r["what"], r.get("ratio", 0), place[r["name"], r["who"]], r["seed"])
    ):
        groups.setdefault((run["what"], run["name"], run["who"], run.get("ratio")), []).append(run)
    result = []
    for (what, name, who, ratio), members in groups.items():
        keys = [key for key, value in members[0].items() if isinstance(value, float)]
        row: dict[str, Any] = dict(what=what, name=name, who=who, seeds=len(members))
        row |= {key: statistics.mean(run[key] for run in members) for key in keys if key != "ratio"}
        if ratio is not None:
            row["ratio"] = ratio
        if "psnr" in row:
            values = [run["psnr"] for run in members]
            row["psnr_spread"] = max(values) - min(values)
        result.append(row)
    return result


def targets(table: list[dict[str, Any]]) -> list[Target]:
    """The goals of the design, row by row; those whose rows are missing are left out."""
    images = {(row["name"], row["who"]): row for row in table if row["what"] == "autoencoder"}
    found = []
    for name in autoencoder.COMMON:
        if (name, "ours") in images and (name, "reference") in images:
            gain = images[name, "ours"]["psnr"] - images[name, "reference"]["psnr"]
            found.append(Target("dB over the reference, noise allowed", -NOISE, gain, name))
    found += _initialisation(images)
    for name in ("recommended", "recommended, cosine"):
        if (name, "ours") in images:
            found += _recommended(name, images)
    for row in table:
        if row["what"] == "stream" and row["name"] == "recommended":
            found += _settled(row, f"batch/codebook {row['ratio']:g}")
    return found


def _initialisation(images: dict[tuple[str, str], dict[str, Any]]) -> list[Target]:
    """k-means alone must not harm."""
    if not {("k-means", "ours"), ("defaults", "ours")} <= images.keys():
        return []
    after, before = images["k-means", "ours"], images["defaults", "ours"]
    gain = after["psnr"] - before["psnr"]
    return [
        Target("dB over random codes, noise allowed", -NOISE, gain, "k-means"),
        Target("use over that of random codes", 1.0, after["use"] / before["use"], "k-means"),
    ]


def _recommended(name: str, images: dict[tuple[str, str], dict[str, Any]]) -> list[Target]:
    row, cosine = images[name, "ours"], name.endswith("cosine")
    family = [
        other["psnr"] for (n, _), other in images.items() if ("cosine" in n) == cosine and n != name
    ]
    found = _settled(row, name)
    if family:
        gain = row["psnr"] - max(family)
        found.append(Target("dB over the best row, noise allowed", -NOISE, gain, name))
    return found


def _settled(row: dict[str, Any], case: str) -> list[Target]:
    return [
        Target("share of codes in use", USED, row["use"], case),
        Target("share of codes replaced per step", SETTLED, row["replaced"], case, at_most=True),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="see that it runs; the numbers are noise"
    )
    parser.add_argument("--only", choices=PARTS, help="one part; default: all")
    parser.add_argument("--resume", action="store_true", help="keep the runs that the file holds")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    arguments = parser.parse_args()
    # Results do not depend on the threads, but the rounding of the network's convolutions may.
    torch.set_num_threads(1)
    file = arguments.output / f"{NAME}.json"
    runs: Runs = read_json(file)["runs"] if arguments.resume and file.exists() else []

    def save(runs: Runs) -> None:
        table = rows(runs)
        document = dict(name=NAME, quick=arguments.quick, machine=machine(), rows=table, runs=runs)
        document["targets"] = [target_as_json(target) for target in targets(table)]
        write_json(file, document)

    measure([arguments.only] if arguments.only else list(PARTS), arguments.quick, runs, save)
    for target in targets(rows(runs)):
        print(f"  {target}")


if __name__ == "__main__":
    main()
