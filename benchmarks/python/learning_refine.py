"""Joint refinement of residual stacks, against quantizers of faiss with as many bits: residual, local search.

`python benchmarks/python/learning_refine.py` takes half an hour on two idle cores. Every run is written as it ends;
`--resume` continues the file of an interrupted one. Stacks are those of learning_residual.py, refined on the tokens on
which they were trained and measured on others.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import faiss
import torch
from harness import RESULTS, Target, machine, read_json, target_as_json, write_json
from learning_residual import BEAM, CODES, DATA, LEVELS, faiss_result, rows, train
from learning_residual_data import load
from torch import Tensor, nn

import torchvq

NAME = "learning_refine"
BEAMS = (1, BEAM, 16)
START = "recommended, decay 0.99"
# Design goals: the test error over that of faiss's beam-5 quantizer, by data and the beam that encodes.
GOALS = {
    ("patches", BEAM): 0.85,
    ("embeddings", BEAM): 0.95,
    ("patches", 1): 1.10,
    ("embeddings", 1): 1.10,
}


@dataclass(frozen=True)
class Refined:
    """A row of ours: the beam with which a stack is trained, and how it is refined."""

    name: str
    trained_beam: int
    options: dict[str, Any] | None = None


REFINED = (
    Refined("trained", BEAM),
    Refined("refined", BEAM, dict(iterations=16)),
    Refined("refined, noise 0.3", BEAM, dict(iterations=16, noise=0.3)),
    Refined("refined with a beam of 16", BEAM, dict(iterations=16, beam_size=16)),
    Refined("trained with a beam of 1", 1),
    Refined("trained and refined with a beam of 1", 1, dict(iterations=16, beam_size=1)),
    Refined(
        "trained and refined with a beam of 1, noise 0.3",
        1,
        dict(iterations=16, beam_size=1, noise=0.3),
    ),
)
LOCAL_SEARCH = "local search"


@cache
def trained(name: str, beam: int, quick: bool, seed: int) -> nn.Module:
    (row,) = [row for row in rows() if (row.name, row.beam) == (START, beam)]
    return train(row, load(name, quick)[0], quick, seed, 0, 1).eval()


def error(found: Tensor, tokens: Tensor) -> float:
    return float((found - tokens).double().square().mean())


@torch.no_grad()
def ours(settings: Refined, name: str, quick: bool, seed: int) -> dict[str, Any]:
    """Test errors of a stack by the beam of the encoder, and the refinement's errors on the training tokens."""
    tokens, test = load(name, quick)
    stack = trained(name, settings.trained_beam, quick, seed)
    state = {key: value.clone() for key, value in stack.state_dict().items()}
    result: dict[str, Any] = {}
    if settings.options is not None:
        start = time.perf_counter()
        options = settings.options | ({"iterations": 2} if quick else {})
        refined = torchvq.refine(stack, tokens[None], **options)
        result = dict(
            train_error_before=refined.error_before,
            train_error=refined.error_after,
            refits=refined.iterations,
            seconds=time.perf_counter() - start,
        )
    result["errors"] = {
        str(beam): error(stack(test[None], beam_size=beam)[0][0], test) for beam in BEAMS
    }
    stack.load_state_dict(state)
    return result


def local_search(name: str, quick: bool) -> dict[str, Any]:
    """faiss's LocalSearchQuantizer: least squares as here, and codes by iterated conditional modes."""
    tokens, test = load(name, quick)
    quantizer = faiss.LocalSearchQuantizer(tokens.shape[1], LEVELS, CODES.bit_length() - 1)
    start = time.perf_counter()
    quantizer.train(tokens.numpy())
    seconds = time.perf_counter() - start
    decoded = quantizer.decode(quantizer.compute_codes(test.numpy()))
    # It has no beam; its search iterates over all levels.
    return {
        "errors": {str(BEAM): error(torch.from_numpy(decoded), test)},
        "seconds": seconds,
    }


def run(settings: Refined | None, name: str, quick: bool, seed: int) -> dict[str, Any]:
    """A row of ours, or faiss's local search."""
    result = ours(settings, name, quick, seed) if settings else local_search(name, quick)
    baseline = faiss_result(name, quick, BEAM)[0]
    errors = result.pop("errors")
    return {
        **result,
        "error_over_faiss": {beam: value / baseline for beam, value in errors.items()},
    }


def targets(runs: list[dict[str, Any]]) -> list[Target]:
    """The design goals, for the better of the recommended refinements, which differ in their noise."""
    found = []
    for (name, beam), goal in GOALS.items():
        kinds = [
            row.name
            for row in REFINED
            if row.trained_beam == beam
            and row.options
            and row.options.get("beam_size", BEAM) == beam
        ]
        ratios = {
            entry["name"]: entry["error_over_faiss"][str(beam)]
            for entry in runs
            if entry["data"] == name and str(beam) in entry["error_over_faiss"]
        }
        known = [ratios[kind] for kind in kinds if kind in ratios]
        if not known:
            continue
        own = min(known)
        case = f"{name}, refined, beam {beam}"
        found.append(Target("error over faiss beam 5", goal, own, case, True))
        if LOCAL_SEARCH in ratios:
            other = own / ratios[LOCAL_SEARCH]
            found.append(Target("error over LocalSearchQuantizer", 1.0, other, name, True))
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
        for settings in (*REFINED, None):
            row, who = (settings.name, "ours") if settings else (LOCAL_SEARCH, "faiss")
            key = dict(data=name, name=row, who=who, seed=0)
            if any(all(old.get(k) == value for k, value in key.items()) for old in runs):
                continue
            runs.append({**key, **run(settings, name, arguments.quick, 0)})
            document = dict(name=NAME, quick=arguments.quick, machine=machine(), runs=runs)
            document["targets"] = [target_as_json(target) for target in targets(runs)]
            write_json(file, document)
            print("  " + ", ".join(f"{k} {v}" for k, v in runs[-1].items()), flush=True)
    for target in targets(runs):
        print(f"  {target}")


if __name__ == "__main__":
    main()
