"""Reading models and checkpoints without the packages that wrote them."""

from __future__ import annotations

import importlib
import json
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchvq.convert._codec import ConversionError

# Keys under which packages nest the state dict in their checkpoints.
_INSIDE = ("state_dict", "best_state", "model")
# What trainers save beside the weights.
_BESIDE = re.compile(r"(training_args|optimizer|scheduler|scaler|sampler|rng_state)(_\d+)?")
# What torch's reader of tensors raises for files of other kinds.
_UNREADABLE = (
    *(pickle.UnpicklingError, RuntimeError, EOFError, ValueError),
    *(LookupError, TypeError, AttributeError),
)


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a directory or a file, and the content of its config.json, empty if there is none."""
    state: dict[str, Tensor] = {}
    places: dict[str, Path] = {}
    for file in files_of(path):
        found = _state_in(file, contents(file))
        for name in found:
            if name in state:
                raise ConversionError(
                    f"expected one checkpoint in {path}, but got {name} in {places[name].name} and {file.name}; "
                    "name the file to convert"
                )
        state |= found
        places |= dict.fromkeys(found, file)
    return state, _config(path if path.is_dir() else path.parent)


def files_of(path: Path) -> list[Path]:
    """The files with the tensors of a directory or a file."""
    if not path.exists():
        raise ConversionError(f"expected {path} to be a directory or a file, but it does not exist")
    return _weights(path) if path.is_dir() else [path]


def _weights(folder: Path) -> list[Path]:
    for pattern in ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.th"):
        files = [file for file in sorted(folder.glob(pattern)) if not file.is_dir()]
        found = [file for file in files if not _BESIDE.fullmatch(file.stem)]
        # Prefer model.safetensors to variants beside it, such as model.fp16.safetensors.
        plain = [file for file in found if file.stem.count(".") == 0]
        if plain or found:
            return plain or found
    raise ConversionError(
        f"expected {folder} to hold .safetensors, .bin, .pt, .pth or .th, but it holds none"
    )


def _config(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    if not file.is_file():
        return {}
    try:
        said = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConversionError(f"expected {file} to be JSON, but {error}") from error
    return said if isinstance(said, dict) else {}


def contents(file: Path) -> Any:
    """What a file holds: by name, every tensor of a .safetensors file; of any other what torch.load reads.

    Raises:
        ConversionError: when it cannot be read as such a file.
        OSError: when it cannot be opened.
    """
    if not file.is_file():  # opening a pipe would wait for its writer
        found = "it is none" if file.exists() else "it does not exist"
        raise ConversionError(f"expected {file} to be a file, but {found}")
    if file.suffix == ".safetensors":
        return _safetensors_in(file)
    try:
        # With mmap, only the quantizer's part of a large model is read from disk.
        return _torch_load(file)
    except _UNREADABLE as error:
        raise ConversionError(
            f"expected {file} to hold tensors alone (of a pickled module save its state_dict(), or call "
            "torchvq.convert.convert(model, path)), but with weights_only=True torch.load cannot read it: "
            f"{(str(error) or type(error).__name__).splitlines()[0]}"
        ) from error


def _safetensors_in(file: Path) -> dict[str, Tensor]:
    safetensors_torch()
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as opened:
            state = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            names = opened.metadata() or {}
    except SafetensorError as error:
        raise ConversionError(f"expected {file} to be a safetensors file, but {error}") from error
    # save_model writes a tensor that modules share once; its other names are in the metadata.
    return state | {
        name: state[kept] for name, kept in names.items() if kept in state and name not in state
    }


def safetensors_torch() -> Any:
    """The module ``safetensors.torch``, of a package that torchvq does not require."""
    try:
        return importlib.import_module("safetensors.torch")
    except ImportError as error:
        raise ConversionError(
            "expected safetensors to be installed (pip install safetensors), but it is not"
        ) from error


def _torch_load(file: Path) -> Any:
    try:
        return torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError:  # the older format cannot be mapped
        return torch.load(file, map_location="cpu", weights_only=True)


def _state_in(file: Path, loaded: Any) -> dict[str, Tensor]:
    for key in _INSIDE:
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    if not isinstance(loaded, dict):
        raise ConversionError(
            f"expected {file} to hold a state dict, but got {type(loaded).__name__}"
        )
    return tensors_in(loaded)


def tensors_in(state: Mapping[Any, Any]) -> dict[str, Tensor]:
    """What has a name and is a tensor; checkpoints may hold more."""
    return {
        key: value
        for key, value in state.items()
        if isinstance(key, str) and isinstance(value, Tensor)
    }
