"""The version, which the library knows: there is one source of it, the file VERSION."""

import torch

from torchvq import _library as _library

__version__: str = torch.ops.torchvq.version()
