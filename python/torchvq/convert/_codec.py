"""A codec in memory, and its tensors and metadata in a file (include/torchvq/io/codec.h and projected_codec.h)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from torchvq._version import __version__


class ConversionError(ValueError):
    """There is no quantizer that a codec can describe; the message is one sentence."""


class Projection(NamedTuple):
    """``weight x + bias``: (out, in) and (out,)."""

    weight: Tensor
    bias: Tensor | None = None


@dataclass
class Level:
    """A codebook (K, d), the number of vectors of each code (K,), and the maps around the codebook."""

    codebook: Tensor
    counts: Tensor | None = None
    into: Projection | None = None
    out: Projection | None = None


@dataclass
class Stack:
    """Levels, each of which quantizes the residual of those before, and the maps around them."""

    levels: list[Level]
    into: Projection | None = None
    out: Projection | None = None


@dataclass
class Codec:
    """Stacks whose outputs are summed. Tokens: the levels of the first stack, then those of the next."""

    stacks: list[Stack] = field(default_factory=list)
    metric: str = "euclidean"

    @property
    def levels(self) -> list[Level]:
        """The levels of all stacks, in the order of tokens."""
        return [level for stack in self.stacks for level in stack.levels]

    @property
    def dim(self) -> int:
        """Features of the latents that the quantizer takes."""
        first = self.stacks[0]
        into = first.into or first.levels[0].into
        return first.levels[0].codebook.shape[1] if into is None else into.weight.shape[1]

    @property
    def plain(self) -> bool:
        """Whether a VectorQuantize or a ResidualVQ has the same state."""
        parts: list[Stack | Level] = [*self.stacks, *self.levels]
        maps = any(part.into is not None or part.out is not None for part in parts)
        # The command line's ResidualVQ has no cosine metric.
        return (
            len(self.stacks) == 1
            and not maps
            and (self.metric == "euclidean" or len(self.levels) == 1)
        )

    def check(self) -> None:
        """Raises ConversionError unless all levels have codes finite in float32, and counts and maps that fit them."""
        for number, level in enumerate(self.levels):
            codes, counts = level.codebook, level.counts
            if codes.dim() != 2 or codes.numel() == 0:
                _refuse(number, "to have codes (K, D)", f"shape {tuple(codes.shape)}")
            if counts is not None and counts.shape != codes.shape[:1]:
                _refuse(number, f"to have {codes.shape[0]} counts", f"shape {tuple(counts.shape)}")
            for name, tensor in (("codes", codes), ("counts", counts)):
                if tensor is not None and not tensor.float().isfinite().all():
                    _refuse(number, f"to have finite {name} in float32", "NaN or infinity")
            if counts is not None and (fewest := counts.float().min().item()) < 0:
                _refuse(number, "to have counts of at least 0", f"{fewest:g}")
        parts: list[Stack | Level] = [*self.stacks, *self.levels]
        for own in [own for part in parts for own in (part.into, part.out)]:
            if own is not None and own.bias is not None and own.bias.shape != own.weight.shape[:1]:
                raise ConversionError(
                    f"expected the bias of a map to have {own.weight.shape[0]} numbers, but got shape "
                    f"{tuple(own.bias.shape)}"
                )

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of the file, float32; copies, as a file cannot hold two names for one memory.

        Raises:
            ConversionError: when one of them is not finite.
        """
        found = dict(self._plain_tensors() if self.plain else self._projected_tensors())
        for name, tensor in found.items():
            if not tensor.isfinite().all():
                raise ConversionError(
                    f"expected {name} to be finite in float32, but got NaN or infinity"
                )
        return {
            name: tensor.detach().clone(memory_format=torch.contiguous_format)
            for name, tensor in found.items()
        }

    def metadata(self) -> dict[str, str]:
        """The metadata of the file."""
        said = {"format": "pt", "format_version": "1", "dim": str(self.dim), "metric": self.metric}
        said["torchvq_version"] = __version__
        if not self.plain:
            return said | {"class": "ProjectedCodec"}
        sizes = [level.codebook.shape[0] for level in self.levels]
        said["codebook_size"] = str(sizes[0]) if len(set(sizes)) == 1 else ",".join(map(str, sizes))
        if len(sizes) == 1:
            return said | {"class": "VectorQuantize"}
        return said | {"class": "ResidualVQ", "num_quantizers": str(len(sizes))}

    def _plain_tensors(self) -> Iterator[tuple[str, Tensor]]:
        for index, level in enumerate(self.levels):
            key = f"layers.{index}._codebook." if len(self.levels) > 1 else "_codebook."
            codes = level.codebook.float().unsqueeze(0)
            counts = codes.new_ones(codes.shape[1])
            if level.counts is not None:
                counts = level.counts.float()
            yield key + "initted", torch.tensor(True)
            yield key + "cluster_size", counts.unsqueeze(0)
            yield key + "embed_avg", codes * counts[None, :, None]
            yield key + "embed", codes

    def _projected_tensors(self) -> Iterator[tuple[str, Tensor]]:
        for s, stack in enumerate(self.stacks):
            yield from _maps(f"stacks.{s}.", stack)
            for q, level in enumerate(stack.levels):
                key = f"stacks.{s}.layers.{q}."
                yield from _maps(key, level)
                yield key + "_codebook.embed", level.codebook.float().unsqueeze(0)


def _refuse(level: int, wanted: str, found: str) -> NoReturn:
    raise ConversionError(f"expected level {level} {wanted}, but got {found}")


def _maps(key: str, part: Stack | Level) -> Iterator[tuple[str, Tensor]]:
    for name, projection in (("project_in", part.into), ("project_out", part.out)):
        if projection is not None:
            yield f"{key}{name}.weight", projection.weight.float()
            if projection.bias is not None:
                yield f"{key}{name}.bias", projection.bias.float()
