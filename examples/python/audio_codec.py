"""A speech codec of 0.5 to 6 kbit/s: networks around an MDCT, and ResidualVQ, trained on 23 minutes of one voice.

python examples/python/audio_codec.py --output codec

A frame of 20 ms becomes 12 tokens of 10 bits, each of which refines those before it, so the first 2 of each frame are a
recording at 1 kbit/s and all of them one at 6. It writes a held-out sentence at several rates (`speech.wav`,
`speech_1kbps.wav`, ... and the tokens themselves, `speech_1kbps.bin`), `audio_codec.png` (their spectrograms),
`audio_codec.json` (SI-SDR and log-mel error by rate) and `audio_codec.safetensors`.
"""

import math
from pathlib import Path

import torch
import torch.nn.functional as F
from common import DemoError, descend, main, options, write_record
from safetensors.torch import save_file
from speech import RATE, mel_error, pack, read_speech, si_sdr, snr, spectrograms, unpack, write_wav
from torch import Tensor, nn

import torchvq

HOP, LEVELS, BITS = 160, 12, 10  # samples of a frame, tokens of it, bits of a token
CROP, BATCH = RATE, 8  # training sees crops of a second
EMPHASIS = 0.8  # of treble, which is faint and yet tells one vowel from another
SHOWN = (2, 4, 6, 12)  # levels of the files that are written: 1, 2, 3 and 6 kbit/s


def kbps(levels: int) -> float:
    return levels * BITS * RATE / HOP / 1000


def mdct() -> tuple[Tensor, Tensor]:
    """Bases (HOP, 1, 2 HOP) of the MDCT, whose overlapping frames add up to the sound, with emphasis and without it."""
    place, band = torch.arange(2 * HOP) + 0.5, torch.arange(HOP)[:, None] + 0.5
    waves = torch.cos(math.pi / HOP * (place + HOP / 2) * band) * math.sqrt(2 / HOP)
    windowed = waves * torch.sin(math.pi / (2 * HOP) * place)
    weight = 8 * (1 - 2 * EMPHASIS * torch.cos(math.pi / HOP * band) + EMPHASIS**2).sqrt()
    return (windowed * weight).unsqueeze(1), (windowed / weight).unsqueeze(1)


def emphasised(sound: Tensor) -> Tensor:
    return sound[..., 1:] - EMPHASIS * sound[..., :-1]


