"""Quantizers of the packages with random weights, and the oracle of their computation, level by level, in float64."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass
class Level:
    """The input of a level's search, and its output, which is subtracted from the residual (B, C, ...)."""

    codes: Tensor
    cosine: bool = False
    into: Callable[[Tensor], Tensor] = lambda residual: residual.movedim(1, -1)  # (B, ..., D)
    out: Callable[[Tensor, Tensor], Tensor] = lambda latents, chosen: chosen.movedim(-1, 1)


@dataclass
class Stack:
    """Levels that share a residual, and the indices (B, ...) that they chose."""

    x: Tensor
    levels: list[Level]
    tokens: list[Tensor]
    # The input of each level's search, (B, D, ...), if it was returned; otherwise the package's own layers compute it.
    compared: list[Tensor] | None = None


@dataclass
class Case:
    """A quantizer of a package: how to make it, feed it, read its tokens, and know its levels."""

    build: Callable[[], nn.Module]
    channels: int
    encode: Callable[[Any, Tensor], list[Tensor]]
    stacks: Callable[[Any, Tensor, list[Tensor]], list[Stack]]
    decode: Callable[[Any, list[Tensor]], Tensor] | None = None
    image: bool = False
    adapted: int = 1  # how many modules `describe` finds
    # Returns the latents of all levels, for stacks in which our operator sums the products of `into` in another order.
    compared: Callable[[Any, Tensor], list[Tensor]] | None = None

    def latents(self, frames: int, batch: int = 2) -> Tensor:
        shape = (batch, self.channels, frames, 3) if self.image else (batch, self.channels, frames)
        return torch.randn(shape)


def randomise(module: nn.Module) -> nn.Module:
    """Random codes and weights: many packages start from zeros, which do not test a search."""
    for name, tensor in [*module.named_buffers(), *module.named_parameters()]:
        if name.endswith(
            (
                "embed",
                "embed_avg",
                "embed_sum",
                "embedding_sum",
                "codebook.weight",
                "embedding.weight",
            )
        ):
            tensor.data.normal_()
        if name.endswith("inited") or name.endswith("initialized"):
            tensor.data.fill_(1)
    return module.eval()


def gaps(stack: Stack) -> tuple[Tensor, Tensor]:
    """Distance of each chosen code minus that of the nearest, and the error that float32 allows: (tokens, levels).

    Distances are computed by brute force in float64, from the residual, or its unit vector, in the package's dtype. The
    bound is that of a squared distance by expansion, with its D products added in any order.
    """
    found, allowed = [], []
    residual = stack.x
    for n, (level, tokens) in enumerate(zip(stack.levels, stack.tokens, strict=True)):
        latents = level.into(residual)
        if stack.compared is not None:
            compared = stack.compared[n].movedim(1, -1)
            # Sums of some dozen terms, with the rounding of the residual.
            torch.testing.assert_close(
                compared,
                latents,
                rtol=0,
                atol=float(64 * torch.finfo(latents.dtype).eps * stack.x.abs().max()),
            )
            latents = compared
        x, codes = latents.flatten(0, -2), level.codes
        if level.cosine:
            x, codes = functional.normalize(x), functional.normalize(codes)
        x, codes = x.double(), codes.double()
        distances = (x[:, None] - codes).square().sum(-1)
        chosen = distances.gather(1, tokens.reshape(-1, 1)).squeeze(1)
        found.append(chosen - distances.min(1).values)
        size = (x.norm(dim=1) + codes.norm(dim=1).max()) ** 2
        allowed.append((x.shape[1] + 8) * torch.finfo(torch.float32).eps * size)
        if level is not stack.levels[-1]:
            residual = residual - level.out(latents, functional.embedding(tokens, level.codes))
    return torch.cat(found), torch.cat(allowed)


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


# Computations of the packages around a search.


def factorised(level: Any, stride: int = 1) -> Level:
    """A level of DAC or SNAC."""

    def into(residual: Tensor) -> Tensor:
        if stride > 1:
            residual = functional.avg_pool1d(residual, stride, stride)
        return level.in_proj(residual).movedim(1, -1)

    def out(latents: Tensor, chosen: Tensor) -> Tensor:
        straight = latents.movedim(-1, 1) + (chosen - latents).movedim(-1, 1)
        return level.out_proj(straight).repeat_interleave(stride, dim=-1)

    return Level(level.codebook.weight, True, into, out)


