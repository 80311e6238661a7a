"""Statistics that a codebook accumulates over several training steps before ranks reduce them and codes learn."""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any

import torch
from torch import Tensor, nn

from torchvq._base.ema_weight import Statistics
from torchvq._base.options import keep_values
from torchvq._base.wide_buffers import WideBuffers, keeps_dtype

KEPT = ("kept_steps", "kept_counts", "kept_sums", "kept_exponents", "kept_candidates")


def is_stored(state_dict: dict[str, Any], prefix: str) -> bool:
    """Whether a checkpoint holds a codebook under this name.

    Savers that drop further names of a tensor store a shared codebook only under its first name, except for empty
    tensors, which they cannot tell apart: ``kept_candidates`` may be under every name.
    """
    return any(key.startswith(prefix) and key != prefix + KEPT[-1] for key in state_dict)


def _kept_part(place: int) -> property:
    def part(self: "KeptStatistics") -> Tensor:
        if not self._kept:
            raise AttributeError(KEPT[place])
        # transformers expects every key of a state dict to be a parameter or a buffer.
        return nn.Parameter(self._kept[place], requires_grad=False)

    def assign(self: "KeptStatistics", value: Tensor) -> None:
        # Until the module has got its values, only uninitialised tensors come this way; see MarkedLoad.
        if not self._awaits_values:
            self._keep_part(place, value)

    return property(part, assign)


class KeptStatistics(WideBuffers):
    """A module that may accumulate its statistics over several steps (``sync_every``); see ``keep_statistics``.

    ===================  ==============  ==================================================================
    state                shape           meaning
    ===================  ==============  ==================================================================
    ``kept_steps``       (4,)            steps and calls that are kept, reductions so far, the rank that keeps
    ``kept_counts``      (H, K)          tokens of each code
    ``kept_sums``        (2, H, K, D)    their sums in fixed point
    ``kept_exponents``   (2, H, K)       exponents of the sums: those of the first step, and those in use
    ``kept_candidates``  (H, K, 1 + D)   tokens that may replace dead codes, each after a 1; empty without replacement
    ===================  ==============  ==================================================================

    Checkpoints hold them, but they are not buffers: each rank accumulates its own tokens, so a wrapper that broadcasts
    buffers would make the reduction count one rank's tokens several times.
    """

    sync_every: int
    _kept: list[Tensor]
    _pending: Statistics | None  # of calls that are joined to the next one

    # torch.distributed.checkpoint and transformers look up every key of the state dict as an attribute.
    kept_steps, kept_counts, kept_sums, kept_exponents, kept_candidates = map(
        _kept_part, range(len(KEPT))
    )

    def __init__(self) -> None:
        super().__init__()
        keep_values(self, sync_every=1, _kept=[], _pending=None)

    def keep_statistics(self, every: int, codes: Tensor, candidates: bool) -> None:
        """Allocates statistics for codes (H, K, D), and with ``candidates`` room for tokens that replace dead codes."""
        self.sync_every = every
        if every == 1:
            return
        heads, size, dim = codes.shape
        shapes = [(4,), (heads, size), (2, heads, size, dim)]
        self._kept = [torch.zeros(s, dtype=torch.long, device=codes.device) for s in shapes]
        self._kept += [
            torch.zeros(2, heads, size, dtype=torch.int32, device=codes.device),
            torch.zeros(
                heads, size if candidates else 0, 1 + dim, dtype=codes.dtype, device=codes.device
            ),
        ]

    @property
    def has_pending(self) -> bool:
        """Whether earlier steps have left statistics for the next one."""
        return self._pending is not None

    def _with_pending(self, statistics: Statistics) -> Statistics:
        if self._pending is not None:
            statistics = torch.ops.torchvq.merge_statistics(*self._pending, *statistics)
            self._pending = None
        return statistics

    @property
    def keeps_statistics(self) -> bool:
        """Whether statistics accumulate over several steps."""
        return self.sync_every > 1

    def kept_on(self, device: torch.device) -> list[Tensor]:
        """The kept statistics on a device, as operators take them; empty if every step is reduced at once."""
        if self._kept and self._kept[0].device != device:
            # Some wrappers move parameters and buffers only.
            self._kept = [kept.to(device) for kept in self._kept]
        return self._kept

    def kept_by_all(self) -> dict[str, Tensor]:
        """The kept statistics that are the same on all ranks, by name."""
        if not self._kept:
            return {}
        return {"kept_steps": self._kept[0][:3], "kept_exponents": self._kept[3][0]}

    def forget_kept(self) -> None:
        """Clears the statistics but not the number of reductions, which determines the draws of the next one."""
        if self._kept:
            self._kept[0][:2] = 0
            for part in (1, 2, 4):
                self._kept[part].zero_()

    def _keep_part(self, place: int, value: Tensor) -> None:
        self._kept[place] = value.detach().to(self._kept[place].dtype)

    # Casts, checkpoints ----------------------------------------------------------------------------------------

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "KeptStatistics":
        super()._apply(fn, recurse)
        before = self._kept
        self._kept = [_applied(fn, kept) for kept in before]
        if before and before[0].is_meta and not self._kept[0].is_meta:
            # to_empty leaves the tensors of a module from the meta device uninitialised.
            for kept in self._kept:
                kept.zero_()
        return self

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, kept in zip(KEPT, self._kept, strict=False):
            destination[prefix + name] = kept

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *args: Any
    ) -> None:
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)
        missing: list[str] = args[1]
        unexpected: list[str] = args[2]
        for name in KEPT:
            if prefix + name in unexpected:
                # A checkpoint with kept statistics also loads into a module that keeps none.
                unexpected.remove(prefix + name)
        if not is_stored(state_dict, prefix):
            pairs = zip(KEPT, self._kept, strict=False)
            missing += [prefix + name for name, kept in pairs if kept.numel()]
        elif self._kept:
            found = [state_dict.get(prefix + name) for name in KEPT]
            # Copies, because the checkpoint may hold this module's own tensors.
            self._load_kept([None if value is None else value.clone() for value in found])

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        # transformers assigns loaded tensors that are no buffers as parameters.
        if name in KEPT and self._kept and param is not None:
            self._keep_part(KEPT.index(name), param)
        else:
            super().register_parameter(name, param)

    def complete_load(self, lacking: AbstractSet[str]) -> None:
        super().complete_load(lacking)
        if self._kept:
            self._load_kept([None if kept.is_meta else kept.clone() for kept in self._kept])

    def _load_kept(self, found: list[Tensor | None]) -> None:
        """Loads kept statistics; if the checkpoint has none, or those of codes of another shape, they start empty."""
        device = next(iter(self._buffers.values())).device  # type: ignore[union-attr]
        if device.type != "meta":
            self._kept = [
                torch.empty_like(kept, device=device) if kept.is_meta else kept
                for kept in self._kept
            ]
        for kept in self._kept:
            kept.zero_()
        for kept, value in zip(self._kept, found, strict=True):
            if value is None or value.shape != kept.shape:
                if kept is not self._kept[4]:
                    self.forget_kept()
                    return
            else:
                kept.copy_(value)


def _applied(fn: Callable[[Tensor], Tensor], kept: Tensor) -> Tensor:
    new = fn(kept)
    return kept.to(new.device) if keeps_dtype(kept, new) else new
