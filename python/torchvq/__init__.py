"""torchvq: vector quantization for neural tokenizers."""

from torchvq import _library as _library
from torchvq._kmeans import KmeansOutput as KmeansOutput
from torchvq._kmeans import kmeans as kmeans
