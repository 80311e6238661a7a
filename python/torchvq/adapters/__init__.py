"""Tokenizers of other packages with torchvq's search: exact, and faster (docs/adapters.md).

from torchvq import adapters

adapters.adapt(model)  # an EncodecModel, a MimiModel, a DAC, a VQModel, ...
"""

from torchvq.adapters import _factorised, _images, _residual  # noqa: F401  (they register)
from torchvq.adapters._exchange import Description, Found, adapt, describe, restore
from torchvq.adapters._registry import Adapter, register
from torchvq.adapters._search import nearest, nearest_by_angle, residual_nearest, residual_sum

__all__ = [
    "Adapter",
    "Description",
    "Found",
    "adapt",
    "describe",
    "nearest",
    "nearest_by_angle",
    "register",
    "residual_nearest",
    "residual_sum",
    "restore",
]
