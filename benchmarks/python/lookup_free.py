"""LFQ: training steps (forward and backward), time and peak memory, against the reference and plain torch.

`python lookup_free.py NAME BITS N` measures the memory of one step and prints bytes; run() starts these.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from memory import peak_over_now
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from harness import Case, Settings

SHAPES = ((12, 1024), (16, 256), (18, 1024))
QUICK = ((8, 64),)
OURS = "torchvq"
CONTENDERS = (OURS, "plain torch", "reference")
# Contenders that make several matrices N x 2^bits are left out if one has more bytes than this.
MATRIX_LIMIT = 2**28
# Up to this number of tokens times codes, the gradient is checked in float64.
EXACT_LIMIT = 2**24
# The reference clamps a logarithm at 1e-5, which affects results from 16 bits on.
TOLERANCE = {OURS: 1e-3, "plain torch": 1e-3, "reference": 0.1}
# Of gradients, relative to their norm; larger, because their errors cancel less than those of losses.
GRADIENT_TOLERANCE = {OURS: 1e-3, "plain torch": 2e-3, "reference": 0.5}
SPREAD = 0.02  # of the latents: between sure and undecided bits


def run(settings: Settings) -> None:
    from harness import write

    logging.disable(logging.WARNING)
    shapes = QUICK if settings.quick else SHAPES
    cases = [measure(*shape, threads, settings) for threads in settings.threads for shape in shapes]
    write("lookup_free", cases, settings)


def measure(bits: int, n: int, threads: int, settings: Settings) -> Case:
    import checks
    from harness import Case, Contender, Target, compare

    names = [name for name in CONTENDERS if name == OURS or n * 2**bits * 4 <= MATRIX_LIMIT]
    steps = {name: step_of(name, bits, n) for name in names}
    results = {name: step() for name, step in steps.items()}
    differences = {
        name: checks.close("losses", loss, results[OURS][0], TOLERANCE[name])
        for name, (loss, _) in results.items()
    }
    gradients = _gradients(results, bits, n)
    # Peak memory is that of one thread.
    peaks = {name: _in_a_process(name, bits, n) for name in names} if threads == 1 else {}
    case = Case(
        f"training N={n} bits={bits} threads={threads}",
        dict(what="training step", N=n, bits=bits, threads=threads),
        compare([Contender(name, step, threads) for name, step in steps.items()], settings),
        {
            "losses_differ_by": differences,
            "gradients_differ_by": gradients,
            **({"peak_bytes": peaks} if peaks else {}),
        },
    )
    if bits == 16:
        case.expect("reference", 50.0, "reference's training step, 16 bits")
    if bits == 18 and peaks:
        ratio = peaks[OURS] / _in_a_process("reference", 12, n)
        text = "extra memory of 18 bits over the reference's of 12"
        case.targets.append(Target(text, 1.0, ratio, case.name, at_most=True))
    settings.report(case)
    return case


def _gradients(results: dict[str, tuple[Tensor, Tensor]], bits: int, n: int) -> dict[str, float]:
    """Differences of gradients: each against ours, and ours against the formula in float64, if its matrix is small."""
    import checks

    ours = results[OURS][1]
    found = {
        name: checks.gradients(name, gradient, ours, GRADIENT_TOLERANCE[name])
        for name, (_, gradient) in results.items()
        if name != OURS
    }
    if n * 2**bits <= EXACT_LIMIT:
        exact = step_of("plain torch", bits, n, torch.float64)()[1]
        found["float64"] = checks.gradients(OURS, ours, exact, 1e-5)
    return found


def step_of(
    name: str, bits: int, n: int, dtype: torch.dtype = torch.float32
) -> Callable[[], tuple[Tensor, Tensor]]:
    """A training step: the loss and the gradient of the latents."""
    x = torch.randn(1, n, bits, generator=torch.Generator().manual_seed(bits)) * SPREAD
    x = x.to(dtype).requires_grad_()
    loss_of = plain_loss(bits, dtype) if name == "plain torch" else _module(name, bits)

    def step() -> tuple[Tensor, Tensor]:
        loss = loss_of(x)
        (grad,) = torch.autograd.grad(loss, x)
        return loss.detach(), grad

    return step


def _module(name: str, bits: int) -> Callable[[Tensor], Tensor]:
    if name == OURS:
        from torchvq import LFQ
    else:
        from vector_quantize_pytorch import LFQ  # type: ignore[no-redef]
    lfq = LFQ(codebook_size=2**bits, entropy_loss_weight=1.0, commitment_loss_weight=0.25)
    return lambda x: lfq(x)[2]


def plain_loss(bits: int, dtype: torch.dtype = torch.float32) -> Callable[[Tensor], Tensor]:
    """The usual way in torch: a softmax over all codes."""
    places = torch.arange(bits - 1, -1, -1)
    codes = ((torch.arange(2**bits)[:, None] >> places) & 1).to(dtype) * 2 - 1

    def loss(x: Tensor) -> Tensor:
        tokens = x[0]
        log_p = (200 * tokens @ codes.T).log_softmax(-1)
        p = log_p.exp()
        mean = p.mean(0)
        entropy = -(p * log_p).sum(-1).mean() + torch.xlogy(mean, mean).sum()
        return entropy + 0.25 * F.mse_loss(tokens, tokens.detach().sign())

    return loss


def _in_a_process(name: str, bits: int, n: int) -> int:
    command = [sys.executable, str(Path(__file__)), name, str(bits), str(n)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(answer.stdout)


def _main(name: str, bits: str, n: str) -> None:
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    # The first call loads parts of libraries, which do not count.
    step_of(name, 4, 16)()
    print(peak_over_now(lambda: step_of(name, int(bits), int(n))()))


if __name__ == "__main__":
    _main(*sys.argv[1:])
