"""Small training steps of every class, forward and backward, against the reference and plain torch, also compiled."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import checks
import every_class
import torch
from every_class import ENTRIES, Entry
from harness import OURS, Case, Contender, Settings, compare, write
from torch._inductor.exc import InductorError

COUNTS, QUICK = (1, 64, 1024), (64,)
# A few classes are enough to see that it runs.
QUICK_ENTRIES = ("FSQ", "ResidualVQ", "RandomProjectionQuantizer")
COMPILED = "compiled plain"
# What torch takes for a step that quantizes nothing, which bounds every ratio.
EMPTY = "empty step"
# Classes made of others are compiled for one size only, because compiling takes most of the time.
COMPOSED = ("GroupedResidualVQ", "GroupedResidualFSQ", "GroupedResidualLFQ", "EvoLFQ", "Sequential")
# Steps take these in turn. On one batch alone all codes move to its tokens, and the search finds nothing but near ties.
BATCHES = 64
# Tokens of the comparison, enough for losses that depend on moments.
CHECKED = 64
# Allowed fraction of different indices: in stacks, the rounding of residuals decides near ties.
DIFFERENT = 0.01
OVER_PLAIN, OVER_REFERENCE = 2.0, 4.0


def run(settings: Settings) -> None:
    entries = [e for e in ENTRIES if not settings.quick or e.name in QUICK_ENTRIES]
    counts = QUICK if settings.quick else COUNTS
    cases = [
        measure(entry, count, settings, count == CHECKED or entry.name not in COMPOSED)
        for entry in entries
        for count in counts
    ]
    write("small_steps", cases, settings)


def measure(entry: Entry, count: int, settings: Settings, compiled: bool = True) -> Case:
    x = every_class.tokens(entry, count)
    found = _checked(entry)
    contenders = [Contender(name, call) for name, call in _steps(entry, count, compiled).items()]
    number = x.numel() // x.shape[-1]
    case = Case(
        f"{entry.name} N={number}",
        dict(what=entry.name, N=number),
        compare(contenders, settings),
        {"indices_different": found},
    )
    for against in ("plain torch", COMPILED):
        if against in case.times:
            case.expect(against, OVER_PLAIN, f"small steps: {against}")
    case.expect("reference", OVER_REFERENCE, "small steps: reference")
    settings.report(case)
    return case


def _checked(entry: Entry) -> dict[str, float]:
    """Differences of indices in the first step, in which all contenders have the same codes."""
    x = every_class.tokens(entry, CHECKED)
    modules = every_class.modules(entry)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {n: every_class.step_of(entry, m, [x])()[0].flatten() for n, m in modules.items()}
    if entry.draws:
        return {}
    # Finer scales quantize the residual of codes that the contenders move differently.
    first = slice(len(found[OURS]) if entry.length == 1 else 1)
    return {
        name: checks.fraction_different(
            f"{entry.name}, {name}", indices[first], found[OURS][first], DIFFERENT
        )
        for name, indices in found.items()
        if name != OURS
    }


def _steps(entry: Entry, count: int, compiled: bool) -> dict[str, Callable[[], object]]:
    batches = [every_class.tokens(entry, count, batch) for batch in range(BATCHES)]
    modules: dict[str, Any] = every_class.modules(entry)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nothing = every_class.nothing_like(entry, modules[OURS], batches[0])
    if nothing is not None:
        modules[EMPTY] = nothing
    if compiled:
        torch._dynamo.reset()
        written = every_class.modules(entry)["plain torch"]
        modules[COMPILED] = torch.compile(written, dynamic=False, fullgraph=True)
    steps = {
        name: _quiet(every_class.step_of(entry, module, batches))
        for name, module in modules.items()
        if name != COMPILED
    }
    if compiled:
        try:
            steps[COMPILED] = _quiet(every_class.step_of(entry, modules[COMPILED], batches))
        except InductorError:
            # torch 2.13 fails to compile the plain form of HierarchicalVQ.
            print(
                f"  {entry.name} N={count}: torch's compiler fails on {COMPILED}, which is left out"
            )
    return steps


def _quiet(step: Callable[[], object]) -> Callable[[], object]:
    """A first call, which compiles and emits warnings before the clock starts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step()
    return step
