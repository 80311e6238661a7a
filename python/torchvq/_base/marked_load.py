"""Loading by Hugging Face transformers, which assigns tensors and calls neither ``load_state_dict`` nor ``_apply``."""

from collections.abc import Set as AbstractSet
from typing import Any

import torch
from torch import nn

_MARK = "_is_hf_initialized"


class MarkedLoad(nn.Module):
    """A module that completes its state after ``from_pretrained``.

    transformers builds a model on the meta device and assigns the tensors of the checkpoint, each with the attribute
    ``_is_hf_initialized``; then it assigns uninitialised tensors for entries that the checkpoint lacks, and for all
    buffers that are not persistent. Last it sets the same attribute on every module. That is the only sign that a load
    has ended, so it is a property here. Assignments by users set no such attribute, and are kept as they are.
    """

    #: Whether the module was built on the meta device, and has got no values since.
    _awaits_values: bool = False

    def __init__(self) -> None:
        super().__init__()
        if torch.empty(0).is_meta:  # get_default_device takes five times as long
            self._awaits_values = True

    @property
    def _is_hf_initialized(self) -> bool:
        return bool(vars(self).get(_MARK, False))

    @_is_hf_initialized.setter
    def _is_hf_initialized(self, value: bool) -> None:
        vars(self)[_MARK] = value
        # transformers also sets it on modules that were built with values, which keep them.
        if value and self._awaits_values:
            self._awaits_values = False
            lacking = {
                name
                for name, buffer in self._buffers.items()
                if buffer is not None and not hasattr(buffer, _MARK)
            }
            self.complete_load(lacking)

    def complete_load(self, lacking: AbstractSet[str]) -> None:
        """Gives buffers that a loader left uninitialised, ``lacking``, their defaults. Of buffers that no checkpoint
        holds these are zero; subclasses add those of others.
        """
        for name in lacking & self._non_persistent_buffers_set:
            self.get_buffer(name).zero_()

    def _load_from_state_dict(self, *args: Any) -> None:
        self._awaits_values = False
        super()._load_from_state_dict(*args)
