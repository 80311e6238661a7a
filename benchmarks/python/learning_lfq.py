"""Learning of LFQ with 2^18 codes on patches, with and without its entropy loss, against the reference.

`python benchmarks/python/learning_lfq.py` takes some minutes on two idle cores, most of them in the reference, which
needs tokens * 2^18 numbers several times. Use and entropy are those of 65536 test tokens; `gradient` is that of the
batch entropy with respect to the latents of a batch, as the trained network computes them. Before that, the entropy
loss alone is trained from small latents, for which the reference's has no gradient.
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
# Low enough that the bits of tokens are not certain from the first step on.
INVERSE_TEMPERATURE = 2.0
OPTIONS = dict(codebook_size=2**BITS, commitment_loss_weight=0.25)
# Scale of the encoder's last layer, so that latents start small; few steps, because one of the reference takes seconds.
SMALL = 0.02
SMALL_STEPS = {"ours": 200, "reference": 40}
SMALL_TOKENS = 128
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
    data, test = _pictures(8192, 4096)
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


def use_of(lfq: nn.Module, latent: Tensor) -> tuple[int, float]:
    """Codes in use, and the entropy of their use in bits."""
    with torch.no_grad():
        indices = lfq.eval()(latent[None])[1]
    lfq.train()
    counts = indices.flatten().unique(return_counts=True)[1].double()
    share = counts / counts.sum()
    return len(counts), float(-(share * share.log2()).sum())


def run_small(who: str, steps: int) -> dict[str, float]:
    """The entropy loss alone, from latents so small that no code has a probability above 1e-5."""
    train, test = (patches[patches.std(1) > 0.15] for patches in _pictures(2048, 1024))
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(train.shape[1], 128), nn.GELU(), nn.Linear(128, BITS))
    with torch.no_grad():
        for parameter in encoder[-1].parameters():
            parameter.mul_(SMALL)
    make: Any = Reference if who == "reference" else torchvq.LFQ
    lfq = make(dim=BITS, codebook_size=2**BITS, entropy_loss_weight=1.0, diversity_gamma=2.0)
    optimizer = torch.optim.Adam(encoder.parameters(), 1e-3)
    batches = torch.Generator().manual_seed(0)
    codes_before, entropy_before = use_of(lfq, encoder(test))
    first = 0.0
    for step in range(steps):
        x = train[torch.randint(len(train), (SMALL_TOKENS,), generator=batches)]
        optimizer.zero_grad()
        lfq(encoder(x)[None], inv_temperature=1.0)[2].backward()
        if step == 0:
            first = sum(float(p.grad.square().sum()) for p in encoder.parameters()) ** 0.5
        optimizer.step()
    codes, entropy = use_of(lfq, encoder(test))
    return {
        "steps": steps,
        "first_gradient": first,
        "codes_before": codes_before,
        "codes": codes,
        "entropy_bits_before": entropy_before,
        "entropy_bits": entropy,
    }


def _pictures(train: int, test: int) -> tuple[Tensor, Tensor]:
    return (
        images.patches(images.load()[0][:train]),
        images.patches(images.load(test=True)[0][:test]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="see that it runs; the numbers are noise"
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    arguments = parser.parse_args()
    steps, tokens = (2, 8) if arguments.quick else (60, 32)
    small: list[dict[str, Any]] = []
    for who, most in SMALL_STEPS.items():
        row = run_small(who, 2 if arguments.quick else most)
        small.append({"who": who, **row})
        _say(small[-1])
    runs: list[dict[str, Any]] = []
    for who, name, options in ROWS:
        runs.append({"who": who, "name": name, **run(who, options, steps, tokens)})
        _say(runs[-1])
    document = dict(
        name=NAME,
        quick=arguments.quick,
        machine=machine(),
        steps=steps,
        tokens=tokens,
        runs=runs,
        small=small,
        small_tokens=SMALL_TOKENS,
    )
    write_json(arguments.output / f"{NAME}.json", document)


def _say(row: dict[str, Any]) -> None:
    print("  " + ", ".join(f"{key} {value}" for key, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
