"""The module path under which users of ``vector_quantize_pytorch`` import VectorQuantize."""

from torchvq.codebook import Codebook
from torchvq.outputs import LossBreakdown
from torchvq.vector_quantize import VectorQuantize

__all__ = ["Codebook", "LossBreakdown", "VectorQuantize"]
