"""Validation of the options of residual stacks."""

from collections.abc import Sequence
from typing import Any


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


def check_beam(*sizes: int | None) -> None:
    """Raises NotImplementedError for a beam: this version takes the nearest code of each level."""
    for size in sizes:
        if size is not None and size != 1:
            raise NotImplementedError(
                f"ResidualVQ: expected beam_size to be 1 or none in this version, but got {size}"
            )
