"""What activation checkpointing is doing right now.

``torch.utils.checkpoint`` runs a forward twice: once for its value, once more inside backward to rebuild what
autograd needs. A quantizer that updates its codebook must know which of the two runs it is in.
"""

import inspect

import torch
import torch.utils.checkpoint


def recomputing() -> bool:
    """True inside a backward pass: a forward that runs there is a recomputation."""
    return bool(torch._C._current_graph_task_id() != -1)


def will_recompute() -> bool:
    """True in the first of the two forwards of a checkpointed region."""
    if torch.is_grad_enabled():
        return _saved_tensors_are_dropped()
    return _inside_reentrant_checkpoint()


def _saved_tensors_are_dropped() -> bool:
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks is not None and hooks[0].__module__ == torch.utils.checkpoint.__name__


def _inside_reentrant_checkpoint() -> bool:
    # The reentrant form leaves no trace but its frame: it runs the region without gradient from
    # CheckpointFunction.forward. Only training forwards without gradient come here, so the walk is rare.
    forward = torch.utils.checkpoint.CheckpointFunction.forward.__code__
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code is forward:
            return True
        frame = frame.f_back
    return False
