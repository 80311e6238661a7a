"""VectorQuantize: training steps (forward and backward) and evaluation, against the reference and plain torch."""

from __future__ import annotations

import checks
import torch
from contenders import quantizers, tokens_and_codes, training_step
from harness import OURS, Case, Contender, Settings, compare, write

SHAPES = ((8192, 1024, 8), (8192, 1024, 64), (8192, 1024, 256), (2048, 16384, 8), (2048, 16384, 64))
QUICK = ((256, 128, 8), (256, 128, 64))
# Cases with at most this many codes are repeated on two threads.
TWICE = 1024
TARGETS = {8: 60.0, 64: 15.0, 256: 7.0}


def run(settings: Settings) -> None:
    cases = []
    for threads in settings.threads:
        for shape in QUICK if settings.quick else SHAPES:
            if threads == 1 or shape[1] <= TWICE:
                cases.append(training(shape, threads, settings))
                cases.append(evaluation(shape, threads, settings))
    write("vector_quantize", cases, settings)


def training(shape: tuple[int, int, int], threads: int, settings: Settings) -> Case:
    n, k, d = shape
    x, codes = tokens_and_codes(n, k, d)
    modules = quantizers(k, d, codes)
    steps = {name: training_step(module.train(), x[None]) for name, module in modules.items()}
    results = {name: step() for name, step in steps.items()}
    wrong = checks.nearest({name: r[0] for name, r in results.items()}, x, codes, OURS)
    differences = {
        "losses_differ_by": checks.close("losses", results[OURS][1], results["reference"][1]),
        "gradients_differ_by": checks.close(
            "gradients", results[OURS][2].norm(), results["reference"][2].norm()
        ),
        "codes_differ_by": checks.close(
            "codes", modules[OURS].codebook.norm(), modules["reference"].codebook.norm()
        ),
    }
    case = Case(
        f"training N={n} K={k} D={d} threads={threads}",
        dict(what="training step", N=n, K=k, D=d, threads=threads),
        compare([Contender(name, step, threads) for name, step in steps.items()], settings),
        {"rows_not_exact": wrong, **differences},
    )
    case.expect("reference", TARGETS[d], f"reference's training step, D = {d}")
    settings.report(case)
    return case


def evaluation(shape: tuple[int, int, int], threads: int, settings: Settings) -> Case:
    n, k, d = shape
    x, codes = tokens_and_codes(n, k, d)
    modules = {name: module.eval() for name, module in quantizers(k, d, codes).items()}
    with torch.no_grad():
        found = {name: module(x[None])[1] for name, module in modules.items()}
        contenders = [
            Contender(name, lambda m=m: m(x[None]), threads) for name, m in modules.items()
        ]
        case = Case(
            f"evaluation N={n} K={k} D={d} threads={threads}",
            dict(what="evaluation", N=n, K=k, D=d, threads=threads),
            compare(contenders, settings),
            {"rows_not_exact": checks.nearest(found, x, codes, OURS)},
        )
    settings.report(case)
    return case
