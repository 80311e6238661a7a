"""Growth of times with tokens, codes, features and levels: one of them at a time, with fitted exponents."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from contenders import quantizers, tokens_and_codes, training_step
from harness import OURS, Case, Contender, Settings, compare, write
from residual import summed
from torch import Tensor, nn
from vector_quantize_pytorch import ResidualVQ as Reference

import torchvq

BASE = dict(N=2048, K=1024, D=64)
AXES: dict[str, tuple[int, ...]] = {
    "N": (256, 1024, 4096),
    "K": (256, 1024, 4096),
    "D": (8, 32, 128, 512),
    "Q": (2, 4, 8, 16),
}
QUICK_BASE, QUICK_AXES = dict(N=64, K=32, D=8), {"N": (32, 64), "Q": (1, 2)}
STACK = dict(N=512, K=256, D=64)


def run(settings: Settings) -> None:
    base = QUICK_BASE if settings.quick else BASE
    cases, exponents = [], []
    for axis, values in (QUICK_AXES if settings.quick else AXES).items():
        for what in ("evaluation", "training step"):
            row = [_measure(what, axis, value, base, settings) for value in values]
            cases += row
            exponents.append(fitted(what, axis, values, row))
            settings.say(f"  {what}, {axis}: {exponents[-1]['exponents']}")
    write("growth", cases, settings, exponents=exponents)


def exponent(values: Sequence[float], seconds: Sequence[float]) -> float:
    """The slope of the line through the logarithms, by least squares."""
    x, y = [math.log(value) for value in values], [math.log(second) for second in seconds]
    return statistics.linear_regression(x, y).slope


def fitted(what: str, axis: str, values: Sequence[int], cases: list[Case]) -> dict[str, Any]:
    """The exponents of every contender that is in all these cases."""
    names = [name for name in cases[0].times if all(name in case.times for case in cases)]
    return {
        "what": what,
        "axis": axis,
        "values": list(values),
        "exponents": {
            name: round(exponent(values, [case.times[name]["seconds"] for case in cases]), 3)
            for name in names
        },
    }


def _measure(what: str, axis: str, value: int, base: dict[str, int], settings: Settings) -> Case:
    if axis == "Q":
        sizes = (base if settings.quick else STACK) | {"Q": value}
        modules, x = _stacks(sizes)
    else:
        sizes = base | {axis: value}
        x, codes = tokens_and_codes(sizes["N"], sizes["K"], sizes["D"])
        modules = quantizers(sizes["K"], sizes["D"], codes)
    calls = {name: _call(module, x[None], what) for name, module in modules.items()}
    shape = " ".join(f"{key}={size}" for key, size in sizes.items())
    case = Case(
        f"{what} {shape}",
        dict(what=what, axis=axis, **sizes),
        compare([Contender(name, call) for name, call in calls.items()], settings),
    )
    settings.report(case)
    return case


def _stacks(sizes: dict[str, int]) -> tuple[dict[str, nn.Module], Tensor]:
    options: dict[str, Any] = dict(
        dim=sizes["D"], num_quantizers=sizes["Q"], codebook_size=sizes["K"]
    )
    torch.manual_seed(0)
    x = torch.randn(sizes["N"], sizes["D"])
    modules = {OURS: torchvq.ResidualVQ(**options), "reference": Reference(**options)}
    return {name: summed(module) for name, module in modules.items()}, x


def _call(module: nn.Module, x: Tensor, what: str) -> Callable[[], object]:
    if what == "training step":
        return training_step(module.train(), x)
    module.eval()
    return torch.no_grad()(lambda: module(x))
