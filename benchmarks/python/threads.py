"""Two threads against one: the same search and the same training step, in turn."""

from __future__ import annotations

from collections.abc import Callable

import torch
from contenders import ours_nearest, quantizers, tokens_and_codes, training_step
from harness import OURS, Case, Contender, Settings, Target, compare, write

SHAPES = ((8192, 1024, 8), (8192, 1024, 64), (8192, 1024, 256), (4096, 16384, 64))
QUICK = ((512, 256, 64),)
WANTED = 1.8


def run(settings: Settings) -> None:
    cases = []
    for n, k, d in QUICK if settings.quick else SHAPES:
        x, codes = tokens_and_codes(n, k, d)
        work: dict[str, Callable[[], object]] = {
            "search": torch.no_grad()(lambda x=x, codes=codes: ours_nearest(x, codes)),
            "training step": training_step(quantizers(k, d, codes)[OURS].train(), x[None]),
        }
        for what, call in work.items():
            cases.append(_measure(what, call, (n, k, d), settings))
            settings.report(cases[-1])
    write("threads", cases, settings)


def _measure(
    what: str, call: Callable[[], object], shape: tuple[int, int, int], settings: Settings
) -> Case:
    n, k, d = shape
    contenders = [Contender("two threads", call, 2), Contender("one thread", call, 1)]
    times = compare(contenders, settings)
    case = Case(f"{what}, N={n} K={k} D={d}", dict(what=what, N=n, K=k, D=d), times)
    case.targets.append(Target("two threads over one", WANTED, case.ratio("one thread"), case.name))
    return case
