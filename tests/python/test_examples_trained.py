"""The examples that train: each runs a few steps and writes what its page describes."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli_support import ROOT
from PIL import Image
from safetensors.torch import load_file

import torchvq

EXAMPLES = ROOT / "examples" / "python"
sys.path[:0] = [str(ROOT / "tools"), str(EXAMPLES), str(EXAMPLES / "demo")]

import examples_page  # noqa: E402
import speech  # noqa: E402
from audio_codec import Codec  # noqa: E402
from generate import Writer  # noqa: E402
from hierarchical import CoarseToFine  # noqa: E402
from image_autoencoders import QUANTIZERS, Autoencoder  # noqa: E402
from model import VQAutoencoder  # noqa: E402


def run(name: str, *options: object) -> subprocess.CompletedProcess[str]:
    package = str(Path(torchvq.__file__).parents[1])
    command = [sys.executable, EXAMPLES / f"{name}.py", "--threads", 1, *options]
    return subprocess.run(
        [str(part) for part in command],
        env=os.environ | {"PYTHONPATH": package, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def record_of(name: str, folder: Path, *options: object) -> dict[str, Any]:
    """Runs an example, a dozen steps unless told otherwise, and reads the figures that it wrote."""
    options = options or ("--smoke",)
    done = run(name, "--output", folder, *options)
    assert done.returncode == 0, done.stderr
    picture = Image.open(folder / f"{name}.png")
    assert np.asarray(picture.convert("L")).std() > 10, "an empty picture"
    record = json.loads((folder / f"{name}.json").read_text())
    assert examples_page.TABLES[name](record).count("\n") > 2
    return record


def falls(losses: list[float]) -> bool:
    """Whether the last losses are below the first ones."""
    return sum(losses[-3:]) < sum(losses[:3])


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    """Syllables of a harmonic voice, in 20 WAV files of a second and a half; one folder contains only silence."""
    random = np.random.default_rng(0)
    time = np.arange(int(1.5 * speech.RATE)) / speech.RATE
    folder = tmp_path / "recordings"
    (folder / "silence").mkdir(parents=True)
    for index in range(20):
        pitch = 2 * np.pi * (90 + 60 * random.random()) * (time + 0.01 * np.sin(5 * time))
        voice = sum(np.sin(n * pitch + n) * random.random() / n for n in range(1, 12))
        loud = np.sin(2 * np.pi * (2 + random.random()) * time).clip(0)
        write_wav(folder / f"{index:02}.wav", 0.2 * voice * loud)
    write_wav(folder / "silence" / "1.wav", np.zeros(speech.RATE))
    return folder


def write_wav(path: Path, sound: np.ndarray, rate: int = speech.RATE) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((sound * 32767).astype("<i2").tobytes())


def test_image_autoencoders(tmp_path: Path) -> None:
    record = record_of("image_autoencoders", tmp_path)
    assert record["table"].keys() == QUANTIZERS.keys()
    for name, row in record["table"].items():
        assert falls(row["losses"]), name
        assert 0 < row["used"] <= 1
        assert 1 <= row["perplexity"] <= row["codes"]
        model = Autoencoder(1, QUANTIZERS[name]())
        model.load_state_dict(load_file(tmp_path / f"{name}.safetensors"))
        quantized, tokens = model.eval().quantizer(torch.randn(2, 32, 7, 7))[:2]
        assert tokens.min() >= 0 and tokens.max() < row["codes"]
        with torch.no_grad():
            assert torch.equal(model.decode(tokens), model.decoder(quantized).clamp(0, 1)), name


def test_hierarchical(tmp_path: Path) -> None:
    record = record_of("hierarchical", tmp_path)
    assert falls(record["losses"])
    assert [row["tokens"] for row in record["table"]] == [1, 5, 14, 30, 55, 104]
    assert record["table"][-1]["bits"] == 104 * 9
    model = CoarseToFine(1)
    model.load_state_dict(load_file(tmp_path / "hierarchical.safetensors"))
    x = torch.rand(2, 1, 28, 28)
    with torch.no_grad():
        whole, tokens, _ = model.eval()(x)
        assert torch.equal(model.decode(tokens, 6), whole.clamp(0, 1))
        tokens = (*tokens[:2], *(torch.zeros_like(part) for part in tokens[2:]))
        # The finer scales are replaced by those of another picture, which decoding two scales must not read.
        assert torch.equal(model.decode(tokens, 2), model.decode(model(x)[1], 2))
        assert not torch.equal(model.decode(tokens, 3), model.decode(model(x)[1], 3))


def write_pictures(folder: Path, count: int) -> None:
    """Pictures in colour, of a size of their own each."""
    folder.mkdir()
    random = np.random.default_rng(0)
    for index in range(count):
        pixels = random.integers(0, 255, (37 + 3 * index, 91 - index, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{index}.png")


@pytest.mark.parametrize("name", ["hierarchical", "generate", "image_autoencoders"])
def test_pictures_of_ones_own(name: str, tmp_path: Path) -> None:
    write_pictures(tmp_path / "photos", 6)
    options = ("--smoke", "--steps", 2, "--data", tmp_path / "photos")
    record = record_of(name, tmp_path / "output", *options)
    if name == "hierarchical":
        assert record["table"][-1]["tokens"] == 104


def test_generate_refuses_a_single_picture(tmp_path: Path) -> None:
    write_pictures(tmp_path / "photos", 1)
    done = run("generate", "--data", tmp_path / "photos", "--output", tmp_path / "output")
    assert done.returncode == 1
    assert done.stderr.endswith("is kept for judging, but got 1\n")


def test_no_place_for_the_results(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run("hierarchical", "--output", tmp_path / "file")
    assert done.returncode == 1
    assert done.stderr == f"hierarchical: cannot write to {tmp_path / 'file'}: File exists\n"


@pytest.mark.parametrize("option", ["--steps", "--threads"])
def test_options_below_nothing_are_refused(option: str, tmp_path: Path) -> None:
    done = run("hierarchical", "--output", tmp_path, option, -1)
    assert done.returncode == 2
    assert done.stderr.endswith(
        "expected --steps to be at least 0, and --threads to be at least 1\n"
    )


def test_generate(tmp_path: Path) -> None:
    record = record_of("generate", tmp_path)
    assert falls(record["losses"])
    assert record["losses"][0] == pytest.approx(math.log(512), rel=0.1)
    writer, tokenizer = Writer(10, 49), VQAutoencoder(1)
    writer.load_state_dict(load_file(tmp_path / "writer.safetensors"))
    tokenizer.load_state_dict(load_file(tmp_path / "tokenizer.safetensors"))
    tokens = writer.eval().write(torch.tensor([0, 9, 3]))
    assert tokens.shape == (3, 49) and tokens.min() >= 0 and tokens.max() < 512
    with torch.no_grad():
        assert tokenizer.eval().decode(tokens.view(3, 7, 7)).shape == (3, 1, 28, 28)


def test_writer_sees_nothing_of_what_follows() -> None:
    writer, tokens = Writer(2, 9).eval(), torch.randint(512, (1, 8))
    changed = tokens.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 512
    with torch.no_grad():
        before, after = (writer(torch.tensor([1]), part) for part in (tokens, changed))
    torch.testing.assert_close(before[:, :6], after[:, :6])
    assert (before[:, 6:] - after[:, 6:]).abs().max() > 1e-3


def test_audio_codec(tmp_path: Path, recordings: Path) -> None:
    record = record_of("audio_codec", tmp_path, "--steps", 60, "--data", recordings)
    # The first step is left out: its codes are its own tokens. Means, because the depth of each step is drawn.
    assert sum(record["losses"][-15:]) < sum(record["losses"][1:16])
    # Of 20 recordings every 16th (the first and the 17th) is held out, and silence is not used at all.
    assert record["speech"] == pytest.approx(18 * 1.5)
    rows = record["table"]
    assert [row["kbps"] for row in rows] == [level / 2 for level in range(1, 13)]
    assert rows[-1]["si_sdr"] > rows[0]["si_sdr"] + 1, "more bits, a better sound"
    original = speech.read_wav(tmp_path / "speech.wav")
    # Every sample lies in two frames, including those at both ends.
    frames = math.ceil(len(original) / 160) + 1
    for levels, name in ((2, "1kbps"), (4, "2kbps"), (6, "3kbps"), (12, "6kbps")):
        assert len(speech.read_wav(tmp_path / f"speech_{name}.wav")) == len(original)
        content = (tmp_path / f"speech_{name}.bin").read_bytes()
        assert len(content) == math.ceil(frames * levels * 10 / 8)
    codec = Codec()
    codec.load_state_dict(load_file(tmp_path / "audio_codec.safetensors"))
    with torch.no_grad():
        tokens = codec.eval().encode(original[None])[0]
    assert tokens.min() >= 0 and tokens.max() < 1024
    assert torch.equal(speech.unpack(content, 10).view(-1, 12), tokens)


def test_untrained_codec_is_a_transform_and_its_inverse() -> None:
    codec, sound = Codec().eval(), torch.randn(1, 1600)
    with torch.no_grad():
        restored = codec.sound(codec.latents(sound))
    assert speech.si_sdr(restored, sound).item() > 30


def test_measures_of_sound() -> None:
    generator = torch.Generator().manual_seed(0)
    sound, noise = torch.randn(2, 64000, generator=generator) * 0.1
    # Noise of a tenth of the amplitude is 20 dB at any volume.
    assert speech.si_sdr(3 * (sound + noise / 10), sound).item() == pytest.approx(20, abs=0.2)
    assert speech.mel_error(sound / 10, sound).item() == pytest.approx(20, abs=0.01)


def test_audio_codec_without_speech(tmp_path: Path) -> None:
    done = run("audio_codec", "--data", tmp_path, "--output", tmp_path / "output")
    assert done.returncode == 1
    assert "apt install asterisk-core-sounds-en-wav" in done.stderr
    assert done.stderr.count("\n") == 1


def test_audio_codec_with_less_speech_than_a_crop(tmp_path: Path) -> None:
    write_wav(tmp_path / "a.wav", np.zeros(16000))
    write_wav(tmp_path / "b.wav", np.zeros(2400))
    done = run("audio_codec", "--data", tmp_path, "--output", tmp_path / "output")
    assert done.returncode == 1
    assert "expected more than 1 s of speech to learn from, but got 0.3 s" in done.stderr
    assert done.stderr.count("\n") == 1


def test_audio_codec_refuses_a_recording_that_is_cut_short(tmp_path: Path) -> None:
    for name in ("a.wav", "b.wav"):
        (tmp_path / name).write_bytes(b"RI")
    done = run("audio_codec", "--data", tmp_path, "--output", tmp_path / "output")
    assert done.returncode == 1
    assert done.stderr.endswith("a.wav: it is cut short\n")


def test_audio_codec_refuses_another_rate(tmp_path: Path) -> None:
    write_wav(tmp_path / "a.wav", np.zeros(16000), rate=16000)
    done = run("audio_codec", "--data", tmp_path, "--output", tmp_path / "output")
    assert done.returncode == 1
    assert "to be 8 kHz, mono, 16 bits, but got (16000, 1, 2)" in done.stderr


def test_other_codecs(tmp_path: Path, recordings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for the programs copy their input, the last argument but one, so nothing is lost but rounding."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("opusenc", "opusdec", "c2enc", "c2dec"):
        (programs / name).write_text(
            '#!/bin/sh\nfor a; do from=$to; to=$a; done; cp "$from" "$to"\n'
        )
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    options = ("--smoke", "--data", recordings, "--output", tmp_path)
    done = run("other_codecs", *options)
    assert done.returncode == 0, done.stderr
    table = json.loads((tmp_path / "other_codecs.json").read_text())["table"]
    assert [row["kbps"] for row in table] == [1.2, 2.4, 3.2, 6, 8, 12]
    assert all(row["si_sdr"] > 50 and row["log_mel"] < 0.1 for row in table)

    (programs / "c2dec").write_text("#!/bin/sh\necho no such mode >&2; exit 1\n")
    done = run("other_codecs", *options)
    assert done.returncode == 1 and done.stderr == "other_codecs: c2dec failed: no such mode\n"


@pytest.mark.parametrize("name", examples_page.recorded())
def test_page_shows_the_recorded_figures(name: str) -> None:
    page = (ROOT / "docs" / "examples.md").read_text()
    record = json.loads((ROOT / "docs" / "examples" / f"{name}.json").read_text())
    assert examples_page.fill(page, name, record) == page, "run tools/examples_page.py"


PICTURED = sorted({*examples_page.PICTURES} & {*examples_page.recorded()})


@pytest.mark.parametrize("name", PICTURED)
def test_page_shows_the_pictures(name: str) -> None:
    assert f"(examples/{name}.png)" in (ROOT / "docs" / "examples.md").read_text()
    picture = Image.open(ROOT / "docs" / "examples" / f"{name}.png")
    assert np.asarray(picture.convert("L")).std() > 10, "an empty picture"


def test_sounds_of_the_page_are_short() -> None:
    page = (ROOT / "docs" / "examples.md").read_text()
    files = sorted((ROOT / "docs" / "examples").glob("*.wav"))
    assert all(f"(examples/{file.name})" in page for file in files)
    assert sum(file.stat().st_size for file in files) < 300_000
