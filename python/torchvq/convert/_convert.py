"""From a model, a directory or a file to a codec's file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from torchvq.convert._checkpoints import files_of, read, safetensors_torch, tensors_in
from torchvq.convert._codec import Codec, ConversionError
from torchvq.convert._output import check_output, write
from torchvq.convert._state import codec_of_state


def convert(
    source: nn.Module | Mapping[str, Tensor] | str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    metric: str | None = None,
    prefix: str = "",
) -> Codec:
    """Writes the quantizer of a tokenizer as a codec of the command line and of C++.

    A stack of codebooks alone, and a single codebook, become the state of :class:`torchvq.ResidualVQ` and
    :class:`torchvq.VectorQuantize`; codebooks behind linear maps (DAC, Mimi) become a projected codec
    (include/torchvq/io/projected_codec.h). Either takes the latents that the model's quantizer takes, features last.

    Args:
        source: A model, adapted or not; its state dict; a directory that ``save_pretrained`` wrote; a .safetensors,
            .bin, .pt, .pth or .th file of such a state dict.
        path: The .safetensors file to write, as the command line writes files (docs/cli.md), or a pipe or a device.
        metric: ``"euclidean"`` or ``"cosine"``, where the names of the tensors do not tell it. Default: what they, the
            model or the config.json beside the file tell.
        prefix: What the names of the quantizer's tensors begin with, for models that have several. Default: any.

    Returns:
        What was written. Tensors are float32 there: those of half precision exactly, those of float64 rounded.

    Raises:
        ConversionError: a ValueError of one sentence, when there is no quantizer, when there are several, or several
            checkpoints in a directory, for what a codec of vectors cannot say (levels at several rates, as SNAC has
            them), for codes, counts and maps that are no real numbers, not finite in float32 or do not fit each other,
            for negative counts, for a config.json that is damaged, for a path that is a file of the source or does not
            end in .safetensors, and when the package safetensors is not installed. Nothing is written.
        OSError: when the file cannot be written.
    """
    if metric not in (None, "euclidean", "cosine"):
        raise ConversionError(f"expected metric to be euclidean or cosine, but got {metric}")
    check_output(path, files_of(Path(source)) if isinstance(source, (str, os.PathLike)) else [])
    save = safetensors_torch().save
    state, strides, by_angle = _facts(source)
    _check_strides(strides, state, prefix)
    codec = codec_of_state(state, metric or ("cosine" if by_angle else None), prefix)
    write(path, save(codec.tensors(), codec.metadata()))
    return codec


def _facts(source: Any) -> tuple[Mapping[str, Tensor], list[int] | None, bool]:
    """Tensors; strides of the levels, if known; whether the codes of an image quantizer are compared by angle."""
    if isinstance(source, nn.Module):
        kinds = {type(module).__name__ for module in source.modules()}
        strides: list[int] = [
            int(module.stride)  # type: ignore[arg-type]
            for module in source.modules()
            if hasattr(module, "codebook") and isinstance(getattr(module, "stride", None), int)
        ]
        return source.state_dict(), strides or [1], "GlmImageVQVAEVectorQuantizer" in kinds
    if isinstance(source, Mapping):
        return tensors_in(source), None, False
    state, config = read(Path(source))
    return state, _strides_in(config), "glm_image" in str(config.get("model_type", ""))


def _strides_in(config: Mapping[str, Any]) -> list[int] | None:
    strides = config.get("vq_strides")
    if strides is not None and not isinstance(strides, list):
        raise ConversionError(
            f"expected vq_strides of config.json to be a list, but got {strides!r}"
        )
    return strides


def _check_strides(strides: list[int] | None, state: Mapping[str, Tensor], prefix: str) -> None:
    if strides is not None:
        if any(stride != 1 for stride in strides):
            raise ConversionError(
                f"expected all levels at one rate, as a codec of vectors has no time axis, but got strides {strides}"
            )
        return
    snac = "in_proj.parametrizations.weight.original0"
    if any(key.startswith(prefix) and key.endswith(snac) for key in state):
        raise ConversionError(
            "expected config.json with vq_strides beside these tensors, which are SNAC's, but there is none"
        )
