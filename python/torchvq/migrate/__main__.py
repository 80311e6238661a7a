"""``python -m torchvq.migrate``: what changes for a model of ``vector_quantize_pytorch``, and the model in torchvq."""

import argparse
import io
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchvq.convert._checkpoints import contents, safetensors_torch
from torchvq.convert._codec import ConversionError
from torchvq.convert._output import write
from torchvq.migrate._convert import (
    MigrationError,
    NotCompared,
    ReferenceQuantizer,
    agreement,
    converted,
    model_of_call,
    model_of_file,
)
from torchvq.migrate.differences import as_text, touching

_DESCRIPTION = """\
Says what changes when a model of vector_quantize_pytorch moves to torchvq, converts its quantizers with their options
and state, and compares both on random tokens.

  python -m torchvq.migrate model.py --output model.safetensors
      model.py is run; `model` in it (or --name) is a module, or a function without arguments that returns one. Every
      quantizer in it is converted. The file written is the state dict of the whole model.
  python -m torchvq.migrate checkpoint.pt --build 'ResidualVQ(dim=256, num_quantizers=8, codebook_size=1024)'
      A state dict does not say how its module was built, so --build does; --prefix are the letters before its keys.
"""


def main(arguments: list[str] | None = None) -> int:
    """Runs the program; the exit status is 1 where tokens differ by more than ties, 2 for errors."""
    given = _parser().parse_args(arguments)
    if given.differences:
        print(as_text(), end="")
        return 0
    try:
        return _run(given)
    except (MigrationError, ConversionError) as error:
        print(f"torchvq.migrate: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m torchvq.migrate",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "path", nargs="?", help="a Python file (it is run), or a state dict (.pt, .safetensors)"
    )
    parser.add_argument(
        "--name", default="model", help="what the Python file calls the model (default: model)"
    )
    parser.add_argument(
        "--build", help="the constructor call of the module that a state dict is of"
    )
    parser.add_argument(
        "--prefix", default="", help="of its keys in the state dict, such as 'encoder.vq.'"
    )
    parser.add_argument(
        "--compat", action="store_true", help="convert with vqp_compat=True: the old numbers"
    )
    parser.add_argument(
        "--output",
        help="write the converted state dict: .safetensors, or anything else by torch.save",
    )
    parser.add_argument(
        "--differences", action="store_true", help="print the tables of docs/migrating.md, and end"
    )
    return parser


def _run(given: argparse.Namespace) -> int:
    if given.path is None:
        raise MigrationError("expected a Python file or a state dict, but got none (see --help)")
    if not Path(given.path).is_file():
        raise MigrationError(f"expected {given.path} to be a file, but there is none")
    if given.output is not None and given.path.endswith(".py") and _same(given.path, given.output):
        raise MigrationError(
            f"--output: expected another file than {given.path}, but got {given.output}"
        )
    state: dict[str, Any]
    if given.path.endswith(".py"):
        model, found = model_of_file(given.path, given.name)
        state, prefix = dict(model.state_dict()), ""
    else:
        state, prefix = _read_state(given.path), given.prefix
        model, found = _built(given.build, given.path, state, prefix)
    if not found:
        raise MigrationError(
            f"expected quantizers of vector_quantize_pytorch in {given.path}, but found none"
        )
    holds = True
    for quantizer in found:
        ours, agrees = _report(quantizer, True if given.compat else None)
        holds &= agrees
        path = prefix + (f"{quantizer.path}." if quantizer.path else "")
        state |= {path + name: value for name, value in ours.state_dict().items()}
    if given.output is not None:
        try:
            _write(state, given.output)
        except Exception as error:
            raise MigrationError(f"--output: {given.output} was not written: {error}") from error
    return 0 if holds else 1


def _built(
    call: str | None, path: str, state: Mapping[str, Any], prefix: str
) -> tuple[nn.Module, list[ReferenceQuantizer]]:
    own = {
        name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)
    }
    if call is None:
        raise MigrationError(
            f"{path}: a state dict does not say how its module was built; say it with --build, such as "
            f"--build 'VectorQuantize(dim=256, codebook_size=512)'. {_hint(state)}"
        )
    model, found = model_of_call(call)
    try:
        model.load_state_dict(own, strict=True)
    except RuntimeError as error:
        fitting = _prefixes(state, model.state_dict())
        hint = _hint(state)
        if fitting and prefix not in fitting:
            hint = f"They are with {' or '.join(f'--prefix {begin!r}' for begin in fitting)}"
        raise MigrationError(
            f"{path}: the keys after {prefix!r} are not those of {call}: {error}\n{hint}"
        ) from error
    return model, found


