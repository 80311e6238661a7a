"""Whole tokenizers, built from small configurations with random weights: encode, decode, and what stays unchanged."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from quantizers import randomise
from torch import Tensor, nn

from torchvq import adapters

Run = Callable[[Any, Tensor], tuple[Tensor, ...]]


def encodec() -> tuple[nn.Module, Tensor, Run]:
    from transformers import EncodecConfig, EncodecModel

    config = EncodecConfig(
        num_filters=4, hidden_size=16, codebook_dim=16, codebook_size=32, target_bandwidths=[3.0]
    )

    def run(model: Any, sound: Tensor) -> tuple[Tensor, ...]:
        codes = model.encode(sound).audio_codes
        return codes, model.decode(codes, [None])[0], model(sound)[1]

    return EncodecModel(config), torch.randn(2, 1, 4000), run


def mimi() -> tuple[nn.Module, Tensor, Run]:
    from transformers import MimiConfig, MimiModel

    config = MimiConfig(
        num_filters=4, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, head_dim=16,
        num_key_value_heads=2, codebook_size=32, codebook_dim=16, vector_quantization_hidden_dimension=16,
        num_quantizers=6, upsample_groups=32,
    )  # fmt: skip

    def run(model: Any, sound: Tensor) -> tuple[Tensor, ...]:
        codes = model.encode(sound).audio_codes
        return codes, model.decode(codes)[0], model.encode(sound, num_quantizers=3).audio_codes

    return MimiModel(config), torch.randn(2, 1, 9600), run


def dac() -> tuple[nn.Module, Tensor, Run]:
    from transformers import DacConfig, DacModel

    config = DacConfig(
        encoder_hidden_size=4, decoder_hidden_size=64, n_codebooks=4, codebook_size=32, codebook_dim=8,
        downsampling_ratios=[2, 4], upsampling_ratios=[4, 2],
    )  # fmt: skip

    def run(model: Any, sound: Tensor) -> tuple[Tensor, ...]:
        found = model.encode(sound)
        decoded = model.decode(audio_codes=found.audio_codes).audio_values
        return (
            found.audio_codes,
            found.quantized_representation,
            found.projected_latents,
            found.loss,
            decoded,
        )

    return DacModel(config), torch.randn(2, 1, 1600), run


def images(name: str, config: str, **options: Any) -> tuple[nn.Module, Tensor, Run]:
    import transformers

    shape = dict(
        base_channels=32,
        channel_multiplier=[1, 2],
        num_res_blocks=1,
        embed_dim=16,
        latent_channels=32,
    )
    model = getattr(transformers, name)(getattr(transformers, config)(**shape, **options))

    def run(model: Any, image: Tensor) -> tuple[Tensor, ...]:
        found = model.encode(image)
        if isinstance(found, Tensor):
            return (found,)
        return tuple(t for t in found.values() if isinstance(t, Tensor))

    return model, torch.randn(2, 3, 32, 32), run


def chameleon() -> tuple[nn.Module, Tensor, Run]:
    return images("ChameleonVQVAE", "ChameleonVQVAEConfig", num_embeddings=32)


def janus() -> tuple[nn.Module, Tensor, Run]:
    return images("JanusVQVAE", "JanusVQVAEConfig", num_embeddings=32, num_patches=16)


def emu3() -> tuple[nn.Module, Tensor, Run]:
    model, _, _ = images(
        "Emu3VQVAE", "Emu3VQVAEConfig", codebook_size=32, attn_resolutions=[1], hidden_size=64
    )
    clip = torch.randn(1, 4, 3, 32, 32)

    def run(model: Any, clip: Tensor) -> tuple[Tensor, ...]:
        sizes = torch.tensor([[32, 32]])
        found = model.encode(clip, image_sizes=sizes)
        tokens = found if isinstance(found, Tensor) else found.image_tokens
        return tuple(tokens) if isinstance(tokens, list) else (tokens,)

    return model, clip, run


def diffusers_package() -> tuple[nn.Module, Tensor, Run]:
    from diffusers import VQModel

    model = VQModel(
        block_out_channels=(32,),
        num_vq_embeddings=32,
        norm_num_groups=8,
        vq_embed_dim=8,
        latent_channels=8,
    )

    def run(model: Any, image: Tensor) -> tuple[Tensor, ...]:
        latents = model.encode(image).latents
        return (
            latents,
            model.decode(latents).sample,
            model(image).sample,
            model.quantize(latents)[2][2],
        )

    return model, torch.randn(2, 3, 16, 16), run


def encodec_package() -> tuple[nn.Module, Tensor, Run]:
    from encodec import EncodecModel

    model = EncodecModel.encodec_model_24khz(pretrained=False)
    model.set_target_bandwidth(6.0)

    def run(model: Any, sound: Tensor) -> tuple[Tensor, ...]:
        frames = model.encode(sound)
        return frames[0][0], model.decode(frames), model(sound)

    return model, torch.randn(1, 1, 4800), run


def dac_package() -> tuple[nn.Module, Tensor, Run]:
    from dac.model import DAC

    model = DAC(
        encoder_dim=4,
        encoder_rates=[2, 4],
        decoder_dim=64,
        decoder_rates=[4, 2],
        n_codebooks=4,
        codebook_size=32,
    )

    def run(model: Any, sound: Tensor) -> tuple[Tensor, ...]:
        z, codes, latents, one, other = model.encode(sound)
        return codes, z, latents, one, other, model.decode(z)

    return model, torch.randn(2, 1, 1600), run


def snac_package() -> tuple[nn.Module, Tensor, Run]:
    from snac import SNAC

    model = SNAC(
        encoder_dim=4, encoder_rates=[2, 4], decoder_dim=64, decoder_rates=[4, 2], attn_window_size=None,
        codebook_size=32, vq_strides=[4, 2, 1], noise=False,
    )  # fmt: skip

    def run(model: Any, sound: Tensor) -> tuple[Tensor, ...]:
        codes = model.encode(sound)
        return *codes, model.decode(codes), model(sound)[0]

    return model, torch.randn(2, 1, 1600), run


def moshi_package() -> tuple[nn.Module, Tensor, Run]:
    from moshi.models import loaders

    sound = dict(
        sample_rate=24000, channels=1, frame_rate=12.5,
        seanet={**loaders._seanet_kwargs, "dimension": 32, "n_filters": 4},
        quantizer=dict(dimension=16, n_q=6, bins=32, input_dimension=32, output_dimension=32),
        transformer={
            **loaders._transformer_kwargs, "d_model": 32, "num_heads": 2, "num_layers": 1, "dim_feedforward": 64,
            "input_dimension": 32, "output_dimensions": [32],
        },
    )  # fmt: skip

    def run(model: Any, sound: Tensor) -> tuple[Tensor, ...]:
        codes = model.encode(sound)
        with model.streaming(1):
            frames = [model.encode(part) for part in sound[:1].split(model.frame_size, dim=-1)]
        return codes, model.decode(codes), model.decode_latent(codes), *frames

    return loaders.get_mimi(None, sound, num_codebooks=6), torch.randn(2, 1, 1920 * 3), run


# Two encoders, for sound and for speech, whose features are quantized together.
SOUND_AND_SPEECH: dict[str, Any] = dict(
    codebook_size=32,
    target_bandwidths=[0.5, 1.0],
    acoustic_model_config=dict(
        model_type="dac", encoder_hidden_size=4, decoder_hidden_size=32, hidden_size=16,
        downsampling_ratios=[8, 5, 4, 2], upsampling_ratios=[8, 5, 4, 2],
    ),
    semantic_model_config=dict(
        model_type="hubert", hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        conv_dim=[8] * 7, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=2,
    ),
)  # fmt: skip


def sound_and_speech(model: Any, sound: Tensor) -> tuple[Tensor, ...]:
    codes, fewer = model.encode(sound).audio_codes, model.encode(sound, bandwidth=0.5).audio_codes
    assert 0 < fewer.shape[1] < codes.shape[1]
    return codes, fewer, model.decode(codes).audio_values, *model(sound).to_tuple()


def xcodec() -> tuple[nn.Module, Tensor, Run]:
    from transformers import XcodecConfig, XcodecModel

    return XcodecModel(XcodecConfig(**SOUND_AND_SPEECH)), torch.randn(2, 1, 3200), sound_and_speech


def higgs() -> tuple[nn.Module, Tensor, Run]:
    # Not `from ... import`, for which transformers requires torchaudio; that resamples for the speech encoder, but here
    # both encoders have the same rate.
    name = "transformers.models.higgs_audio_v2_tokenizer.modeling_higgs_audio_v2_tokenizer"
    m: Any = importlib.import_module(name)
    config = m.HiggsAudioV2TokenizerConfig(
        **SOUND_AND_SPEECH, codebook_dim=8, semantic_sample_rate=24000
    )
    return m.HiggsAudioV2TokenizerModel(config), torch.randn(2, 1, 3200), sound_and_speech


def glm_image() -> tuple[nn.Module, Tensor, Run]:
    from transformers.models.glm_image import modeling_glm_image as m

    config = m.GlmImageVQVAEConfig(embed_dim=16, num_embeddings=32, latent_channels=24)

    def run(model: Any, image: Tensor) -> tuple[Tensor, ...]:
        return tuple(t for t in model.encode(image).values() if isinstance(t, Tensor))

    return m.GlmImageVQVAE(config), torch.randn(2, 24, 8, 8), run


def chameleon_generates() -> tuple[nn.Module, Tensor, Run]:
    """A language model over the tokens of a picture."""
    from transformers import ChameleonConfig, ChameleonForConditionalGeneration

    words = {"<image>": 4} | {
        f"IMGIMG{'ABCDEFGHIJ'[i // 10]}{'ABCDEFGHIJ'[i % 10]}Z": 8 + i for i in range(32)
    }
    pictures = dict(
        base_channels=32, channel_multiplier=[1, 2], num_res_blocks=1, embed_dim=16, latent_channels=32,
        num_embeddings=32, resolution=32,
    )  # fmt: skip
    config = ChameleonConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, vq_config=pictures, vocabulary_map=words, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip

    def run(model: Any, image: Tensor) -> tuple[Tensor, ...]:
        tokens = model.model.get_image_tokens(image)
        marks = torch.full((2, tokens[0].numel()), 4)
        prompt = torch.cat([torch.tensor([[1], [1]]), marks, torch.tensor([[5], [6]])], 1)
        written = model.generate(
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            pixel_values=image,
            max_new_tokens=6,
            do_sample=False,
        )
        return tokens, written

    return ChameleonForConditionalGeneration(config), torch.randn(2, 3, 32, 32), run


MODELS = (
    encodec, mimi, dac, xcodec, higgs, chameleon, chameleon_generates, janus, emu3, glm_image,
    diffusers_package, encodec_package, dac_package, moshi_package, snac_package,
)  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_an_adapted_model_gives_what_it_gave(
    make: Callable[[], tuple[nn.Module, Tensor, Run]],
) -> None:
    torch.manual_seed(0)
    model, x, run = make()
    model, x = randomise(model).double(), x.double()
    keys, text = list(model.state_dict()), repr(model)
    before = run(model, x)
    adapters.adapt(model)
    after = run(model, x)
    assert len(before) == len(after) > 0
    for one, other in zip(before, after, strict=True):
        # Means of losses, and products before and after a level of DAC, are summed in another order.
        rounded = one.is_floating_point() and (one.dim() < 2 or make in (dac, dac_package))
        assert one.dtype == other.dtype
        assert torch.allclose(one, other, 1e-12, 1e-12) if rounded else torch.equal(one, other)
    assert list(model.state_dict()) == keys and repr(model) == text
    again = run(adapters.restore(copy.deepcopy(model)), x)
    assert all(map(torch.equal, again, before))


@torch.no_grad()
def test_a_saved_model_loads_without_adapters(tmp_path: Any) -> None:
    from transformers import EncodecModel

    model, sound, run = encodec()
    adapters.adapt(randomise(model)).save_pretrained(tmp_path)
    loaded = EncodecModel.from_pretrained(tmp_path).eval()
    assert not adapters.describe(loaded)[0].adapted
    assert torch.equal(run(loaded, sound)[0], run(model, sound)[0])


@torch.no_grad()
@pytest.mark.parametrize("frames", range(1, 9))
def test_mimi_streams(frames: int) -> None:
    """The package's own streaming: frames of 1920 samples, with caches of convolutions and attention between calls."""
    torch.manual_seed(0)
    model, _, _ = mimi()
    model = randomise(model).double()
    sound = torch.randn(1, 1, 1920 * frames * 3).double()

    def stream(model: Any) -> list[Tensor]:
        padding, attention, codes = None, None, []
        for part in sound.split(1920 * frames, dim=-1):
            found = model.encode(
                part, padding_cache=padding, encoder_past_key_values=attention, use_streaming=True
            )
            padding, attention = found.padding_cache, found.encoder_past_key_values
            codes.append(found.audio_codes)
        return codes

    before = stream(model)
    after = stream(adapters.adapt(model))
    assert len(before) == len(after) == 3 and all(map(torch.equal, before, after))
