"""A process group that tells a test which collectives are about to start."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist


class ForwardingGroup(dist.ProcessGroup):
    """Forwards collectives, each after a call of ``entering``."""

    def __init__(self, inner: dist.ProcessGroup) -> None:
        super().__init__(inner.rank(), inner.size())
        self.inner = inner

    def entering(self, kind: str) -> None:
        """Called before anything is sent."""

    def allreduce(self, tensors: Any, options: Any) -> Any:
        self.entering("all-reduce")
        return self.inner.allreduce(tensors, options)

    def allgather(self, outputs: Any, inputs: Any, options: Any) -> Any:
        self.entering("all-gather")
        return self.inner.allgather(outputs, inputs, options)

    def broadcast(self, tensors: Any, options: Any) -> Any:
        self.entering("broadcast")
        return self.inner.broadcast(tensors, options)
