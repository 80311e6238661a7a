"""Quantizers of EnCodec, Mimi and DAC at their real sizes, as their packages have them and adapted.

    python benchmarks/python/adapters.py              # needs what requirements/adapters.txt names
    python benchmarks/python/adapters.py --quick      # see that it runs; the numbers are noise

A clip of 10 s and one frame; random weights. Prints the time of the original over that of the adapted quantizer, and
how many tokens differ. Results go to adapters.json.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from harness import OURS, RESULTS, Case, Contender, Settings, compare, write
from torch import Tensor, nn
from transformers.models.dac import modeling_dac
from transformers.models.encodec import modeling_encodec
from transformers.models.mimi import modeling_mimi

from torchvq import adapters

ORIGINAL = "original"
Encode = Callable[[Any, Tensor], Tensor]


def quantizers() -> dict[str, tuple[nn.Module, int, int, Encode]]:
    """Of each: the module, features and frames of 10 s, and how it makes tokens."""
    encodec = modeling_encodec.EncodecConfig()
    mimi = modeling_mimi.MimiConfig()
    dac = modeling_dac.DacConfig()
    encode: Encode = lambda module, x: module.encode(x)  # noqa: E731
    forward: Encode = lambda module, x: module(x)[1]  # noqa: E731
    return {
        "EnCodec, 32 levels of 1024 x 128": (
            modeling_encodec.EncodecResidualVectorQuantizer(encodec),
            encodec.codebook_dim,
            750,
            encode,
        ),
        "Mimi, 32 levels of 2048 x 256": (
            modeling_mimi.MimiSplitResidualVectorQuantizer(mimi),
            mimi.hidden_size,
            125,
            encode,
        ),
        "DAC, 9 levels of 1024 x 8": (
            modeling_dac.DacResidualVectorQuantizer(dac),
            dac.hidden_size,
            750,
            forward,
        ),
    }


@torch.no_grad()
def measure(settings: Settings) -> list[Case]:
    cases = []
    for name, (module, features, clip, encode) in quantizers().items():
        torch.manual_seed(0)
        _random_codes(module.eval())
        adapted = adapters.adapt(copy.deepcopy(module))
        for frames in (clip, 1):
            x = torch.randn(1, features, frames)
            differ = int((encode(module, x) != encode(adapted, x)).sum())
            for threads in settings.threads:
                contenders = [
                    Contender(OURS, lambda m=adapted, x=x, e=encode: e(m, x), threads),
                    Contender(ORIGINAL, lambda m=module, x=x, e=encode: e(m, x), threads),
                ]
                parameters = dict(quantizer=name, frames=frames, threads=threads)
                text = f"{name}, {frames} frames, {threads} threads"
                case = Case(text, parameters, compare(contenders, settings), dict(differ=differ))
                cases.append(case)
                _say(case, settings)
    return cases


def _random_codes(module: nn.Module) -> None:
    for name, codes in module.named_buffers():
        if name.endswith(("embed", "embed_sum")):
            codes.normal_()


def _say(case: Case, settings: Settings) -> None:
    ours, theirs = (case.times[name]["seconds"] * 1e3 for name in (OURS, ORIGINAL))
    settings.say(
        f"  {case.name}: {theirs:.2f} ms, adapted {ours:.2f} ms, {case.ratio(ORIGINAL):.2f} times; "
        f"{case.checks['differ']} tokens differ"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="see that it runs")
    parser.add_argument("--cpu-clock", action="store_true", help="processor time, on one thread")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
    given = parser.parse_args()
    threads = (1,) if given.cpu_clock else (1, 2)
    settings = Settings(given.quick, given.cpu_clock, threads, given.output)
    write("adapters", measure(settings), settings)


if __name__ == "__main__":
    main()
