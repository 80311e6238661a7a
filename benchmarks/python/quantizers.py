"""Every quantizer on one task: its error, the share of its codes in use, its time and its memory.

    python benchmarks/python/quantizers.py                 # some ten minutes on one core
    python benchmarks/python/run.py --write-docs           # puts the results into docs/which.md

The task: an autoencoder of 7 x 7 patches of Fashion-MNIST, two linear layers on each side of the quantizer, trained
with it. Time and memory are those of the quantizer alone, on one thread.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import torchvq

NAME = "quantizers"
DIM, SIDE = 32, 4
STEPS, IMAGES, SEEDS = 1000, 64, 2
# Tokens of the step whose time and memory are measured, and their features.
TOKENS, WIDTH = 4096, 64
LEVELS = [8, 5, 5, 5]

Row = tuple[str, Callable[[int], nn.Module], float]


class Coded(nn.Module):
    """BinaryMapper with the projections that other classes contain: to logits, and from one-hot codes."""

    def __init__(self, dim: int, bits: int) -> None:
        super().__init__()
        self.project_in = nn.Linear(dim, bits)
        self.mapper = torchvq.BinaryMapper(bits)
        self.project_out = nn.Linear(2**bits, dim, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        one_hot, indices, loss = self.mapper(self.project_in(x), return_indices=True)
        return self.project_out(one_hot), indices, loss


class AsMaps(nn.Module):
    """HierarchicalVQ on tokens: each SIDE * SIDE tokens form a map."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.quantizer = torchvq.HierarchicalVQ(
            dim=dim, codebook_size=256, scales=(1, 2, 3, SIDE), accept_image_fmap=True
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        maps = x.reshape(-1, SIDE, SIDE, x.shape[-1]).movedim(-1, 1)
        quantized, indices, loss = self.quantizer(maps)
        found = torch.cat([scale.flatten(1) for scale in indices], 1)
        return quantized.movedim(1, -1).reshape(x.shape), found, loss


def best(name: str, bits: int, **more: Any) -> dict[str, Any]:
    return {**torchvq.recommended(name, bits=bits), **more}


STACK = dict(num_quantizers=4)
ROWS: list[Row] = [
    ("VectorQuantize", lambda d: torchvq.VectorQuantize(d, **best("vq", 10)), 10),
    (
        "VectorQuantize, codebook_dim=8, cosine",
        lambda d: torchvq.VectorQuantize(
            d, **best("vq", 10, codebook_dim=8, use_cosine_sim=True)
        ),
        10,
    ),
    ("SimVQ", lambda d: torchvq.SimVQ(d, 1024), 10),
    ("FSQ", lambda d: torchvq.FSQ(LEVELS, dim=d), math.log2(1000)),
    ("LFQ, spherical", lambda d: torchvq.LFQ(dim=d, **best("lfq", 10)), 10),
    ("FSP", lambda d: torchvq.FSP(LEVELS, dim=d), math.log2(1000)),
    (
        "LatentQuantize",
        lambda d: torchvq.LatentQuantize(LEVELS, d, channel_first=False),
        math.log2(1000),
    ),
    ("BinaryMapper", lambda d: Coded(d, 10), 10),
    ("HierarchicalVQ", lambda d: AsMaps(d), 30 * 8 / SIDE**2),
    ("ResidualVQ", lambda d: torchvq.ResidualVQ(dim=d, **STACK, **best("rvq", 8)), 32),
    (
        "ResidualVQ, beam 5",
        lambda d: torchvq.ResidualVQ(dim=d, **STACK, **best("rvq", 8, beam_size=5)),
        32,
    ),
    (
        "GroupedResidualVQ, 2 groups",
        lambda d: torchvq.GroupedResidualVQ(
            dim=d, groups=2, num_quantizers=2, **best("rvq", 8)
        ),
        32,
    ),
    ("ResidualSimVQ", lambda d: torchvq.ResidualSimVQ(dim=d, codebook_size=256, **STACK), 32),
    (
        "ResidualFSQ",
        lambda d: torchvq.ResidualFSQ(levels=[8, 6, 5], dim=d, **STACK),
        4 * math.log2(240),
    ),
    ("ResidualLFQ", lambda d: torchvq.ResidualLFQ(dim=d, **STACK, **best("ResidualLFQ", 8)), 32),
]  # fmt: skip


