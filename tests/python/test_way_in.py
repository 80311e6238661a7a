"""Things that a newcomer's machine may lack, one at a time: one sentence each, with the remedy.

Scripts of a line or two replace programs that are missing, too old or failing; the network, CMake and Python are real.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "tools"
# Programs that the scripts themselves run.
PROGRAMS = ("awk", "bash", "cat", "dirname", "env", "grep", "rm", "sed")


@pytest.fixture(autouse=True)
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs that the scripts keep go to a folder that pytest cleans up."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def program(folder: Path, name: str, script: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)
    return path


def run(
    *command: object, path: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs a command; programs in `path` come first in PATH."""
    environment = os.environ | {"LC_ALL": "C", "MAKEFLAGS": "", "TORCHVQ_BUILD": ""} | variables
    if path is not None:
        environment["PATH"] = f"{path}:{environment['PATH']}"
    return subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of a failed script; a traceback or a log would be more."""
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.startswith("Stopped: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_no_such_target() -> None:
    done = run("make", "nosuch")
    assert done.stderr.startswith(
        "Stopped: there is no target nosuch; `make` lists those there are\n"
    )


def test_no_python(tmp_path: Path) -> None:
    said = sentence(run(TOOLS / "make_venv.sh", "python4", tmp_path / "venv"))
    assert "no python4 found; install Python 3.11 or newer" in said


def test_python_too_old(tmp_path: Path) -> None:
    old = program(tmp_path, "old", "[[ $2 == *print* ]] && echo 3.9 || exit 1")
    said = sentence(run(TOOLS / "make_venv.sh", old, tmp_path / "venv"))
    assert "to be Python 3.11 or newer, but got 3.9; name a newer one with PYTHON=..." in said


def test_no_module_venv(tmp_path: Path) -> None:
    python = program(tmp_path, "python", f'[[ $2 != *ensurepip* ]] && exec {sys.executable} "$@"')
    said = sentence(run(TOOLS / "make_venv.sh", python, tmp_path / "venv"))
    assert "(Debian: apt-get install python3-venv)" in said
    assert not (tmp_path / "venv").exists()


def test_folder_that_cannot_be_written() -> None:
    # Not even root can write there.
    said = sentence(run(TOOLS / "make_venv.sh", sys.executable, "/proc/torchvq/venv"))
    assert "cannot write to /proc/torchvq; clone into a folder of your own" in said


def test_disk_with_little_room(tmp_path: Path) -> None:
    header = "Filesystem 1024-blocks Used Available Capacity Mounted"
    program(tmp_path, "df", f"echo '{header}'; echo 'disk 9000000 8100000 900000 90% /'")
    said = sentence(run(TOOLS / "make_venv.sh", sys.executable, tmp_path / "venv", path=tmp_path))
    assert "has 0 GB left, and 2 are needed; make room" in said


def test_another_system(tmp_path: Path) -> None:
    program(tmp_path, "uname", "echo Darwin")
    said = sentence(run(TOOLS / "make_venv.sh", sys.executable, tmp_path / "venv", path=tmp_path))
    assert "expected Linux, but got Darwin" in said


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A folder with the programs that the scripts run, but without compiler and apt-get."""
    folder = tmp_path / "bare"
    folder.mkdir()
    for name in PROGRAMS:
        found = shutil.which(name)
        assert found, name
        (folder / name).symlink_to(found)
    return folder


def test_no_compiler(bare: Path, tmp_path: Path) -> None:
    lists = ROOT / "requirements" / "debian-demo.txt"
    done = run(TOOLS / "install_debian.sh", tmp_path / "record", lists, PATH=str(bare), CXX="")
    assert "no C++ compiler found; install one (Debian: apt-get install g++)" in sentence(done)


def test_compiler_that_is_not_there(tmp_path: Path) -> None:
    lists = ROOT / "requirements" / "debian-demo.txt"
    done = run(TOOLS / "install_debian.sh", tmp_path / "record", lists, CXX="no-such-c++")
    assert "expected CXX to name a C++ compiler, but there is no no-such-c++" in sentence(done)


def old_compiler(folder: Path) -> Path:
    refuse = "echo \"c++: error: unrecognized command line option '-std=c++20'\" >&2; exit 1"
    known = f'[[ " $* " == *" -std=c++20 "* ]] && {{ {refuse}; }}\nexec c++ "$@"'
    return program(
        folder, "old-c++", f"[[ $1 == -dumpfullversion ]] && echo 8.3.0 && exit\n{known}"
    )


def test_compiler_too_old(tmp_path: Path) -> None:
    compiler = old_compiler(tmp_path)
    said = sentence(run(TOOLS / "check_compiler.sh", CXX=str(compiler)))
    assert "(8.3.0) does not compile C++20; install GCC 11 or newer and name it with CXX=" in said


