"""Replaces packages for audio files, which the packages under test import but their quantizers do not need."""

from __future__ import annotations

import sys
import types
from typing import Any, ClassVar

from torch import nn


def _empty(name: str, **contents: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    vars(module).update(contents)
    return sys.modules.setdefault(name, module)


class _BaseModel(nn.Module):
    INTERN: ClassVar[list[str]] = []
    EXTERN: ClassVar[list[str]] = []


# encodec imports torchaudio to resample files, descript-audio-codec imports audiotools to read them. A build of
# torchaudio fits only one version of torch, and the tests pass tensors, so empty modules of these names are enough.
if "transformers" not in sys.modules:
    import transformers  # noqa: F401  (before: it asks for torchaudio's version where there is one)
_empty("torchaudio")
_ml = _empty("audiotools.ml", BaseModel=_BaseModel, Accelerator=object)
_empty("audiotools", ml=_ml, AudioSignal=object, STFTParams=object)
