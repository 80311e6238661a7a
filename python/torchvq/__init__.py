"""torchvq: vector quantization for neural tokenizers."""

from torchvq import _library as _library
from torchvq._kmeans import KmeansOutput, kmeans
from torchvq.outputs import LossBreakdown
from torchvq.vector_quantize import VectorQuantize

__all__ = ["KmeansOutput", "LossBreakdown", "VectorQuantize", "kmeans"]
