"""Data for residual stacks: image patches, and embeddings of images by a small network that is trained here."""

from __future__ import annotations

from functools import cache

import images
import torch
from torch import Tensor, nn

EMBEDDED = 384


@cache
def load(name: str, quick: bool) -> tuple[Tensor, Tensor]:
    """Training and test tokens, (N, D), float32: `patches` (49 features) or `embeddings` (384)."""
    few, tested = (512, 128) if quick else (8192, 4096)
    if name == "patches":
        train, test = images.load()[0], images.load(test=True)[0]
        return images.patches(train[:few]), images.patches(test[: tested // 2])
    return _embeddings(few * 4, tested, 5 if quick else 400)


@torch.enable_grad()
def _embeddings(count: int, tested: int, steps: int) -> tuple[Tensor, Tensor]:
    """Features of an autoencoder with a bottleneck of 384: dense, correlated, of unequal scale, as embeddings are."""
    train, test = images.load()[0].flatten(1), images.load(test=True)[0].flatten(1)
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(784, 512), nn.GELU(), nn.Linear(512, EMBEDDED))
    decoder = nn.Sequential(nn.GELU(), nn.Linear(EMBEDDED, 784))
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], 1e-3)
    batches = torch.Generator().manual_seed(0)
    for _ in range(steps):
        x = train[torch.randint(len(train), (256,), generator=batches)]
        loss = (decoder(encoder(x)) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return encoder(train[:count]).contiguous(), encoder(test[:tested]).contiguous()
