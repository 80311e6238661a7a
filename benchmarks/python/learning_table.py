"""Learning of every quantizer, torchvq and the reference in pairs: same network, same first codes, same batches.

`python benchmarks/python/learning_table.py` takes about an hour on two idle cores. Every run is written as it ends, and
`--resume` continues the file of an interrupted one; `--adopt FILE` replaces runs by those of another file, and each of
them keeps the machine and the commit that made it. Embeddings are trained first, and differ between machines: adopt the
runs of both libraries for their rows. To try another build of the library, run ours into another folder and compare it
with the reference's runs of the first:

    TORCHVQ_LIBRARY=build/src/libtorchvq.so PYTHONPATH=python python benchmarks/python/learning_table.py --who ours \
        --rows recommended --output /tmp/try --baseline benchmarks/results/learning_table.json
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import learning_report as report
import learning_tasks_autoencoder as autoencoder
import learning_tasks_drift as drift
import learning_tasks_mixture as mixture
import learning_tasks_stream as stream
import torch
from harness import RESULTS, machine, read_json, write_json
from learning_rows import OURS, REFERENCE, YARDSTICK, Row

NAME = "learning_table"
SEEDS = 5

Key = tuple[str, str, str, int]
Run = dict[str, Any]


def rows() -> list[Row]:
    return [*autoencoder.rows(), *mixture.rows(), *stream.rows(), *drift.rows()]


def key_of(run: Run) -> Key:
    return run["task"], run["row"], run["who"], run["seed"]


def jobs_of(chosen: Sequence[Row], seeds: int, who: Sequence[str]) -> Iterator[Key]:
    """All rows of a seed before the next seed, so that an interrupted table is a complete table of fewer seeds."""
    if YARDSTICK in who:
        measured = {stream.yardstick_of(row): row for row in chosen if row.setting}
        yield from ((row.task, row.name, YARDSTICK, 0) for row in measured.values())
    for seed in range(seeds):
        for row in chosen:
            for library in (OURS, REFERENCE):
                if library in who and row.has(library):
                    yield row.task, row.name, library, seed


def one(key: Key, quick: bool) -> Run:
    """A run, in a worker. A failure becomes a part of the table and does not stop the other runs."""
    task, name, who, seed = key
    row = next(row for row in rows() if (row.task, row.name) == (task, name))
    run: Run = dict(task=task, row=name, who=who, seed=seed)
    if row.setting:
        run["yardstick"] = stream.yardstick_of(row)
    started = time.process_time()
    try:
        if who == YARDSTICK:
            run |= stream.yardstick(row, quick)
        else:
            run |= _module(task).run(row, who, seed, quick)
        run["finite"] = all(math.isfinite(v) for v in run.values() if isinstance(v, float))
    except Exception as error:
        run |= {"failed": f"{type(error).__name__}: {error}", "finite": False}
    return run | {"seconds": time.process_time() - started}


def _module(task: str) -> Any:
    for module in (autoencoder, mixture):
        if task == module.TASK:
            return module
    return stream if task in (stream.STREAM, stream.RESIDUAL) else drift


def _one_thread() -> None:
    torch.set_num_threads(1)


def measure(keys: list[Key], jobs: int, quick: bool) -> Iterator[Run]:
    """The runs as they end, each on one thread."""
    # OpenMP reads this when the workers load it.
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, _one_thread) as pool:
        futures = [pool.submit(one, key, quick) for key in keys]
        for future in as_completed(futures):
            yield future.result()


def _say(run: Run, done: int, total: int) -> None:
    shown = {k: v for k, v in run.items() if isinstance(v, float)}
    numbers = run.get("failed") or ", ".join(f"{k} {v:.4g}" for k, v in shown.items())
    where = f"{run['task']}, {run['row']}, {run['who']}, seed {run['seed']}"
    print(f"  {done}/{total} {where}: {numbers}", flush=True)


def adopted(document: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The document with runs of the other in place of its own of the same row, library and seed."""
    kept = ("cpu", "cores", "level", "commit", "date")
    where = {key: other["machine"][key] for key in kept}
    fresh = {key_of(run): {"machine": where, **run} for run in other["runs"]}
    runs = [run for run in document["runs"] if key_of(run) not in fresh]
    return document | {"runs": [*runs, *fresh.values()]}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--rows", default="", help="a regular expression that names of rows are searched for")
    add(
        "--tasks",
        default="",
        help="the same for tasks: autoencoder, mixture, stream, drift, disturbance",
    )
    add("--seeds", type=int, default=SEEDS)
    add(
        "--who",
        default=f"{OURS},{REFERENCE},{YARDSTICK}",
        help="ours, reference, faiss; default: all",
    )
    add("--jobs", type=int, default=2, help="processes of one thread each")
    add("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    add("--resume", action="store_true", help="keep the runs that the file holds")
    add("--quick", action="store_true", help="see that it runs; the numbers are noise")
    add("--adopt", type=Path, help="take the runs of this file over into the results, run nothing")
    add("--baseline", type=Path, help="a file whose runs stand in for those that are not made here")
    add("--report", type=Path, help="print the table of this file and run nothing")
    return parser.parse_args()


def main() -> None:
    arguments = _arguments()
    stands_in = read_json(arguments.baseline)["runs"] if arguments.baseline else []
    if arguments.report:
        print(report.text(read_json(arguments.report)["runs"], rows(), stands_in))
        return
    file = arguments.output / f"{NAME}.json"
    if arguments.adopt:
        write_json(file, adopted(read_json(file), read_json(arguments.adopt)))
        return
    kept: list[Run] = read_json(file)["runs"] if arguments.resume and file.exists() else []
    runs = [run for run in kept if "failed" not in run]
    document = dict(name=NAME, quick=arguments.quick, machine=machine(), runs=runs)
    chosen = [
        row
        for row in rows()
        if re.search(arguments.rows, row.name) and re.search(arguments.tasks, row.task)
    ]
    done = {key_of(run) for run in runs}
    who = arguments.who.split(",")
    missing = [key for key in jobs_of(chosen, arguments.seeds, who) if key not in done]
    for run in measure(missing, arguments.jobs, arguments.quick):
        runs.append(run)
        write_json(file, document)
        _say(run, len(runs) - len(done), len(missing))
    print(report.text(runs, chosen, stands_in))


if __name__ == "__main__":
    main()
