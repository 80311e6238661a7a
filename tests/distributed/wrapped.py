"""A model around quantizers, and the oracle of its training under any wrapper.

Wrappers change how the encoder computes (precision, order), so the oracle takes the inputs of the quantizers on each
rank and passes their concatenation to quantizers of one process: the states must be equal, bit for bit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchvq import ResidualVQ, VectorQuantize

DIM = 6
DEAD = dict(kmeans_init=True, kmeans_iters=4, threshold_ema_dead_code=1)


class Model(nn.Module):
    """Encoder, a quantizer, a residual stack with dropout and dead codes, decoder; an unused layer on request."""

    def __init__(self, *, unused: bool = False, dead: bool = True, **options: Any) -> None:
        super().__init__()
        options |= DEAD if dead else {}
        self.encoder = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, DIM))
        self.vq = VectorQuantize(DIM, 24, **options)
        self.stack = ResidualVQ(
            dim=DIM,
            num_quantizers=3,
            codebook_size=(16, 8, 8),
            quantize_dropout=True,
            **options,
        )
        self.decoder = nn.Linear(2 * DIM, 8)
        if unused:
            self.unused = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        latent = self.encoder(x)
        first, _, loss = self.vq(latent)
        second, _, losses = self.stack(latent)
        decoded = self.decoder(torch.cat([first, second], -1))
        wide = torch.promote_types(decoded.dtype, torch.float32)
        return (decoded - x).to(wide).square().mean() + loss.to(wide) + losses.to(wide).sum()


class Inputs:
    """The inputs of each forward of the quantizers."""

    def __init__(self, model: Model) -> None:
        self.given: dict[str, list[Tensor]] = {"vq": [], "stack": []}
        for name, calls in self.given.items():
            getattr(model, name).register_forward_pre_hook(
                lambda module, args, calls=calls: (
                    calls.append(args[0].detach().clone()) if module.training else None
                )
            )


def data(step: int, rank: int, size: int = 4) -> Tensor:
    """(B, 16, 8), with a different B on each rank."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(size + rank, 16, 8, generator=generator)


def state_of(model: Model) -> dict[str, Tensor]:
    """The quantizers' state by name."""
    parts = {"vq": model.vq, "stack": model.stack}
    return {
        f"{part}.{name}": value.detach().clone()
        for part, module in parts.items()
        for name, value in module.state_dict().items()
    }


def train_alone(given: list[dict[str, list[Tensor]]], seed: int) -> dict[str, Tensor]:
    """The state of one process whose quantizers get the inputs of all ranks."""
    torch.manual_seed(seed)
    model = Model(sync_codebook=False)
    for name in ("vq", "stack"):
        for parts in zip(*(calls[name] for calls in given), strict=True):
            getattr(model, name)(torch.cat(parts))
    return state_of(model)


def check_states(answers: list[Any], seed: int) -> None:
    """`answers`: per rank (state, inputs of the quantizers)."""
    expected = train_alone([given for _, given in answers], seed)
    for state, _ in answers:
        assert state.keys() == expected.keys()
        for name, value in expected.items():
            assert state[name].dtype == value.dtype, name
            assert torch.equal(state[name], value), name
