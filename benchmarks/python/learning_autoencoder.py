"""The same small convolutional autoencoder around ours and the reference: 49 tokens of 9 bits per image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import images
import torch
import torchvq
from learning_measures import codes_of, psnr, replaced_share, usage
from torch import Tensor, nn
from torch.nn import functional as F
from vector_quantize_pytorch import VectorQuantize as Reference

CODEBOOK = 512
DIM = 32
BATCH = 32
WATCHED = 20

# What design/learning.md calls a row: keyword arguments that both libraries take.
COMMON: dict[str, dict[str, Any]] = {
    "defaults": {},
    "k-means, threshold 2": dict(kmeans_init=True, threshold_ema_dead_code=2),
    "cosine": dict(use_cosine_sim=True),
    "cosine, k-means, threshold 2": dict(
        use_cosine_sim=True, kmeans_init=True, threshold_ema_dead_code=2
    ),
    "learnable": dict(learnable_codebook=True, ema_update=False),
}
# Ours alone: a threshold that does not depend on the batch size.
OURS: dict[str, dict[str, Any]] = {
    "k-means, fraction 0.1, decay 0.8": dict(kmeans_init=True, dead_code_threshold_fraction=0.1),
    "k-means, fraction 0.1, decay 0.99": dict(
        kmeans_init=True, dead_code_threshold_fraction=0.1, decay=0.99
    ),
    "cosine, k-means, fraction 0.1, decay 0.99": dict(
        use_cosine_sim=True, kmeans_init=True, dead_code_threshold_fraction=0.1, decay=0.99
    ),
}


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


def train(make: Callable[..., nn.Module], options: dict[str, Any], steps: int, seed: int,
          train_set: Tensor, test_set: Tensor) -> dict[str, float]:
    """One run. The seed fixes weights and batches, the same for every quantizer."""
    torch.manual_seed(seed)
    model = Autoencoder(nn.Identity())
    model.quantizer = make(dim=DIM, codebook_size=CODEBOOK, accept_image_fmap=True, **options)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    batches = torch.Generator().manual_seed(seed)
    replaced = []
    for step in range(steps):
        x = train_set[torch.randint(len(train_set), (BATCH,), generator=batches)]
        before = codes_of(model.quantizer) if step >= steps - WATCHED else None
        output, _, loss, latents = model(x)
        if before is not None:
            tokens = latents.detach().movedim(1, -1).reshape(-1, DIM)
            if options.get("use_cosine_sim"):
                tokens = F.normalize(tokens, dim=-1)
            replaced.append(replaced_share(before, codes_of(model.quantizer), tokens))
        (F.mse_loss(output, x) + loss).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {**evaluate(model, test_set), "replaced": sum(replaced) / len(replaced)}


@torch.no_grad()
def evaluate(model: Autoencoder, test_set: Tensor) -> dict[str, float]:
    model.eval()
    error, chosen = 0.0, []
    for x in test_set.split(256):
        output, indices, _, _ = model(x)
        error += float(F.mse_loss(output, x, reduction="sum"))
        chosen.append(indices.flatten())
    return {"psnr": psnr(error / test_set.numel()), **usage(torch.cat(chosen), CODEBOOK)}


def measure(quick: bool, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """All rows: ours and the reference on what both take, then ours on its own options."""
    train_set, test_set = images.load()[0], images.load(test=True)[0][: 256 if quick else 1024]
    steps, seeds = (20, 1) if quick else (300, 3)
    rows = [(name, who, make, options) for name, options in COMMON.items()
            for who, make in (("reference", Reference), ("ours", torchvq.VectorQuantize))]
    rows += [(name, "ours", torchvq.VectorQuantize, options) for name, options in OURS.items()]
    results = []
    for name, who, make, options in rows:
        runs = [train(make, options, steps, seed, train_set, test_set) for seed in range(seeds)]
        mean = {key: sum(run[key] for run in runs) / seeds for key in runs[0]}
        spread = max(run["psnr"] for run in runs) - min(run["psnr"] for run in runs)
        results.append({"name": name, "who": who, "steps": steps, "seeds": seeds,
                        "psnr_spread": spread, **mean, "runs": runs})
        say(f"  {name}, {who}: {mean['psnr']:.2f} dB (spread {spread:.2f}), use {mean['use']:.3f}, "
            f"perplexity {mean['perplexity']:.0f}, replaced {mean['replaced']:.4f}")
    return results
