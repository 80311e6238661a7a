"""The same small convolutional autoencoder around ours and the reference: 49 tokens of 9 bits per image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import images
import torch
from learning_measures import codes_of, psnr, replaced_share, usage
from torch import Tensor, nn
from torch.nn import functional as F
from vector_quantize_pytorch import VectorQuantize as Reference

import torchvq

CODEBOOK = 512
DIM = 32
BATCH = 32
WATCHED = 20
STEPS, QUICK_STEPS = 300, 20

RECOMMENDED: dict[str, Any] = dict(kmeans_init=True, decay=0.95, dead_code_threshold_fraction=0.1)

# Keyword arguments that both libraries take, so that the same row is run with both.
COMMON: dict[str, dict[str, Any]] = {
    "defaults": {},
    "k-means, threshold 2": dict(kmeans_init=True, threshold_ema_dead_code=2),
    "cosine": dict(use_cosine_sim=True),
    "cosine, k-means, threshold 2": dict(
        use_cosine_sim=True, kmeans_init=True, threshold_ema_dead_code=2
    ),
    "learnable": dict(learnable_codebook=True, ema_update=False),
    "k-means": dict(kmeans_init=True),
}
# Ours alone: a threshold that does not depend on the batch size.
OURS: dict[str, dict[str, Any]] = {
    "recommended": RECOMMENDED,
    "recommended, cosine": dict(RECOMMENDED, use_cosine_sim=True),
    "recommended, decay 0.8": dict(RECOMMENDED, decay=0.8),
    "recommended, decay 0.99": dict(RECOMMENDED, decay=0.99),
    "recommended, no k-means": dict(RECOMMENDED, kmeans_init=False),
}


@dataclass(frozen=True)
class Row:
    name: str
    who: str
    make: Callable[..., nn.Module]
    options: dict[str, Any]


def rows() -> list[Row]:
    """What design/learning.md asks for: each common row by both, then ours alone."""
    makers = (("reference", Reference), ("ours", torchvq.VectorQuantize))
    both = [Row(name, who, make, kw) for name, kw in COMMON.items() for who, make in makers]
    return [Row(name, "ours", torchvq.VectorQuantize, kw) for name, kw in OURS.items()] + both


class Autoencoder(nn.Module):
    """28 x 28 pixels to 7 x 7 latents and back; whatever quantizer is given sits between."""

    def __init__(self, quantizer: nn.Module) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 32, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(64, DIM, 3, 1, 1),
        )
        self.quantizer = quantizer
        self.decoder = nn.Sequential(
            nn.Conv2d(DIM, 64, 3, 1, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(64, 32, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(32, 1, 4, 2, 1),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Reconstruction, indices, loss of the quantizer, latents."""
        latents = self.encoder(x)
        quantized, indices, loss = self.quantizer(latents)
        return self.decoder(quantized), indices, loss, latents


def run(row: Row, seed: int, quick: bool) -> dict[str, float]:
    """Trains once and evaluates. The seed fixes weights and batches, the same for every quantizer."""
    steps = QUICK_STEPS if quick else STEPS
    train_set = images.load()[0]
    torch.manual_seed(seed)
    model = Autoencoder(nn.Identity())
    model.quantizer = row.make(
        dim=DIM, codebook_size=CODEBOOK, accept_image_fmap=True, **row.options
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    batches = torch.Generator().manual_seed(seed)
    replaced = []
    for step in range(steps):
        x = train_set[torch.randint(len(train_set), (BATCH,), generator=batches)]
        before = codes_of(model.quantizer) if step >= steps - WATCHED else None
        output, _, loss, latents = model(x)
        if before is not None:
            replaced.append(_replaced(before, model.quantizer, latents, row))
        (F.mse_loss(output, x) + loss).backward()
        optimizer.step()
        optimizer.zero_grad()
    test_set = images.load(test=True)[0][: 256 if quick else 1024]
    return {**evaluate(model, test_set), "replaced": sum(replaced) / len(replaced)}


def _replaced(before: Tensor, quantizer: nn.Module, latents: Tensor, row: Row) -> float:
    tokens = latents.detach().movedim(1, -1).reshape(-1, DIM)
    if row.options.get("use_cosine_sim"):
        tokens = F.normalize(tokens, dim=-1)
    return replaced_share(before, codes_of(quantizer), tokens)


@torch.no_grad()
def evaluate(model: Autoencoder, test_set: Tensor) -> dict[str, float]:
    """Error of the images and use of the codes, on images that training has not seen."""
    model.eval()
    error, chosen = 0.0, []
    for x in test_set.split(256):
        output, indices, _, _ = model(x)
        error += float(F.mse_loss(output, x, reduction="sum"))
        chosen.append(indices.flatten())
    return {"psnr": psnr(error / test_set.numel()), **usage(torch.cat(chosen), CODEBOOK)}
