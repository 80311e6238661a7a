"""Eager modules against the same modules under torch.compile (inductor): evaluation, and training steps.

For VectorQuantize and FSQ also the plain module, eager and compiled. Small steps of every class are in small_steps.py.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from contenders import PlainVectorQuantize
from fsq import PlainFSQ
from harness import OURS, Case, Contender, Settings, compare, write
from torch import Tensor, nn

import torchvq

TOKENS, QUICK = 4096, 16
DIM = 64
LEVELS = (8, 5, 5, 5)
QUANTIZERS: dict[str, Callable[[], nn.Module]] = {
    "VectorQuantize": lambda: torchvq.VectorQuantize(DIM, 512),
    "ResidualVQ": lambda: torchvq.ResidualVQ(dim=DIM, num_quantizers=4, codebook_size=512),
    "FSQ": lambda: torchvq.FSQ(LEVELS),
    "LFQ": lambda: torchvq.LFQ(codebook_size=1024, dim=DIM, commitment_loss_weight=0.25),
}


PLAIN: dict[str, Callable[[], nn.Module]] = {
    "VectorQuantize": lambda: PlainVectorQuantize(DIM, 512, 0.8),
    "FSQ": lambda: PlainFSQ(LEVELS),
}


def run(settings: Settings) -> None:
    cases = []
    # Compiling takes most of the time, so a quick run has one quantizer.
    for name in ["FSQ"] if settings.quick else QUANTIZERS:
        for what in ("evaluation", "training step"):
            case = _case(name, QUICK if settings.quick else TOKENS, what, settings)
            settings.report(case)
            cases.append(case)
    write("compiled", cases, settings)


def _case(name: str, tokens: int, what: str, settings: Settings) -> Case:
    torch._dynamo.reset()
    contenders = []
    made = {OURS: QUANTIZERS[name], "compiled": QUANTIZERS[name]}
    if name in PLAIN:
        made |= {"plain torch": PLAIN[name], "compiled plain": PLAIN[name]}
    dim = len(LEVELS) if name == "FSQ" else DIM
    for contender, make in made.items():
        torch.manual_seed(0)
        module = make().train(what != "evaluation")
        call = torch.compile(module, dynamic=False) if "compiled" in contender else module
        contenders.append(Contender(contender, _call(call, tokens, dim, what)))
    with torch.set_grad_enabled(what != "evaluation"):
        times = compare(contenders, settings)
    return Case(f"{name} {what} N={tokens}", dict(what=what, N=tokens), times)


def _call(
    module: Callable[[Tensor], tuple[Tensor, ...]], tokens: int, dim: int, what: str
) -> Callable[[], Tensor]:
    x = torch.randn(1, tokens, dim, generator=torch.Generator().manual_seed(1))

    def evaluate() -> Tensor:
        return module(x)[1]

    def train() -> Tensor:
        leaf = x.detach().requires_grad_()
        quantized, indices, *losses = module(leaf)
        (quantized.sum() + sum(loss.sum() for loss in losses)).backward()
        return indices

    return evaluate if what == "evaluation" else train
