"""What LFQ with 2^18 codes learns on patches, with and without its entropy loss, and what the reference learns.

`python benchmarks/python/learning_lfq.py` takes some minutes on two idle cores, most of it the reference's, which
needs tokens * 2^18 numbers, several times. Use and entropy are those of 65536 test tokens; `gradient` is
that of the batch entropy to the latents of a batch, as the trained network gives them.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import images
import torch
from harness import RESULTS, machine, write_json
from torch import Tensor, nn
from vector_quantize_pytorch import LFQ as Reference

import torchvq

NAME = "learning_lfq"
BITS = 18
# Soft enough that tokens are not sure of their bits from the first step on.
INVERSE_TEMPERATURE = 2.0
OPTIONS = dict(codebook_size=2**BITS, commitment_loss_weight=0.25)
ROWS: list[tuple[str, str, dict[str, float]]] = [
    ("ours", "entropy loss 0.1", {"entropy_loss_weight": 0.1}),
    ("reference", "entropy loss 0.1", {"entropy_loss_weight": 0.1}),
    ("ours", "no entropy loss", {"entropy_loss_weight": 0.0}),
]


class Autoencoder(nn.Module):
    def __init__(self, lfq: nn.Module, dim: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(dim, 128), nn.GELU(), nn.Linear(128, BITS))
        self.lfq = lfq
        self.decoder = nn.Sequential(nn.Linear(BITS, 128), nn.GELU(), nn.Linear(128, dim))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        latent = self.encoder(x)
        quantized, indices, loss = self.lfq(latent[None], inv_temperature=INVERSE_TEMPERATURE)
        return self.decoder(quantized[0]), indices[0], loss


def entropy_of(lfq: nn.Module, latent: Tensor) -> Tensor:
    _, terms = lfq.train()(
        latent[None], inv_temperature=INVERSE_TEMPERATURE, return_loss_breakdown=True
    )
    entropy: Tensor = terms.batch_entropy
    return entropy


def run(who: str, options: dict[str, float], steps: int, tokens: int) -> dict[str, float]:
    data = images.patches(images.load()[0][:8192])
    test = images.patches(images.load(test=True)[0][:4096])
    torch.manual_seed(0)
    make: Any = Reference if who == "reference" else torchvq.LFQ
    model = Autoencoder(make(dim=BITS, **OPTIONS, **options), data.shape[1])
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    batches = torch.Generator().manual_seed(0)
    for _ in range(steps):
        x = data[torch.randint(len(data), (tokens,), generator=batches)]
        decoded, _, loss = model(x)
        optimizer.zero_grad()
        ((decoded - x).square().mean() + loss).backward()
        optimizer.step()
    latent = model.encoder(test[:tokens]).detach().requires_grad_()
    batch_entropy = entropy_of(model.lfq, latent)
    (gradient,) = torch.autograd.grad(batch_entropy, latent)
    with torch.no_grad():
        decoded, indices, _ = model.eval()(test)
    counts = indices.flatten().unique(return_counts=True)[1].double()
    share = counts / counts.sum()
    return {
        "error": float((decoded - test).double().square().mean()),
        "codes": len(counts),
        "entropy_bits": float(-(share * share.log2()).sum()),
        "soft_entropy_bits": float(batch_entropy.detach()) / math.log(2),
        "gradient": float(gradient.norm()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="see that it runs; the numbers are noise"
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    arguments = parser.parse_args()
    steps, tokens = (2, 8) if arguments.quick else (60, 32)
    runs: list[dict[str, Any]] = []
    for who, name, options in ROWS:
        runs.append({"who": who, "name": name, **run(who, options, steps, tokens)})
        print("  " + ", ".join(f"{key} {value}" for key, value in runs[-1].items()), flush=True)
        document = dict(
            name=NAME,
            quick=arguments.quick,
            machine=machine(),
            steps=steps,
            tokens=tokens,
            runs=runs,
        )
        write_json(arguments.output / f"{NAME}.json", document)


if __name__ == "__main__":
    main()
