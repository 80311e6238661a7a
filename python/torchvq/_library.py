"""Loads libtorchvq, which registers every operator under ``torch.ops.torchvq``.

The versions are compared before the library is loaded: one built against another torch fails with
an undefined symbol, or loads and crashes later. A sentence that says what to do is better.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

_PACKAGE = Path(__file__).resolve().parent
_REBUILD = (
    "build it again with `pip install --no-build-isolation --force-reinstall --no-deps .` "
    "in its source folder"
)

#: For ``-DCMAKE_PREFIX_PATH``: leads ``find_package(torchvq)`` to the library of this package.
cmake_prefix_path: str = str(_PACKAGE / "share" / "cmake")


def _library_path() -> Path:
    # Another build of the library, for example the one that counts coverage (`make coverage`).
    override = os.environ.get("TORCHVQ_LIBRARY")
    library = Path(override) if override else _PACKAGE / "lib" / "libtorchvq.so"
    if not library.exists():
        raise ImportError(
            f"torchvq: expected the compiled library to be at {library}, but it is missing; "
            "build it with `make build`, or install it with `pip install --no-build-isolation .`"
        )
    return library


def _minor(version: str) -> list[str]:
    return version.split("+")[0].split(".")[:2]


def _check_torch(built: str, present: str) -> None:
    """Raises ImportError when library and process disagree about the minor version of torch."""
    if _minor(built) != _minor(present):
        series = ".".join(_minor(built))
        raise ImportError(
            f"torchvq: expected torch {series}, against which its library was built, "
            f"but found torch {present}; install it with `pip install 'torch=={series}.*'`, "
            f"or keep torch {present} and {_REBUILD}"
        )


def _load() -> None:
    library = _library_path()
    # Absent in a checkout that is used in place, where the build itself has looked for torch.
    record = library.with_name("torch_version.txt")
    if record.exists():
        _check_torch(record.read_text(encoding="utf-8").strip(), torch.__version__)
    try:
        torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
    except OSError as error:
        raise ImportError(
            f"torchvq: expected {library} to load into torch {torch.__version__}, "
            f"but it did not: {error}; {_REBUILD}"
        ) from error


_load()
