"""What quantizers without a codebook to learn make of the autoencoder of learning_autoencoder.py, by both libraries.

`python benchmarks/python/learning_scalar.py` takes about ten minutes on one idle core. `latent` is the mean magnitude
of the latents when training ends: where nothing holds them they run away.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import images
import torch
import vector_quantize_pytorch
from harness import RESULTS, machine, write_json
from learning_autoencoder import BATCH, DIM, QUICK_STEPS, STEPS, Autoencoder, evaluate
from torch import Tensor, nn
from torch.nn import functional as F

import torchvq

NAME = "learning_scalar"
SEEDS = 2
# 512 codes each, or nearly.
LEVELS = [8, 8, 8]
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "FSQ": ("FSQ", dict(levels=LEVELS)),
    "FSQ, symmetric": ("FSQ", dict(levels=LEVELS, preserve_symmetry=True)),
    "LFQ, defaults": ("LFQ", dict(codebook_size=512)),
    "LFQ, commitment 0.25": ("LFQ", dict(codebook_size=512, commitment_loss_weight=0.25)),
    "LFQ, spherical": ("LFQ", dict(codebook_size=512, spherical=True)),
    "LatentQuantize, defaults": ("LatentQuantize", dict(levels=LEVELS)),
}


class Triple(nn.Module):
    """Output, indices and loss of a quantizer, whether it has a loss or not."""

    def __init__(self, quantizer: nn.Module) -> None:
        super().__init__()
        self.quantizer = quantizer

    def forward(self, latents: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        quantized, indices, *losses = self.quantizer(latents)
        return quantized, indices, losses[0] if losses else latents.new_zeros(())


def run(who: str, name: str, seed: int, quick: bool) -> dict[str, float]:
    """Trains once and evaluates. The seed fixes weights and batches, the same for every quantizer."""
    train_set = images.load()[0]
    torch.manual_seed(seed)
    model = Autoencoder(nn.Identity())
    package: Any = torchvq if who == "ours" else vector_quantize_pytorch
    class_name, options = ROWS[name]
    model.quantizer = Triple(getattr(package, class_name)(dim=DIM, **options))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    batches = torch.Generator().manual_seed(seed)
    latents = torch.zeros(())
    for _ in range(QUICK_STEPS if quick else STEPS):
        x = train_set[torch.randint(len(train_set), (BATCH,), generator=batches)]
        output, _, loss, latents = model(x)
        optimizer.zero_grad()
        (F.mse_loss(output, x) + loss).backward()
        optimizer.step()
    test_set = images.load(test=True)[0][: 256 if quick else 1024]
    return {**evaluate(model, test_set), "latent": float(latents.detach().abs().mean())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="see that it runs; the numbers are noise"
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    arguments = parser.parse_args()
    runs: list[dict[str, Any]] = []
    for name in ROWS:
        for who in ("ours", "reference"):
            seeds = range(1 if arguments.quick else SEEDS)
            found = [run(who, name, seed, arguments.quick) for seed in seeds]
            means = {key: statistics.mean(one[key] for one in found) for key in found[0]}
            runs.append({"name": name, "who": who, "seeds": len(found), **means})
            print(f"  {name}, {who}: {means}", flush=True)
    document = dict(name=NAME, quick=arguments.quick, machine=machine(), runs=runs)
    write_json(arguments.output / f"{NAME}.json", document)


if __name__ == "__main__":
    main()
