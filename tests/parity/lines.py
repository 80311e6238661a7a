"""The line of docs/migrating.md (python/torchvq/migrate/differences.txt) to which each differing row belongs."""

from __future__ import annotations

from functools import cache

from torchvq.migrate.differences import Difference, sections


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
            "gain, default",
            "mean rotation",
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
            "bridge with EMA",
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
        "orthogonal-ema": ["regularised codes under EMA", "learnable codes under EMA"],
        "search": ["far from the origin", "CPU autocast"],
        "half-precision-state": ["bfloat16 module"],
        "input-dtype": ["bfloat16 input, float32 projection", "float64 input, float32 projection"],
        "sync-alone": ["synchronised in one process", "affine, synchronised in one process"],
    },
}
LINES = {
    (name, row): line for name, rows in ROWS.items() for line, ids in rows.items() for row in ids
}
