"""Training steps whose message to the other ranks is in flight, so that backward hides its latency (``overlap_sync``).

The step is settled, i.e. the message awaited and the codes updated, at the end of the backward pass of its output, at
the next forward, or before that by any access to the state of one of its codebooks.
"""

import functools
import os
import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchvq._base.ranks import Ranks, joined_signature
from torchvq._base.torch_private import at_end_of_backward, is_mapped
from torchvq._codebook.learning import StepTokens, step_lists

if TYPE_CHECKING:
    from torchvq._base.ema_weight import EmaWeight
    from torchvq.codebook import Codebook

# The attributes that hold a module's tensors: reading, saving, copying or moving them accesses one of these.
_STATE = ("_buffers", "_parameters", "__dict__")


def may_overlap(codebook: "Codebook", ranks: Ranks, x: Tensor) -> bool:
    """Whether a step with ``overlap_sync`` can overlap: nothing needs its result before it settles."""
    return (
        codebook.overlap_sync
        and not ranks.alone
        and not torch.compiler.is_compiling()
        # A codebook that is a parameter must move inside the step, before its optimizer and its regularisation use it.
        and "embed" in codebook._buffers
        and not codebook.recording
        and not codebook.has_pending
        and not is_mapped(x)
    )


class StepInFlight:
    """An unfinished step of codebooks that have the options of the first; one message for all."""

    def __init__(
        self,
        codebooks: Sequence["Codebook"],
        tokens: Sequence[StepTokens],
        ranks: Ranks,
        ema_update: bool,
        weight: "EmaWeight | None" = None,
    ) -> None:
        """Sends the message; ``tokens`` as for ``learn_together``."""
        first = codebooks[0]
        options: dict[str, Any] = dict(
            weight=None, threshold=0.0, threshold_fraction=0.0, reset_cluster_size=0.0
        )
        options |= first.statistics_options(ranks) | first.learning_options(ema_update, weight)
        if len(codebooks) > 1:
            options["signature"] = joined_signature(codebooks)
        for name in ("by_gradient", "sync_every"):  # of codebooks that do not overlap
            options.pop(name, None)
        self._work: Any = torch.classes.torchvq.LearningInFlight(
            *step_lists(codebooks, tokens), **options
        )
        self._process = os.getpid()
        # Reentrant, because finish() accesses the state, which settles.
        self._lock = threading.RLock()
        # Codebooks own their step: it is dropped with the last of them, and the message is then never awaited.
        self._codebooks = [weakref.ref(codebook) for codebook in codebooks]
        for codebook in codebooks:
            codebook.step_in_flight = self
            plain: Any = type(codebook)
            object.__setattr__(codebook, "__class__", _unsettled(plain))

    def settle(self) -> None:
        """Waits for the message and updates all codebooks of the step. Only the first call does anything; calls from
        other threads return when it is done.

        Raises:
            DistBackendError, DistError: of the step that sent; its codebooks are then as they were before it.
            RuntimeError: in a forked child, to which the threads that receive the message do not belong.
        """
        if os.getpid() != self._process:
            raise RuntimeError(
                "overlap_sync: expected a forked process to begin between steps, but got one that began with a message "
                "in flight, which only its parent receives; start workers after backward"
            )
        with self._lock:
            # Cleared first, for the accesses inside finish().
            work, self._work = self._work, None
            if work is None:
                return
            try:
                with torch.no_grad():
                    work.finish()
            finally:
                self._release()

    def _release(self) -> None:
        """Makes the codebooks plain again; not before the update, because other threads that read them must wait."""
        for reference in self._codebooks:
            codebook = reference()
            if codebook is not None:
                object.__setattr__(codebook, "__class__", type(codebook).__mro__[2])
                object.__setattr__(codebook, "step_in_flight", None)
        self._codebooks = []

    def settle_after_backward(self, *outputs: Tensor) -> None:
        """Settles at the end of the backward pass through one of these outputs, which every rank reaches."""
        # A weak reference, because the graph may outlive the module and must not keep its tokens alive.
        reference = weakref.ref(self)

        def backward_has_begun(_: Tensor) -> None:
            step = reference()
            if step is not None and step._work is not None:
                at_end_of_backward(step.settle)

        for output in outputs:
            if output.requires_grad:
                output.register_hook(backward_has_begun)  # type: ignore[no-untyped-call]


class _Unsettled:
    """First base class of a codebook whose step is in flight: any access to its state settles the step."""

    def __getattribute__(self, name: str) -> Any:
        if name in _STATE:
            step = object.__getattribute__(self, "step_in_flight")
            if step is not None:
                step.settle()
        return object.__getattribute__(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        # Attributes that are not tensors (modes, records of a forward) may change while the step is in flight.
        if name in object.__getattribute__(self, "__dict__"):
            object.__setattr__(self, name, value)
        else:
            self.__dict__  # noqa: B018
            setattr(self, name, value)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Settles, so that the copy has the plain class.
        self.__dict__  # noqa: B018
        return self.__reduce_ex__(protocol)


@functools.cache
def _unsettled(plain: Any) -> type:
    """The class of a codebook with a step in flight; it keeps the name of the plain class."""
    return type(plain.__name__, (_Unsettled, plain), {"__module__": plain.__module__})
