"""Loads libtorchvq, which registers every operator under ``torch.ops.torchvq``."""

from pathlib import Path

import torch


def _load() -> None:
    library = Path(__file__).parent / "lib" / "libtorchvq.so"
    if not library.exists():
        raise ImportError(
            f"torchvq: expected the compiled library to be at {library}, but it is missing; "
            "build it with `make build`, or install the package with `pip install --no-build-isolation .`"
        )
    torch.ops.load_library(str(library))


_load()
