"""The drop-in change: a training step written for vector-quantize-pytorch, with one import changed."""

import torch
from torch import nn

# from vector_quantize_pytorch import VectorQuantize
from torchvq import VectorQuantize

torch.manual_seed(0)
encoder = nn.Linear(64, 32)
decoder = nn.Linear(32, 64)
quantizer = VectorQuantize(
    dim=32, codebook_size=256, decay=0.9, commitment_weight=0.5, kmeans_init=True
)
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=3e-3)


def training_step(x: torch.Tensor) -> float:
    quantized, _, commit_loss = quantizer(encoder(x))
    loss = nn.functional.mse_loss(decoder(quantized), x) + commit_loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


# Smooth curves: each sequence holds 100 windows of a random wave.
phases = torch.rand(8, 100, 1) * 6.28 + torch.linspace(0, 6.28, 64)
for step in range(61):
    loss = training_step(phases.sin())
    if step % 20 == 0:
        print(f"step {step:2d}: loss {loss:.4f}")
