"""The same autoencoder around four quantizers: VQ, FSQ, LFQ and SimVQ, all of 10 bits per token.

python examples/python/image_autoencoders.py --output autoencoders

writes `image_autoencoders.png` (originals, and what each quantizer lets through), `image_autoencoders.json` (PSNR,
codes used, seconds) and a safetensors file for each model.
"""

import time

import torch
import torch.nn.functional as F
from common import Pictures, batch, descend, main, options, pictures, to_unit, write_record
from figures import rows_of_pictures
from model import make_decoder, make_encoder
from safetensors.torch import save_file
from torch import Tensor, nn
from train import psnr, usage

import torchvq

BITS, DIM, BATCH = 10, 32, 64
TOKENS = BATCH * 7 * 7  # of a training step
recommended = torchvq.recommended

# All take (B, DIM, H, W) and give it back with tokens (B, H, W) and, but for FSQ, a loss.
QUANTIZERS = {
    "VQ": lambda: torchvq.VectorQuantize(
        dim=DIM, accept_image_fmap=True, **recommended("vq", bits=BITS, tokens=TOKENS)
    ),
    "FSQ": lambda: torchvq.FSQ(dim=DIM, **recommended("fsq", bits=BITS)),
    "LFQ": lambda: torchvq.LFQ(dim=DIM, **recommended("lfq", bits=BITS)),
    "SimVQ": lambda: torchvq.SimVQ(dim=DIM, codebook_size=2**BITS, channel_first=True),
}


class Autoencoder(nn.Module):
    """Pictures to a quarter of their size, each position to a token, and back."""

    def __init__(self, channels: int, quantizer: nn.Module) -> None:
        super().__init__()
        self.encoder = make_encoder(channels, DIM)
        self.quantizer = quantizer
        self.decoder = make_decoder(channels, DIM)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        quantized, tokens, *losses = self.quantizer(self.encoder(x))
        return self.decoder(quantized), tokens, sum(losses, x.new_zeros(()))

    def decode(self, tokens: Tensor) -> Tensor:
        """Pictures of tokens."""
        vq = isinstance(self.quantizer, torchvq.VectorQuantize)
        of = self.quantizer.get_output_from_indices if vq else self.quantizer.indices_to_codes
        return self.decoder(of(tokens)).clamp(0, 1)


def train(model: Autoencoder, images: Pictures, steps: int) -> list[float]:
    def step() -> tuple[Tensor, str]:
        x = batch(images.train, BATCH)
        restored, _, loss = model(x)
        error = F.mse_loss(restored, x)
        # In units of the pictures' variance, so that weights of losses and learning rate suit any pictures.
        return error / images.variance + loss, f"PSNR {psnr(error.item()):.2f} dB"

    return descend([model.train()], step, steps, rate=4e-3)


@torch.no_grad()
def judge(model: Autoencoder, images: Pictures) -> dict[str, float]:
    """How well unseen pictures come back from their tokens, and how many of the codes they use."""
    model.eval()
    codes = model.quantizer.codebook_size  # 1024, and 1000 of FSQ
    error, counts = 0.0, torch.zeros(codes, dtype=torch.long)
    for part in images.test.split(250):
        x = to_unit(part)
        tokens = model(x)[1]
        error += F.mse_loss(model.decode(tokens), x).item() * len(part) / len(images.test)
        counts += torch.bincount(tokens.flatten(), minlength=codes)
    used, perplexity = usage(counts)
    return {"psnr": psnr(error), "codes": codes, "used": used, "perplexity": perplexity}


def run() -> None:
    said = options(__doc__.split("\n")[0], 1500, "folder of pictures (Fashion-MNIST, or MNIST)")
    images = pictures(said)
    sample = to_unit(images.test[:12])
    rows, table = [("original", sample)], {}
    for name, quantizer in QUANTIZERS.items():
        print(f"{name}:", flush=True)
        torch.manual_seed(said.seed)
        model = Autoencoder(images.channels, quantizer())
        begun = time.process_time()
        losses = train(model, images, said.steps)
        seconds = time.process_time() - begun
        shown = losses[:: max(said.steps // 50, 1)]
        table[name] = {**judge(model, images), "processor_seconds": seconds, "losses": shown}
        with torch.no_grad():
            rows.append((name, model.decode(model(sample)[1])))
        save_file(model.state_dict(), said.output / f"{name}.safetensors")
        print(
            "{psnr:.2f} dB, {used:.0%} of {codes} codes used, {processor_seconds:.0f} s".format(
                **table[name]
            )
        )
    rows_of_pictures(rows, said.output / "image_autoencoders.png")
    write_record(said.output, "image_autoencoders", source=images.name, table=table)


if __name__ == "__main__":
    main(run)
