import torch
from torch import nn

from torchvq import FSQ

encoder, decoder = nn.Linear(8, 16), nn.Linear(16, 8)
quantizer = FSQ([8, 5, 5, 5], dim=16)
quantizer.get_output_from_indices = quantizer.indices_to_codes
frames = torch.randn(2, 12, 8)
