"""Residual stacks of eight levels: training, greedy encoding and beam search, against the reference and faiss.

`python residual.py NAME` measures the memory of one beam search and prints bytes; run() starts these.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

import torchvq

if TYPE_CHECKING:
    import faiss
    from harness import Case, Settings

TOKENS, DIM, LEVELS = 2048, 128, 8
SIZES, BEAMS = (256, 1024), (4, 16)
QUICK = (256, 16, 3)
QUICK_SIZES, QUICK_BEAMS = (16,), (4,)
TRAINED_ON = 4  # times as many as the measured tokens
MEMORY = ("torchvq", "faiss", "faiss tables", "reference")
Shape = tuple[int, int, int]


class PlainResidual(nn.Module):
    """A loop over plain codebooks, each on the residual of those before."""

    def __init__(self, dim: int, levels: int, size: int, decay: float) -> None:
        from contenders import PlainVectorQuantize

        super().__init__()
        self.layers = nn.ModuleList(PlainVectorQuantize(dim, size, decay) for _ in range(levels))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        residual, total, indices, losses = x, torch.zeros_like(x), [], []
        for layer in self.layers:
            quantized, index, loss = layer(residual)
            residual = residual - quantized.detach()
            total = total + quantized
            indices.append(index)
            losses.append(loss)
        return total, torch.stack(indices, -1), torch.stack(losses)


def run(settings: Settings) -> None:
    from harness import write

    shape = QUICK if settings.quick else (TOKENS, DIM, LEVELS)
    sizes, beams = (QUICK_SIZES, QUICK_BEAMS) if settings.quick else (SIZES, BEAMS)
    cases = []
    for threads in settings.threads:
        cases.append(training(shape, sizes[-1], threads, settings))
        # On two threads only the larger codebooks and the narrower beam.
        for size in sizes if threads == 1 else sizes[-1:]:
            cases.append(greedy(shape, size, threads, settings))
            some = beams if threads == 1 else beams[:1]
            cases += [_beam(shape, size, beam, threads, settings) for beam in some]
    write("residual", cases, settings, peak_bytes=_memory(settings))


@functools.lru_cache(maxsize=2)
def tokens_and_books(shape: Shape, size: int) -> tuple[Tensor, list[Tensor]]:
    """Tokens (N, D), and the codebooks (K, D) that k-means finds level by level on other tokens."""
    count, dim, levels = shape
    generator = torch.Generator().manual_seed(size)
    residual = torch.randn(1, max(TRAINED_ON * count, 4 * size), dim, generator=generator)
    rng, books = torch.tensor([1, 0]), []
    for _ in range(levels):
        codes = torch.ops.torchvq.kmeans(residual, size, rng, iterations=5)[0]
        residual = residual - torch.ops.torchvq.nearest_code(residual, codes, return_codes=True)[1]
        books.append(codes[0])
    return torch.randn(count, dim, generator=generator), books


def stacks(books: list[Tensor], beam: int = 1, decay: float = 0.99) -> dict[str, nn.Module]:
    """Ours, the reference and plain torch, with the same codes."""
    from vector_quantize_pytorch import ResidualVQ as Reference

    levels, (size, dim) = len(books), books[0].shape
    options = dict(dim=dim, num_quantizers=levels, codebook_size=size, decay=decay)
    options |= dict(beam_size=beam) if beam > 1 else {}
    modules: dict[str, nn.Module] = {
        "torchvq": torchvq.ResidualVQ(**options),
        "reference": Reference(**options),
    }
    if beam == 1:
        modules["plain torch"] = PlainResidual(dim, levels, size, decay)
    with torch.no_grad():
        for module in modules.values():
            for layer, codes in zip(module.layers, books, strict=True):
                state = getattr(layer, "_codebook", layer)
                state.embed.copy_(codes)
                state.embed_avg.copy_(codes)
    return modules


def faiss_quantizer(books: list[Tensor], beam: int, tables: bool) -> faiss.ResidualQuantizer:
    """faiss with these codebooks; its tables are computed here, once."""
    import faiss

    size, dim = books[0].shape
    quantizer = faiss.ResidualQuantizer(dim, len(books), size.bit_length() - 1)
    quantizer.max_beam_size, quantizer.is_trained = beam, True
    faiss.copy_array_to_vector(torch.stack(books).numpy().ravel(), quantizer.codebooks)
    quantizer.use_beam_LUT = int(tables)
    if tables:
        quantizer.compute_codebook_tables()
    return quantizer


def training(shape: Shape, size: int, threads: int, settings: Settings) -> Case:
    import checks
    from contenders import training_step
    from harness import OURS, Case, Contender, compare

    x, books = tokens_and_books(shape, size)
    modules = stacks(books)
    steps = {}
    for name, module in modules.items():
        step = training_step(summed(module.train()), x[None])
        steps[name] = step
    results = {name: step() for name, step in steps.items()}
    wrong = _not_exact({name: result[0] for name, result in results.items()}, x, books)
    difference = checks.close("losses", results[OURS][1], results["reference"][1])
    case = Case(
        f"training {_name(shape, size, threads)}",
        _parameters("training step", shape, size, threads),
        compare([Contender(name, step, threads) for name, step in steps.items()], settings),
        {"rows_not_exact": wrong, "losses_differ_by": difference},
    )
    case.expect("reference", 10.0, "reference's training step of a residual stack")
    settings.report(case)
    return case


def summed(module: nn.Module) -> nn.Module:
    """The sum of the levels' losses, as training uses it."""

    class Summed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stack = module

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            quantized, indices, loss = self.stack(x)
            return quantized, indices, loss.sum()

    return Summed()


