"""Finite scalar quantizers against the reference and plain torch: training, evaluation, stacks."""

from __future__ import annotations

from collections.abc import Callable

import checks
import torch
from harness import OURS, Case, Contender, Settings, compare, write
from torch import Tensor, nn
from vector_quantize_pytorch import FSQ as ReferenceFSQ
from vector_quantize_pytorch import ResidualFSQ as ReferenceResidualFSQ

import torchvq

LEVELS = (8, 5, 5, 5)
TOKENS, QUICK_TOKENS = (8, 4096), (2, 8)
QUANTIZERS, QUICK_QUANTIZERS, CERTAIN = 8, 2, 4


class PlainFSQ(nn.Module):
    """The formulas of the paper, in the dozen lines that a careful torch user writes."""

    def __init__(self, levels: tuple[int, ...], symmetric: bool = False) -> None:
        super().__init__()
        self.symmetric = symmetric
        self.register_buffer("levels", torch.tensor(levels, dtype=torch.float32))
        self.register_buffer("basis", torch.tensor([1, *levels[:-1]]).cumprod(0))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.symmetric:
            bounded, half, middle = x.clamp(-1, 1), (self.levels - 1) / 2, (self.levels - 1) / 2
            inner = bounded * half
            rounded = (inner + middle + 0.5).floor() - middle
        else:
            stretched = (self.levels - 1) * 1.001 / 2
            offset = torch.where(self.levels % 2 == 0, 0.5, 0.0)
            half = middle = (self.levels / 2).floor()
            inner = (x + (offset / stretched).atanh()).tanh() * stretched - offset
            rounded = inner.round()
        codes = (inner + (rounded - inner).detach()) / half
        indices = ((rounded + middle).long() * self.basis).sum(-1)
        return codes, indices


class PlainResidualFSQ(nn.Module):
    """A loop over PlainFSQ, each level on the scaled residual of the levels before."""

    def __init__(self, levels: tuple[int, ...], quantizers: int) -> None:
        super().__init__()
        self.layer = PlainFSQ(levels, symmetric=True)
        counts = torch.tensor(levels, dtype=torch.float32)
        self.register_buffer("limit", 1 + 1 / (counts - 1))
        self.register_buffer("scales", torch.stack([counts**-n for n in range(quantizers)]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        residual = (x / self.limit).tanh() * self.limit
        total, chosen = torch.zeros_like(x), []
        for scale in self.scales:
            codes, indices = self.layer(residual / scale)
            residual = residual - codes.detach() * scale
            total = total + codes * scale
            chosen.append(indices)
        return total, torch.stack(chosen, -1)


def run(settings: Settings) -> None:
    shape = QUICK_TOKENS if settings.quick else TOKENS
    quantizers = QUICK_QUANTIZERS if settings.quick else QUANTIZERS
    x = tokens(shape)
    cases = []
    for threads in settings.threads:
        for name, modules in (
            ("FSQ", single()),
            (f"ResidualFSQ Q={quantizers}", stacks(quantizers)),
        ):
            cases.append(training(name, modules, x, threads, settings))
            cases.append(_evaluation(name, modules, x, threads, settings))
    write("fsq", cases, settings)


def tokens(shape: tuple[int, int] = TOKENS) -> Tensor:
    return torch.randn(*shape, len(LEVELS), generator=torch.Generator().manual_seed(0))


def single() -> dict[str, nn.Module]:
    return {
        OURS: torchvq.FSQ(LEVELS),
        "reference": ReferenceFSQ(LEVELS),
        "plain torch": PlainFSQ(LEVELS),
    }


def stacks(quantizers: int) -> dict[str, nn.Module]:
    options = dict(levels=list(LEVELS), num_quantizers=quantizers)
    return {
        OURS: torchvq.ResidualFSQ(**options),
        "reference": ReferenceResidualFSQ(**options),
        "plain torch": PlainResidualFSQ(LEVELS, quantizers),
    }


def _step(module: nn.Module, x: Tensor) -> Callable[[], Tensor]:
    leaf = x.clone().requires_grad_()
    weight = torch.randn_like(x)

    def step() -> Tensor:
        leaf.grad = None
        quantized, indices = module(leaf)[:2]
        quantized.backward(weight)
        return indices

    return step


def _certain(indices: Tensor) -> Tensor:
    """Indices without the last levels of a stack, whose residuals in float32 are only rounding errors."""
    return indices[..., :CERTAIN] if indices.dim() == 3 else indices


def _case(
    what: str, name: str, calls: dict[str, Callable[[], Tensor]], threads: int, settings: Settings
) -> Case:
    expected = _certain(calls[OURS]())
    different = {
        other: checks.fraction_different(other, _certain(call()), expected)
        for other, call in calls.items()
    }
    return Case(
        f"{name} {what} threads={threads}",
        dict(what=f"{name}, {what}", threads=threads),
        compare([Contender(key, call, threads) for key, call in calls.items()], settings),
        {"indices_different": different},
    )


def training(
    name: str, modules: dict[str, nn.Module], x: Tensor, threads: int, settings: Settings
) -> Case:
    calls = {key: _step(module.train(), x) for key, module in modules.items()}
    case = _case("training step", name, calls, threads, settings)
    case.expect("reference", 3.0, f"reference's training step of {name}")
    case.expect("plain torch", 2.5, f"plain torch's training step of {name}")
    settings.report(case)
    return case


def _evaluation(
    name: str, modules: dict[str, nn.Module], x: Tensor, threads: int, settings: Settings
) -> Case:
    calls = {key: (lambda m=module: m(x)[1]) for key, module in modules.items()}
    for module in modules.values():
        module.eval()
    with torch.no_grad():
        case = _case("evaluation", name, calls, threads, settings)
    settings.report(case)
    return case
