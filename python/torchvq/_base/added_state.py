"""State that this package adds to the reference's: a checkpoint without it loads with the defaults."""

from collections.abc import Set as AbstractSet
from typing import Any

import torch
from torch import Tensor

from torchvq._base.affine_map import AFFINE_FLAGS, AFFINE_STATE
from torchvq._base.kept_statistics import is_stored
from torchvq._base.random_state import restarted
from torchvq._base.wide_buffers import WideBuffers

ADDED_STATE = ("rng", *AFFINE_STATE, *AFFINE_FLAGS)
# State that codebooks had before version 0.1 and nothing reads.
_RETIRED = "cooldown"


class AddedState(WideBuffers):
    """A codebook, which has some or all of the entries ``ADDED_STATE``."""

    rng: Tensor
    cluster_size: Tensor

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *args: Any
    ) -> None:
        missing: list[str] = args[1]
        unexpected: list[str] = args[2]
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)
        if prefix + _RETIRED in unexpected:
            unexpected.remove(prefix + _RETIRED)
        if is_stored(state_dict, prefix):
            lacking = {name for name in ADDED_STATE if prefix + name in missing}
            for name in lacking:
                missing.remove(prefix + name)
            self._take_defaults(lacking)
            self._take_defaults(self._unset_statistics())

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._buffers.pop(_RETIRED, None)

    def complete_load(self, lacking: AbstractSet[str]) -> None:
        super().complete_load(lacking)
        if "rng" in lacking:
            # The seed that was drawn at construction is lost.
            self._buffers["rng"] = self.rng.to("meta")
        self._take_defaults(lacking & set(ADDED_STATE))
        self._take_defaults(self._unset_statistics())

    def _unset_statistics(self) -> set[str]:
        """Statistics of the affine map that no step has set: the reference saves uninitialised memory for them."""
        flags = {name: self._buffers.get(name + "_needs_init") for name in AFFINE_STATE}
        return {
            name
            for name, flag in flags.items()
            if flag is not None and not flag.is_meta and bool(flag)
        }

    # Tensors made in inference mode cannot be updated outside of it, and a load may run in it.
    @torch.inference_mode(False)
    def _take_defaults(self, lacking: AbstractSet[str]) -> None:
        device = self.cluster_size.device
        for name in lacking:
            fresh = _default_of(name, self.get_buffer(name), device)
            if name in AFFINE_FLAGS and name.removesuffix("_needs_init") not in lacking:
                # The reference has no flag for statistics that it creates in its first step.
                fresh = torch.zeros_like(fresh)
            self._buffers[name] = fresh


def _default_of(name: str, buffer: Tensor, device: torch.device) -> Tensor:
    """The default value of a buffer that a checkpoint lacks."""
    if name == "rng":
        return restarted(buffer).to(device)
    if name in AFFINE_FLAGS:
        return torch.tensor(True, device=device)
    fill = 1 if name.endswith("variance") else 0
    return torch.full(buffer.shape, fill, dtype=buffer.dtype, device=device)
