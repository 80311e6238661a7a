import torch
from torch import nn

from torchvq import adapters


class Known(nn.Module):
    """Stands in for a quantizer of a package that this environment does not have."""

    def search(self, x):
        return x.argmin(-1)


@adapters.register(Known)
class KnownAdapter(adapters.Adapter):
    def search(self, x):
        return x.argmin(-1)


model = nn.Sequential(nn.Linear(4, 4), Known()).eval()
