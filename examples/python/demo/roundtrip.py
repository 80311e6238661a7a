"""From Python to C++ and back: the tokens, decoded by a program that knows nothing of Python."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from errors import DemoError
from model import VQAutoencoder
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

CHECKOUT = Path(__file__).resolve().parents[3]


@dataclass
class RoundTrip:
    """What C++ made of the tokens, and how far it is from what Python made of them."""

    program: str
    said: str
    pictures: Tensor  # (N, C, H, W), read from the picture files that C++ wrote
    codes_difference: float  # largest absolute difference of the code vectors
    pictures_difference: float  # and of the decoded pictures, with pixels in [0, 1]


def find_decoder(given: Path | None) -> Path | None:
    """The program decode_tokens: as given, as built by `make demo`, or on the path."""
    if given is not None:
        if not given.is_file():
            raise DemoError(f"expected --decoder to be a program, but there is no file {given}")
        return given.resolve()
    built = (
        CHECKOUT / os.environ.get("TORCHVQ_BUILD", "build") / "examples" / "cpp" / "decode_tokens"
    )
    if built.is_file():
        return built
    found = shutil.which("decode_tokens")
    return None if found is None else Path(found)


def save_for_decoding(model: VQAutoencoder, tokens: Tensor, path: Path) -> None:
    """Decoder, codebook and tokens in one safetensors file; the encoder is not needed."""
    state = {
        name: value for name, value in model.state_dict().items() if not name.startswith("encoder.")
    }
    save_file({**state, "tokens": tokens.contiguous()}, path)


@torch.no_grad()
def decode_in_cpp(program: Path, model: VQAutoencoder, tokens: Tensor, folder: Path) -> RoundTrip:
    """Writes tokens.safetensors, lets C++ decode it into `folder`, and compares."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens_file = folder / "tokens.safetensors"
    save_for_decoding(model, tokens, tokens_file)
    # As many threads as here: sums over channels may be split differently otherwise.
    environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    command = [str(program), str(tokens_file), str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise DemoError(f"{program.name} failed: {done.stderr.strip() or done.returncode}")
    decoded = load_file(folder / "decoded.safetensors")
    model.eval()
    codes = model.quantizer.get_codes_from_indices(tokens)
    return RoundTrip(
        program=shown(program),
        said=done.stdout.strip(),
        pictures=torch.stack([read_netpbm(file) for file in sorted(folder.glob("picture_*.p?m"))]),
        codes_difference=(decoded["codes"] - codes).abs().max().item(),
        pictures_difference=(decoded["pictures"] - model.decode(tokens)).abs().max().item(),
    )


def shown(path: Path) -> str:
    """A path as one would type it in the checkout."""
    return str(path.relative_to(CHECKOUT)) if path.is_relative_to(CHECKOUT) else str(path)


def read_netpbm(path: Path) -> Tensor:
    """(C, H, W) in [0, 1] of a .pgm or .ppm file."""
    with Image.open(path) as opened:
        pixels = np.asarray(opened, np.float32) / 255
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1)).permute(2, 0, 1)
