"""Peak extra memory: each contender in a process of its own, over what it held before the call.

`python memory.py NAME N K D` measures one call and prints bytes; run() starts these.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

SHAPES = ((16384, 4096, 64), (16384, 16384, 64), (131072, 16384, 64))
QUICK = ((2048, 512, 16),)
# N x K x 4 bytes; the others need several of these at once.
MATRIX_LIMIT = 2**29
CONTENDERS = ("torchvq search", "faiss search", "torchvq", "reference", "plain torch")


def run(settings: Settings) -> None:  # noqa: F821
    from harness import Case, write

    cases = []
    for n, k, d in QUICK if settings.quick else SHAPES:
        peaks = {}
        for name in CONTENDERS:
            small = n * k * 4 <= MATRIX_LIMIT
            if small or name.startswith(("torchvq", "faiss")):
                peaks[name] = _in_a_process(name, n, k, d)
        # Bytes of the tokens and of the codebook: what the extra memory may be a small multiple of.
        case = Case(
            f"N={n} K={k} D={d}",
            dict(N=n, K=k, D=d, tokens=n * d * 4, codebook=k * d * 4, matrix=n * k * 4),
            {},
            {"peak_bytes": peaks},
        )
        cases.append(case)
        shown = ", ".join(f"{name} {peak / 2**20:.1f}" for name, peak in peaks.items())
        settings.say(f"  {case.name}: MiB {shown}")
    write("memory", cases, settings)


def _in_a_process(name: str, n: int, k: int, d: int) -> int:
    command = [sys.executable, str(Path(__file__)), name, str(n), str(k), str(d)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(answer.stdout)


def _peak_over_now(call: Callable[[], object]) -> int:
    """Resident bytes at most during the call, less those before it, by sampling."""
    import psutil

    process = psutil.Process()
    before = highest = process.memory_info().rss
    done = threading.Event()

    def watch() -> None:
        nonlocal highest
        while not done.wait(0.0005):
            highest = max(highest, process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    call()
    highest = max(highest, process.memory_info().rss)
    done.set()
    watcher.join()
    return highest - before


def _call(name: str, n: int, k: int, d: int) -> Callable[[], object]:
    import contenders

    x, codes = contenders.tokens_and_codes(n, k, d)
    if name == "torchvq search":
        return lambda: contenders.ours_nearest(x, codes)
    if name == "faiss search":
        return contenders.faiss_nearest(x, codes)
    module = contenders.quantizers(k, d, codes)[name]
    return contenders.training_step(module.train(), x[None])


def _main(name: str, *shape: str) -> None:
    import torch

    torch.set_num_threads(1)
    # Libraries load their parts at the first call; that is no part of a step.
    _call(name, 64, 32, 16)()
    print(_peak_over_now(_call(name, *map(int, shape))))


if __name__ == "__main__":
    _main(*sys.argv[1:])
