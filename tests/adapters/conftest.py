"""The packages under test, which read audio files through others that their quantizers do not need."""

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


# encodec imports torchaudio to resample files, descript-audio-codec imports audiotools to read them. Builds of
# torchaudio are for one version of torch each, and the tests have tensors: modules of the name are enough.
if "transformers" not in sys.modules:
    import transformers  # noqa: F401  (before: it asks for torchaudio's version where there is one)
_empty("torchaudio")
_ml = _empty("audiotools.ml", BaseModel=_BaseModel, Accelerator=object)
_empty("audiotools", ml=_ml, AudioSignal=object, STFTParams=object)
