"""Every class of the package at usual sizes: ours, the reference with the same parameters, plain torch.

small_steps.py and memory.py measure these.
"""

from __future__ import annotations

import itertools
import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import plain
import torch
import vector_quantize_pytorch as reference
from torch import Tensor, nn

import torchvq

DIM, CODES, BITS, STACK = 64, 512, 10, 4
LEVELS = (8, 5, 5, 5)
SCALES = (1, 2, 4)
COMMITMENT = dict(commitment_loss_weight=0.25)


class Entry(NamedTuple):
    """A class, its options, the features of its input, and its plain version, made from our module."""

    name: str
    options: dict[str, Any]
    features: int
    plain: Callable[[Any], nn.Module]
    length: int = 1  # the number of tokens is a multiple of this
    draws: bool = False  # its tokens are random
    # Tokens without a batch axis, for which the reference otherwise takes channels first.
    flat: bool = False


def _signs(_ours: Any) -> nn.Module:
    return plain.Signs(BITS, 0.1, 0.25)


def _sign_stack(levels: int) -> plain.Stack:
    return plain.Stack([_signs(None) for _ in range(levels)], [0.5**i for i in range(levels)])


def _grouped(ours: Any, make: Callable[[Any], nn.Module]) -> plain.Grouped:
    return plain.Grouped([make(stack) for stack in ours.rvqs])