def projected(level: Any) -> Level:
    """A level with linear maps before and after its codebook."""
    return Level(
        level.codebook.embed,
        into=lambda residual: level.project_in(residual.movedim(1, -1)),
        out=lambda _, chosen: level.project_out(chosen).movedim(-1, 1),
    )


def audio(x: Tensor, codebooks: list[Tensor], tokens: list[Tensor]) -> list[Stack]:
    return [Stack(x, [Level(codes) for codes in codebooks], tokens)]


def picture(quantizer: Any, x: Tensor, tokens: list[Tensor], cosine: bool = False) -> list[Stack]:
    return [Stack(x, [Level(quantizer.embedding.weight, cosine)], tokens)]


# The packages.


def encodec() -> Case:
    from transformers.models.encodec import modeling_encodec as m

    config = m.EncodecConfig(codebook_size=32, codebook_dim=16, target_bandwidths=[3.0])
    return Case(
        lambda: randomise(m.EncodecResidualVectorQuantizer(config)),
        16,
        lambda q, x: list(q.encode(x)),
        lambda q, x, t: audio(x, [layer.codebook.embed for layer in q.layers], t),
        lambda q, t: q.decode(torch.stack(t)),
        adapted=1 + m.EncodecResidualVectorQuantizer(config).num_quantizers,
    )


def xcodec() -> Case:
    from transformers.models.xcodec import modeling_xcodec as m

    config = m.XcodecConfig(codebook_size=32, codebook_dim=16, target_bandwidths=[0.5])
    return Case(
        lambda: randomise(m.XcodecResidualVectorQuantization(config)),
        16,
        lambda q, x: list(q.encode(x)),
        lambda q, x, t: audio(x, [level.codebook.embed for level in q.quantizers], t),
        lambda q, t: q.decode(torch.stack(t)),
        adapted=1 + m.XcodecResidualVectorQuantization(config).num_quantizers,
    )


def higgs() -> Case:
    name = "transformers.models.higgs_audio_v2_tokenizer.modeling_higgs_audio_v2_tokenizer"
    # Not `from ... import`, for which transformers requires torchaudio; the quantizer does not need it.
    m: Any = importlib.import_module(name)
    config = m.HiggsAudioV2TokenizerConfig(codebook_size=32, codebook_dim=16)
    count = m.HiggsAudioV2TokenizerResidualVectorQuantization(config).num_quantizers
    return Case(
        lambda: randomise(m.HiggsAudioV2TokenizerResidualVectorQuantization(config)),
        config.hidden_size,
        lambda q, x: list(q.encode(x)),
        lambda q, x, t: [Stack(x, [projected(level) for level in q.quantizers], t)],
        lambda q, t: q.decode(torch.stack(t)),
        adapted=count,
    )


def mimi() -> Case:
    from transformers.models.mimi import modeling_mimi as m

    config = m.MimiConfig(
        codebook_size=32,
        codebook_dim=16,
        vector_quantization_hidden_dimension=16,
        hidden_size=24,
        num_quantizers=6,
    )

    def stacks(q: Any, x: Tensor, tokens: list[Tensor]) -> list[Stack]:
        first, rest = q.semantic_residual_vector_quantizer, q.acoustic_residual_vector_quantizer
        return [
            Stack(part.input_proj(x), [Level(layer.codebook.embed) for layer in part.layers], of)
            for part, of in ((first, tokens[:1]), (rest, tokens[1:]))
        ]

    return Case(
        lambda: randomise(m.MimiSplitResidualVectorQuantizer(config)),
        24,
        lambda q, x: list(q.encode(x)),
        stacks,
        lambda q, t: q.decode(torch.stack(t, 1)),
        adapted=8,
    )


def encodec_package() -> Case:
    from encodec.quantization.vq import ResidualVectorQuantizer

    return Case(
        lambda: randomise(ResidualVectorQuantizer(16, 6, 32)),
        16,
        lambda q, x: list(q.encode(x, 75)),
        lambda q, x, t: audio(x, [layer._codebook.embed for layer in q.vq.layers], t),
        lambda q, t: q.decode(torch.stack(t)),
        adapted=7,
    )


