"""The examples run as their README says: the scripts, the demo, and the C++ programs that it calls."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from cli_support import BUILD, ROOT
from PIL import Image
from safetensors.torch import load_file

import torchvq

EXAMPLES = ROOT / "examples" / "python"
PROGRAMS = BUILD / "examples" / "cpp"
sys.path.insert(0, str(EXAMPLES / "demo"))

from model import VQAutoencoder  # noqa: E402
from train import judge  # noqa: E402


def run(*command: object, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Runs a program on one thread, with the same torchvq as these tests."""
    package = str(Path(torchvq.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": package, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def run_demo(*options: object) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, EXAMPLES / "demo" / "demo.py", "--smoke", *options)


def program(name: str) -> Path:
    path = PROGRAMS / name
    if not path.is_file():
        pytest.fail(f"{path} is missing; `make build` builds it", pytrace=False)
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of pictures in several formats, with some files that are not pictures."""
    folder = tmp_path / "photos"
    (folder / "holiday").mkdir(parents=True)
    random = np.random.default_rng(0)
    for index, name in enumerate(["a.png", "b.jpg", "holiday/c.webp", "d.bmp", "e.gif", "f.tiff"]):
        pixels = random.integers(0, 256, (40 + index, 70, 3), np.uint8)
        Image.fromarray(pixels).save(folder / name)
    (folder / "broken.png").write_bytes((folder / "a.png").read_bytes()[:200])
    (folder / "letter.txt").write_text("Dear all,")
    (folder / "empty.jpg").touch()
    os.mkfifo(folder / "pipe.png")
    return folder


@pytest.mark.parametrize("ranks", [2, 3])
def test_verify_ranks(ranks: int) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = run(*torchrun, f"--nproc-per-node={ranks}", EXAMPLES / "verify_ranks.py")
    assert done.returncode == 0, done.stderr
    whole = re.search(r"one process with all tokens: (\S+) bits", done.stdout)
    assert whole, done.stdout
    assert len(re.findall(f"reported {whole[1]}", done.stdout)) == ranks
    assert "replicas are identical" in done.stdout


def test_verify_ranks_says_how_it_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    done = run(sys.executable, EXAMPLES / "verify_ranks.py")
    assert done.returncode == 1
    assert done.stderr.startswith("verify_ranks: start it by torchrun ")


@pytest.mark.parametrize("ranks", [1, 2])
def test_profile_of_a_step(ranks: int, tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    start = [sys.executable] if ranks == 1 else [*torchrun, f"--nproc-per-node={ranks}"]
    small = ["--steps", 2, "--batch", 2, "--size", 16, "--dim", 8, "--levels", 2, "--codes", 16]
    trace = tmp_path / "trace.json"
    done = run(*start, EXAMPLES / "profile_step.py", *small, "--bf16", "--trace", trace)
    assert done.returncode == 0, done.stderr
    lines = re.findall(r"^\| (.+?) \| ([\d.]+) % \|$", done.stdout, re.M)
    shares = {name: float(share) for name, share in lines}
    # Each share is rounded to a tenth of a percent.
    assert sum(shares.values()) == pytest.approx(100, abs=0.5)
    quantizer = {"quantizer: search", "quantizer: statistics and update", "losses"}
    present = quantizer | {"encoder and decoder", "casts", "backward", "optimizer"}
    assert shares.keys() == present | {"collectives", "rest"}
    present |= {"collectives"} if ranks > 1 else set()
    assert all(shares[part] > 0 for part in present), shares
    # With two ranks, the profile has an entry for the wait inside the quantizer.
    assert ("torchvq::collective" in trace.read_text()) == (ranks > 1)


@pytest.mark.parametrize("name", ["ten_lines.py", "drop_in.py"])
def test_script_runs(name: str) -> None:
    done = run(sys.executable, EXAMPLES / name)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_drop_in_learns() -> None:
    losses = [
        float(number)
        for number in re.findall(
            r"loss ([\d.]+)", run(sys.executable, EXAMPLES / "drop_in.py").stdout
        )
    ]
    assert losses[-1] < losses[0] / 4


def test_demo_on_a_folder_with_more_than_pictures(photos: Path, tmp_path: Path) -> None:
    output = tmp_path / "output"
    decoder = program("decode_tokens")
    done = run_demo("--data", photos, "--size", 32, "--output", output, "--decoder", decoder)
    assert done.returncode == 0, done.stderr
    skipped = sorted(re.findall(r"skipped .*/(\S+): ", done.stderr))
    assert skipped == ["broken.png", "empty.jpg", "letter.txt"]
    assert "colour" in done.stdout
    page = (output / "index.html").read_text()
    assert page.count("data:image/png;base64,") == 7
    assert "http" not in page, "the page is to stand alone"
    names = ["codebook", "cpp", "projection", "reconstructions", "tokens", "training", "usage"]
    assert sorted(path.stem for path in output.glob("*.png")) == names
    difference = float(re.search(r"(\S+)  largest difference", done.stdout)[1])  # type: ignore[index]
    assert difference < 1e-5
    assert "code vectors: 0)" in done.stdout


def test_demo_repeats_itself(photos: Path, tmp_path: Path) -> None:
    said = {
        run_demo(
            "--data", photos, "--size", 16, "--output", tmp_path, "--codebook-size", 8
        ).stdout.split("\n\n")[1]
        for _ in range(2)
    }
    assert len(said) == 1


def test_demo_with_a_folder_without_pictures(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    done = run_demo("--data", tmp_path / "data", "--output", tmp_path / "output")
    assert done.returncode == 2
    assert re.fullmatch(
        r"demo: expected pictures in \S+, but found none that Pillow can read\n", done.stderr
    )


def test_demo_with_no_place_for_its_results(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run_demo("--output", tmp_path / "file" / "output")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


def write_idx(path: Path, pixels: np.ndarray) -> None:
    header = bytes([0, 0, 8, pixels.ndim]) + np.array(pixels.shape, ">u4").tobytes()
    path.write_bytes(header + pixels.tobytes())


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """A folder in the layout of MNIST: bright squares at random places."""
    random = np.random.default_rng(0)
    for part, count in (("train", 200), ("t10k", 50)):
        pixels = np.zeros((count, 28, 28), np.uint8)
        for picture, (y, x) in zip(pixels, random.integers(0, 20, (count, 2)), strict=True):
            picture[y : y + 8, x : x + 8] = 200
        write_idx(tmp_path / f"{part}-images-idx3-ubyte", pixels)
    return tmp_path


def test_cpp_training_gives_a_model_for_python(digits: Path) -> None:
    saved = digits / "vqvae.safetensors"
    options = ["--steps", 20, "--batch", 16, "--codebook-size", 32]
    done = run(program("vqvae"), "--data", digits, "--output", saved, *options)
    assert done.returncode == 0, done.stderr
    model = VQAutoencoder(channels=1, codebook_size=32)
    model.load_state_dict(load_file(saved), strict=True)
    content = (digits / "t10k-images-idx3-ubyte").read_bytes()[16:]
    unseen = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(-1, 1, 28, 28)
    quality = judge(model, unseen)
    said = {
        name: float(number)
        for number, name in re.findall(
            r"^ +([\d.]+)(?: dB| %)? +(PSNR|of|perplexity)", done.stdout, re.M
        )
    }
    assert said["PSNR"] == pytest.approx(quality.psnr, abs=0.006)
    assert said["of"] == pytest.approx(100 * quality.used, abs=0.06)
    assert said["perplexity"] == pytest.approx(quality.perplexity, abs=0.06)


def test_cpp_reads_compressed_files_of_any_name(digits: Path) -> None:
    folder = digits / "it's; a folder"
    folder.mkdir()
    for path in digits.glob("*-ubyte"):
        path.rename(folder / path.name)
    subprocess.run(["gzip", *map(str, folder.iterdir())], check=True)
    options = [
        "--steps",
        1,
        "--batch",
        4,
        "--codebook-size",
        4,
        "--output",
        digits / "out.safetensors",
    ]
    done = run(program("vqvae"), "--data", folder, *options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("200 pictures to learn from, 50 to judge by")


@pytest.mark.parametrize(
    "content", [b"", b"\0\0\x08\x03", b"\0\0\x08\x03" + b"\xff" * 12 + b"x" * 100]
)
def test_cpp_refuses_files_that_are_no_idx(digits: Path, content: bytes) -> None:
    (digits / "train-images-idx3-ubyte").write_bytes(content)
    done = run(program("vqvae"), "--data", digits, "--output", digits / "out.safetensors")
    assert done.returncode == 2
    assert done.stderr.startswith("vqvae: expected ")
    assert not (digits / "out.safetensors").exists()


@pytest.mark.parametrize(
    "options", [["--steps"], ["--steps", "0"], ["--stops", "1"], ["--batch", "x"]]
)
def test_cpp_refuses_options_it_does_not_know(options: list[str]) -> None:
    done = run(program("vqvae"), *options)
    assert done.returncode == 2
    assert done.stderr.startswith("vqvae: expected ")


def test_cpp_decoder_refuses_a_file_without_tokens(tmp_path: Path) -> None:
    (tmp_path / "tokens.safetensors").write_bytes(b"no such thing")
    done = run(program("decode_tokens"), tmp_path / "tokens.safetensors", tmp_path / "output")
    assert done.returncode == 1
    assert done.stderr.startswith("decode_tokens: ")


def test_cpp_residual_stack_is_trained_saved_and_decoded(tmp_path: Path) -> None:
    saved = tmp_path / "stack.safetensors"
    done = run(program("residual_vq"), saved)
    assert done.returncode == 0, done.stderr
    lost = [float(number) for number in re.findall(r"lost ([\d.]+)", done.stdout)]
    beam = float(re.search(r"beam of 8 ([\d.]+)", done.stdout)[1])  # type: ignore[index]
    assert lost[-1] < 0.1 and beam < lost[-1]
    assert "bit for bit" in done.stdout
    stack = torchvq.ResidualVQ(dim=32, num_quantizers=4, codebook_size=64)
    stack.load_state_dict(load_file(saved), strict=True)
    assert stack.layers[0]._codebook.initialised


def test_cpp_residual_stack_with_no_place_for_its_file(tmp_path: Path) -> None:
    done = run(program("residual_vq"), tmp_path / "nowhere" / "stack.safetensors")
    assert done.returncode == 1
    assert done.stderr.startswith("residual_vq: ") and done.stderr.count("\n") == 1
