"""Detects in which run of an activation checkpoint a forward is.

``torch.utils.checkpoint`` runs a forward once for its value, and again inside each backward pass to rebuild what
autograd needs. A quantizer that updates its codebook must know which of these runs it is in.
"""

import torch

from torchvq._base.torch_private import (
    has_saved_tensor_hooks,
    inside_backward,
    inside_reentrant_checkpoint,
    is_beside_graphs,
    recomputes_in_graphs,
    traces_checkpoint,
)


def is_checkpointed() -> bool:
    """Whether the running forward may be a run of a checkpointed region, the first or another; quick if not."""
    if torch.compiler.is_compiling():
        if traces_checkpoint():
            # Compiled code would search, and learn, once more in the recomputation. torch.compile runs the forward
            # uncompiled when it meets this error, unless it is told not to (fullgraph=True).
            raise RuntimeError(
                "torchvq: expected a quantizer in training to be outside of torch.utils.checkpoint in compiled code, "
                "but got one inside; leave it out of the region, or compile without fullgraph"
            )
        _refuse_recomputed_graphs()
        return False
    if is_beside_graphs():
        # Here the compiler has ended a graph at the error above; the next graph would begin behind it.
        _refuse_recomputed_graphs()
    if inside_backward() or has_saved_tensor_hooks():
        return True
    return not torch.is_grad_enabled() and inside_reentrant_checkpoint()


def _refuse_recomputed_graphs() -> None:
    if recomputes_in_graphs():
        # The partitioner would read codebooks and generators again in backward, after the step has moved them.
        raise RuntimeError(
            "torchvq: expected a quantizer in training to be compiled with an activation_memory_budget of 1 and "
            "without aggressive_recomputation, but got another setting; leave the quantizer out of the graph with "
            "torch.compiler.disable"
        )
