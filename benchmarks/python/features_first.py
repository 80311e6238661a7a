"""Images with features first, (B, D, H, W): training steps and evaluation of four quantizers, against the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import checks
import torch
import vector_quantize_pytorch as reference
from harness import OURS, Case, Contender, Settings, compare, write
from torch import Tensor, nn

import torchvq

IMAGES, QUICK = (4, 256, 32, 32), (2, 32, 8, 8)
CODES = 1024
# Class and options, beside the dimension, by case.
QUANTIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "VectorQuantize": ("VectorQuantize", dict(codebook_size=CODES, accept_image_fmap=True)),
    "VectorQuantize, codebook_dim 8": (
        "VectorQuantize",
        dict(codebook_size=CODES, codebook_dim=8, accept_image_fmap=True),
    ),
    "LFQ, on the sphere": ("LFQ", torchvq.recommended("lfq", bits=10)),
    "FSQ": ("FSQ", dict(levels=[8, 5, 5, 5], channel_first=True)),
}


def run(settings: Settings) -> None:
    cases = []
    for threads in settings.threads:
        for name in QUANTIZERS:
            cases += [_case(name, training, threads, settings) for training in (True, False)]
    write("features_first", cases, settings)


def _pair(name: str, dim: int) -> dict[str, nn.Module]:
    """Ours and the reference's, with the same state."""
    cls, options = QUANTIZERS[name]
    torch.manual_seed(0)
    theirs = getattr(reference, cls)(dim=dim, **options)
    own = getattr(torchvq, cls)(dim=dim, **options)
    own.load_state_dict(theirs.state_dict())
    return {OURS: own, "reference": theirs}


def _step(module: nn.Module, x: Tensor, behind: Tensor) -> Callable[[], Tensor]:
    """Forward and backward; returns the gradient of x."""

    def step() -> Tensor:
        leaf = x.detach().requires_grad_()
        returned = module(leaf)
        losses = [loss.sum() for loss in returned[2:3]]
        torch.autograd.backward([returned[0], *losses], [behind, *map(torch.ones_like, losses)])
        for parameter in module.parameters():
            parameter.grad = None
        assert leaf.grad is not None
        return leaf.grad

    return step


def _case(name: str, training: bool, threads: int, settings: Settings) -> Case:
    shape = QUICK if settings.quick else IMAGES
    generator = torch.Generator().manual_seed(1)
    x, behind = (torch.randn(shape, generator=generator) for _ in range(2))
    modules = _pair(name, shape[1])
    extra = {"indices_differ": _compared(modules, x, behind)}
    steps: dict[str, Callable[[], Any]] = {}
    for who, module in modules.items():
        module.train(training)
        steps[who] = _step(module, x, behind) if training else lambda m=module: m(x)
    what = "training step" if training else "evaluation"
    with torch.set_grad_enabled(training):
        case = Case(
            f"{name}, {what}, {'x'.join(map(str, shape))} threads={threads}",
            dict(what=f"{name}, {what}", threads=threads),
            compare([Contender(who, step, threads) for who, step in steps.items()], settings),
            extra,
        )
    settings.report(case)
    return case


def _compared(modules: dict[str, nn.Module], x: Tensor, behind: Tensor) -> float:
    """The share of indices that differ. Raises if more do than near ties, or if outputs or gradients differ."""
    with torch.no_grad():
        own, theirs = (module.eval()(x) for module in modules.values())
    fraction = checks.fraction_different("indices", own[1], theirs[1])
    if fraction == 0:
        checks.close("outputs", own[0], theirs[0])
        gradients = [_step(module.train(), x, behind)() for module in modules.values()]
        checks.gradients("input", *gradients)
    return fraction
