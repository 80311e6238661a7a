"""A model around quantizers without a codebook to learn, for training under a wrapper."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchvq import FSQ, LFQ, ResidualFSQ, ResidualLFQ

LEVELS = [5, 5, 3]
DROPOUT = dict(num_quantizers=4, quantize_dropout=True)


class ScalarModel(nn.Module):
    """Encoder, FSQ with noise, LFQ on part of the tokens, residual stacks with dropout, decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 6))
        self.fsq = FSQ(LEVELS, dim=6, preserve_symmetry=True, noise_dropout=0.5)
        self.lfq = LFQ(
            dim=6, codebook_size=16, commitment_loss_weight=0.25, frac_per_sample_entropy=0.5
        )
        self.residual_fsq = ResidualFSQ(dim=6, levels=LEVELS, **DROPOUT)
        self.residual_lfq = ResidualLFQ(
            dim=6, codebook_size=16, commitment_loss_weight=0.25, **DROPOUT
        )
        self.decoder = nn.Linear(24, 8)
        #: The number of levels that each stack used, by forward.
        self.depths: list[tuple[int, int]] = []

    def forward(self, x: Tensor) -> Tensor:
        latent = self.encoder(x)
        plain = self.fsq(latent).quantized
        signs, _, entropy = self.lfq(latent)
        scalar, scalar_indices = self.residual_fsq(latent)[:2]
        residual, indices, losses = self.residual_lfq(latent)[:3]
        if self.training:
            self.depths.append((depth(scalar_indices), depth(indices)))
        decoded = self.decoder(torch.cat([plain, signs, scalar, residual], -1))
        return (decoded - x).square().mean() + entropy + losses.sum()


def depth(indices: Tensor) -> int:
    return int((indices >= 0).all(0).all(0).sum())
