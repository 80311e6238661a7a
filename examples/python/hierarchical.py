"""A picture as tokens from coarse to fine, by HierarchicalVQ: 1 token, then 2 x 2, 3 x 3, ... up to 7 x 7.

python examples/python/hierarchical.py --output hierarchical

writes `hierarchical.png` (what the decoder makes of the first 1, 2, 3, ... scales), `hierarchical.json` (PSNR and bits
by number of scales) and `hierarchical.safetensors`.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from common import Pictures, batch, descend, main, options, pictures, to_unit, write_record
from figures import rows_of_pictures
from model import make_decoder, make_encoder
from safetensors.torch import save_file
from torch import Tensor, nn
from train import psnr

import torchvq

SCALES, CODES, DIM, BATCH = (1, 2, 3, 4, 5, 7), 512, 32, 64


class CoarseToFine(nn.Module):
    """Pictures of 28 x 28 to 7 x 7 latents, those to 104 tokens of 6 scales, and back."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.encoder = make_encoder(channels, DIM)
        self.quantizer = torchvq.HierarchicalVQ(
            dim=DIM,
            codebook_size=CODES,
            scales=SCALES,
            accept_image_fmap=True,
            # Half of the steps end at a scale drawn by chance: the decoder learns to do with coarse scales alone.
            nested_dropout=0.5,
        )
        self.decoder = make_decoder(channels, DIM)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
        quantized, tokens, loss = self.quantizer(self.encoder(x))
        return self.decoder(quantized), tokens, loss

    def decode(self, tokens: Sequence[Tensor], scales: int) -> Tensor:
        """Pictures of the first so many scales; the others count as missing."""
        kept = [
            part if n < scales else part.new_full(part.shape, -1) for n, part in enumerate(tokens)
        ]
        return self.decoder(self.quantizer.get_output_from_indices(kept)).clamp(0, 1)


def train(model: CoarseToFine, images: Pictures, steps: int) -> list[float]:
    def step() -> tuple[Tensor, str]:
        x = batch(images.train, BATCH)
        restored, _, loss = model(x)
        error = F.mse_loss(restored, x)
        return error / images.variance + loss, f"PSNR {psnr(error.item()):.2f} dB"

    return descend([model.train()], step, steps, rate=4e-3)


@torch.no_grad()
def judge(model: CoarseToFine, images: Pictures) -> list[dict[str, float]]:
    """For each number of scales: tokens and bits of a picture, and how well unseen pictures come back."""
    model.eval()
    errors = [0.0] * len(SCALES)
    for part in images.test.split(250):
        x = to_unit(part)
        tokens = model(x)[1]
        for n in range(len(SCALES)):
            error = F.mse_loss(model.decode(tokens, n + 1), x).item()
            errors[n] += error * len(part) / len(images.test)
    counts = [sum(side**2 for side in SCALES[: n + 1]) for n in range(len(SCALES))]
    return [
        {"scales": n + 1, "tokens": count, "bits": count * math.log2(CODES), "psnr": psnr(error)}
        for n, (count, error) in enumerate(zip(counts, errors, strict=True))
    ]


def run() -> None:
    said = options(__doc__.split("\n")[0], 1200, "folder of pictures (Fashion-MNIST, or MNIST)")
    images = pictures(said, size=4 * SCALES[-1])
    model = CoarseToFine(images.channels)
    losses = train(model, images, said.steps)
    table = judge(model, images)
    sample = to_unit(images.test[:12])
    rows = []
    with torch.no_grad():
        tokens = model(sample)[1]
        for row in table:
            print("{scales} scales, {tokens} tokens, {bits:.0f} bits: {psnr:.2f} dB".format(**row))
            label = "1 token" if row["tokens"] == 1 else f"{row['tokens']} tokens"
            rows.append((label, model.decode(tokens, row["scales"])))
    rows_of_pictures([*rows, ("original", sample)], said.output / "hierarchical.png")
    save_file(model.state_dict(), said.output / "hierarchical.safetensors")
    shown = losses[:: max(said.steps // 50, 1)]
    write_record(said.output, "hierarchical", source=images.name, table=table, losses=shown)


if __name__ == "__main__":
    main(run)