CODED: dict[str, Any] = dict(dim=DIM, codebook_size=CODES)
STACKED: dict[str, Any] = dict(num_quantizers=STACK)
GROUPS: dict[str, Any] = dict(groups=2, num_quantizers=STACK // 2)
SIGNS: dict[str, Any] = dict(codebook_size=2**BITS, **COMMITMENT)

ENTRIES = [
    Entry("VectorQuantize", CODED, DIM, plain.Codebook),
    Entry("ResidualVQ", CODED | STACKED, DIM, lambda m: plain.stack_of(m, plain.Codebook)),
    Entry(
        "GroupedResidualVQ",
        CODED | GROUPS,
        DIM,
        lambda m: _grouped(m, lambda stack: plain.stack_of(stack, plain.Codebook)),
    ),
    Entry("SimVQ", CODED, DIM, plain.Projected),
    Entry("ResidualSimVQ", CODED | STACKED, DIM, lambda m: plain.stack_of(m, plain.Projected)),
    Entry("FSQ", dict(levels=list(LEVELS)), 4, lambda m: plain.Scalars(LEVELS)),
    Entry(
        "ResidualFSQ",
        dict(levels=list(LEVELS), dim=4) | STACKED,
        4,
        lambda m: plain.Scalars(LEVELS, STACK),
    ),
    Entry(
        "GroupedResidualFSQ",
        dict(levels=list(LEVELS), dim=8) | GROUPS,
        8,
        lambda m: plain.Grouped([plain.Scalars(LEVELS, STACK // 2) for _ in range(2)]),
    ),
    Entry("LFQ", SIGNS, BITS, _signs),
    Entry("ResidualLFQ", SIGNS | STACKED | dict(dim=BITS), BITS, lambda m: _sign_stack(STACK)),
    Entry(
        "GroupedResidualLFQ",
        SIGNS | GROUPS | dict(dim=2 * BITS),
        2 * BITS,
        lambda m: plain.Grouped([_sign_stack(STACK // 2) for _ in range(2)]),
    ),
    Entry(
        "EvoLFQ",
        SIGNS | dict(dim=BITS, pop_size=4),
        BITS,
        lambda m: plain.Between(m.encoder, _signs(None), m.decoder),
    ),
    Entry("FSP", dict(levels=list(LEVELS)), 4, lambda m: plain.Perturbed(LEVELS)),
    Entry(
        "LatentQuantize",
        dict(levels=list(LEVELS), dim=4),
        4,
        lambda m: plain.Values(m, LEVELS),
        flat=True,
    ),
    Entry("BinaryMapper", dict(bits=8), 8, lambda m: plain.Drawn(8), draws=True),
    Entry("RandomProjectionQuantizer", CODED | dict(codebook_dim=16), DIM, plain.Targets),
    Entry(
        "Sequential",
        CODED,
        DIM,
        lambda m: plain.Between(nn.Identity(), plain.Codebook(m.quantizer), nn.ReLU()),
    ),
    Entry(
        "HierarchicalVQ",
        CODED
        | dict(
            scales=SCALES, channel_first=False, kmeans_init=False, threshold_ema_dead_code=0
        ),
        DIM,
        lambda m: plain.Scales(m, SCALES),
        length=SCALES[-1],
    ),
]  # fmt: skip


def construct(package: Any, entry: Entry) -> nn.Module:
    """A module of ours or of the reference, constructed without warnings."""
    logging.disable(logging.WARNING)
    options = dict(entry.options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if entry.name == "EvoLFQ":
            return package.EvoLFQ(nn.Linear(BITS, BITS), nn.Linear(BITS, BITS), **options)
        if entry.name == "Sequential":
            quantizer = package.VectorQuantize(**options)
            return package.Sequential(nn.Identity(), quantizer, nn.ReLU())
        return getattr(package, entry.name)(**options)


def modules(entry: Entry) -> dict[str, nn.Module]:
    """Ours, the plain one, and the reference's, with the same codes, in training mode."""
    torch.manual_seed(0)
    ours = construct(torchvq, entry)
    with torch.no_grad():
        for part in ours.modules():
            # Codes of the size of the data, so that all of them are chosen.
            if isinstance(part, torchvq.VectorQuantize) and not part.use_cosine_sim:
                part.codebook = torch.randn(part.codebook.shape)
        written = entry.plain(ours)
    theirs = construct(reference, entry)
    theirs.load_state_dict(ours.state_dict(), strict=False)
    return {"torchvq": ours.train(), "plain torch": written.train(), "reference": theirs.train()}


def tokens(entry: Entry, count: int, batch: int = 0) -> Tensor:
    """(B, L, features), with at least that many tokens; each batch has others."""
    length = entry.length if entry.length > 1 else count
    rows = max(1, count // length)
    generator = torch.Generator().manual_seed(1000 * batch + count)
    x = torch.randn(rows, length, entry.features, generator=generator)
    return x.flatten(0, 1) if entry.flat else x


def parts(entry: Entry, result: Any) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """Output, indices and the sum of the losses of any class."""
    if isinstance(result, Tensor):
        return None, result, None
    output, second, *rest = result
    if entry.name == "BinaryMapper" and len(result) == 2:
        # Its tokens are random, so nothing compares them, and finding them in one-hot codes takes longer than a step.
        return output, output, second
    if isinstance(second, (tuple, list)):
        second = torch.cat([scale.flatten(1) for scale in second], 1)
    loss = rest[0] if rest and isinstance(rest[0], Tensor) else None
    return output, second, loss if loss is None or loss.dim() == 0 else loss.sum()


class Nothing(nn.Module):
    """Quantizes nothing: what torch takes for a forward, and for a gradient of an output and of a loss, if any."""

    def __init__(self, loss: bool) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (x.clone(), x, x.sum()) if self.loss else (x.clone(), x)


def nothing_like(entry: Entry, module: nn.Module, x: Tensor) -> nn.Module | None:
    """With the gradients of a module's step; None if that has none."""
    output, _, loss = parts(entry, module(x.detach().requires_grad_()))
    if output is None or not output.requires_grad:
        return None
    return Nothing(loss is not None and loss.requires_grad)


def step_of(
    entry: Entry, module: Callable[[Tensor], Any], batches: Sequence[Tensor]
) -> Callable[[], tuple[Tensor, Tensor | None]]:
    """Forward and backward, with a gradient of the output and of the loss, for one batch after the other.

    A step returns the indices and the gradient of its batch.
    """
    behind: dict[tuple[int, ...], Tensor] = {}
    one = torch.ones(())
    turns = itertools.cycle(batches)

    def step() -> tuple[Tensor, Tensor | None]:
        x = next(turns)
        leaf = x.detach().requires_grad_()
        output, indices, loss = parts(entry, module(leaf))
        if output is not None and output.requires_grad:
            shape = tuple(output.shape)
            if shape not in behind:
                generator = torch.Generator().manual_seed(0)
                behind[shape] = torch.randn(shape, generator=generator) / x.numel()
            ends = [output] if loss is None or not loss.requires_grad else [output, loss]
            torch.autograd.backward(ends, [behind[shape], one][: len(ends)])
        return indices, leaf.grad

    return step