class Block(nn.Module):
    """ConvNeXt's: each feature over time, then all features of each time (Liu et al. 2022, arXiv:2201.03545)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.over_time = nn.Conv1d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.network = nn.Sequential(
            nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width)
        )
        self.scale = nn.Parameter(torch.full((width,), 0.2))

    def forward(self, x: Tensor) -> Tensor:
        features = self.norm(self.over_time(x).transpose(1, 2))
        return x + (self.scale * self.network(features)).transpose(1, 2)


def network(outputs: int, width: int = 256, depth: int = 2) -> nn.Sequential:
    """Frames (B, HOP, T) to (B, outputs, T), 0 to begin with."""
    last = nn.Conv1d(width, outputs, 1)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    blocks = [Block(width) for _ in range(depth)]
    return nn.Sequential(nn.Conv1d(HOP, width, 3, padding=1), *blocks, last)


class Codec(nn.Module):
    """Sound (B, samples), in whole frames, to tokens (B, frames, LEVELS), and back."""

    def __init__(self) -> None:
        super().__init__()
        # Latents are MDCT coefficients to begin with, so that sound comes back from the first step on.
        self.analysis, self.synthesis = map(nn.Parameter, mdct())
        self.encoder, self.decoder = network(HOP), network(2 * HOP)
        nn.init.constant_(self.decoder[-1].bias[HOP:], -5)
        self.quantizer = torchvq.ResidualVQ(
            dim=HOP,
            num_quantizers=LEVELS,
            commitment_weight=0.25,
            quantize_dropout=True,  # the decoder learns to work from any number of levels
            **torchvq.recommended("rvq", bits=BITS),
        )

    def latents(self, sound: Tensor) -> Tensor:
        frames = F.conv1d(F.pad(sound.unsqueeze(1), (HOP, HOP)), self.analysis, stride=HOP)
        return (frames + self.encoder(frames)).transpose(1, 2)

    def sound(self, quantized: Tensor) -> Tensor:
        frames = quantized.transpose(1, 2)
        correction, level = self.decoder(frames).chunk(2, 1)
        # Breath and hiss cost too many bits as waves; the decoder makes noise of its own, and learns how loud.
        frames = frames + correction + level.clamp(max=3).exp() * torch.randn_like(level)
        return F.conv_transpose1d(frames, self.synthesis, stride=HOP)[:, 0, HOP:-HOP]

    def forward(self, sound: Tensor) -> tuple[Tensor, Tensor]:
        quantized, _, losses = self.quantizer(self.latents(sound))
        return self.sound(quantized), losses.sum()

    def encode(self, sound: Tensor) -> Tensor:
        padded = F.pad(sound, (0, -sound.shape[-1] % HOP))
        return self.quantizer(self.latents(padded)).indices

    def decode(self, tokens: Tensor, levels: int = LEVELS) -> Tensor:
        """Sound of the first `levels` tokens of each frame."""
        kept = torch.where(torch.arange(LEVELS) < levels, tokens, -1)
        return self.sound(self.quantizer.get_output_from_indices(kept))


def train(codec: Codec, speech: Tensor, steps: int) -> list[float]:
    def step() -> tuple[Tensor, str]:
        starts = torch.randint(len(speech) - CROP, (BATCH,))
        sound = torch.stack([speech[start : start + CROP] for start in starts])
        restored, commitment = codec(sound)
        # Waves where bits allow, and the right loudness in every band where they do not.
        waves = snr(emphasised(restored), emphasised(sound)).mean()
        bands = mel_error(restored, sound)
        loss = 0.25 * bands - 0.1 * waves + commitment
        return loss, f"SNR {waves:.1f} dB, log-mel {bands:.1f} dB"

    return descend([codec.train()], step, steps, rate=2e-3)


@torch.no_grad()
def judge(codec: Codec, clips: list[Tensor]) -> list[dict[str, float]]:
    """Means over all seconds of unseen clips, for each number of levels."""
    codec.eval()
    sums = torch.zeros(LEVELS, 2)
    for clip in clips:
        tokens = codec.encode(clip[None])
        for levels in range(1, LEVELS + 1):
            restored = codec.decode(tokens, levels)[0, : len(clip)]
            measured = torch.stack([si_sdr(restored, clip), mel_error(restored, clip)])
            sums[levels - 1] += measured * len(clip)
    means = (sums / sum(map(len, clips))).tolist()
    return [
        {"levels": levels, "kbps": kbps(levels), "si_sdr": ratio, "log_mel": error}
        for levels, (ratio, error) in enumerate(means, start=1)
    ]


@torch.no_grad()
def write_sentence(codec: Codec, sound: Tensor, folder: Path) -> None:
    """The sentence, its tokens at several rates, and what these sound like, read from their files."""
    tokens = codec.encode(sound[None])
    sounds = {"original": sound}
    write_wav(folder / "speech.wav", sound)
    for levels in SHOWN:
        name = f"{kbps(levels):g}kbps"
        file = folder / f"speech_{name}.bin"
        file.write_bytes(pack(tokens[0, :, :levels], BITS))
        received = unpack(file.read_bytes(), BITS).view(1, -1, levels)
        restored = codec.decode(F.pad(received, (0, LEVELS - levels), value=-1))[0, : len(sound)]
        sounds[name.replace("kbps", " kbit/s")] = restored
        write_wav(folder / f"speech_{name}.wav", restored)
    spectrograms(sounds, folder / "audio_codec.png")


def run() -> None:
    said = options(__doc__.split("\n")[0], 1600, "folder of 8 kHz WAV files (Debian's)")
    clips, unseen = read_speech(said.data)
    speech = torch.cat(clips)
    if len(speech) <= CROP:
        raise DemoError(
            f"expected more than {CROP / RATE:g} s of speech to learn from, but got "
            f"{len(speech) / RATE:g} s; every 16th recording, the first included, is kept for judging"
        )
    print(f"{len(speech) / RATE / 60:.0f} minutes of speech to learn from", flush=True)
    codec = Codec()
    losses = train(codec, speech, said.steps)
    table = judge(codec, unseen[:2] if said.smoke else unseen)
    for row in table:
        print(
            "{kbps:g} kbit/s: SI-SDR {si_sdr:.1f} dB, log-mel error {log_mel:.1f} dB".format(**row)
        )
    # About four seconds, so that the files are small.
    sentence = min(unseen, key=lambda clip: abs(len(clip) - 4 * RATE))
    write_sentence(codec, sentence, said.output)
    save_file(codec.state_dict(), said.output / "audio_codec.safetensors")
    seconds = len(speech) / RATE
    shown = losses[:: max(said.steps // 50, 1)]
    write_record(said.output, "audio_codec", speech=seconds, table=table, losses=shown)


if __name__ == "__main__":
    main(run)