def moshi_package() -> Case:
    from moshi.quantization import SplitResidualVectorQuantizer

    def build() -> nn.Module:
        return randomise(
            SplitResidualVectorQuantizer(
                n_q=6, dimension=16, input_dimension=24, output_dimension=24, bins=32
            )
        )

    def stacks(q: Any, x: Tensor, tokens: list[Tensor]) -> list[Stack]:
        return [
            Stack(part.input_proj(x), [Level(layer.embedding) for layer in part.vq.layers], of)
            for part, of in ((q.rvq_first, tokens[:1]), (q.rvq_rest, tokens[1:]))
        ]

    return Case(
        build,
        24,
        lambda q, x: list(q.encode(x).unbind(1)),
        stacks,
        lambda q, t: q.decode(torch.stack(t, 1)),
        adapted=8,
    )


def dac() -> Case:
    from transformers.models.dac import modeling_dac as m

    config = m.DacConfig(codebook_size=32, codebook_dim=8, hidden_size=24, n_codebooks=5)
    return Case(
        lambda: randomise(m.DacResidualVectorQuantizer(config)),
        config.hidden_size,
        lambda q, x: list(q(x)[1].unbind(1)),
        lambda q, x, t: [Stack(x, [factorised(level) for level in q.quantizers], t)],
        lambda q, t: q.from_codes(torch.stack(t, 1))[0],
        adapted=6,
        compared=lambda q, x: list(q(x)[2].split(8, 1)),
    )


def dac_package() -> Case:
    from dac.nn.quantize import ResidualVectorQuantize

    return Case(
        lambda: randomise(ResidualVectorQuantize(24, 5, 32, 8)),
        24,
        lambda q, x: list(q(x)[1].unbind(1)),
        lambda q, x, t: [Stack(x, [factorised(level) for level in q.quantizers], t)],
        lambda q, t: q.from_codes(torch.stack(t, 1))[0],
        adapted=6,
        compared=lambda q, x: list(q(x)[2].split(8, 1)),
    )


def snac_package() -> Case:
    from snac.vq import ResidualVectorQuantize

    return Case(
        lambda: randomise(ResidualVectorQuantize(24, 32, 8, [4, 2, 1])),
        24,
        lambda q, x: q(x)[1],
        lambda q, x, t: [Stack(x, [factorised(level, level.stride) for level in q.quantizers], t)],
        lambda q, t: q.from_codes(t),
        adapted=3,
    )


def chameleon() -> Case:
    from transformers.models.chameleon import modeling_chameleon as m

    config = m.ChameleonVQVAEConfig(num_embeddings=32, embed_dim=16)
    return Case(
        lambda: randomise(m.ChameleonVQVAEVectorQuantizer(config)),
        16,
        lambda q, x: [q(x)[2]],
        picture,
        image=True,
    )


def janus() -> Case:
    from transformers.models.janus import modeling_janus as m

    config = m.JanusVQVAEConfig(num_embeddings=32, embed_dim=16)
    return Case(
        lambda: randomise(m.JanusVQVAEVectorQuantizer(config)),
        16,
        lambda q, x: [q(x)[2]],
        picture,
        image=True,
    )


def glm_image() -> Case:
    from transformers.models.glm_image import modeling_glm_image as m

    config = m.GlmImageVQVAEConfig(num_embeddings=32, embed_dim=16)
    return Case(
        lambda: randomise(m.GlmImageVQVAEVectorQuantizer(config)),
        16,
        lambda q, x: [q(x)[2]],
        lambda q, x, t: picture(q, x, t, cosine=True),
        image=True,
    )


def emu3() -> Case:
    from transformers.models.emu3 import modeling_emu3 as m

    config = m.Emu3VQVAEConfig(codebook_size=32, embed_dim=16)
    return Case(
        lambda: randomise(m.Emu3VQVAEVectorQuantizer(config)),
        16,
        lambda q, x: [q(x[:, None])],
        picture,
        image=True,
    )


def diffusers_package() -> Case:
    from diffusers.models.autoencoders.vae import VectorQuantizer

    return Case(
        lambda: randomise(VectorQuantizer(32, 16, 0.25)),
        16,
        lambda q, x: [q(x)[2][2]],
        picture,
        image=True,
    )


CASES: dict[str, Callable[[], Case]] = {
    function.__name__: function
    for function in (
        encodec, mimi, dac, xcodec, higgs, chameleon, emu3, janus, glm_image,
        encodec_package, dac_package, moshi_package, snac_package, diffusers_package,
    )
}  # fmt: skip
# Cases whose search has the input of the stack or module, without a matrix product before it.
PLAIN = ("encodec", "xcodec", "encodec_package", "chameleon", "emu3", "janus", "diffusers_package")
FACTORISED = ("dac", "dac_package", "snac_package")