def configure(tmp_path: Path, *options: str) -> str:
    """CMake's error message, in one line."""
    done = run("cmake", "-S", ROOT, "-B", tmp_path / "build", "-G", "Ninja", *options)
    assert done.returncode == 1
    return " ".join(done.stderr.split())


def test_compiler_too_old_for_cmake(tmp_path: Path) -> None:
    said = configure(tmp_path, f"-DCMAKE_CXX_COMPILER={old_compiler(tmp_path)}")
    assert "torchvq: expected a compiler of C++20, but" in said
    assert "install GCC 11 or newer" in said


def test_cmake_too_old(tmp_path: Path) -> None:
    script = tmp_path / "old.cmake"
    script.write_text(f'set(CMAKE_VERSION 3.18.4)\ninclude("{ROOT}/CMakeLists.txt")\n')
    said = " ".join(run("cmake", "-P", script).stderr.split())
    assert (
        "torchvq: expected CMake 3.24 or newer, but got 3.18.4; `pip install cmake` brings" in said
    )


@pytest.fixture(scope="module")
def python_without_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("empty") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", folder).check_returncode()
    return folder / "bin" / "python"


def test_no_torch_for_cmake(tmp_path: Path, python_without_torch: Path) -> None:
    said = configure(tmp_path, f"-DPython3_EXECUTABLE={python_without_torch}")
    assert "torchvq: expected torch to be importable by Python" in said


def test_no_torch_for_the_demo(python_without_torch: Path) -> None:
    demo = ROOT / "examples" / "python" / "demo" / "demo.py"
    done = run(python_without_torch, demo, PYTHONPATH="")
    assert done.returncode == 2
    assert done.stderr.startswith("demo: needs the Python package torch; ")
    assert done.stderr.count("\n") == 1


def test_configuring_says_the_sentence_of_cmake(tmp_path: Path) -> None:
    text = "CMake Error at cmake/x.cmake:3 (message):\n  torchvq: expected one,\n  but got two\n\nCall Stack"
    program(tmp_path, "cmake", f"echo '{text}' >&2; exit 1")
    done = run(TOOLS / "configure.sh", "dev", sys.executable, path=tmp_path)
    assert "Stopped: torchvq: expected one, but got two (" in sentence(done)


def test_no_network() -> None:
    done = run(
        *(
            TOOLS / "pip_install.sh",
            sys.executable,
            "torchvq-nosuch==1.0",
            "--target",
            "/proc/none",
        ),
        PIP_CONFIG_FILE=os.devnull,
        PIP_FIND_LINKS="",
        PIP_RETRIES="1",
        PIP_INDEX_URL="http://127.0.0.1:9/simple",
    )
    said = sentence(done)
    assert "pip reaches no package index for torchvq-nosuch==1.0" in said
    assert "connect to the network, or set PIP_INDEX_URL or HTTPS_PROXY" in said


@pytest.mark.parametrize(
    ("pip_says", "we_say"),
    [
        (
            "ERROR: Could not install: [Errno 28] No space left on device",
            "the disk is full; make room",
        ),
        ("ERROR: [Errno 30] Read-only file system: '/x'", "make it writable"),
        (
            "ERROR: No matching distribution found for torch==9.9",
            "pip finds no torch==9.9 for Python 3",
        ),
        (
            "  torchvq: expected torch 1,\n  but found 2\n\n  Call",
            "torchvq: expected torch 1, but found 2 (",
        ),
        ("ERROR: Something else", "pip could not install wheel==1: ERROR: Something else"),
        ("", "pip could not install wheel==1: it gave no reason"),
    ],
)
def test_pip_fails(pip_says: str, we_say: str, tmp_path: Path) -> None:
    script = f'[[ $1 == -m ]] || exec {sys.executable} "$@"\necho "{pip_says}" >&2; exit 1'
    python = program(tmp_path, "python", script)
    assert we_say in sentence(run(TOOLS / "pip_install.sh", python, "wheel==1"))


@pytest.mark.parametrize(
    ("compiler_says", "we_say"),
    [
        ("/tmp/x.s: No space left on device", "the disk is full; make room"),
        (
            "c++: fatal error: Killed signal terminated program cc1plus",
            "repeat with fewer at a time",
        ),
        ("x.cpp:3:1: error: expected a declaration", "the compilation failed as shown above"),
    ],
)
def test_compiling_fails(compiler_says: str, we_say: str, tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "build").mkdir()
    for name in ("compile.sh", "stop.sh"):
        shutil.copy(TOOLS / name, tmp_path / "tools")
    program(tmp_path, "cmake", f"echo '[1/9] Building x.o'; echo '{compiler_says}'; exit 1")
    done = run(tmp_path / "tools" / "compile.sh", "dev", 1, path=tmp_path)
    assert we_say in sentence(done)
    assert compiler_says in done.stdout and "Building" not in done.stdout
