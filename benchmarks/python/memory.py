"""Peak extra memory: each contender in its own process, beyond what it held before the call.

`python memory.py NAME N K D` measures one call and prints bytes, `python memory.py classes N [NAME...]` a training
step of every class; run() starts these.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import every_class
    from harness import Settings

SHAPES = ((16384, 4096, 64), (16384, 16384, 64), (131072, 16384, 64))
QUICK = ((2048, 512, 16),)
# Tokens in a step of every class.
TOKENS, QUICK_TOKENS = 4096, 64
QUICK_CLASSES = ("FSQ", "LFQ")
# The reference makes several matrices N x K; it is left out if one has more bytes than this.
MATRIX_LIMIT = 2**30
SEARCH, OURS = "torchvq search", "torchvq"
CONTENDERS = (OURS, SEARCH, "faiss search", "plain torch", "reference")
# Target, in multiples of tokens and codebook: a step returns outputs and gradients, and saves tensors for backward.
WANTED = 6.0


def run(settings: Settings) -> None:
    from harness import write

    cases = [_measure(*shape, settings) for shape in (QUICK if settings.quick else SHAPES)]
    write("memory", cases, settings, classes=_classes(settings))


def _measure(n: int, k: int, d: int, settings: Settings) -> object:
    from harness import Case, Target

    # In bytes: extra memory should be a small multiple of tokens and codebook, and far below the matrix.
    tokens, codebook, matrix = n * d * 4, k * d * 4, n * k * 4
    always = (OURS, SEARCH, "faiss search")
    measured = [name for name in CONTENDERS if name in always or matrix <= MATRIX_LIMIT]
    peaks = {name: _in_a_process(name, n, k, d) for name in measured}
    sizes = dict(N=n, K=k, D=d, tokens=tokens, codebook=codebook, matrix=matrix)
    case = Case(f"N={n} K={k} D={d}", sizes, {}, {"peak_bytes": peaks})
    if not settings.quick:
        text = "extra memory of a {} over that of tokens and codebook"
        for name, what in ((OURS, "training step"), (SEARCH, "search")):
            ratio = peaks[name] / (tokens + codebook)
            case.targets.append(Target(text.format(what), WANTED, ratio, case.name, at_most=True))
    shown = ", ".join(f"{name} {peak / 2**20:.1f}" for name, peak in peaks.items())
    settings.say(f"  {case.name}: MiB {shown}; a matrix N x K {matrix / 2**20:.0f}")
    return case


def _classes(settings: Settings) -> dict[str, object]:
    """Bytes by class and contender."""
    tokens, some = (QUICK_TOKENS, QUICK_CLASSES) if settings.quick else (TOKENS, ())
    command = [sys.executable, "-W", "ignore", str(Path(__file__)), "classes", str(tokens), *some]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    peaks: dict[str, dict[str, int]] = json.loads(answer.stdout.splitlines()[-1])
    for name, found in peaks.items():
        shown = ", ".join(f"{who} {peak / 2**20:.1f}" for who, peak in found.items())
        settings.say(f"  {name} N={tokens}: MiB {shown}")
    return dict(tokens=tokens, peaks=peaks)


def _in_a_process(name: str, n: int, k: int, d: int) -> int:
    command = [sys.executable, str(Path(__file__)), name, str(n), str(k), str(d)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(answer.stdout)


def peak_over_now(call: Callable[[], object]) -> int:
    """Peak resident bytes during the call minus those before it, as Linux counts them."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _resident("VmRSS")
    result = call()
    peak = _resident("VmHWM")
    del result
    return max(0, peak - before)


def _print_classes(tokens: int, some: tuple[str, ...]) -> None:
    """All classes or some, each in a forked process that has not computed anything yet."""
    import every_class
    import torch

    torch.set_num_threads(1)
    peaks: dict[str, dict[str, int]] = {}
    for entry in (e for e in every_class.ENTRIES if not some or e.name in some):
        peaks[entry.name] = {
            who: _forked(lambda who=who, entry=entry: _class_peak(entry, who, tokens))
            for who in (OURS, "plain torch", "reference")
        }
    print(json.dumps(peaks))


def _class_peak(entry: every_class.Entry, who: str, tokens: int) -> int:
    import every_class

    # The first call loads parts of libraries, which do not count.
    every_class.step_of(entry, every_class.modules(entry)[who], [every_class.tokens(entry, 16)])()
    module, x = every_class.modules(entry)[who], every_class.tokens(entry, tokens)
    return peak_over_now(every_class.step_of(entry, module, [x]))


def _forked(measure: Callable[[], int]) -> int:
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        failed = 1
        try:
            os.write(writer, str(measure()).encode())
            failed = 0
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(failed)
    os.close(writer)
    _, status = os.waitpid(child, 0)
    answer = os.read(reader, 100).decode()
    os.close(reader)
    if status:
        raise RuntimeError("a step whose memory is measured failed")
    return int(answer)


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


def _call(name: str, n: int, k: int, d: int) -> Callable[[], object]:
    import contenders

    x, codes = contenders.tokens_and_codes(n, k, d)
    if name == SEARCH:
        return lambda: contenders.ours_nearest(x, codes)
    if name == "faiss search":
        return contenders.faiss_nearest(x, codes)
    module = contenders.quantizers(k, d, codes)[name]
    return contenders.training_step(module.train(), x[None])


def _main(name: str, *shape: str) -> None:
    import torch

    if name == "classes":
        return _print_classes(int(shape[0]), shape[1:])
    torch.set_num_threads(1)
    # The first call loads parts of libraries, which do not count.
    _call(name, 64, 32, 16)()
    print(peak_over_now(_call(name, *map(int, shape))))
    return None


if __name__ == "__main__":
    _main(*sys.argv[1:])
