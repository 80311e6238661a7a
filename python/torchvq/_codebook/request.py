"""The arguments of one forward of VectorQuantize."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from torchvq._base.ema_weight import EmaWeight
from torchvq._base.options import expect
from torchvq._base.ranks import ALONE, Ranks

if TYPE_CHECKING:
    from torchvq.vector_quantize import VectorQuantize


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


def check_topk(vq: "VectorQuantize", topk: int | None) -> None:
    """Raises ValueError if the module's options do not allow ``topk``."""
    if topk is None:
        return
    if vq.training and (vq.commitment_use_cross_entropy_loss or vq.stochastic_sample_codes):
        raise ValueError(
            "VectorQuantize: expected topk in training without commitment_use_cross_entropy_loss and "
            f"stochastic_sample_codes, but got topk {topk} with one of them"
        )
    if vq.training and vq.in_place_codebook_optimizer is not None:
        raise ValueError(
            "VectorQuantize: expected topk in training without in_place_codebook_optimizer, "
            f"but got topk {topk} with one"
        )
    expect("VectorQuantize", topk >= 1, "topk", "at least 1", topk)
    if vq.heads > 1:
        raise ValueError(
            f"VectorQuantize: expected topk with one head, but got topk {topk} with {vq.heads} heads"
        )
