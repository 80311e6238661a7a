"""``python -m torchvq.convert``: the quantizer of a tokenizer's checkpoint as a codec."""

import argparse
import os
import sys

from torchvq.convert._codec import Codec, ConversionError, Stack
from torchvq.convert._convert import convert

_DESCRIPTION = """\
Writes the quantizer of a tokenizer (EnCodec, Mimi, DAC, X-Codec, Chameleon, Emu3, Janus, GLM-Image, VQModel) as a codec
that `torchvq encode`, `decode`, `eval` and C++ read. None of the packages is needed.

  python -m torchvq.convert encodec_24khz/ -o codec.safetensors       a directory with weights and config.json
  python -m torchvq.convert weights_24khz.pth -o codec.safetensors    a state dict: .safetensors, .bin, .pt, .pth, .th
"""


def main(arguments: list[str] | None = None) -> int:
    """Runs the program; the exit status is 2 if the source cannot be converted."""
    given = _parser().parse_args(arguments)
    try:
        codec = convert(given.source, given.output, metric=given.metric, prefix=given.prefix)
    except (ConversionError, OSError) as error:
        print(f"torchvq.convert: {error}", file=sys.stderr)
        return 2
    # A pipe may be standard output itself, where the codec is.
    place = sys.stdout if os.path.isfile(given.output) else sys.stderr
    print(f"wrote {given.output}: {_summary(codec)}", file=place)
    return 0


def _summary(codec: Codec) -> str:
    stacks = " and ".join(_stack_summary(stack) for stack in codec.stacks)
    return f"{stacks}, {codec.metric}, for latents (..., {codec.dim})"


def _stack_summary(stack: Stack) -> str:
    count, (size, dim) = len(stack.levels), stack.levels[0].codebook.shape[:2]
    return f"{count} level{'s' if count > 1 else ''} of {size} x {dim}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m torchvq.convert",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", help="a directory, or a file with a state dict")
    parser.add_argument("-o", "--output", required=True, help="the codec to write (.safetensors)")
    parser.add_argument(
        "--metric",
        choices=("euclidean", "cosine"),
        help="how codes are compared, where neither the tensors' names nor config.json tell it",
    )
    parser.add_argument(
        "--prefix",
        default="",
        help="what the quantizer's tensors begin with, where there are several",
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
