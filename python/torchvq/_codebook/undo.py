"""A step that fails after it has written to the codebook leaves the codebook as it was."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

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


@contextmanager
def undone_if_it_fails(codebook: "Codebook") -> Iterator[None]:
    """Takes back what the block has written to the codebook if it raises."""
    replicas = codebook.replicas(affine=True).values()
    state = [*(tensor.detach() for tensor in replicas), codebook.replaced]
    before = [tensor.clone() for tensor in state]
    pending = codebook._pending
    try:
        yield
    except BaseException:
        for tensor, value in zip(state, before, strict=True):
            tensor.copy_(value)
        codebook.forget_step(pending)
        raise
