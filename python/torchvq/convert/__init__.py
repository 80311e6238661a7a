"""The quantizer of a tokenizer's model or checkpoint, as a codec of the command line and of C++ (docs/adapters.md).

``python -m torchvq.convert MODEL_OR_CHECKPOINT -o codec.safetensors``, or ``convert(model, "codec.safetensors")``.
"""

from torchvq.convert._codec import Codec, ConversionError, Level, Projection, Stack
from torchvq.convert._convert import convert

__all__ = ["Codec", "ConversionError", "Level", "Projection", "Stack", "convert"]
