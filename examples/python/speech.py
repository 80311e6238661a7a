"""Recorded speech for audio_codec.py, and what tells how close a sound is to another."""

from __future__ import annotations

import math
import wave
from functools import cache
from pathlib import Path

import numpy as np
import torch
from common import DemoError
from figures import plt, save
from PIL import Image
from torch import Tensor

RATE = 8000  # samples per second
# Debian: apt install asterisk-core-sounds-en-wav; 568 recordings of one speaker, 25 minutes in all.
RECORDINGS = Path("/usr/share/asterisk/sounds/en_US_f_Allison")
WINDOWS = {128: 16, 256: 32, 512: 64}  # samples of a window: bands of its spectrum
QUIET = 10**-3.5  # full scale is 1; nothing below these -70 dB counts


def read_speech(folder: Path | None) -> tuple[list[Tensor], list[Tensor]]:
    """Clips (samples,) for training, and every 16th for judging, of all WAV files in and below a folder."""
    files = sorted((folder or RECORDINGS).rglob("*.wav"))
    clips = [read_wav(file) for file in files if file.parent.name != "silence"]
    tested = [clip for clip in clips[::16] if len(clip) >= RATE]
    if not tested or len(clips) < 2:
        raise DemoError(
            f"found no speech in {folder or RECORDINGS}; install Debian's recordings (apt install "
            "asterisk-core-sounds-en-wav), or name a folder of 8 kHz WAV files with --data"
        )
    return [clip for place, clip in enumerate(clips) if place % 16], tested


def read_wav(path: Path) -> Tensor:
    try:
        with wave.open(str(path)) as file:
            form = (file.getframerate(), file.getnchannels(), file.getsampwidth())
            content = file.readframes(file.getnframes())
    except (wave.Error, EOFError) as error:
        raise DemoError(f"cannot read {path}: {str(error) or 'it is cut short'}") from None
    if form != (RATE, 1, 2):
        raise DemoError(f"expected {path} to be 8 kHz, mono, 16 bits, but got {form}")
    return from_samples(content)


def from_samples(content: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(content, "<i2").astype(np.float32) / 32768)


def to_samples(sound: Tensor) -> bytes:
    samples = (sound * 32768).round().clamp(-32768, 32767).to(torch.int16)
    return samples.numpy().astype("<i2").tobytes()


def write_wav(path: Path, sound: Tensor) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(to_samples(sound))


def pack(tokens: Tensor, bits: int) -> bytes:
    """Tokens of so many bits each, without gaps."""
    digits = tokens.flatten().unsqueeze(1) >> torch.arange(bits) & 1
    return np.packbits(digits.numpy().astype(np.uint8)).tobytes()


def unpack(content: bytes, bits: int) -> Tensor:
    """The tokens, one after the other. What fills up the last byte is shorter than a token of 8 bits or more."""
    digits = torch.from_numpy(np.unpackbits(np.frombuffer(content, np.uint8))).long()
    count = len(digits) // bits
    return (digits[: count * bits].view(count, bits) << torch.arange(bits)).sum(-1)


def si_sdr(restored: Tensor, sound: Tensor) -> Tensor:
    """dB of the sound over what is wrong, at the volume that fits best (Le Roux et al. 2019, arXiv:1811.02508)."""
    power = sound.square().mean(-1, keepdim=True) + 1e-9
    return snr(restored, (restored * sound).mean(-1, keepdim=True) / power * sound, 1e-9)


def snr(restored: Tensor, sound: Tensor, floor: float = 1e-6) -> Tensor:
    """dB of the sound over what is wrong. Both have at least the power `floor`: in silence nothing is very wrong."""
    wrong = (sound - restored).square().mean(-1)
    return 10 * ((sound.square().mean(-1) + floor) / (wrong + floor)).log10()


def mel_error(restored: Tensor, sound: Tensor) -> Tensor:
    """Mean difference of the loudness in mel bands, in dB, at three resolutions in time and frequency."""
    errors = [(log_mel(restored, n) - log_mel(sound, n)).abs().mean() for n in WINDOWS]
    return torch.stack(errors).mean()


def log_mel(sound: Tensor, window: int) -> Tensor:
    """Loudness (..., bands, frames) in dB of full scale."""
    hann = torch.hann_window(window)
    spectrum = torch.stft(sound, window, window // 4, window=hann, return_complex=True)
    # Not abs(), whose gradient has no bound at 0.
    strength = (spectrum.real.square() + spectrum.imag.square() + 1e-9).sqrt() * 2 / hann.sum()
    return 20 * (mel_bands(window) @ strength).clamp_min(QUIET).log10()


@cache
def mel_bands(window: int) -> Tensor:
    """Triangles (bands, window / 2 + 1) that lie evenly on the mel scale."""
    count = WINDOWS[window]
    top = 2595 * math.log10(1 + RATE / 2 / 700)
    edges = 700 * (10 ** (torch.linspace(0, top, count + 2) / 2595) - 1)
    low, middle, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    frequency = torch.linspace(0, RATE / 2, window // 2 + 1)
    rising, falling = (frequency - low) / (middle - low), (high - frequency) / (high - middle)
    return torch.minimum(rising, falling).clamp_min(0)


def spectrograms(sounds: dict[str, Tensor], path: Path) -> Path:
    """The spectrograms of sounds, one above the other."""
    figure, axes = plt.subplots(
        len(sounds), 1, figsize=(11, 1.75 * len(sounds)), sharex=True, layout="constrained"
    )
    for ax, (name, sound) in zip(axes, sounds.items(), strict=True):
        ax.specgram(
            sound.numpy(), NFFT=256, Fs=RATE / 1000, noverlap=192, vmin=-95, vmax=-20, cmap="magma"
        )
        ax.set_ylabel(f"{name}\n(kHz)")
        ax.grid(False)
    axes[-1].set_xlabel("milliseconds")
    save(figure, path)
    # A quarter of the size: neighbours of noise have little in common, and few colours say as much.
    Image.open(path).convert("RGB").quantize(48).save(path, optimize=True)
    return path
