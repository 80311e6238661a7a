"""Loading the library: versions agree, and each failure is a sentence that says what to do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torchvq
from torchvq import _library, _torch_builds
from torchvq._torch_builds import SUPPORTED, folder_for

ROOT = Path(__file__).resolve().parents[2]


def import_with(library: str) -> str:
    """The last line that a Python process prints when it imports torchvq with TORCHVQ_LIBRARY set."""
    code = f"import os; os.environ['TORCHVQ_LIBRARY'] = {library!r}; import torchvq"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode != 0
    return run.stderr.strip().splitlines()[-1]


@pytest.fixture
def libraries(tmp_path):
    """The contents of a wheel built for three versions."""
    for version in ("2.9", "2.13", "2.15"):
        folder = tmp_path / f"torch{version}"
        folder.mkdir()
        (folder / "libtorchvq.so").touch()
    return tmp_path


def test_library_knows_the_version_of_the_package():
    assert torchvq.__version__ == torch.ops.torchvq.version()
    assert torchvq.__version__ == (ROOT / "VERSION").read_text().strip()


def test_library_was_built_against_the_torch_that_is_present():
    built = torch.ops.torchvq.torch_version()
    assert built.split(".")[:2] == torch.__version__.split(".")[:2]


@pytest.mark.parametrize("present", ["2.13.0", "2.13.1+cpu", "2.13.0+cu130", "2.13.0a0+git123"])
def test_library_of_the_minor_version_is_taken(present, libraries):
    assert folder_for(present, libraries) == libraries / "torch2.13"


def test_library_of_each_minor_version_is_taken(libraries):
    assert folder_for("2.9.1", libraries) == libraries / "torch2.9"
    assert folder_for("2.15.0+cu132", libraries) == libraries / "torch2.15"


@pytest.mark.parametrize("present", ["2.12.1", "2.14.0+cpu"])
def test_torch_without_a_library_is_told_both_ways_out(present, libraries):
    with pytest.raises(ImportError, match=r"expected torch 2\.9 or 2\.13 or 2\.15, for") as caught:
        folder_for(present, libraries)
    assert f"but found torch {present}; install it with `pip install 'torch==2.15.*'`" in str(
        caught.value
    )
    assert f"or keep torch {present} and build torchvq for it" in str(caught.value)


@pytest.mark.parametrize("present", ["3.13.0", "2.1.3", "2.16.0.dev20261122+cu132"])
def test_torch_that_is_not_supported_is_told_what_to_install(present, libraries):
    with pytest.raises(
        ImportError, match=r"install it with `pip install 'torch==2\.15\.\*'`"
    ) as caught:
        folder_for(present, libraries)
    assert "build torchvq for it" not in str(caught.value)
    assert str(caught.value).endswith("(torchvq supports torch 2.11 to 2.15)")


def test_package_without_any_library_is_told_to_build_it(tmp_path):
    with pytest.raises(ImportError, match=r"library to be in .*torch2\.13, but") as caught:
        folder_for("2.13.0", tmp_path)
    assert "make build" in str(caught.value)


def test_supported_versions_are_those_of_every_file():
    listed = (ROOT / "cmake/torch_versions.cmake").read_text()
    assert tuple(re.search(r"TORCHVQ_TORCH_VERSIONS (.+)\)", listed)[1].split()) == SUPPORTED
    first, last = SUPPORTED[0], SUPPORTED[-1]
    major, minor = last.split(".")
    wanted = f"torch>={first},<{major}.{int(minor) + 1}"
    project = (ROOT / "pyproject.toml").read_text()
    assert f'dependencies = ["{wanted}"]' in project
    assert re.search(r"^requires = .*", project, re.MULTILINE)[0].endswith(f'"{wanted}"]')
    assert f"| torch | {first} to {last}, CPU and CUDA builds |" in (ROOT / "README.md").read_text()
    table = (ROOT / "docs/versions.md").read_text()
    assert tuple(re.findall(r"^\| (\d+\.\d+)\.", table, re.MULTILINE)) == SUPPORTED


def test_library_that_is_missing_is_named(tmp_path):
    message = import_with(str(tmp_path / "nowhere.so"))
    assert message.startswith("ImportError: torchvq: expected TORCHVQ_LIBRARY to be a file")
    assert "nowhere.so" in message


def test_library_that_does_not_load_is_explained(tmp_path):
    broken = tmp_path / "libtorchvq.so"
    broken.write_bytes(b"not a library")
    message = import_with(str(broken))
    assert message.startswith("ImportError: torchvq: expected")
    assert f"to load into torch {torch.__version__}, but it did not" in message
    assert "pip install" in message


@pytest.mark.parametrize("built", ["2.12.0", "3.13.0"])
def test_library_named_by_hand_that_was_built_against_another_torch_is_refused(built):
    with pytest.raises(ImportError, match=r"expected the library of torch 2\.13, but") as caught:
        _library._check_torch(built, "2.13.1+cpu")
    assert built in str(caught.value)


# The command line's launcher ------------------------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path):
    """A site-packages folder: torch 2.13.1, and torchvq with programs that print their own version."""
    torch_folder = tmp_path / "torch"
    torch_folder.mkdir()
    (torch_folder / "__init__.py").write_text("raise ImportError('it takes a second')")
    (torch_folder / "version.py").write_text("__version__ = '2.13.1+cu130'\ncuda = '13.0'\n")
    package = tmp_path / "torchvq"
    package.mkdir()
    (package / "__init__.py").write_text("import torch")
    shutil.copy(_torch_builds.__file__, package)
    for version in ("2.13", "2.15"):
        folder = package / "lib" / f"torch{version}"
        folder.mkdir(parents=True)
        (folder / "libtorchvq.so").touch()
        (folder / "torchvq").write_text(
            f'#!/bin/sh\necho {version} "$@" "$LD_LIBRARY_PATH"; exit 7\n'
        )
        (folder / "torchvq").chmod(0o755)
    return tmp_path


def launch(*paths: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        **variables,
    }
    command = [sys.executable, "-S", str(ROOT / "python/scripts/torchvq"), "fit", "a b"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_launcher_becomes_the_program_of_the_torch_that_is_there(site):
    run = launch(site)
    assert (run.stdout, run.stderr, run.returncode) == ("2.13 fit a b \n", "", 7)


def test_launcher_leads_the_program_to_a_torch_that_lies_elsewhere(site, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    (site / "torch").rename(other / "torch")
    assert launch(site, other).stdout == f"2.13 fit a b {other}/torch/lib\n"
    run = launch(site, other, LD_LIBRARY_PATH="/mine")
    assert run.stdout == f"2.13 fit a b {other}/torch/lib:/mine\n"


def test_launcher_says_in_one_line_that_the_torch_there_has_no_program(site):
    (site / "torch/version.py").write_text("__version__ = '2.14.0'\n")
    run = launch(site)
    assert run.returncode == 1
    assert run.stderr.startswith("torchvq: expected torch 2.13 or 2.15, for which")
    assert len(run.stderr.splitlines()) == 1


def test_launcher_says_in_one_line_that_there_is_no_torch(site):
    shutil.rmtree(site / "torch")
    run = launch(site)
    assert run.returncode == 1
    assert run.stderr.startswith("torchvq: expected torch to be installed for")
    assert len(run.stderr.splitlines()) == 1


def test_launcher_names_a_program_that_is_missing(site):
    program = site / "torchvq/lib/torch2.13/torchvq"
    program.unlink()
    run = launch(site)
    assert (run.returncode, len(run.stderr.splitlines())) == (1, 1)
    assert run.stderr.startswith(f"torchvq: expected the program at {program}, but found none")
