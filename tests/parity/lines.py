"""Which line of docs/migrating.md (python/torchvq/migrate/differences.txt) a row is about, where it is different."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from torchvq.migrate.differences import Difference, sections


class Unlike(NamedTuple):
    """What a row that is equal under the switch has different without it."""

    line: str
    names: tuple[str, ...]  # recorded numbers that begin with these; all others are equal


@cache
def lines() -> dict[str, Difference]:
    return {line.key: line for section in sections() for line in section.lines}


def line_named(key: str) -> Difference:
    return lines()[key]


# The rows of each class, by line.
ROWS = {
    "HierarchicalVQ": {
        "scales-shared": ["one update"],
        "scales-kmeans": ["k-means"],
        "scales-dropped": ["dropped", "dropped, own"],
        "scales-indices": ["targets"],
        "scales-nan": ["NaN in padding"],
        "scales-absent": ["absent"],
        "scales-half": ["half precision"],
        "scales-frozen": ["frozen"],
        "scales-orthogonal": ["orthogonal"],
    },
    "FSQ": {
        "fsq-noise": ["noise of half a step", "a tenth of the elements", "all elements"],
        "fsq-table": ["sixteen features"],
        "fsq-int32": ["int64 indices"],
        "fsq-vectors": ["single latents"],
        "fsq-mask": ["masked", "masked, projected"],
        "fsq-index": ["index outside", "index of padding"],
        "fsq-not-finite": ["not finite"],
        "fsq-half": ["bfloat16 module"],
        "fsq-rotation": ["rotation in bfloat16"],
    },
    "FSP": {
        "fsp-moments": ["one token", "constant"],
        "fsp-many": ["many codes"],
        "fsp-half": ["bfloat16"],
        "fsp-index": ["outside"],
        "fsp-nothing": ["no tokens"],
        "fsp-evaluation": ["evaluation"],
    },
    "LatentQuantize": {
        "latent-values": ["values learn"],
        "latent-commitment": ["encoder commits"],
        "latent-learnt": ["learnt values"],
        "latent-sides": ["losses"],
        "latent-projected": ["projected loss"],
        "latent-in-place": ["in place"],
        "latent-index": ["outside"],
        "latent-nothing": ["no tokens"],
        "latent-weights": ["no weights"],
    },
    "LFQ": {
        "lfq-clamp": ["entropy beyond the clamp"],
        "lfq-mask": ["mask"],
        "lfq-nothing": ["all masked", "less than a token"],
        "lfq-index": ["index -1", "index outside"],
        "lfq-spherical-bits": ["spherical bits"],
        "lfq-not-finite": ["NaN"],
    },
    "BinaryMapper": {
        "binary-evaluation": ["evaluation"],
        "binary-temperature": ["temperature"],
        "binary-output": ["zeros and ones"],
        "binary-nothing": ["no tokens"],
        "binary-half": ["bfloat16"],
    },
    "RandomProjectionQuantizer": {
        "projection-masks": ["mask"],
        "projection-nothing": ["no tokens"],
        "projection-half": ["bfloat16"],
        "projection-layouts": ["channel first"],
    },
    "ResidualFSQ": {
        "rfsq-gradient": ["gain", "gain, tanh", "gain of eight"],
        "rfsq-channel-first": ["channel first", "channel first, all codes", "image"],
        "rfsq-positions": ["positions of maps with features last"],
        "rfsq-vectors": ["single latents"],
        "rfsq-rotation": ["rotation decodes"],
        "rfsq-int32": ["int64"],
        "rfsq-mask": ["masked", "masked, projected"],
        "rfsq-half": ["half precision"],
        "rfsq-noise": ["noise"],
        "rfsq-index": ["index outside"],
        "rfsq-table": ["large codebooks"],
    },
    "GroupedResidualFSQ": {
        "rfsq-groups-images": ["groups, image", "groups, image, projected"],
        "rfsq-rotation": ["groups, rotation"],
        "rfsq-seed": ["groups, dropout"],
    },
    "ResidualLFQ": {
        "lfq-stack-gradient": ["gain"],
        "lfq-mask": ["mask"],
        "lfq-stack-decode": ["spherical round trip", "rotation round trip"],
        "lfq-vectors": ["one token per item"],
    },
    "SimVQ": {
        "sim-rotation": ["small latents", "zero latents"],
        "sim-masks": ["mask"],
        "sim-search": ["far latents", "autocast"],
        "sim-nothing": ["no tokens"],
        "sim-index": ["absent index"],
        "sim-half": ["bfloat16"],
        "sim-evaluation": ["evaluation"],
    },
    "ResidualSimVQ": {
        "sim-stack-gradient": ["gain"],
        "sim-masks": ["mask"],
        "sim-nothing": ["no tokens"],
    },
    "ResidualVQ": {
        "stack-gradient": [
            "gain",
            "gain of eight levels",
            "gain, learnable",
            "gain, shared codebook",
            "gain, cosine",
            "gain, implicit",
            "gain, dropout",
            "one rotation",
        ],
        "grad-frac": ["gain, fraction of the gradient"],
        "stack-losses": ["commitment beside a gain of one"],
        "implicit-condition": ["gradient of an implicit codebook's condition"],
        "all-codes": ["all codes in training", "all codes, shared codebook"],
        "stack-masked-cosine": ["masked, cosine"],
        "stack-nothing": [
            "everything masked",
            "everything masked, shared codebook",
            "everything masked, implicit",
            "no tokens",
        ],
        "stack-not-finite": ["non-finite token", "non-finite token, shared codebook"],
        "stack-layouts": [
            "image",
            "image, projected",
            "image, channel_last False",
            "volume",
            "channel first",
            "channel first, projected",
            "two position axes",
        ],
        "stack-heads": ["heads"],
        "stack-indices": ["given indices", "given indices, some absent", "given indices, image"],
        "diveq-evaluation": ["decode, diveq", "decode, diveq, shared codebook"],
        "stack-decode": ["decode, affine", "decode, implicit affine", "decode, bridge"],
        "stack-padding": ["decode, projected padding"],
        "stack-negative-index": ["decode, bad index"],
        "shared-dead-codes": ["decode in training, shared codebook"],
        "stack-frozen": [
            "frozen at construction",
            "frozen at construction, shared codebook",
            "frozen at construction, dead codes",
        ],
        "shared-codebook": [
            "one update of a shared codebook",
            "one update of a shared codebook, masked",
            "shared codebook, manual EMA",
            "shared codebook, in-place optimizer",
        ],
        "stack-kmeans-evaluation": ["k-means in evaluation"],
        "stack-kmeans": ["k-means, few tokens"],
        "diveq-variance": ["diveq, variance"],
        "stack-loss": ["loss is not state"],
        "stack-half-state": ["bfloat16 module"],
        "stack-half": ["bfloat16 input, eight levels"],
        "stack-input-dtype": [
            "bfloat16 input, float32 projection",
            "float64 input, float32 projection",
        ],
        "stack-search": ["CPU autocast"],
    },
    "GroupedResidualVQ": {
        "stack-gradient": ["gain of groups"],
        "all-codes": ["all codes of groups in training"],
        "stack-layouts": ["groups, image", "groups, channel first"],
        "stack-nothing": ["groups, everything masked"],
        "diveq-evaluation": ["groups, decode, diveq"],
        "stack-frozen": ["groups, frozen at construction"],
    },
    "VectorQuantize": {
        "masked-commitment": ["masked, cosine"],
        "masked-projected": [
            "masked, projected",
            "masked, shared heads",
            "masked, separate heads",
        ],
        "lengths-channel-first": ["lengths, channel first"],
        "nothing": [
            "everything masked",
            "everything masked, separate heads",
            "no tokens",
            "no items",
        ],
        "not-finite": ["non-finite token"],
        "rotation-near-zero": ["rotation near zero"],
        "mixed-gradient": [
            "cross-entropy commitment with EMA",
            "diversity with EMA",
            "Gumbel gradient with EMA",
        ],
        "diversity-loss": ["diversity of an image", "diversity of a sequence"],
        "cross-entropy-shapes": [
            "cross-entropy commitment, image",
            "cross-entropy commitment, single tokens",
        ],
        "returned-loss": ["loss is not state", "loss is not state, no commitment"],
        "decode": [
            "decode, affine",
            "decode, bridge",
            "decode, shared heads",
            "decode, shared heads without projection",
            "decode, projected image",
            "decode, projected channel first",
            "decoded shared heads",
        ],
        "index-minus-one": ["decode, masked", "decode, -1"],
        "negative-index": ["decode, bad index"],
        "codebook-setter": ["codebook is set"],
        "codebook-setter-learnable": ["codebook is set, learnable"],
        "affine-statistics": ["affine, eval", "affine, trained state"],
        "kmeans": ["k-means, few tokens"],
        "dead-codes": ["used codes stay"],
        "unused-codes": ["unused codes do not fade"],
        "given-indices": [
            "given indices, projected",
            "given indices, shared heads",
            "given indices, channel first",
        ],
        "codebook-bridge": ["codebook behind a bridge"],
        "orthogonal-ema": ["regularised codes under EMA"],
        "search": ["far from the origin", "CPU autocast"],
        "half-precision-state": ["bfloat16 module"],
        "input-dtype": ["bfloat16 input, float32 projection", "float64 input, float32 projection"],
        "sync-alone": ["synchronised in one process", "affine, synchronised in one process"],
    },
}
LINES = {
    (name, row): line for name, rows in ROWS.items() for line, ids in rows.items() for row in ids
}

# What the reference raises where the oracle cannot even ask; any other exception is not the one that the line means.
RAISES = {
    (
        "HierarchicalVQ",
        "targets",
    ): "AssertionError: reconstruction-from-indices path not implemented",
    ("HierarchicalVQ", "half precision"): "RuntimeError: Input type (c10::BFloat16) and bias type",
    ("HierarchicalVQ", "frozen"): "TypeError: HierarchicalVQ.forward() got an unexpected keyword",
    ("FSQ", "sixteen features"): "RuntimeError: ",
    ("FSQ", "single latents"): "EinopsError: Error while processing rearrange-reduction patte",
    ("FSQ", "masked"): "TypeError: FSQ.forward() got an unexpected keyword argument",
    ("FSQ", "masked, projected"): "TypeError: FSQ.forward() got an unexpected keyword argument",
    ("FSQ", "bfloat16 module"): "RuntimeError: mat1 and mat2 must have the same dtype, but got",
    ("FSP", "many codes"): "RuntimeError: ZeroDivisionError",
    ("FSP", "bfloat16"): "RuntimeError: mat1 and mat2 must have the same dtype, but got",
    ("FSP", "no tokens"): "RuntimeError: cannot reshape tensor of 0 elements into shape",
    (
        "LatentQuantize",
        "values learn",
    ): "RuntimeError: element 0 of tensors does not require grad and d",
    (
        "LatentQuantize",
        "in place",
    ): "AttributeError: 'LatentQuantize' object has no attribute 'optimi",
    ("LatentQuantize", "no tokens"): "RuntimeError: cannot reshape tensor of 0 elements into shape",
    ("LatentQuantize", "no weights"): "TypeError: must be real number, not NoneType",
    ("BinaryMapper", "bfloat16"): "RuntimeError: expected scalar type Float but found BFloat16",
    (
        "RandomProjectionQuantizer",
        "mask",
    ): "TypeError: RandomProjectionQuantizer.forward() got an unexp",
    (
        "RandomProjectionQuantizer",
        "no tokens",
    ): "RuntimeError: cannot reshape tensor of 0 elements into shape",
    ("RandomProjectionQuantizer", "channel first"): "RuntimeError: Given normalized_shape=",
    (
        "ResidualFSQ",
        "channel first",
    ): "AxisSizeError: Failed to determine the size of all axes in the",
    (
        "ResidualFSQ",
        "channel first, all codes",
    ): "AxisSizeError: Failed to determine the size of all axes in the",
    ("ResidualFSQ", "image"): "AxisSizeError: Failed to determine the size of all axes in the",
    (
        "ResidualFSQ",
        "single latents",
    ): "EinopsError: Error while processing rearrange-reduction patte",
    ("ResidualFSQ", "masked"): "TypeError: ResidualFSQ.forward() got an unexpected keyword",
    (
        "ResidualFSQ",
        "masked, projected",
    ): "TypeError: ResidualFSQ.forward() got an unexpected keyword",
    (
        "ResidualFSQ",
        "index outside",
    ): "CallOperationError: The function that was compiled for this operatio",
    ("ResidualFSQ", "large codebooks"): "RuntimeError: ",
    (
        "GroupedResidualFSQ",
        "groups, image",
    ): "RuntimeError: The size of tensor a (5) must match the size of",
    (
        "GroupedResidualFSQ",
        "groups, image, projected",
    ): "RuntimeError: mat1 and mat2 shapes cannot be multiplied (48x5",
    (
        "GroupedResidualFSQ",
        "groups, dropout",
    ): "TypeError: GroupedResidualFSQ.forward() got an unexpected k",
    (
        "ResidualLFQ",
        "one token per item",
    ): "EinopsError: Error while processing rearrange-reduction patte",
    ("SimVQ", "mask"): "TypeError: SimVQ.forward() got an unexpected keyword argume",
    ("SimVQ", "no tokens"): "RuntimeError: cannot reshape tensor of 0 elements into shape",
    ("SimVQ", "bfloat16"): "NotImplementedError: \"cdist\" not implemented for 'BFloat16'",
    ("ResidualSimVQ", "mask"): "TypeError: ResidualSimVQ.forward() got an unexpected keywor",
    ("ResidualSimVQ", "no tokens"): "RuntimeError: cannot reshape tensor of 0 elements into shape",
    ("ResidualVQ", "image"): "RuntimeError: Sizes of tensors must match except in dimension",
    (
        "ResidualVQ",
        "image, projected",
    ): "RuntimeError: mat1 and mat2 shapes cannot be multiplied (48x4",
    (
        "ResidualVQ",
        "image, channel_last False",
    ): "RuntimeError: Sizes of tensors must match except in dimension",
    ("ResidualVQ", "volume"): "RuntimeError: Sizes of tensors must match except in dimension",
    (
        "ResidualVQ",
        "channel first",
    ): "RuntimeError: Sizes of tensors must match except in dimension",
    (
        "ResidualVQ",
        "channel first, projected",
    ): "RuntimeError: mat1 and mat2 shapes cannot be multiplied (16x6",
    (
        "ResidualVQ",
        "two position axes",
    ): "RuntimeError: Size does not match at dimension 0 expected inde",
    ("ResidualVQ", "heads"): "AssertionError: residual vq is not compatible with multi-headed",
    ("ResidualVQ", "given indices"): "ValueError: not enough values to unpack (expected 3,",
    (
        "ResidualVQ",
        "given indices, some absent",
    ): "AssertionError: some of the residual vq indices were dropped out",
    ("ResidualVQ", "given indices, image"): "AssertionError: ",
    (
        "ResidualVQ",
        "bfloat16 input, float32 projection",
    ): "RuntimeError: mat1 and mat2 must have the same dtype, but got",
    (
        "ResidualVQ",
        "float64 input, float32 projection",
    ): "RuntimeError: mat1 and mat2 must have the same dtype, but got",
    (
        "GroupedResidualVQ",
        "groups, image",
    ): "RuntimeError: Sizes of tensors must match except in dimension",
    ("GroupedResidualVQ", "groups, channel first"): "AssertionError: ",
    (
        "VectorQuantize",
        "masked, projected",
    ): "RuntimeError: The size of tensor a (4) must match the size of",
    (
        "VectorQuantize",
        "masked, shared heads",
    ): "RuntimeError: The size of tensor a (3) must match the size of",
    (
        "VectorQuantize",
        "masked, separate heads",
    ): "RuntimeError: The size of tensor a (3) must match the size of",
    (
        "VectorQuantize",
        "lengths, channel first",
    ): "RuntimeError: The size of tensor a (0) must match the size of",
    (
        "VectorQuantize",
        "everything masked, separate heads",
    ): "RuntimeError: The size of tensor a (3) must match the size of",
    ("VectorQuantize", "cross-entropy commitment, image"): "RuntimeError: Expected target size",
    (
        "VectorQuantize",
        "cross-entropy commitment, single tokens",
    ): "RuntimeError: Expected target size",
    (
        "VectorQuantize",
        "loss is not state, no commitment",
    ): "RuntimeError: a leaf Variable that requires grad is being used",
    (
        "VectorQuantize",
        "decode, shared heads",
    ): "RuntimeError: mat1 and mat2 shapes cannot be multiplied (24x3",
    (
        "VectorQuantize",
        "decode, projected channel first",
    ): "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x6 a",
    (
        "VectorQuantize",
        "codebook is set, learnable",
    ): "RuntimeError: a leaf Variable that requires grad is being used",
    (
        "VectorQuantize",
        "affine, trained state",
    ): "RuntimeError: Error(s) in loading state_dict for VectorQuantiz",
    (
        "VectorQuantize",
        "bfloat16 input, float32 projection",
    ): "RuntimeError: mat1 and mat2 must have the same dtype, but got",
    (
        "VectorQuantize",
        "float64 input, float32 projection",
    ): "RuntimeError: mat1 and mat2 must have the same dtype, but got",
    (
        "VectorQuantize",
        "synchronised in one process",
    ): "ValueError: Default process group has not been initi",
    (
        "VectorQuantize",
        "affine, synchronised in one process",
    ): "ValueError: Default process group has not been initi",
}

# Rows whose numbers are drawn, or hang on rounding, or whose input is the oracle's own: the oracle rejects torchvq
# under the switch, and no numbers are compared.
BY_CHANCE = {
    ("BinaryMapper", "evaluation"),
    ("BinaryMapper", "temperature"),
    ("FSQ", "noise of half a step"),
    ("FSQ", "a tenth of the elements"),
    ("FSQ", "all elements"),
    ("LatentQuantize", "losses"),
    ("ResidualFSQ", "gain of eight"),
    ("ResidualFSQ", "noise"),
    ("ResidualVQ", "diveq, variance"),
    ("ResidualVQ", "frozen at construction, dead codes"),
    ("ResidualVQ", "k-means, few tokens"),
    ("VectorQuantize", "k-means, few tokens"),
    ("VectorQuantize", "used codes stay"),
}

# What is different without the switch in the rows that are equal under it.
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
