"""Where a codec is written: a file that appears complete or not at all, a pipe, or a device (docs/cli.md, Files)."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path

from torchvq.convert._codec import ConversionError

_ENDING = ".safetensors"


def check_output(path: str | os.PathLike[str], inputs: Iterable[Path]) -> None:
    """Raises ConversionError for a file of another ending, and for one of the inputs."""
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        return
    if not os.fspath(path).endswith(_ENDING):
        raise ConversionError(f"expected path to end in {_ENDING}, but got {os.fspath(path)}")
    for file in inputs:
        if os.path.isfile(path) and os.path.samefile(path, file):
            raise ConversionError(
                f"expected path to be another file than the source's, but got {file}"
            )


def write(path: str | os.PathLike[str], content: bytes | memoryview) -> None:
    """Writes all of a file. Links are followed; a file that was there stays whole until the new one is.

    Raises:
        OSError: when it cannot be written.
    """
    try:
        mode = _mode_of(path)
        if mode is None or stat.S_ISREG(mode):
            _replace(os.path.realpath(path), content, mode)
        else:
            _write_to(path, content)
    except OSError as error:
        raise OSError(f"cannot write {os.fspath(path)}: {error.strerror}") from error


def _mode_of(path: str | os.PathLike[str]) -> int | None:
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None


def _write_to(path: str | os.PathLike[str], content: bytes | memoryview) -> None:
    with open(path, "wb") as file:
        file.write(content)


def _replace(path: str, content: bytes | memoryview, mode: int | None) -> None:
    # In the same folder, because a rename cannot cross file systems.
    temporary = os.path.join(os.path.dirname(path), f".torchvq-{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(content)
        if mode is not None:
            os.chmod(temporary, stat.S_IMODE(mode))
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