def parts_of(result: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Output, indices and the sum of the losses; zero for a class without a loss."""
    quantized, indices, *rest = result
    return quantized, indices, rest[0].sum() if rest else quantized.new_zeros(())


def learn(make: Callable[[int], nn.Module], seed: int, steps: int) -> dict[str, float]:
    """Trains the autoencoder and measures it on unseen images."""
    import images

    torch.manual_seed(seed)
    seen, unseen = (images.load(test)[0] for test in (False, True))
    mean, scale = seen.mean(), seen.std()
    encoder = nn.Sequential(nn.Linear(images.PATCH**2, 128), nn.SiLU(), nn.Linear(128, DIM))
    decoder = nn.Sequential(nn.Linear(DIM, 128), nn.SiLU(), nn.Linear(128, images.PATCH**2))
    model = nn.ModuleList([encoder, make(DIM), decoder])
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(steps):
        x = (images.patches(seen[torch.randint(len(seen), (IMAGES,))]) - mean) / scale
        output, _, loss = parts_of(model[1](encoder(x)[None]))
        optimizer.zero_grad()
        (nn.functional.mse_loss(decoder(output)[0], x) + loss).backward()
        optimizer.step()
    model.eval()
    x = (images.patches(unseen[:4096]) - mean) / scale
    with torch.no_grad():
        output, indices, _ = parts_of(model[1](encoder(x)[None]))
        lost = (decoder(output)[0] - x).square().sum() / (x - x.mean(0)).square().sum()
    return {"lost": lost.item(), "use": use_of(model[1], indices)}


def use_of(module: nn.Module, indices: Tensor) -> float:
    """The share of codes that tokens chose, averaged over the levels of a stack."""
    if isinstance(module, torchvq.GroupedResidualVQ):
        indices = indices.movedim(0, -2).flatten(-2)
    sizes = {"AsMaps": 256, "Coded": 1024, "ResidualFSQ": 240}
    size = sizes.get(type(module).__name__) or getattr(module, "codebook_size", 0) or 256
    stacked = "Residual" in type(module).__name__
    columns = indices.flatten(0, -2).T if stacked else [indices.flatten()]
    return statistics.mean(len(column[column >= 0].unique()) / int(size) for column in columns)


def times(make: Callable[[int], nn.Module]) -> dict[str, float]:
    """Microseconds of processor time per thousand tokens: a training step, and encoding; decoding is a lookup."""
    torch.manual_seed(0)
    module = make(WIDTH)
    x = torch.randn(1, TOKENS, WIDTH, requires_grad=True)
    for _ in range(3):
        step(module, x)
    training = fastest(lambda: step(module, x))
    module.eval()
    with torch.no_grad():
        module(x)
        encoding = fastest(lambda: module(x))
    thousands = TOKENS / 1000
    return {"training_us": training * 1e6 / thousands, "encoding_us": encoding * 1e6 / thousands}


def step(module: nn.Module, x: Tensor) -> None:
    output, _, loss = parts_of(module(x))
    (output.square().mean() + loss).backward()


def fastest(call: Callable[[], object], rounds: int = 15) -> float:
    found = []
    for _ in range(rounds):
        start = time.process_time()
        call()
        found.append(time.process_time() - start)
    return min(found)


def memory(place: int) -> int:
    """Peak bytes of a training step beyond those before it, in its own process."""
    command = [sys.executable, str(Path(__file__)), "--memory-of", str(place)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def print_memory(place: int) -> None:
    from memory import peak_over_now

    module = ROWS[place][1](WIDTH)
    step(module, torch.randn(1, 16, WIDTH, requires_grad=True))
    module = ROWS[place][1](WIDTH)
    x = torch.randn(1, TOKENS, WIDTH, requires_grad=True)
    print(peak_over_now(lambda: step(module, x)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--only", default="", help="a regular expression that names of rows are searched for")
    add("--output", type=Path, help="folder of the JSON file")
    add("--quick", action="store_true", help="see that it runs; the numbers are noise")
    add("--memory-of", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.memory_of is not None:
        return print_memory(options.memory_of)
    from harness import RESULTS, machine, write_json

    rows = []
    for place, (name, make, bits) in enumerate(ROWS):
        if not re.search(options.only, name):
            continue
        seeds = range(1 if options.quick else SEEDS)
        learnt = [learn(make, seed, 5 if options.quick else STEPS) for seed in seeds]
        row: dict[str, Any] = dict(name=name, bits=bits, learnt=learnt, bytes=memory(place))
        rows.append(row | times(make))
        print(rows[-1], flush=True)
    document = dict(name=NAME, quick=options.quick, machine=machine(), rows=rows)
    write_json((options.output or RESULTS) / f"{NAME}.json", document)
    return None


if __name__ == "__main__":
    main()
