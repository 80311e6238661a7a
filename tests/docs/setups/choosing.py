import torch

import torchvq
from torchvq import FSQ, LFQ, ResidualFSQ, ResidualVQ, VectorQuantize

rvq = ResidualVQ(dim=16, num_quantizers=2, codebook_size=16, kmeans_init=True)
latents = torch.randn(1, 512, 16)
rvq(latents)
rvq.eval()
