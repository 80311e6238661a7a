"""Loading the library: versions agree, and each way to fail is a sentence that says what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torchvq
from torchvq import _library


def import_with(library: str) -> str:
    """The last line of what a Python prints that imports torchvq with TORCHVQ_LIBRARY set."""
    code = f"import os; os.environ['TORCHVQ_LIBRARY'] = {library!r}; import torchvq"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode != 0
    return run.stderr.strip().splitlines()[-1]


def test_library_knows_the_version_of_the_package():
    assert torchvq.__version__ == torch.ops.torchvq.version()
    assert torchvq.__version__ == (Path(__file__).parents[2] / "VERSION").read_text().strip()


def test_library_was_built_against_the_torch_that_is_present():
    built = torch.ops.torchvq.torch_version()
    assert built.split(".")[:2] == torch.__version__.split(".")[:2]


@pytest.mark.parametrize("present", ["2.13.0", "2.13.1+cpu", "2.13.0+cu130", "2.13.0a0+git123"])
def test_library_accepts_torch_of_the_same_minor_version(present):
    _library._check_torch("2.13.0", present)


@pytest.mark.parametrize("present", ["2.12.1", "2.14.0+cpu", "3.13.0", "2.1.3"])
def test_library_refuses_another_torch_and_says_what_to_install(present):
    with pytest.raises(ImportError, match=r"pip install 'torch==2\.13\.\*'") as caught:
        _library._check_torch("2.13.0", present)
    assert present in str(caught.value)


def test_library_that_is_missing_is_named(tmp_path):
    message = import_with(str(tmp_path / "nowhere.so"))
    assert message.startswith("ImportError: torchvq: expected the compiled library to be at")
    assert "make build" in message


def test_library_that_does_not_load_is_explained(tmp_path):
    broken = tmp_path / "libtorchvq.so"
    broken.write_bytes(b"not a library")
    message = import_with(str(broken))
    assert message.startswith("ImportError: torchvq: expected")
    assert f"to load into torch {torch.__version__}, but it did not" in message
    assert "pip install" in message


def test_library_built_against_another_torch_is_refused_before_it_loads(tmp_path):
    broken = tmp_path / "libtorchvq.so"
    broken.write_bytes(b"would crash")
    (tmp_path / "torch_version.txt").write_text("2.12.0\n")
    message = import_with(str(broken))
    assert "expected torch 2.12, against which its library was built" in message
