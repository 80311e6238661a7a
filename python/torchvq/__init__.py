"""torchvq: vector quantization for neural tokenizers."""

from torchvq._kmeans import KmeansOutput, kmeans
from torchvq._library import cmake_prefix_path
from torchvq._version import __version__
from torchvq.outputs import LossBreakdown
from torchvq.vector_quantize import VectorQuantize

__all__ = [
    "KmeansOutput",
    "LossBreakdown",
    "VectorQuantize",
    "__version__",
    "cmake_prefix_path",
    "kmeans",
]
