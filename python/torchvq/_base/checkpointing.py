"""Detects in which run of an activation checkpoint a forward is.

``torch.utils.checkpoint`` runs a forward twice: once for its value, once more inside backward to rebuild what
autograd needs. A quantizer that updates its codebook must know which of the two runs it is in.
"""

import torch

from torchvq._base.torch_private import (
    checkpoint_drops_saved_tensors,
    inside_backward,
    inside_reentrant_checkpoint,
)


def recomputing() -> bool:
    """True inside a backward pass: a forward that runs there is a recomputation."""
    return inside_backward()


def will_recompute() -> bool:
    """True in the first of the two forwards of a checkpointed region."""
    if torch.is_grad_enabled():
        return checkpoint_drops_saved_tensors()
    return inside_reentrant_checkpoint()


def is_checkpointed() -> bool:
    """True in either of the two."""
    return recomputing() or will_recompute()
