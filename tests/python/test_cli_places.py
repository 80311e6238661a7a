"""Where the `torchvq` program writes: links, pipes, devices, standard output."""

from __future__ import annotations

import io
import os
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest
from cli_support import Array, cli_path, clusters, expect_bad_input, run

ENCODE = ["encode", "codec.safetensors", "x.npy", "-o"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", clusters(100, 4))
    assert run("fit", "x.npy", "-k", "8", "-o", "codec.safetensors", cwd=tmp_path).returncode == 0
    return tmp_path


@pytest.fixture
def codes(folder: Path) -> bytes:
    assert run(*ENCODE, "codes.npy", cwd=folder).returncode == 0
    return (folder / "codes.npy").read_bytes()


def encode_to_stdout(
    folder: Path, *options: str, stdout: int = subprocess.PIPE
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [str(cli_path()), *ENCODE, "/dev/stdout", *options],
        cwd=folder,
        stdout=stdout,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )


def test_standard_output_gets_the_array_alone(folder: Path, codes: bytes) -> None:
    result = encode_to_stdout(folder, "--quiet")
    assert (result.returncode, result.stdout, result.stderr) == (0, codes, b"")
    loaded: Array = np.load(io.BytesIO(result.stdout))
    assert loaded.shape == (100,)


@pytest.mark.parametrize("options", [[], ["--json"], ["--quiet", "--json"]], ids=" ".join)
def test_an_array_and_a_report_do_not_share_standard_output(
    folder: Path, options: list[str]
) -> None:
    result = encode_to_stdout(folder, *options)
    assert (result.returncode, result.stdout) == (2, b"")
    assert b"another place than standard output" in result.stderr
    assert result.stderr.count(b"\n") == 1


def test_an_array_and_progress_do_not_share_standard_error(folder: Path, codes: bytes) -> None:
    command = [*ENCODE, "/dev/stderr"]
    for options in ([], ["--json"]):
        expect_bad_input("another place than standard error", *command, *options, cwd=folder)
    result = subprocess.run(
        [str(cli_path()), *command, "--quiet"],
        cwd=folder,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", codes)


def test_standard_output_that_is_a_file_is_not_replaced_under_the_report(folder: Path) -> None:
    with open(folder / "out.npy", "wb") as file:
        result = subprocess.run(
            [str(cli_path()), *ENCODE, "out.npy"],
            cwd=folder,
            stdout=file,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert result.returncode == 2
    assert b"another place than standard output" in result.stderr
    assert (folder / "out.npy").read_bytes() == b""


@pytest.mark.parametrize("name", ["pipe", "pipe.npy"])
def test_a_pipe_gets_the_array_and_stays(folder: Path, codes: bytes, name: str) -> None:
    os.mkfifo(folder / name)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append((folder / name).read_bytes()))
    reader.start()
    assert run(*ENCODE, name, cwd=folder).returncode == 0
    reader.join(60)
    assert got == [codes]
    assert (folder / name).is_fifo()


def test_a_pipe_whose_reader_leaves_ends_the_program_quietly(folder: Path) -> None:
    np.save(folder / "x.npy", clusters(200000, 4))
    process = subprocess.Popen(
        [str(cli_path()), *ENCODE, "/dev/stdout", "--quiet"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        restore_signals=True,
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(60) == -13


@pytest.mark.parametrize("target", ["made.npy", "place/made.npy", "second.npy"])
def test_a_link_to_a_file_that_is_not_there_yet_is_followed(
    folder: Path, codes: bytes, target: str
) -> None:
    (folder / "place").mkdir()
    (folder / "second.npy").symlink_to("place/made.npy")
    (folder / "link.npy").symlink_to(target)
    assert run(*ENCODE, "link.npy", cwd=folder).returncode == 0
    assert (folder / "link.npy").is_symlink()
    assert (folder / target).read_bytes() == codes
    assert os.listdir(folder / "place") == ([] if target == "made.npy" else ["made.npy"])


def test_links_that_lead_nowhere(folder: Path) -> None:
    (folder / "link.npy").symlink_to("absent/made.npy")
    expect_bad_input("link.npy: cannot write: No such file", *ENCODE, "link.npy", cwd=folder)
    (folder / "link.npy").unlink()
    (folder / "link.npy").symlink_to("link.npy")
    expect_bad_input(
        "link.npy: cannot write: Too many levels of symbolic links",
        *ENCODE,
        "link.npy",
        cwd=folder,
    )
    assert (folder / "link.npy").is_symlink()


@pytest.mark.timeout(60)
def test_no_file_takes_the_place_of_a_standard_stream(folder: Path) -> None:
    """Otherwise what is written to standard error lands in the output."""
    np.save(folder / "many.npy", np.zeros((200_000, 4), np.float32))
    os.mkfifo(folder / "pipe.npy")
    command = f"exec {cli_path()} encode codec.safetensors many.npy -o pipe.npy <&- 2>&-"
    with subprocess.Popen(["bash", "-c", command], cwd=folder, stdout=subprocess.PIPE) as process:
        with (folder / "pipe.npy").open("rb") as pipe:
            pipe.read(1)  # more than a pipe holds is left, so that the program is still there
            opened = {n: os.readlink(f"/proc/{process.pid}/fd/{n}") for n in (0, 2)}
            pipe.read()
        assert process.wait() == 0
    assert opened == {0: "/dev/null", 2: "/dev/null"}
