import torch

import torchvq

vq = torchvq.VectorQuantize(dim=8, codebook_size=16)
x = torch.randn(1, 100, 8)

# %% Replicas
model = torch.nn.ModuleDict({"vq": vq})
