"""What Opus and Codec 2 make of the recordings that audio_codec.py is judged by (apt install opus-tools codec2).

python examples/python/other_codecs.py --output codec

writes `other_codecs.json`, in the form of the table in `audio_codec.json`.
"""

import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from common import DemoError, main, options, write_record
from speech import (
    RATE,
    from_samples,
    mel_error,
    read_speech,
    read_wav,
    si_sdr,
    to_samples,
    write_wav,
)
from torch import Tensor


def command(*words: object) -> None:
    try:
        subprocess.run([str(word) for word in words], check=True, capture_output=True)
    except FileNotFoundError:
        raise DemoError(f"needs {words[0]}; apt install opus-tools codec2 brings it") from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().splitlines()
        raise DemoError(f"{words[0]} failed: {said[-1] if said else error.returncode}") from None


def opus(sound: Tensor, kbps: float, folder: Path) -> Tensor:
    """By its speech mode, 20 ms per frame, at a constant rate: bits of the container are not counted."""
    write_wav(folder / "in.wav", sound)
    quality = ["--speech", "--hard-cbr", "--framesize", 20, "--comp", 10, "--bitrate", f"{kbps:g}"]
    command("opusenc", *quality, folder / "in.wav", folder / "coded.opus")
    command("opusdec", "--rate", RATE, folder / "coded.opus", folder / "out.wav")
    return read_wav(folder / "out.wav")


def codec2(sound: Tensor, kbps: float, folder: Path) -> Tensor:
    mode = f"{1000 * kbps:.0f}"
    (folder / "in.raw").write_bytes(to_samples(sound))
    command("c2enc", mode, folder / "in.raw", folder / "coded.bits")
    command("c2dec", mode, folder / "coded.bits", folder / "out.raw")
    return from_samples((folder / "out.raw").read_bytes())


CODECS: list[tuple[str, Callable[[Tensor, float, Path], Tensor], float]] = [
    ("Codec 2", codec2, 1.2),
    ("Codec 2", codec2, 2.4),
    ("Codec 2", codec2, 3.2),
    ("Opus", opus, 6),
    ("Opus", opus, 8),
    ("Opus", opus, 12),
]


def measures(restored: Tensor, sound: Tensor) -> Tensor:
    """SI-SDR and log-mel error, at the delay of up to 40 ms that suits the second best."""
    found = []
    for delay in range(0, 321, 8):
        part = restored[delay:]
        length = min(len(part), len(sound))
        pair = part[:length], sound[:length]
        found.append(torch.stack([si_sdr(*pair), mel_error(*pair)]))
    return min(found, key=lambda pair: pair[1].item())


def run() -> None:
    said = options(__doc__.split("\n")[0], 0, "folder of 8 kHz WAV files (Debian's recordings)")
    _, unseen = read_speech(said.data)
    unseen = unseen[:2] if said.smoke else unseen
    table = []
    for name, codec, kbps in CODECS:
        sums = torch.zeros(2)
        for clip in unseen:
            with tempfile.TemporaryDirectory() as folder:
                sums += len(clip) * measures(codec(clip, kbps, Path(folder)), clip)
        ratio, error = (sums / sum(map(len, unseen))).tolist()
        table.append({"codec": name, "kbps": kbps, "si_sdr": ratio, "log_mel": error})
        print("{codec} at {kbps:g} kbit/s: {si_sdr:.1f} dB, {log_mel:.1f} dB".format(**table[-1]))
    write_record(said.output, "other_codecs", table=table)


if __name__ == "__main__":
    main(run)
