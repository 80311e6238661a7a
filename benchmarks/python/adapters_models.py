"""Tokenizers at their real sizes, with random weights, for benchmarks/python/adapters.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

SECONDS = 10
# A whole model spends minutes in networks, which are the same on both sides, so few rounds are enough.
WHOLE_ROUNDS = 3
Encode = Callable[[Any, Tensor], Tensor]


@dataclass
class Measured:
    """One row: the call, its input, and its name in the table."""

    model: str
    part: str  # "quantizer" or "encode"
    size: str
    build: Callable[[], nn.Module]
    encode: Encode
    shape: tuple[int, ...]
    frozen: bool = False  # adapt with frozen=True
    rounds: int = WHOLE_ROUNDS  # of "encode"; a quantizer takes as many as other benchmarks

    @property
    def name(self) -> str:
        return f"{self.model}, {self.part}, {self.size}"

    def make(self) -> tuple[nn.Module, Tensor]:
        torch.manual_seed(0)
        module = self.build().eval()
        # Codes as large as latents: packages start from zeros, or from codes so small that all are near ties.
        for name, codes in [*module.named_buffers(), *module.named_parameters()]:
            if name.endswith(("embed", "embed_sum", "embedding.weight")):
                codes.detach().normal_()
        return module, torch.randn(self.shape)


def rows() -> list[Measured]:
    """Quantizer alone and whole `encode`: clips of 10 s, 1 and 16 of them, one frame, also with frozen codes; images of
    256 and 512.
    """
    return [*_encodec(), *_mimi(), *_dac(), *_chameleon(), *_vqmodel()]


def _sound(
    model: str,
    quantizer: tuple[Callable[[], nn.Module], Encode, int, int],
    whole: tuple[Callable[[], nn.Module], Encode, int],
    frozen: bool = False,
    rounds_of_many: int = WHOLE_ROUNDS,
) -> list[Measured]:
    build, encode, features, frames = quantizer
    built, whole_encode, rate = whole
    sizes = [("one frame", 1, 1), ("1 clip", 1, frames), ("16 clips", 16, frames)]
    alone = [
        Measured(model, "quantizer", size, build, encode, (clips, features, count))
        for size, clips, count in sizes
    ]
    if frozen:
        one = (1, features, 1)
        alone.insert(
            1, Measured(model, "quantizer", "one frame, frozen", build, encode, one, frozen=True)
        )
    return alone + [
        Measured(
            model, "encode", size, built, whole_encode, (clips, 1, rate * SECONDS), rounds=rounds
        )
        for size, clips, rounds in (("1 clip", 1, WHOLE_ROUNDS), ("16 clips", 16, rounds_of_many))
    ]


def _encodec() -> list[Measured]:
    from transformers.models.encodec import modeling_encodec as m

    config = m.EncodecConfig()
    bandwidth = max(config.target_bandwidths)
    return _sound(
        "EnCodec, 32 levels of 1024 x 128",
        (
            lambda: m.EncodecResidualVectorQuantizer(config),
            lambda q, x: q.encode(x),
            config.codebook_dim,
            75 * SECONDS,
        ),
        (
            lambda: m.EncodecModel(config),
            lambda model, x: model.encode(x, bandwidth=bandwidth).audio_codes,
            24000,
        ),
        frozen=True,
    )


def _mimi() -> list[Measured]:
    from transformers.models.mimi import modeling_mimi as m

    config = m.MimiConfig()
    return _sound(
        "Mimi, 32 levels of 2048 x 256",
        (
            lambda: m.MimiSplitResidualVectorQuantizer(config),
            lambda q, x: q.encode(x),
            config.hidden_size,
            125,
        ),
        (lambda: m.MimiModel(config), lambda model, x: model.encode(x).audio_codes, 24000),
        frozen=True,
    )


def _dac() -> list[Measured]:
    from transformers.models.dac import modeling_dac as m

    config = m.DacConfig()
    return _sound(
        "DAC, 9 levels of 1024 x 8",
        (
            lambda: m.DacResidualVectorQuantizer(config),
            lambda q, x: q(x)[1],
            config.hidden_size,
            75 * SECONDS,
        ),
        (lambda: m.DacModel(config), lambda model, x: model.encode(x).audio_codes, 24000),
        rounds_of_many=1,  # a call takes minutes
    )


def _pictures(
    model: str, factor: int, features: int, quantizer: tuple[Any, Encode], whole: tuple[Any, Encode]
) -> list[Measured]:
    found = []
    for side in (256, 512):
        latents = (1, features, side // factor, side // factor)
        found.append(Measured(model, "quantizer", f"{side} x {side}", *quantizer, latents))
        found.append(Measured(model, "encode", f"{side} x {side}", *whole, (1, 3, side, side)))
    return found


def _chameleon() -> list[Measured]:
    from transformers.models.chameleon import modeling_chameleon as m

    config = m.ChameleonVQVAEConfig()
    return _pictures(
        "Chameleon, 8192 x 256",
        2 ** (len(config.channel_multiplier) - 1),
        config.embed_dim,
        (lambda: m.ChameleonVQVAEVectorQuantizer(config), lambda q, x: q(x)[2]),
        (lambda: m.ChameleonVQVAE(config), lambda model, x: model.encode(x).image_tokens),
    )


def _vqmodel() -> list[Measured]:
    from diffusers import VQModel

    def build() -> nn.Module:
        return VQModel(
            down_block_types=("DownEncoderBlock2D",) * 3, up_block_types=("UpDecoderBlock2D",) * 3,
            block_out_channels=(128, 256, 512), layers_per_block=2, latent_channels=3, num_vq_embeddings=8192,
        )  # fmt: skip

    tokens: Encode = lambda model, x: model.quantize(model.encode(x).latents)[2][2]  # noqa: E731
    return _pictures(
        "VQModel, 8192 x 3",
        4,
        3,
        (lambda: build().quantize, lambda q, x: q(x)[2][2]),
        (build, tokens),
    )
