"""The autoencoder: convolutions down to a quarter of the size, torchvq.VectorQuantize, convolutions up again.

examples/cpp/vqvae_model.h builds the same one in C++, with the same names for all its parameters.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from torchvq import VectorQuantize

DOWNSCALE = 4  # pixels along one side of the square that a token stands for


class Reconstruction(NamedTuple):
    pictures: Tensor  # (B, C, H, W)
    tokens: Tensor  # (B, H / 4, W / 4), int64
    loss: Tensor  # scalar: the quantizer's


class ResidualBlock(nn.Module):
    """x + a small network of x."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(width, hidden, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(hidden, width, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x)


def make_encoder(channels: int, dim: int, width: int = 64, hidden: int = 32) -> nn.Sequential:
    """Pictures (B, C, H, W) to latents (B, dim, H / 4, W / 4)."""
    return nn.Sequential(
        nn.Conv2d(channels, width // 2, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(width // 2, width, 4, stride=2, padding=1),
        ResidualBlock(width, hidden),
        ResidualBlock(width, hidden),
        nn.ReLU(),
        nn.Conv2d(width, dim, 1),
    )


def make_decoder(channels: int, dim: int, width: int = 64, hidden: int = 32) -> nn.Sequential:
    """Latents to pictures."""
    return nn.Sequential(
        nn.Conv2d(dim, width, 3, padding=1),
        ResidualBlock(width, hidden),
        ResidualBlock(width, hidden),
        nn.ReLU(),
        nn.ConvTranspose2d(width, width // 2, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(width // 2, channels, 4, stride=2, padding=1),
    )


class VQAutoencoder(nn.Module):
    """A VQ-VAE (van den Oord et al. 2017, arXiv:1711.00937) small enough for two cores and a minute."""

    def __init__(
        self,
        channels: int,
        codebook_size: int = 512,
        dim: int = 32,
        width: int = 64,
        hidden: int = 32,
    ) -> None:
        super().__init__()
        self.encoder = make_encoder(channels, dim, width, hidden)
        self.quantizer = VectorQuantize(
            dim=dim,
            codebook_size=codebook_size,
            accept_image_fmap=True,
            kmeans_init=True,  # start where the data is
            threshold_ema_dead_code=2,  # and bring back codes that fall out of use
            commitment_weight=0.25,
        )
        self.decoder = make_decoder(channels, dim, width, hidden)

    def forward(self, pictures: Tensor) -> Reconstruction:
        quantized, tokens, loss = self.quantizer(self.encoder(pictures))
        return Reconstruction(self.decoder(quantized), tokens, loss)

    def encode(self, pictures: Tensor) -> Tensor:
        """Tokens (B, H / 4, W / 4) of pictures (B, C, H, W) with values in [0, 1]."""
        tokens: Tensor = self.quantizer(self.encoder(pictures))[1]
        return tokens

    def decode(self, tokens: Tensor) -> Tensor:
        """Pictures of tokens, which need not come from a picture."""
        pictures: Tensor = self.decoder(self.quantizer.get_output_from_indices(tokens))
        return pictures.clamp(0, 1)