def _prefixes(state: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    """The prefixes with which a state dict has all keys of a module."""
    if not own:
        return []
    first = next(iter(own))
    begins = [name.removesuffix(first) for name in state if name.endswith(first)]
    return [begin for begin in begins if all(begin + name in state for name in own)]


def _hint(state: Mapping[str, Any]) -> str:
    codes = {
        name: list(value.shape) for name, value in state.items() if name.endswith("_codebook.embed")
    }
    begins = ", ".join(repr(begin) for begin in dict.fromkeys(n.split(".")[0] for n in state))
    return (
        f"Its codebooks: {codes}"
        if codes
        else f"No key in it ends with _codebook.embed; they begin with {begins or 'nothing'}"
    )


def _report(found: ReferenceQuantizer, compat: bool | None) -> tuple[nn.Module, bool]:
    print(f"{found.path or 'the model'}: {found.call()}")
    certain, possible = touching(found.name, found.with_defaults())
    print("  differences with these options:")
    for line in certain:
        answer = "vqp_compat=True restores it" if line.restored else f"no switch: {line.switch[4:]}"
        print(f"    {line.key}: {line.situation}: {line.theirs} -> {line.ours} ({answer})")
    print(f"  differences by how it is called: {', '.join(line.key for line in possible)}")
    ours = converted(found, compat)
    print(f"  converted: {len(ours.state_dict())} tensors, keys and shapes as they were")
    if not all(value for name, value in ours.state_dict().items() if name.endswith("initted")):
        print("  not compared: k-means has not set the codes yet")
        return ours, True
    if any(value for name, value in ours.state_dict().items() if name.endswith("_needs_init")):
        print("  not compared: no step has set the statistics of affine_param yet")
        return ours, True
    try:
        agrees = agreement(found, ours)
    except NotCompared as error:
        print(f"  not compared: the reference's forward raised {error}")
        return ours, True
    output = (
        "" if agrees.difference is None else f", outputs differ by at most {agrees.difference:.2g}"
    )
    print(f"  on random input: {agrees.equal} of {agrees.tokens} tokens equal{output}")
    return ours, agrees.holds


def _read_state(path: str) -> dict[str, Any]:
    try:
        state = contents(Path(path))
    except OSError as error:
        raise MigrationError(f"{path}: it cannot be read: {error.strerror or error}") from error
    if isinstance(state, Mapping):
        state = _unwrapped(path, state)
    if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
        raise MigrationError(f"{path}: expected a state dict, but got {type(state).__name__}")
    return dict(state)


def _unwrapped(path: str, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The state dict of a model in a checkpoint that holds it as an entry, beside the optimizer's and others."""
    if isinstance(state.get("state_dict"), Mapping):
        return dict(state["state_dict"])
    nested = {name: value for name, value in state.items() if isinstance(value, Mapping)}
    # Modules may keep a mapping of their own in a state dict, under this name.
    held = [n for n in nested if _has(nested[n], "") and not str(n).endswith("_extra_state")]
    if len(held) > 1:
        held = [name for name in held if _has(nested[name], "_codebook.")] or held
    if len(held) > 1:
        raise MigrationError(
            f"{path}: expected one state dict, but got {' and '.join(map(repr, held))}; "
            "save the one to convert by itself"
        )
    return nested[held[0]] if held else state


def _has(state: Mapping[Any, Any], part: str) -> bool:
    """Whether a mapping holds tensors, and ``part`` is in the name of any."""
    return any(isinstance(value, Tensor) and part in str(name) for name, value in state.items())


def _same(path: str, other: str) -> bool:
    return os.path.exists(other) and os.path.samefile(path, other)


def _write(state: Mapping[str, Any], path: str) -> None:
    if path.endswith(".safetensors"):
        for name, value in state.items():
            if not isinstance(value, Tensor):
                raise ConversionError(
                    f"expected tensors alone for .safetensors, but got {name} of type {type(value).__name__}; "
                    "a file of another ending holds it"
                )
        # Clone, because safetensors refuses tensors that share memory, as the codebooks that levels share do.
        tensors = {name: value.detach().clone().contiguous() for name, value in state.items()}
        write(path, safetensors_torch().save(tensors, {"format": "pt"}))
    else:
        # As a whole: the path may be that of the checkpoint.
        content = io.BytesIO()
        torch.save(dict(state), content)
        write(path, content.getbuffer())
    print(f"written: {path}")


if __name__ == "__main__":
    sys.exit(main())
