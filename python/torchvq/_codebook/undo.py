"""A step that fails after it has written to the codebook leaves the codebook as it was."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchvq._base.affine_map import AFFINE_FLAGS, AFFINE_STATE
from torchvq._codebook.request import Request

if TYPE_CHECKING:
    from torchvq.codebook import Codebook


def may_fail_late(codebook: "Codebook", request: Request) -> bool:
    """Whether the step writes to the codebook before its last operator checks its arguments, or before the last code of
    the caller's runs."""
    if torch.compiler.is_compiling() or codebook.replaying:
        return False  # a recomputation writes nothing, and ends early by an exception
    apart = codebook.learns_apart(request.accumulate, request.weight)
    return apart or codebook.affine_param or not codebook.initialised


def _written_early(codebook: "Codebook", request: Request) -> list[Tensor]:
    """What a step writes before its last operator, which writes all of its own or nothing."""
    if codebook.initialised and not codebook.learns_apart(request.accumulate, request.weight):
        return [getattr(codebook, name) for name in (*AFFINE_STATE, *AFFINE_FLAGS)]
    replicas = codebook.replicas(affine=True).values()
    return [*(tensor.detach() for tensor in replicas), codebook.replaced]


@contextmanager
def undone_if_it_fails(codebook: "Codebook", request: Request) -> Iterator[None]:
    """Takes back what the block has written to the codebook if it raises."""
    state = _written_early(codebook, request)
    before = [tensor.clone() for tensor in state]
    pending = codebook._pending
    try:
        yield
    except BaseException:
        for tensor, value in zip(state, before, strict=True):
            tensor.copy_(value)
        codebook.forget_step(pending)
        raise
