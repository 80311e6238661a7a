"""Finds the tensors of a quantizer in a state dict, by the names that the packages give them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from torchvq.convert._codec import Codec, ConversionError, Level, Projection, Stack

State = Mapping[str, Tensor]

# A level of a stack, and the names of its codes: the codes themselves, or sums of the vectors that chose them.
_LEVEL = re.compile(
    r"(?P<stack>(?:.*\.)?)(?:layers|quantizers)\.(?P<index>\d+)\.(?P<book>_?codebook\.)"
    r"(?P<codes>embed|embed_sum|embedding_sum|weight)"
)
_IMAGE = re.compile(r"(?:.*\.)?(?:quantize\.)?embedding\.weight")
_SUMS = ("embed_sum", "embedding_sum")
_COUNTS = ("cluster_size", "cluster_usage")
# The two stacks of Mimi, in the order of its tokens.
_PAIRS = (
    ("semantic_residual_vector_quantizer.", "acoustic_residual_vector_quantizer."),
    ("rvq_first.vq.", "rvq_rest.vq."),
)
# Truth values, and two numbers in a byte, which torch cannot convert.
_NO_NUMBERS = (torch.bool, getattr(torch, "float4_e2m1fn_x2", torch.bool))
# Lower bound of the counts by which Mimi divides sums.
_FEWEST = 1e-5


def codec_of_state(state: State, metric: str | None = None, prefix: str = "") -> Codec:
    """The codec of the one quantizer among these tensors whose names begin with ``prefix``.

    Raises:
        ConversionError: when there is none, when there are several, or when a codec cannot describe it.
    """
    keys = [key for key in state if key.startswith(prefix)]
    stacks = _stacks(keys)
    if stacks:
        first = next(iter(stacks.values()))
        factorised = any(_level_key(match) + "in_proj.bias" in state for match in first)
        codec = Codec(
            [_stack(state, name, stacks[name]) for name in _in_order(stacks)],
            metric or ("cosine" if factorised else "euclidean"),
        )
    else:
        codec = _image_codec(state, [key for key in keys if _is_image(key)], metric)
    codec.check()
    _check_maps(codec)
    return codec


def _stacks(keys: list[str]) -> dict[str, list[re.Match[str]]]:
    found: dict[str, list[re.Match[str]]] = {}
    for key in keys:
        match = _LEVEL.fullmatch(key)
        if match:
            found.setdefault(match["stack"], []).append(match)
    for name, matches in found.items():
        matches.sort(key=lambda match: int(match["index"]))
        if [int(match["index"]) for match in matches] != list(range(len(matches))):
            raise ConversionError(f"expected every level of {name}, but some are missing or double")
    return found


def _in_order(stacks: dict[str, list[re.Match[str]]]) -> list[str]:
    names = list(stacks)
    if len(names) == 1:
        return names
    for ends in _PAIRS:
        ordered = [name for end in ends for name in names if name.endswith(end)]
        around = {name.removesuffix(end) for name, end in zip(ordered, ends, strict=False)}
        if len(ordered) == len(names) == 2 and len(around) == 1:
            return ordered
    raise ConversionError(f"expected one quantizer, but found several: {', '.join(names)}")


def _stack(state: State, name: str, matches: list[re.Match[str]]) -> Stack:
    around = name.removesuffix("vq.")
    return Stack(
        [_level(state, match) for match in matches],
        _projection(state, around + "input_proj"),
        _projection(state, around + "output_proj"),
    )


def _level(state: State, match: re.Match[str]) -> Level:
    key, book = _level_key(match), _level_key(match) + match["book"]
    codes = _numbers(state, match[0])
    counted = [book + name for name in _COUNTS if book + name in state]
    counts = _numbers(state, counted[0]) if counted else None
    if match["codes"] in _SUMS:
        if counts is None:
            raise ConversionError(
                f"expected {book}cluster_usage beside {match[0]}, but it is missing"
            )
        if codes.dim() != 2 or counts.shape != codes.shape[:1]:
            raise ConversionError(
                f"expected {match[0]} and its counts to have shapes (K, D) and (K,), but got "
                f"{tuple(codes.shape)} and {tuple(counts.shape)}"
            )
        codes = codes / counts.clamp(min=_FEWEST)[:, None]
    return Level(
        codes,
        counts,
        _projection(state, key + "in_proj") or _projection(state, key + "project_in"),
        _projection(state, key + "out_proj") or _projection(state, key + "project_out"),
    )


def _level_key(match: re.Match[str]) -> str:
    return match[0].removesuffix(match["book"] + match["codes"])


def _projection(state: State, key: str) -> Projection | None:
    weight = _weight(state, key)
    if weight is None:
        return None
    if weight.dim() == 3 and weight.shape[2] == 1:
        weight = weight.squeeze(2)
    if weight.dim() != 2:
        raise ConversionError(
            f"expected {key} to be a linear map of single vectors, but its weight has shape {tuple(weight.shape)}"
        )
    bias = key + ".bias"
    return Projection(weight, _numbers(state, bias) if bias in state else None)


def _weight(state: State, key: str) -> Tensor | None:
    """A weight, stored as it is or as direction and norm, under either of torch's namings of the two."""
    if key + ".weight" in state:
        return _numbers(state, key + ".weight")
    for norm, direction in (
        (".weight_g", ".weight_v"),
        (".parametrizations.weight.original0", ".parametrizations.weight.original1"),
    ):
        if key + norm in state and key + direction in state:
            return _normed(state, key + norm, key + direction)
    return None


