"""Settings to begin with, from the tables of docs/learning.md."""

from typing import Any

from torch import nn

# Levels whose product is nearest to a power of two: at least 5 each where there is room for it (Mentzer et al. 2023,
# arXiv:2309.15505, section 4.1), the even ones first.
_FSQ_LEVELS = {
    3: [8],
    4: [5, 3],
    5: [8, 4],
    6: [8, 8],
    7: [5, 5, 5],
    8: [8, 6, 5],
    9: [8, 8, 8],
    10: [8, 5, 5, 5],
    11: [8, 8, 6, 5],
    12: [7, 5, 5, 5, 5],
    13: [8, 8, 5, 5, 5],
    14: [8, 8, 8, 6, 5],
    15: [8, 8, 8, 8, 8],
    16: [8, 8, 8, 5, 5, 5],
    17: [8, 8, 8, 8, 6, 5],
    18: [8, 8, 8, 8, 8, 8],
}

# Codes start where the data is, averages last some 20 steps, and codes that hardly anything uses move.
_AVERAGES = {"kmeans_init": True, "decay": 0.95, "dead_code_threshold_fraction": 0.1}
_TOKENS_OF_AVERAGE = 40
# The sphere holds the latents, and keeps the entropies of all sizes alike.
_SIGNS = {"spherical": True, "entropy_loss_weight": 0.005, "commitment_loss_weight": 0.1}

_CODEBOOK = "codebook_size"
_LEVELS = "levels"
_BITS = "bits"
# What says the size, and the settings besides.
_PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    "VectorQuantize": (_CODEBOOK, _AVERAGES),
    "ResidualVQ": (_CODEBOOK, _AVERAGES),
    "GroupedResidualVQ": (_CODEBOOK, _AVERAGES),
    "LFQ": (_CODEBOOK, _SIGNS),
    "EvoLFQ": (_CODEBOOK, _SIGNS),
    "ResidualLFQ": (_CODEBOOK, _SIGNS),
    "GroupedResidualLFQ": (_CODEBOOK, _SIGNS),
    "FSQ": (_LEVELS, {}),
    "ResidualFSQ": (_LEVELS, {}),
    "GroupedResidualFSQ": (_LEVELS, {}),
    "FSP": (_LEVELS, {}),
    "LatentQuantize": (_LEVELS, {}),
    "BinaryMapper": (_BITS, {}),
}
_SHORT = {"vq": "VectorQuantize", "rvq": "ResidualVQ", "bsq": "LFQ", "latent": "LatentQuantize"}
_NAMES = {name.lower(): name for name in _PRESETS} | _SHORT


def recommended(
    quantizer: str | type[nn.Module], *, bits: int = 10, tokens: int | None = None
) -> dict[str, Any]:
    """Keyword arguments to begin with, for a quantizer of this package.

    The defaults of the classes are those of vector-quantize-pytorch; these are the settings that learnt best in the
    tables of docs/learning.md, with nearly all codes in use. docs/choosing.md says why, and when to depart from them.

    Args:
        quantizer: the class, or its name in any case; "vq", "rvq", "bsq" and "latent" are short for VectorQuantize,
            ResidualVQ, LFQ on the sphere and LatentQuantize.
        bits: bits of a token, for stacks of a token and level. Sizes that are no power of two come near: 3 to 18 for
            those that take ``levels``. Default: 10.
        tokens: tokens of a training step, of all ranks, for VectorQuantize: ``decay`` is then such that a code's
            average holds some 40 of its tokens, within [0.9, 0.99]. Default: unknown, decay 0.95.

    Returns:
        A new dict: ``codebook_size``, ``levels`` or ``bits``, and the settings that differ from the defaults.

    Raises:
        ValueError: an unknown quantizer, or bits out of range.

    Example:
        >>> quantizer = LFQ(dim=256, **recommended("lfq", bits=9))
    """
    name = quantizer if isinstance(quantizer, str) else quantizer.__name__
    found = _NAMES.get(name.lower())
    if found is None:
        raise ValueError(
            f"recommended: expected quantizer to be one of {', '.join(_PRESETS)}, but got {name!r}"
        )
    size, settings = _PRESETS[found]
    result = {size: _size(size, bits), **settings}
    if tokens is not None:
        if found != "VectorQuantize" or tokens < 1:
            raise ValueError(
                f"recommended: expected tokens to be at least 1, and for VectorQuantize, but got {tokens} for {found}"
            )
        result["decay"] = _decay(tokens / result[_CODEBOOK])
    return result


def _decay(tokens_per_code: float) -> float:
    return round(min(max(1 - tokens_per_code / _TOKENS_OF_AVERAGE, 0.9), 0.99), 3)


def _size(size: str, bits: int) -> int | list[int]:
    most = 62
    least = 1
    if size == _LEVELS:
        least, most = min(_FSQ_LEVELS), max(_FSQ_LEVELS)
    if not least <= bits <= most:
        raise ValueError(f"recommended: expected bits to be in [{least}, {most}], but got {bits}")
    if size == _LEVELS:
        return list(_FSQ_LEVELS[bits])
    return bits if size == _BITS else 2**bits
