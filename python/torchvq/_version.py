"""The version, read from the library; its only source is the file VERSION."""

import torch

from torchvq import _library as _library

__version__: str = torch.ops.torchvq.version()
