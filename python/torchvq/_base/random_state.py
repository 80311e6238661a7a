"""State of a module besides its parameters: a random number generator, and float32 buffers."""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from torchvq._base.checkpointing import is_checkpointed
from torchvq._base.constants import ConstantBuffers
from torchvq._base.options import keep_values
from torchvq._base.replay import StepRecords

_ops = torch.ops.torchvq


def fresh_rng() -> Tensor:
    """Seed and step (2,) of the counter-based generator; the seed is drawn from torch's generator."""
    seed = torch.randint(2**62, (1,), device="cpu")
    rng = torch.constant_pad_nd(seed, (0, 1))
    device = torch.empty(0).device  # get_default_device takes five times as long
    # A tensor on the meta device could not hold the seed.
    return rng if device.type == "meta" else rng.to(device)


def restarted(rng: Tensor) -> Tensor:
    """The generator at step 0; the seed drawn at construction stays, one that the meta device lost is drawn anew."""
    rng = fresh_rng() if rng.is_meta else rng
    rng[1] = 0
    return rng


def rng_beside(x: Tensor, rng: Tensor) -> Tensor:
    """The generator, on a device that operators take together with x.

    A module that is constructed on the meta device keeps its generator on the CPU, since a meta tensor cannot hold the
    seed. Operators take tensors of one device; with x on the meta device they read no values of the generator.
    """
    return rng.to("meta") if x.is_meta else rng


class StepRecord:
    """Record of a checkpointed forward for its recomputation: its generator, and the totals over ranks."""

    def __init__(self, rng: Tensor | None) -> None:
        self.rng = rng
        self.totals: list[Tensor] = []
        self.replayed = False  # whether a recomputation has begun

    def keep_totals(self, totals: list[Tensor]) -> None:
        """Keeps the totals over ranks, without a graph, which would hold the record for ever."""
        self.totals = [total.detach() for total in totals]


class RandomState(ConstantBuffers):
    """A module that may have a buffer ``rng``, (2,) int64: seed and step of the counter-based generator.

    Its float buffers stay float32 (float64 once the module was made double) whatever ``.half()``, ``.bfloat16()``
    or a wrapper does to the module. A checkpoint of the reference, which has no ``rng``, loads with strict=True.
    """

    rng: Tensor
    _records: StepRecords[StepRecord]
    _step: StepRecord | None

    def __init__(self) -> None:
        super().__init__()
        keep_values(self, _records=StepRecords(), _step=None)

    def keep_rng(self) -> None:
        """Registers the generator, for modules that draw."""
        self.register_buffer("rng", fresh_rng())

    def forget_rng(self) -> None:
        """Removes the generator of a level whose stack draws for all levels."""
        self._buffers.pop("rng", None)

    @contextmanager
    def drawing(self, *, draws: bool = True) -> Iterator[Any]:
        """The generator of one training forward, or None; advanced at the end of a step that draws.

        The recomputation of a checkpointed forward gets the same generator again and does not advance it.
        """
        rng = self._buffers.get("rng")
        present = None if rng is None else rng.clone()
        step = self._step_for(present) if is_checkpointed() else None
        if step is None:
            yield present
        else:
            self._step = step
            try:
                yield step.rng
            finally:
                self._step = None
            if step.replayed:
                return
        if rng is not None and draws:
            _ops.advance_rng_(rng)

    def _step_for(self, rng: Tensor | None) -> StepRecord | None:
        """The record that this forward writes, or that it reads as a recomputation; None without checkpointing."""
        found = self._records.take()
        if found is not None:
            found.replayed = True
            return found
        step = StepRecord(rng)
        return step if self._records.keep(step) else None

    @property
    def step_record(self) -> StepRecord | None:
        """The record of the running forward, if it is checkpointed."""
        return self._step

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *args: Any
    ) -> None:
        missing: list[str] = args[1]
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)
        if prefix + "rng" in missing and "rng" in self._buffers:
            missing.remove(prefix + "rng")
            self._buffers["rng"] = restarted(self.rng)

    def complete_load(self, lacking: AbstractSet[str]) -> None:
        super().complete_load(lacking)
        if "rng" in lacking:
            # The seed that was drawn at construction is lost.
            self._buffers["rng"] = fresh_rng().to(self.rng.device)
