"""A step that fails after it has written to codebooks leaves them as they were."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchvq._base.affine_map import AFFINE_FLAGS, AFFINE_STATE
from torchvq._base.readable import version_of
from torchvq._base.torch_private import uncounted

if TYPE_CHECKING:
    from torchvq.codebook import Codebook


class Undo:
    """Context that takes back what it has written to codebooks if it raises.

    Args:
        codebooks: those that ``may_fail_late``.
        apart: see ``may_fail_late``.
    """

    @uncounted
    def __init__(self, codebooks: Sequence["Codebook"], apart: bool = False) -> None:
        self._pending = [(codebook, codebook._pending) for codebook in codebooks]
        self._generators = [(codebook.rng, version_of(codebook.rng)) for codebook in codebooks]
        state = [tensor for codebook in codebooks for tensor in _written_early(codebook, apart)]
        self._before = [(tensor, tensor.clone()) for tensor in state]

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Moving the generators ends a step. KeyboardInterrupt is raised when an operator returns, perhaps the last one:
        # if the generators have moved, the step is complete and stays.
        if kind is None or any(version_of(rng) != before for rng, before in self._generators):
            return
        for tensor, value in self._before:
            tensor.copy_(value)
        for codebook, pending in self._pending:
            codebook.after_undo(pending)

    def forget(self) -> None:
        """To be called when the codebooks have learnt: what they learn from remains with what they have learnt."""
        self._before, self._pending = [], []


def may_fail_late(codebook: "Codebook", apart: bool = False) -> bool:
    """Whether the step writes to the codebook before its last operator has checked its arguments, or before the
    caller's code has run to its end.

    Args:
        apart: whether the caller's code runs between the statistics and the update, or between updates.
    """
    if torch.compiler.is_compiling() or codebook.replaying:
        return False  # a recomputation writes nothing, and ends early by an exception
    return apart or codebook.affine_param or not codebook.initialised


def undo_of(codebooks: Sequence["Codebook"], apart: bool = False) -> Undo | None:
    """For a stack, of those of its codebooks that ``may_fail_late``, if there are any."""
    early = [codebook for codebook in codebooks if may_fail_late(codebook, apart)]
    return Undo(early, apart) if early else None


def _written_early(codebook: "Codebook", apart: bool) -> list[Tensor]:
    """What a step writes before its last operator, which writes all of its own or nothing."""
    if codebook.initialised and not apart:
        return [getattr(codebook, name) for name in (*AFFINE_STATE, *AFFINE_FLAGS)]
    state = codebook.replicated_state(affine=True).values()
    return [*(tensor.detach() for tensor in state), codebook.replaced, *codebook._kept]
