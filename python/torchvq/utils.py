"""The module path under which users of ``vector_quantize_pytorch`` import Sequential."""

from torchvq.sequential import Sequential

__all__ = ["Sequential"]
