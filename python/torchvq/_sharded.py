"""Parameters that FSDP2 shards: what a forward writes to the whole is written to the shard, too.

``fully_shard`` gathers a parameter before the forward and drops it afterwards, and with it what a k-means start, moving
averages, the replacement of dead codes or a quantizer's own optimizer have written there.
"""

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn


def keep_in_shards(module: nn.Module) -> None:
    """Writes the parameters of this module itself, as they are, to this rank's shards of them.

    Nothing without FSDP2. No communication: every rank has written the same numbers to the whole.
    """
    if "torch.distributed.fsdp" not in sys.modules or torch.compiler.is_compiling():
        return
    with torch.no_grad():
        for name, shard in _shards_of(module):
            whole = module._parameters[name]
            if whole is not None and whole is not shard:
                _write(shard, whole)


def _shards_of(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Names of the module's sharded parameters, and the shards (DTensor)."""
    # PyTorch has no public way from a gathered parameter to its shard.
    from torch.distributed._composable_state import _module_state_mapping
    from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

    for reference in list(_module_state_mapping.values()):
        state = reference()
        for group in state._fsdp_param_groups if isinstance(state, FSDPState) else ():
            for parameter in group.fsdp_params:
                if parameter._module_info.module is module:
                    yield parameter._module_info.param_name, parameter.sharded_param


def _write(shard: Any, whole: Tensor) -> None:
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    sizes, starts = compute_local_shape_and_global_offset(
        shard.shape, shard.device_mesh, shard.placements
    )
    part = whole.detach()
    for axis, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        part = part.narrow(axis, min(start, part.shape[axis]), size)
    shard.to_local().copy_(part)
