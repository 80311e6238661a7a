"""Learning of ResidualVQ on patches and embeddings, against faiss's ResidualQuantizer trained with a beam of 5.

`python benchmarks/python/learning_residual.py` takes about an hour on two idle cores. Every run is written as it ends;
`--resume` continues the file of an interrupted one. Rows are trained on one process and on two ranks with the same
batches: their codebooks must be equal, bit for bit.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import faiss
import torch
import torch.multiprocessing as mp
from harness import RESULTS, Target, machine, read_json, target_as_json, write_json
from learning_measures import usage
from learning_residual_data import load
from learning_rows import RECOMMENDED
from torch import Tensor
from vector_quantize_pytorch import ResidualVQ as Reference

import torchvq

NAME = "learning_residual"
LEVELS, CODES, BEAM = 8, 256, 5
DATA = ("patches", "embeddings")
# Design goals: the error over that of faiss's beam-5 quantizer, by data and beam.
GOALS = {
    ("patches", 1): 1.10,
    ("patches", BEAM): 1.02,
    ("embeddings", 1): 1.04,
    ("embeddings", BEAM): 1.01,
}


@dataclass(frozen=True)
class Row:
    """Settings of a stack, and the library."""

    name: str
    who: str
    beam: int = 1
    options: dict[str, Any] = field(default_factory=dict)

    def make(self, dim: int) -> torch.nn.Module:
        common = dict(dim=dim, num_quantizers=LEVELS, codebook_size=CODES, **self.options)
        if self.who == "reference":
            return Reference(**common)
        return torchvq.ResidualVQ(**common, beam_size=self.beam)


def rows() -> list[Row]:
    """The recommended settings, greedy and with a beam; the reference's and faiss's, greedy."""
    slow = RECOMMENDED | {"decay": 0.99}
    return [
        Row("recommended", "ours", 1, RECOMMENDED),
        Row("recommended", "ours", BEAM, RECOMMENDED),
        Row("recommended, decay 0.99", "ours", 1, slow),
        Row("recommended, decay 0.99", "ours", BEAM, slow),
        Row("k-means, threshold 2", "ours", 1, dict(kmeans_init=True, threshold_ema_dead_code=2)),
        Row(
            "k-means, threshold 2",
            "reference",
            1,
            dict(kmeans_init=True, threshold_ema_dead_code=2),
        ),
        Row("k-means on all tokens", "faiss", 1),
    ]


@cache
def faiss_result(name: str, quick: bool, beam: int) -> tuple[float, Tensor]:
    """Test error and codes (N, levels) of faiss's ResidualQuantizer, trained and searched with a beam."""
    train, test = load(name, quick)
    bits = CODES.bit_length() - 1
    trainer = faiss.ResidualQuantizer(train.shape[1], LEVELS, bits)
    trainer.max_beam_size = beam
    trainer.train(train.numpy())
    codes = trainer.compute_codes(test.numpy())
    error = (test - torch.from_numpy(trainer.decode(codes))).double().square().mean()
    unpacked = faiss.unpack_bitstrings(codes, LEVELS, bits)
    return float(error), torch.from_numpy(unpacked.astype("int64"))


def batches(data: Tensor, quick: bool, seed: int) -> Iterator[Tensor]:
    """The same batches for everyone, (batch, D), with four times as many tokens as a level has codes."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(4 if quick else 800):
        yield data[torch.randint(len(data), (4 * CODES,), generator=generator)]


def train(row: Row, data: Tensor, quick: bool, seed: int, rank: int, ranks: int) -> torch.nn.Module:
    """A stack trained by a rank on its share of each batch."""
    torch.manual_seed(seed)
    stack = row.make(data.shape[1]).train()
    with torch.no_grad():
        for tokens in batches(data, quick, seed):
            stack(tokens.chunk(ranks)[rank][None])
    return stack


def _rank(
    rank: int, ranks: int, folder: str, row: Row, quick: bool, seed: int, threads: int
) -> None:
    torch.set_num_threads(threads)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks
    )
    # Loaded, because the bits of newly computed data might depend on the number of threads.
    data = torch.load(f"{folder}/data.pt")
    torch.save(train(row, data, quick, seed, rank, ranks).state_dict(), f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def ranks_agree(alone: torch.nn.Module, row: Row, data: Tensor, quick: bool, seed: int) -> bool:
    """Whether two ranks end with the state of the one process that had the whole batches, bit for bit."""
    with tempfile.TemporaryDirectory() as folder:
        threads = max(torch.get_num_threads() // 2, 1)
        torch.save(data, f"{folder}/data.pt")
        mp.spawn(_rank, (2, folder, row, quick, seed, threads), nprocs=2)
        states = [torch.load(f"{folder}/{rank}.pt") for rank in range(2)]
    right = alone.state_dict()
    return all(torch.equal(state[key], value) for state in states for key, value in right.items())


@torch.no_grad()
def run(row: Row, name: str, quick: bool, seed: int) -> dict[str, Any]:
    """One stack: its test error over faiss's, the use of its first and last level, and whether two ranks agree."""
    data, test = load(name, quick)
    if row.who == "faiss":
        error, indices = faiss_result(name, quick, row.beam)
    else:
        stack = train(row, data, quick, seed, 0, 1)
        quantized, indices = stack.eval()(test[None])[:2]
        error = float((test - quantized[0]).double().square().mean())
    first, last = (usage(indices[..., level], CODES) for level in (0, LEVELS - 1))
    result: dict[str, Any] = {
        "error_over_faiss": error / faiss_result(name, quick, BEAM)[0],
        "use_first": first["use"],
        "use_last": last["use"],
        "perplexity_last": last["perplexity"],
    }
    if row.who == "ours":
        result["two_ranks_alike"] = ranks_agree(stack, row, data, quick, seed)
    return result


def targets(runs: list[dict[str, Any]]) -> list[Target]:
    """The design goals, for the best of the recommended settings, and the agreement of ranks."""
    found = []
    for (name, beam), goal in GOALS.items():
        own = [
            entry["error_over_faiss"]
            for entry in runs
            if (entry["data"], entry["beam"], entry["who"]) == (name, beam, "ours")
            and entry["name"].startswith("recommended")
        ]
        if own:
            found.append(
                Target("error over faiss beam 5", goal, min(own), f"{name}, beam {beam}", True)
            )
    alike = [entry["two_ranks_alike"] for entry in runs if "two_ranks_alike" in entry]
    if alike:
        found.append(
            Target("share of rows that two ranks learn alike", 1.0, sum(alike) / len(alike), "all")
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="see that it runs; the numbers are noise"
    )
    parser.add_argument("--only", choices=DATA, help="one kind of data; default: both")
    parser.add_argument("--resume", action="store_true", help="keep the runs that the file holds")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    arguments = parser.parse_args()
    file = arguments.output / f"{NAME}.json"
    runs = read_json(file)["runs"] if arguments.resume and file.exists() else []
    for name in [arguments.only] if arguments.only else DATA:
        for row in rows():
            key = dict(data=name, name=row.name, who=row.who, beam=row.beam, seed=0)
            if any(all(old.get(k) == value for k, value in key.items()) for old in runs):
                continue
            runs.append({**key, **run(row, name, arguments.quick, 0)})
            document = dict(name=NAME, quick=arguments.quick, machine=machine(), runs=runs)
            document["targets"] = [target_as_json(target) for target in targets(runs)]
            write_json(file, document)
            print("  " + ", ".join(f"{k} {v}" for k, v in runs[-1].items()), flush=True)
    for target in targets(runs):
        print(f"  {target}")


if __name__ == "__main__":
    main()
