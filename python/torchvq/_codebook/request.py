"""The arguments of one forward of VectorQuantize, and codes that are assigned to it."""

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from torchvq._base.arguments import integer
from torchvq._base.ema_weight import EmaWeight, check_weight
from torchvq._base.integers import as_int64
from torchvq._base.layout import Layout
from torchvq._base.options import expect, expect_temperature
from torchvq._base.ranks import ALONE, Ranks
from torchvq._base.readable import is_readable, is_readable_after_wait

if TYPE_CHECKING:
    from torchvq.vector_quantize import VectorQuantize

_FLAGS = ("freeze_codebook", "accum_ema_update", "ema_update")


class Request(NamedTuple):
    """Arguments of a forward, with the module's options for those not given."""

    targets: Tensor | None
    mask: Tensor | None  # (B, N)
    topk: int | None
    temperature: float
    frozen: bool
    transform: Callable[[Tensor], Tensor] | None
    ema_update: bool
    accumulate: bool
    weight: EmaWeight | None
    ranks: Ranks = ALONE


def request_of_level(
    vq: "VectorQuantize",
    targets: Tensor | None,
    mask: Tensor | None,
    temperature: float | None,
    frozen: bool,
    ranks: Ranks,
) -> Request:
    """The request of a stack to one of its levels."""
    return Request(
        targets=targets,
        mask=mask,
        topk=None,
        temperature=vq.sample_codebook_temp if temperature is None else temperature,
        frozen=frozen,
        transform=None,
        ema_update=vq.ema_update,
        accumulate=False,
        weight=None,
        ranks=ranks,
    )


def check_call(
    vq: "VectorQuantize",
    x: Tensor,
    targets: Tensor | None,
    topk: int | None,
    temperature: float | None,
    weight: EmaWeight | None,
    flags: tuple[bool | None, ...],
) -> None:
    """Checks the arguments of a forward before it writes anything."""
    _check_topk(vq, topk)
    _check_flags(flags)
    check_temperature("VectorQuantize", vq, temperature)
    if torch.compiler.is_compiling():
        return  # the operators check tensors while they are traced, before anything runs
    if targets is not None:
        check_targets(targets, x, vq._layout, vq.codebook_size)
    if weight is not None and vq.training:
        codebook = vq._codebook
        check_weight(weight, codebook.cluster_size, functions=not codebook.keeps_statistics)


def check_temperature(owner: str, vq: "VectorQuantize", temperature: float | None) -> None:
    """Raises ValueError unless the temperature of a call, or the option where codes are sampled, is finite."""
    if temperature is None and vq.stochastic_sample_codes:
        temperature = vq.sample_codebook_temp
    if temperature is not None:
        expect_temperature(owner, "sample_codebook_temp", temperature)


def check_targets(targets: Tensor, x: Tensor, layout: Layout, codebook_size: int) -> None:
    """Raises unless targets are indices as forward returns them for x: TypeError, ValueError or IndexError."""
    targets = as_int64(layout.owner, targets)
    shape = _targets_shape(x, layout)
    found = list(targets.shape)
    expect(layout.owner, found == shape, "indices", f"of shape {shape}", f"shape {found}")
    here = targets.device == x.device
    expect(layout.owner, here, "indices", f"on {x.device} like x", targets.device)
    check_target_values(layout.owner, targets, codebook_size)


def unflattened(targets: Tensor, x: Tensor, layout: Layout) -> Tensor:
    """Indices as forward returns them, also if they are given flat, in one axis."""
    targets, shape = as_int64(layout.owner, targets), _targets_shape(x, layout)
    return targets.reshape(shape) if list(targets.shape) == [prod(shape)] else targets


def _targets_shape(x: Tensor, layout: Layout) -> list[int]:
    return [x.shape[0], *layout.positions(x), *([layout.heads] if layout.heads > 1 else [])]


def check_target_values(owner: str, targets: Tensor, codebook_size: int) -> None:
    """Raises TypeError or IndexError unless targets are integers, and -1 or indices of codes."""
    whole = as_int64(owner, targets)
    if whole.numel() == 0 or not is_readable(whole):
        return
    least, most = (int(value) for value in whole.aminmax())
    if least < -1 or most >= codebook_size:
        raise IndexError(
            f"{owner}: expected indices to be in [-1, {codebook_size}), "
            f"but got {least if least < -1 else most}"
        )


def check_codes(codes: Tensor, embed: Tensor) -> None:
    """Raises TypeError or ValueError unless codes that are assigned are real and finite."""
    if not isinstance(codes, Tensor) or codes.is_complex() or codes.dtype == torch.bool:
        got = codes.dtype if isinstance(codes, Tensor) else type(codes).__name__
        raise TypeError(
            f"VectorQuantize: expected codebook to be a tensor of real numbers, but got {got}"
        )
    if torch.compiler.is_compiling() or not is_readable_after_wait(codes):
        return
    finite = bool(codes.to(embed.dtype).isfinite().all())
    expect("VectorQuantize", finite, "codebook", f"finite in {embed.dtype}", "NaN or infinity")


def _check_topk(vq: "VectorQuantize", topk: int | None) -> None:
    """Raises ValueError if the module's options do not allow ``topk``, TypeError unless it is an integer."""
    if topk is None:
        return
    if not torch.compiler.is_compiling():
        integer("VectorQuantize", "topk", topk)
    if vq.training:
        by_entropy = vq.commitment_use_cross_entropy_loss
        condition = "None in training with commitment_use_cross_entropy_loss"
        expect("VectorQuantize", not by_entropy, "topk", condition, topk)
        condition = "None in training with in_place_codebook_optimizer"
        expect("VectorQuantize", vq.in_place_codebook_optimizer is None, "topk", condition, topk)
    expect("VectorQuantize", topk >= 1, "topk", "at least 1", topk)
    expect("VectorQuantize", vq.heads == 1, "topk", "None with several heads", topk)


def _check_flags(flags: tuple[bool | None, ...]) -> None:
    """Raises TypeError unless each flag is None, True or False: a string would count as true."""
    for place, value in enumerate(flags):
        # None and False, which most calls give, are recognised by identity, without a comparison.
        if value is not None and value is not False and value not in (True, False):
            raise TypeError(
                f"VectorQuantize: expected {_FLAGS[place]} to be True or False, but got {value!r}"
            )
