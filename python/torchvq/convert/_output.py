"""Where a codec is written: a file that appears complete or not at all, a pipe, or a device (docs/cli.md, Files)."""

from __future__ import annotations

import errno
import os
import secrets
import signal
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from torchvq.convert._codec import ConversionError

_ENDING = ".safetensors"
# They ask a program to end, which Python does at once, without an exception.
_ENDS = (signal.SIGTERM, signal.SIGHUP)


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
    # A rename asks for the folder's permission alone.
    if mode is not None and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    # In the same folder, because a rename cannot cross file systems.
    temporary = os.path.join(os.path.dirname(path), f".torchvq-{secrets.token_hex(4)}.tmp")
    with _removed_at_the_end(temporary):
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            # Some file systems report a full disk only here.
            _sync(file.fileno())
        if mode is not None:
            os.chmod(temporary, stat.S_IMODE(mode))
        os.replace(temporary, path)
    _sync_folder(os.path.dirname(path))


@contextmanager
def _removed_at_the_end(temporary: str) -> Iterator[None]:
    """Removes the file if the block raises, or a signal ends the program."""

    def end(number: int, _: FrameType | None) -> None:
        Path(temporary).unlink(missing_ok=True)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    # Python takes handlers from the main thread alone; those of the program stay.
    mine = threading.current_thread() is threading.main_thread()
    ends = [number for number in _ENDS if mine and signal.getsignal(number) is signal.SIG_DFL]
    for number in ends:
        signal.signal(number, end)
    try:
        yield
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    finally:
        for number in ends:
            signal.signal(number, signal.SIG_DFL)


def _sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Not every file system has it; those that do report a failed write here.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def _sync_folder(folder: str) -> None:
    # Makes the rename itself durable, where folders can be synchronised.
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
