"""A folder of somebody's pictures, whatever is in it, as tensors of one size."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from errors import DemoError
from PIL import Image, ImageOps
from torch import Tensor

MOST_PICTURES = 20_000
LARGEST_PICTURE = 200_000_000  # pixels; more is taken for a decompression bomb


def load_folder(folder: Path, size: int) -> tuple[Tensor, Tensor]:
    """All pictures in `folder` and the folders in it, cut to squares of `size`: (training, test).

    Grey when all pictures are grey, else colour. What is no picture is skipped with one line on standard error.
    """
    pictures = list(read_pictures(folder, size))
    if not pictures:
        raise DemoError(f"expected pictures in {folder}, but found none that Pillow can read")
    colour = any(not is_grey(picture) for picture in pictures)
    pixels = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2)
    pixels = pixels if colour else pixels[:, :1]
    pixels = pixels[torch.randperm(len(pixels), generator=torch.Generator().manual_seed(0))]
    tests = min(len(pixels) // 5, 1000)
    if tests == 0:
        say(
            f"{len(pixels)} pictures are too few to keep some for judging; judged on those learnt from"
        )
        return pixels.contiguous(), pixels.contiguous()
    return pixels[tests:].contiguous(), pixels[:tests].contiguous()


def read_pictures(folder: Path, size: int) -> Iterator[np.ndarray]:
    """Pictures (size, size, 3), uint8, in the order of their names."""
    count = 0
    for path in files_in(folder):
        if count == MOST_PICTURES:
            say(f"took the first {MOST_PICTURES} pictures of {folder}")
            return
        try:
            picture = read_picture(path, size)
        # Pillow's readers raise errors of every kind on damaged files.
        except Exception as error:
            say(f"skipped {path}: {reason(error)}")
            continue
        count += 1
        yield picture


def files_in(folder: Path) -> list[Path]:
    """Regular files, hidden ones left out; a pipe or a device would keep us waiting for ever."""
    try:
        if not folder.is_dir():
            raise DemoError(f"expected --data to be a folder, but {folder} is none")
        inside = sorted(folder.rglob("*"))
    except OSError as error:
        raise DemoError(f"cannot read {folder}: {error.strerror}") from None
    visible = (
        p for p in inside if not any(part.startswith(".") for part in p.relative_to(folder).parts)
    )
    return [path for path in visible if path.is_file()]


def read_picture(path: Path, size: int) -> np.ndarray:
    """One picture, upright, on white where it is transparent, its middle square scaled to (size, size, 3)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on metadata mostly; what matters raises
        Image.MAX_IMAGE_PIXELS = LARGEST_PICTURE // 2  # Pillow raises at twice this
        with Image.open(path) as opened:
            opened.draft("RGB", (2 * size, 2 * size))  # JPEG decodes large pictures at a fraction
            picture = ImageOps.exif_transpose(to_eight_bits(opened))
        if picture.mode in ("P", "PA", "LA", "La", "RGBa") or "transparency" in picture.info:
            picture = picture.convert("RGBA")
        if picture.mode == "RGBA":
            white = Image.new("RGBA", picture.size, "white")
            picture = Image.alpha_composite(white, picture)
        square = ImageOps.fit(picture.convert("RGB"), (size, size), Image.Resampling.LANCZOS)
    return np.asarray(square)


def to_eight_bits(picture: Image.Image) -> Image.Image:
    """Deep grey (16 or 32 bits, floating point) spread over 0 to 255; Pillow itself would clip it."""
    if not picture.mode.startswith(("I", "F")):
        picture.load()
        return picture
    values = np.nan_to_num(np.asarray(picture, np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    if picture.mode.startswith("I;16"):
        low, high = 0.0, 65535.0
    else:
        low, high = float(values.min()), float(values.max())
    scaled = (values - low) / max(high - low, np.finfo(np.float64).tiny)
    return Image.fromarray((255 * scaled).round().astype(np.uint8))


def is_grey(picture: np.ndarray) -> bool:
    channels = picture.astype(np.int16)
    return bool((np.abs(channels - channels[..., :1]) <= 1).all())


def reason(error: Exception) -> str:
    if isinstance(error, Image.UnidentifiedImageError):
        return "no picture that Pillow can read"
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


def say(line: str) -> None:
    print(f"demo: {line}", file=sys.stderr)