def _normed(state: State, norm_key: str, direction_key: str) -> Tensor:
    """The weight from norm and direction, with the bits that torch computes when it runs the layer."""
    norm, direction = _numbers(state, norm_key), _numbers(state, direction_key)
    if direction.dim() == 0 or not direction.is_floating_point():
        raise ConversionError(
            f"expected {direction_key} to be floating point with an axis of outputs, "
            f"but got {direction.dtype} of shape {tuple(direction.shape)}"
        )
    expected = (direction.shape[0], *[1] * (direction.dim() - 1))
    if norm.shape != expected:
        raise ConversionError(
            f"expected {norm_key} to have shape {expected}, a norm for each output of {direction_key}, "
            f"but got {tuple(norm.shape)}"
        )
    layer = nn.Module()
    layer.weight = nn.Parameter(direction)
    weight_norm(layer)
    with torch.no_grad():
        layer.get_parameter("parametrizations.weight.original0").copy_(norm)
        return layer.weight.detach()


def _numbers(state: State, key: str) -> Tensor:
    """A tensor of the state; ConversionError unless it holds real numbers, one after another."""
    tensor = state[key].detach()
    plain = tensor.layout == torch.strided and not (tensor.is_meta or tensor.is_quantized)
    if not plain or tensor.is_complex() or tensor.dtype in _NO_NUMBERS:
        kind = "without data" if tensor.is_meta else str(tensor.layout).removeprefix("torch.")
        raise ConversionError(
            f"expected {key} to hold real numbers, but got a tensor of {tensor.dtype}, {kind}"
        )
    return tensor


def _check_maps(codec: Codec) -> None:
    for stack in codec.stacks:
        features = codec.dim if stack.into is None else stack.into.weight.shape[0]
        for level in stack.levels:
            inside = level.codebook.shape[1]
            into, out = _shape(level.into, features), _shape(level.out, inside)
            if into != (inside, features) or out != (features, inside):
                raise ConversionError(
                    f"expected maps between {features} features and codes of {inside}, but got {into} and {out}"
                )


def _shape(projection: Projection | None, features: int) -> tuple[int, ...]:
    return (features, features) if projection is None else tuple(projection.weight.shape)


def _is_image(key: str) -> bool:
    return bool(_IMAGE.fullmatch(key)) and ("quantize." in key or key == "embedding.weight")


def _image_codec(state: State, keys: list[str], metric: str | None) -> Codec:
    if not keys:
        raise ConversionError("expected a quantizer that is known here, but found none")
    if len(keys) > 1:
        raise ConversionError(f"expected one quantizer, but found several: {', '.join(keys)}")
    codes: Any = _numbers(state, keys[0])
    if metric == "cosine":  # the output of these quantizers is the unit vector of a code
        codes = torch.nn.functional.normalize(codes.float(), dim=-1)
    return Codec([Stack([Level(codes)])], metric or "euclidean")
