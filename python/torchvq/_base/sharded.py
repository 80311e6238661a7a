"""Parameters that FSDP2 shards: values that a forward writes to the full parameter are also written to its shard.

``fully_shard`` gathers a parameter before the forward and frees it afterwards, and with it the values written there by
a k-means start, moving averages, the replacement of dead codes or a quantizer's own optimizer.
"""

import sys
from typing import Any

import torch
from torch import Tensor, nn

from torchvq._base.torch_private import place_of_shard, shards_of


def keep_in_shards(module: nn.Module) -> None:
    """Writes this module's own parameters, as they are, to this rank's shards of them.

    Does nothing without FSDP2. No communication: every rank has written the same numbers to the full parameter.
    """
    if "torch.distributed.fsdp" not in sys.modules or torch.compiler.is_compiling():
        return
    with torch.no_grad():
        for name, shard in shards_of(module):
            whole = module._parameters[name]
            if whole is not None and whole is not shard:
                _write(shard, whole)


def _write(shard: Any, whole: Tensor) -> None:
    part = whole.detach()
    for axis, (size, start) in enumerate(zip(*place_of_shard(shard), strict=True)):
        part = part.narrow(axis, min(start, part.shape[axis]), size)
    shard.to_local().copy_(part)
