"""The search alone: nearest_code against the plain GEMM, plain torch, faiss, and the reference's evaluation."""

from __future__ import annotations

import checks
import torch
from contenders import faiss_nearest, ours_nearest, plain_nearest, quantizers, tokens_and_codes
from harness import OURS, Case, Contender, Settings, Target, compare, write

# N, K, D; so many tokens that the reference, which makes several N x K matrices, can still be timed often; then small
# batches.
SHAPES = (
    (8192, 1024, 8),
    (8192, 1024, 64),
    (8192, 1024, 256),
    (2048, 16384, 8),
    (2048, 16384, 64),
    (1024, 65536, 32),
    (64, 1024, 128),
    (1, 1024, 128),
    (64, 16384, 64),
    (1, 16384, 64),
)
QUICK = ((512, 256, 8), (512, 256, 64), (1, 256, 128))
SQUARE = 1536
# Beyond this N * K, the reference takes seconds and adds no information.
REFERENCE_LIMIT = 2**25
# Cases with at most this many codes are repeated on two threads.
TWICE = 1024


def run(settings: Settings) -> None:
    cases = []
    with torch.no_grad():
        for threads in settings.threads:
            shapes = QUICK if settings.quick else SHAPES
            shapes = [shape for shape in shapes if threads == 1 or shape[1] <= TWICE]
            cases += [measure(shape, threads, settings) for shape in shapes]
    write("nearest_code", cases, settings)


def measure(shape: tuple[int, int, int], threads: int, settings: Settings) -> Case:
    n, k, d = shape
    x, codes = tokens_and_codes(n, k, d)
    search = {
        OURS: lambda: ours_nearest(x, codes),
        "plain torch": lambda: plain_nearest(x, codes),
        "faiss": faiss_nearest(x, codes),
    }
    if n * k <= REFERENCE_LIMIT:
        reference = quantizers(k, d, codes)["reference"].eval()
        search["reference"] = lambda: reference(x[None])[1][0]
    wrong = checks.nearest({name: run() for name, run in search.items()}, x, codes, OURS)
    product = torch.empty(n, k)
    square = torch.randn(SQUARE, SQUARE)
    contenders = [Contender(name, run, threads) for name, run in search.items()]
    contenders.append(Contender("GEMM", lambda: torch.mm(x, codes.T, out=product), threads))
    if n > 1000:
        contenders.append(Contender("square GEMM", lambda: square @ square, threads))
    case = Case(
        f"N={n} K={k} D={d} threads={threads}",
        dict(N=n, K=k, D=d, threads=threads),
        compare(contenders, settings),
        {"rows_not_exact": wrong},
    )
    _set_targets(case, n, k, d)
    settings.report(case)
    return case


def _set_targets(case: Case, n: int, k: int, d: int) -> None:
    case.expect("faiss", 1.0 if n == 1 else 1.4, "faiss IndexFlatL2")
    if n < 1000:
        return
    if d >= 64:
        case.expect("GEMM", 1.15, "plain GEMM of the same shape, D >= 64")
        per_flop = case.times["square GEMM"]["ratio"] / (2 * SQUARE**3) * (2 * n * k * d)
        case.targets.append(Target("rate of a square GEMM", 1.0, per_flop, case.name))
    elif d <= 16:
        case.expect("GEMM", 3.0, "plain GEMM of the same shape, D <= 16")
    wanted = {8: 100.0, 64: 20.0, 256: 8.0}.get(d)
    if wanted is not None and "reference" in case.times:
        case.expect("reference", wanted, f"reference's search, D = {d}")
