"""torchvq: vector quantization for neural tokenizers."""

from torchvq import _library as _library
