"""Quantizer dropout: how many levels of a residual stack a training forward uses."""

import random
from operator import index
from typing import Any

import torch
from torch import Tensor, nn

from torchvq._base.options import expect
from torchvq._base.readable import is_readable
from torchvq._base.torch_private import constant_in_graphs

_ops = torch.ops.torchvq


class Levels(nn.Module):
    """A stack of the levels in ``layers``, of which a training forward may drop the last."""

    quantize_dropout: bool
    quantize_dropout_cutoff_index: int
    quantize_dropout_multiple_of: int

    @property
    def num_quantizers(self) -> int:
        """The number of levels, that is, of ``layers``; shorten these or append to a ``ResidualVQ``'s to change it."""
        # Stacks ask several times a forward, and the list's own length takes three times as long.
        own: dict[str, Any] = self._modules
        return len(own["layers"]._modules)

    @num_quantizers.setter
    def num_quantizers(self, number: int) -> None:
        levels = self.num_quantizers
        expect(type(self).__name__, number == levels, "num_quantizers", "that of layers", number)


def drops_levels(stack: Levels) -> bool:
    """Whether a forward of a stack may drop levels."""
    return stack.training and stack.quantize_dropout


def depth_of(stack: Levels, seed: int | None, rng: Tensor | None = None) -> int | Tensor:
    """The number of levels that a forward that drops some uses: by a seed, or drawn from a generator."""
    rule = (
        stack.num_quantizers,
        stack.quantize_dropout_cutoff_index,
        stack.quantize_dropout_multiple_of,
    )
    if seed is not None:
        return seeded_depth(seed, *rule)
    assert rng is not None
    return drawn_depth(rng, *rule)


def seeded_depth(seed: int, levels: int, cutoff_index: int, multiple_of: int) -> int:
    """The depth that the reference draws from a seed: uniform in (cutoff_index, levels], rounded up to the multiple.

    At most all levels.
    """
    if torch.compiler.is_compiling():
        seed = index(seed)  # a constant for the compiler, which otherwise makes it a symbol
    fits = cutoff_index < levels
    expect(
        "quantize_depth", fits, "quantize_dropout_cutoff_index", f"in [0, {levels})", cutoff_index
    )
    depth = _last_level(seed, cutoff_index, levels) + 1
    return min(-(-depth // multiple_of) * multiple_of, levels)


@constant_in_graphs
def _last_level(seed: int, cutoff_index: int, levels: int) -> int:
    # Compilers cannot trace Python's generator.
    return random.Random(seed).randrange(cutoff_index, levels)


def drawn_depth(rng: Tensor, levels: int, cutoff_index: int, multiple_of: int) -> int | Tensor:
    """The same distribution from the counter-based generator (seed, step), so that ranks agree without a message."""
    return number_if_free(_ops.drawn_depth(rng, levels, cutoff_index, multiple_of))


def number_if_free(depth: Tensor) -> int | Tensor:
    """A drawn depth as an int if reading it costs nothing.

    Under compilers, torch.vmap and fake tensors, and on devices that would have to be waited for, it stays a 0-d
    tensor: then all levels are computed and the dropped ones masked.
    """
    return depth if torch.compiler.is_compiling() or not is_readable(depth) else int(depth)
