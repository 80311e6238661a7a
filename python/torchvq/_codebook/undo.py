"""A step that fails in the caller's code leaves the codebook as it was."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from torchvq._codebook.request import Request

if TYPE_CHECKING:
    from torchvq.codebook import Codebook


def may_fail_late(codebook: "Codebook", request: Request) -> bool:
    """Whether the caller's code, which cannot be checked, runs after the step has written to the codebook."""
    if torch.compiler.is_compiling():
        return False
    if callable(request.weight):
        return True
    if request.transform is None and codebook.vq_bridge is None:
        return False
    return codebook.affine_param or codebook.has_pending or not codebook.initialised


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
