"""BinaryMapper, LatentQuantize and FSP: training steps (forward and backward), against the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import checks
import torch
import vector_quantize_pytorch as reference
from harness import OURS, Case, Contender, Settings, compare, write
from torch import Tensor, nn

import torchvq

if TYPE_CHECKING:
    from types import ModuleType

TOKENS, QUICK = 8192, 64
LEVELS = [8, 5, 5, 5]
OVER_REFERENCE = {"BinaryMapper": 8.0, "LatentQuantize": 3.0, "FSP": 3.0}


def run(settings: Settings) -> None:
    tokens = QUICK if settings.quick else TOKENS
    cases = []
    for threads in settings.threads:
        for bits, count in ((8, tokens), (12, tokens // 8), (16, tokens // 64)):
            cases.append(_binary_mapper(bits, max(count, 1), threads, settings))
        cases.append(_latent_quantize(tokens, threads, settings))
        cases.append(_fsp(tokens, threads, settings))
    write("scalar_modules", cases, settings)


def step_of(
    module: nn.Module, x: Tensor, **options: Any
) -> Callable[[], tuple[Tensor, Tensor, Tensor]]:
    """Forward and backward, with a gradient of the output. Returns output, loss and gradient of x."""

    def step() -> tuple[Tensor, Tensor, Tensor]:
        leaf = x.detach().requires_grad_()
        returned = module(leaf, **options)
        output, loss = returned[0], returned[-1 if len(returned) == 2 else 2]
        behind = _behind(tuple(output.shape))
        torch.autograd.backward([output, loss], [behind, torch.ones_like(loss)])
        assert leaf.grad is not None
        return output.detach(), loss.detach(), leaf.grad

    return step


_KEPT: dict[tuple[int, ...], Tensor] = {}


def _behind(shape: tuple[int, ...]) -> Tensor:
    if shape not in _KEPT:
        _KEPT.clear()
        _KEPT[shape] = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return _KEPT[shape]


def _case(
    name: str,
    build: Callable[[ModuleType], nn.Module],
    x: Tensor,
    threads: int,
    settings: Settings,
    exact: dict[str, Any],
    same_gradient: bool = True,
) -> Case:
    """Times the steps; `exact` makes a call without noise, whose results must agree."""
    modules = {OURS: build(torchvq).train(), "reference": build(reference).train()}
    results = [step_of(module, x, **exact)() for module in modules.values()]
    if same_gradient:
        checks.close("gradients", results[0][2], results[1][2])
    checks.close("losses", results[0][1].reshape(1), results[1][1].reshape(1))
    contenders = [Contender(n, step_of(m, x), threads) for n, m in modules.items()]
    case = Case(
        f"{name} threads={threads}",
        dict(what=name, N=x.numel() // x.shape[-1], threads=threads),
        compare(contenders, settings),
        {},
    )
    kind = name.split()[0]
    case.expect("reference", OVER_REFERENCE[kind], f"reference's training step of {kind}")
    settings.report(case)
    return case


def _binary_mapper(bits: int, tokens: int, threads: int, settings: Settings) -> Case:
    x = torch.randn(tokens, bits, generator=torch.Generator().manual_seed(bits))
    name = f"BinaryMapper bits={bits} N={tokens}"
    exact = dict(deterministic=True)
    return _case(name, lambda p: p.BinaryMapper(bits), x, threads, settings, exact)


def _latent_quantize(tokens: int, threads: int, settings: Settings) -> Case:
    x = torch.randn(tokens, len(LEVELS), generator=torch.Generator().manual_seed(1)) * 0.5
    name = f"LatentQuantize {LEVELS} N={tokens}"
    # In the reference, the losses cancel in the gradient of the input.
    return _case(
        name, lambda p: p.LatentQuantize(LEVELS, len(LEVELS)), x, threads, settings, {}, False
    )


def _fsp(tokens: int, threads: int, settings: Settings) -> Case:
    x = torch.randn(1, tokens, len(LEVELS), generator=torch.Generator().manual_seed(2))
    name = f"FSP {LEVELS} N={tokens}"
    return _case(name, lambda p: p.FSP(LEVELS), x, threads, settings, {})