def greedy(shape: Shape, size: int, threads: int, settings: Settings) -> Case:
    from harness import OURS, Case, Contender, compare

    x, books = tokens_and_books(shape, size)
    quantizer, rows = faiss_quantizer(books, 1, tables=False), x.numpy()
    modules = {name: module.eval() for name, module in stacks(books).items()}
    with torch.no_grad():
        outputs = {name: module(x[None]) for name, module in modules.items()}
        contenders = [
            Contender(name, lambda m=m: m(x[None]), threads) for name, m in modules.items()
        ]
        contenders.append(Contender("faiss", lambda: quantizer.compute_codes(rows), threads))
        case = Case(
            f"greedy {_name(shape, size, threads)}",
            _parameters("greedy encoding", shape, size, threads),
            compare(contenders, settings),
            {
                "rows_not_exact": _not_exact({n: o[1] for n, o in outputs.items()}, x, books),
                "mean_squared_error": _errors(x, outputs[OURS][0][0], quantizer),
            },
        )
    case.expect("faiss", 1.5, "faiss's greedy ResidualQuantizer")
    settings.report(case)
    return case


def _beam(shape: Shape, size: int, beam: int, threads: int, settings: Settings) -> Case:
    from harness import OURS, Case, Contender, compare

    x, books = tokens_and_books(shape, size)
    ours = stacks(books, beam)[OURS].eval()
    plain, tables = (faiss_quantizer(books, beam, tables) for tables in (False, True))
    rows = x.numpy()
    with torch.no_grad():
        errors = _errors(x, ours(x[None])[0][0], plain)
        contenders = [
            Contender(OURS, lambda: ours(x[None]), threads),
            Contender("faiss", lambda: plain.compute_codes(rows), threads),
            Contender("faiss tables", lambda: tables.compute_codes(rows), threads),
        ]
        case = Case(
            f"beam {beam} {_name(shape, size, threads)}",
            _parameters(f"beam {beam}", shape, size, threads),
            compare(contenders, settings),
            {"mean_squared_error": errors},
        )
    case.expect("faiss", 1.3, f"faiss's ResidualQuantizer, beam {beam}")
    case.expect("faiss tables", 1.3, f"faiss's ResidualQuantizer with tables, beam {beam}")
    settings.report(case)
    return case


def _name(shape: Shape, size: int, threads: int) -> str:
    return f"N={shape[0]} K={size} D={shape[1]} Q={shape[2]} threads={threads}"


def _parameters(what: str, shape: Shape, size: int, threads: int) -> dict[str, object]:
    return dict(what=what, N=shape[0], K=size, D=shape[1], Q=shape[2], threads=threads)


def _not_exact(found: dict[str, Tensor], x: Tensor, books: list[Tensor]) -> dict[str, int]:
    """The number of rows, over all levels, that did not get the nearest code of their residual."""
    import checks

    wrong = dict.fromkeys(found, 0)
    for name, indices in found.items():
        residual = x
        for level, codes in enumerate(books):
            chosen = indices.reshape(len(x), -1)[:, level]
            exact = torch.ops.torchvq.nearest_code(residual, codes)[0]
            answers = {"torchvq": exact, name: chosen}
            wrong[name] += checks.nearest(answers, residual, codes, "torchvq")[name]
            residual = residual - codes[chosen]
    return wrong


def _errors(x: Tensor, quantized: Tensor, quantizer: faiss.ResidualQuantizer) -> dict[str, float]:
    """Mean squared errors of ours and of faiss; raises if ours is higher."""
    codes = quantizer.compute_codes(x.numpy())
    theirs = torch.from_numpy(quantizer.decode(codes))
    errors = {
        name: float((x.double() - found).square().sum(-1).mean())
        for name, found in (("torchvq", quantized), ("faiss", theirs))
    }
    # Near ties may be decided either way in float32.
    if errors["torchvq"] > errors["faiss"] * (1 + 1e-4):
        raise AssertionError(f"torchvq leaves more than faiss: {errors}")
    return errors


def _memory(settings: Settings) -> dict[str, object]:
    shape = QUICK if settings.quick else (TOKENS, DIM, LEVELS)
    size = QUICK_SIZES[-1] if settings.quick else SIZES[-1]
    peaks = {}
    for name in MEMORY:
        command = [sys.executable, str(Path(__file__)), name, *map(str, (*shape, size))]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks[name] = int(answer.stdout)
    shown = ", ".join(f"{name} {peak / 2**20:.1f}" for name, peak in peaks.items())
    settings.say(f"  memory of beam 4: MiB {shown}")
    return {"case": f"beam 4, {_name(shape, size, 1)}", "peaks": peaks}


def _call(name: str, shape: Shape, size: int) -> Callable[[], object]:
    x, books = tokens_and_books(shape, size)
    if name.startswith("faiss"):
        quantizer, rows = faiss_quantizer(books, 4, tables=name == "faiss tables"), x.numpy()
        return lambda: quantizer.compute_codes(rows)
    module = stacks(books, beam=4)[name].eval()
    return torch.no_grad()(lambda: module(x[None]))


def _main(name: str, *numbers: str) -> None:
    from memory import peak_over_now

    torch.set_num_threads(1)
    # The first call loads parts of libraries, which do not count.
    _call(name, (64, 16, 2), 16)()
    *shape, size = map(int, numbers)
    print(peak_over_now(_call(name, (shape[0], shape[1], shape[2]), size)))


if __name__ == "__main__":
    _main(*sys.argv[1:])
