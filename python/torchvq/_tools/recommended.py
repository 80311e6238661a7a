"""Settings to begin with, from the tables of docs/learning.md."""

import ast
from typing import Any

import torch
from torch import nn

from torchvq._base.arguments import integer


def recommended(
    quantizer: str | type[nn.Module],
    *,
    bits: int = 10,
    tokens: int | None = None,
    moving: bool = False,
) -> dict[str, Any]:
    """Keyword arguments to begin with, for a quantizer of this package.

    The defaults of the classes are those of vector-quantize-pytorch; these are the settings that learnt best in the
    tables of docs/learning.md, with nearly all codes in use. docs/choosing.md says why, and when to depart from them.
    Classes without a row there have what their papers have. C++ has the same table
    (``include/torchvq/options/recommended.h``).

    Args:
        quantizer: the class, or its name in any case; "vq", "rvq", "bsq" and "latent" are short for VectorQuantize,
            ResidualVQ, LFQ on the sphere and LatentQuantize.
        bits: bits of a token, for stacks of a token and level: 3 to 18 for classes that take ``levels``, whose sizes
            only come near a power of two, 1 to 62 for LFQ and its stacks, 1 to 30 for the others. Default: 10.
        tokens: tokens of a training step, of all ranks, for VectorQuantize: ``decay`` is then such that a code's
            average holds some 40 of its tokens, within [0.9, 0.99]. Default: unknown, decay 0.95.
        moving: the distribution of the tokens moves while the codebook learns, as with an encoder that learns fast or
            data that change: averages hold some 16 tokens, with ``decay`` within [0.9, 0.975]. Needs ``tokens``.
            Default: False.

    Returns:
        A new dict: ``codebook_size``, ``levels`` or ``bits``, and the settings that differ from the defaults.

    Raises:
        ValueError: an unknown quantizer, bits or tokens out of range, or moving without tokens. TypeError: neither a
            class nor a name, bits or tokens no integer, moving neither True nor False.

    Example:
        >>> quantizer = LFQ(dim=256, **recommended("lfq", bits=9))
    """
    if not isinstance(quantizer, str | type):
        raise TypeError(
            "recommended: expected quantizer to be a class or its name, "
            f"but got an object of {type(quantizer).__name__}"
        )
    if moving not in (True, False):
        raise TypeError(f"recommended: expected moving to be True or False, but got {moving!r}")
    name = quantizer if isinstance(quantizer, str) else quantizer.__name__
    of_step = None if tokens is None else integer("recommended", "tokens", tokens)
    of_token = integer("recommended", "bits", bits)
    lines = torch.ops.torchvq.recommended_options(name, of_token, of_step, bool(moving))
    pairs = (line.split("=", 1) for line in lines)
    return {option: ast.literal_eval(text) for option, text in pairs}
