"""Selects the library of this installation that was built for the installed torch.

Standard library only: the command line runs this before it starts, and importing torch takes a second.
"""

from __future__ import annotations

from pathlib import Path

#: The minor versions of torch that torchvq compiles against, as in cmake/torch_versions.cmake.
SUPPORTED = ("2.11", "2.12", "2.13", "2.14", "2.15")

_LIBRARIES = Path(__file__).resolve().parent / "lib"
_FROM_SOURCE = (
    "`pip install --no-build-isolation --force-reinstall --no-deps .` in its source folder"
)


def minor(version: str) -> str:
    """The minor version: 2.13 for 2.13.0+cu130."""
    return ".".join(version.split("+")[0].split(".")[:2])


def folder_for(torch_version: str, libraries: Path = _LIBRARIES) -> Path:
    """The folder with the library and the program for a version of torch.

    Raises:
        ImportError: there is none; the message says what to do.
    """
    folder = libraries / f"torch{minor(torch_version)}"
    if (folder / "libtorchvq.so").exists():
        return folder
    built = _built_for(libraries)
    if not built:
        raise ImportError(
            f"torchvq: expected the compiled library to be in {folder}, but it is missing; "
            "build it with `make build`, or install it with `pip install --no-build-isolation .`"
        )
    raise ImportError(
        f"torchvq: expected torch {' or '.join(built)}, for which this installation was built, but found torch "
        f"{torch_version}; {_remedy(built[-1], torch_version)}"
    )


def _built_for(libraries: Path) -> list[str]:
    found = (
        path.parent.name.removeprefix("torch") for path in libraries.glob("torch*/libtorchvq.so")
    )
    return sorted(found, key=lambda version: [int(part) for part in version.split(".")])


def _remedy(series: str, torch_version: str) -> str:
    install = f"install it with `pip install 'torch=={series}.*'`"
    if minor(torch_version) in SUPPORTED:
        return (
            f"{install}, or keep torch {torch_version} and build torchvq for it with {_FROM_SOURCE}"
        )
    return f"{install} (torchvq supports torch {SUPPORTED[0]} to {SUPPORTED[-1]})"
