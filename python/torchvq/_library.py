"""Loads libtorchvq, which registers every operator under ``torch.ops.torchvq``.

A library built for another minor version of torch fails to load with an undefined symbol, or loads and crashes later.
So there is one library for each version, and a message that says what to do if there is none.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from torchvq._torch_builds import folder_for, minor

#: For ``-DCMAKE_PREFIX_PATH``, so that ``find_package(torchvq)`` finds the library of this package.
cmake_prefix_path: str = str(Path(__file__).resolve().parent / "share" / "cmake")


def _library_path() -> Path:
    # Loads another build of the library, for example the one that counts coverage (`make coverage`).
    override = os.environ.get("TORCHVQ_LIBRARY")
    if not override:
        return folder_for(torch.__version__) / "libtorchvq.so"
    if not Path(override).exists():
        raise ImportError(
            f"torchvq: expected TORCHVQ_LIBRARY to be a file, but got {override}, which is missing"
        )
    return Path(override)


def _load(library: Path) -> None:
    try:
        torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
    except OSError as error:
        raise ImportError(
            f"torchvq: expected {library} to load into torch {torch.__version__}, but it did not: {error}; "
            "build it again with `pip install --no-build-isolation --force-reinstall --no-deps .` "
            "in its source folder"
        ) from error
    _check_torch(torch.ops.torchvq.torch_version(), torch.__version__)


def _check_torch(built: str, present: str) -> None:
    """Raises ImportError if library and process have different minor versions of torch."""
    if minor(built) != minor(present):
        raise ImportError(
            f"torchvq: expected the library of torch {minor(present)}, but TORCHVQ_LIBRARY was built against {built}; "
            "lead TORCHVQ_LIBRARY to another, or unset it"
        )


_load(_library_path())
