"""What is different without the switch in the rows that are equal under it."""

from __future__ import annotations

from typing import NamedTuple


class Unlike(NamedTuple):
    """What a row that is equal under the switch has different without it."""

    line: str
    names: tuple[str, ...]  # recorded numbers that begin with these; all others are equal


_ENCODER = ("grad.input", "grad.project_in", "state.project_in")
_GROUPS = (
    "grad.input",
    "grad.rvqs.0.project_in",
    "grad.rvqs.1.project_in",
    "state.rvqs.0.project_in",
    "state.rvqs.1.project_in",
)


def _rows(
    name: str, line: str, names: tuple[str, ...], *rows: str
) -> dict[tuple[str, str], Unlike]:
    return {(name, row): Unlike(line, names) for row in rows}


UNLIKE: dict[tuple[str, str], Unlike] = {
    **_rows("BinaryMapper", "binary-temperature", ("grad.input",), "temperature of the gradient"),
    **_rows(
        "ResidualFSQ",
        "rfsq-gradient",
        _ENCODER,
        "compatible, defaults",
        "compatible, tanh",
        "compatible, eight levels",
        "compatible, rotation",
        "compatible, dropout",
        "compatible, all codes",
        "compatible, projected",
        "compatible, projected, tanh",
    ),
    **_rows(
        "GroupedResidualFSQ",
        "rfsq-gradient",
        _GROUPS,
        "compatible, groups",
        "compatible, groups, projected",
    ),
    **_rows(
        "ResidualLFQ",
        "lfq-stack-gradient",
        _ENCODER,
        "defaults",
        "commitment",
        "no entropy",
        "gamma",
        "soft clamp",
        "all codes",
        "softplus",
        "activation",
        "dropout",
        "dropout, rule",
        "spherical",
        "rotation",
        "projections",
    ),
    **_rows(
        "GroupedResidualLFQ",
        "lfq-stack-gradient",
        _GROUPS,
        "groups",
        "groups, commitment",
        "groups, one",
        "groups, all codes",
        "groups, projections",
    ),
    **_rows(
        "ResidualSimVQ",
        "sim-stack-gradient",
        _ENCODER,
        "defaults",
        "straight through",
        "weights",
        "frozen dim",
        "all codes",
        "channel first",
        "image",
        "dropout",
        "dropout, rule",
    ),
    **_rows(
        "ResidualVQ",
        "stack-gradient",
        _ENCODER,
        "beam, scores added up",
        "beam, weighted",
        "beam of the call",
        "beam, masked",
        "defaults",
        "straight-through",
        "all of the gradient",
        "no gradient to input",
        "no gradient to input, learnable",
        "small inputs",
        "large inputs",
        "masked",
        "masked, padding kept",
        "masked, learnable",
        "cosine",
        "learnable",
        "learnable, synchronised update",
        "learnable, in-place optimizer",
        "learnable, frozen per call",
        "bridge",
        "shared codebook, learnable",
        "orthogonal",
        "cross-entropy commitment, frozen",
        "dropout",
        "dropout, learnable",
        "codebook_dim",
        "codebook_dim above dim",
        "codebook_dim, masked",
        "layer norm has no effect",
        "masked, padding kept, projected",
    ),
    **_rows(
        "ResidualVQ",
        "grad-frac",
        ("grad.input",),
        "fraction of the gradient",
        "half of the gradient, straight-through",
        "cosine, fraction",
        "learnable, fraction",
    ),
    **_rows(
        "ResidualVQ",
        "implicit-condition",
        _ENCODER,
        "implicit",
        "implicit, straight-through",
        "implicit, fraction",
        "implicit, small network",
        "implicit, no layers",
        "implicit, masked",
        "implicit, shared codebook",
        "implicit, dropout",
        "implicit, sizes per level",
        "implicit, cross-entropy commitment",
        "implicit, frozen per call",
        "implicit, projected",
    ),
    **_rows(
        "ResidualVQ",
        "beam-score",
        ("quantized", "indices", "loss", "grad.", "state."),
        "beam, by default",
    ),
    **_rows(
        "ResidualVQ",
        "beam-score",
        ("quantized", "indices", "loss", "grad.", "state."),
        "beam, averages",
    ),
    **_rows("ResidualVQ", "all-codes", ("all_codes", "grad.input"), "all codes after the update"),
    **_rows("ResidualVQ", "stack-gradient", ("grad.input",), "all codes, learnable"),
    **_rows(
        "LFQ",
        "lfq-mask",
        ("quantized", "indices", "loss", "breakdown", "grad."),
        "masked",
        "masked codebooks",
    ),
    **_rows("LFQ", "lfq-clamp", ("loss", "breakdown", "grad."), "sure tokens"),
    **_rows("ResidualVQ", "stack-masked-cosine", ("loss", "grad.input"), "masked, cosine"),
    **_rows("ResidualVQ", "diversity-loss", ("loss", "grad.input"), "diversity, frozen"),
    **_rows(
        "ResidualVQ",
        "shared-codebook",
        ("grad.input", "state.layers."),
        "shared codebook",
        "shared codebook, masked",
    ),
    **_rows(
        "GroupedResidualVQ",
        "stack-gradient",
        _GROUPS,
        "groups",
        "one group",
        "four groups",
        "groups, straight-through",
        "groups, masked",
        "groups, padding kept",
        "groups, implicit",
        "groups, projected",
    ),
    **_rows("GroupedResidualVQ", "grad-frac", ("grad.input",), "groups, fraction"),
    **_rows(
        "GroupedResidualVQ",
        "shared-codebook",
        ("grad.input", "state.rvqs."),
        "groups, shared codebooks",
    ),
    **_rows(
        "VectorQuantize", "masked-commitment", ("loss", "grad.input"), "compatible, masked cosine"
    ),
    **_rows(
        "VectorQuantize",
        "diversity-loss",
        ("loss", "breakdown.codebook_diversity", "grad.input"),
        "compatible, diversity of an image",
    ),
    **_rows(
        "VectorQuantize",
        "rotation-near-zero",
        ("quantized", "grad.input"),
        "compatible, rotation near zero",
    ),
}
