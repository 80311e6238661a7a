"""Detects in which run of an activation checkpoint a forward is.

``torch.utils.checkpoint`` runs a forward once for its value, and again inside each backward pass to rebuild what
autograd needs. A quantizer that updates its codebook must know which of these runs it is in.
"""

import torch

from torchvq._base import torch_private as _private


def is_checkpointed() -> bool:
    """Whether the running forward may be a run of a checkpointed region, the first or another; quick if not."""
    if torch.compiler.is_compiling():
        if _private.traces_checkpoint():
            # Compiled code would search, and learn, once more in the recomputation. torch.compile runs the forward
            # uncompiled when it meets this error, unless it is told not to (fullgraph=True).
            raise RuntimeError(
                "torchvq: expected a quantizer in training to be outside of torch.utils.checkpoint in compiled code, "
                "but got one inside; leave it out of the region, or compile without fullgraph"
            )
        _refuse_recomputed_graphs()
        return False
    if _private.is_beside_graphs():
        # Here the compiler has ended a graph at the error above; the next graph would begin behind it.
        _refuse_recomputed_graphs()
    if _private.inside_backward() or _private.has_saved_tensor_hooks():
        return True
    return not torch.is_grad_enabled() and _private.inside_reentrant_checkpoint()


def _refuse_recomputed_graphs() -> None:
    if _private.recomputes_in_graphs():
        # The partitioner would read codebooks and generators again in backward, after the step has moved them.
        raise RuntimeError(
            "torchvq: expected a quantizer in training to be compiled with an activation_memory_budget of 1 and "
            "without aggressive_recomputation, but got another setting; leave the quantizer out of the graph with "
            "torch.compiler.disable"
        )
