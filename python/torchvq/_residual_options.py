"""Validation of the options of residual stacks."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor


def _expect(holds: bool, name: str, condition: str, value: object) -> None:
    if not holds:
        raise ValueError(f"ResidualVQ: expected {name} to be {condition}, but got {value}")


def resolve_codebook_sizes(
    num_quantizers: int | None, codebook_size: int | Sequence[int], shared: bool
) -> tuple[int, ...]:
    """The codebook size of every level."""
    if not isinstance(codebook_size, int):
        sizes = tuple(codebook_size)
        _expect(len(sizes) >= 1, "codebook_size", "a size or at least one of them", codebook_size)
        _expect(
            num_quantizers in (None, len(sizes)),
            "num_quantizers",
            f"the number of codebook sizes, {len(sizes)}",
            num_quantizers,
        )
        _expect(
            not shared or len(set(sizes)) == 1,
            "codebook_size",
            "one size where the codebook is shared",
            codebook_size,
        )
        return sizes
    _expect(
        num_quantizers is not None and num_quantizers >= 1,
        "num_quantizers",
        "at least 1",
        num_quantizers,
    )
    assert num_quantizers is not None
    return (codebook_size,) * num_quantizers


def check_residual(levels: int, options: dict[str, Any]) -> None:
    """Raises ValueError for options out of range or at odds."""
    _expect(options["dim"] >= 1, "dim", "at least 1", options["dim"])
    _expect(options["heads"] >= 1, "heads", "at least 1", options["heads"])
    cutoff = options["quantize_dropout_cutoff_index"]
    _expect(0 <= cutoff < levels, "quantize_dropout_cutoff_index", f"in [0, {levels - 1}]", cutoff)
    multiple = options["quantize_dropout_multiple_of"]
    _expect(multiple >= 1, "quantize_dropout_multiple_of", "at least 1", multiple)
    fraction = options["quant_grad_frac"]
    _expect(0 <= fraction <= 1, "quant_grad_frac", "in [0, 1]", fraction)
    unknown = set(options["mlp_kwargs"]) - {"dim_hidden", "depth"}
    _expect(not unknown, "mlp_kwargs", "dim_hidden and depth", sorted(unknown))
    learns = options["implicit_neural_codebook"] or options["diveq"]
    for name in ("use_cosine_sim", "straight_through"):
        _expect(
            not (learns and options["vq_kwargs"].get(name)),
            name,
            "off with implicit_neural_codebook and diveq",
            True,
        )
    in_place = options["vq_kwargs"].get("in_place_codebook_optimizer")
    _expect(
        not (options["implicit_neural_codebook"] and in_place is not None),
        "in_place_codebook_optimizer",
        "none with implicit_neural_codebook",
        in_place,
    )


def check_beam_options(levels: int, options: dict[str, Any]) -> None:
    """Raises ValueError for beams that the options exclude, and for weights that do not fit."""
    implicit = options["implicit_neural_codebook"]
    for name in ("beam_size", "eval_beam_size"):
        check_beam(name, options[name], implicit)
    weights = options["beam_score_quantizer_weights"]
    fits = weights is None or (
        len(weights) == levels and all(0 <= weight < float("inf") for weight in weights)
    )
    condition = f"{levels} finite, non-negative numbers"
    _expect(fits, "beam_score_quantizer_weights", condition, weights)


def check_beam(name: str, size: int | None, implicit: bool) -> None:
    """Raises ValueError for a beam of no paths, or one through codes that depend on the path."""
    _expect(size is None or size >= 1, name, "at least 1", size)
    _expect(
        size in (None, 1) or not implicit, name, "1 or none with implicit_neural_codebook", size
    )


def check_beam_training(vq_kwargs_conflicts: dict[str, bool], beam: int) -> None:
    """Raises ValueError where a training step with a beam would have to choose codes in two ways."""
    for name, given in vq_kwargs_conflicts.items():
        _expect(not given, name, f"off in training with beam_size {beam}", True)


def check_levels(indices: Tensor, levels: int, fewer: bool) -> None:
    """Raises ValueError unless indices have all levels on the last axis, or fewer where that is allowed."""
    given = indices.shape[-1]
    if not (1 if fewer else levels) <= given <= levels:
        raise ValueError(
            f"ResidualVQ: expected indices to have {levels} levels on the last axis, "
            f"or fewer with quantize_dropout, but got shape {list(indices.shape)}"
        )
