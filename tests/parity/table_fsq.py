"""FSQ rows: numbers of the reference, and oracles where it is wrong or accepts less.

docs/design/scalar-quantization.md says what was measured. The reference's indices are int32, ours int64: rows
compare their values.
"""

from __future__ import annotations

import torch

from . import oracles_fsq as oracle
from .errors_vector_quantize import Refused
from .harness import Row, Table

LEVELS = [8, 5, 5, 5]
DIM = len(LEVELS)


def name_outputs(row: Row, returned) -> dict:
    quantized, indices = returned
    return dict(quantized=quantized, indices=None if indices is None else indices.long())


TABLE = Table(class_name="FSQ", defaults=dict(levels=LEVELS), outputs=name_outputs)

SYMMETRIC = dict(preserve_symmetry=True)
CLAMP = dict(bound_hard_clamp=True)
ROTATED = dict(levels=[5] * 4, orthogonal_rotation=True)
NOISY = dict(noise_dropout=0.5, **SYMMETRIC)
FIRST = dict(channel_first=True)


def decode(module, seen):
    return module.indices_to_codes(seen["indices"])


def level_indices(module, seen):
    return module.indices_to_level_indices(seen["indices"]).long()


def steps(module, seen):
    z = torch.linspace(-3, 3, 40).unsqueeze(-1).expand(-1, DIM) + torch.arange(DIM) / 7
    return dict(
        bound=module.bound(z),
        clamped=module.bound(z, hard_clamp=True),
        symmetric=module.symmetry_preserving_bound(z),
        symmetric_clamped=module.symmetry_preserving_bound(z, hard_clamp=True),
        quantize=module.quantize(z),
        indices=module.codes_to_indices(module.quantize(z)).long(),
    )


def tables(module, seen):
    return dict(codebook=module.implicit_codebook, size=torch.tensor(module.codebook_size))


READ = dict(decoded=decode, levels=level_indices)


def row(name: str, kwargs=None, shape=(2, 6, DIM), **more) -> Row:
    return Row(name, kwargs or {}, shape=shape, **{"steps": 2, **more})


SAME = [
    row("defaults", probes=dict(**READ, steps=steps, tables=tables)),
    row("symmetric", SYMMETRIC, probes=dict(**READ, steps=steps, tables=tables)),
    row("clamp", CLAMP, probes=dict(**READ, steps=steps)),
    row("symmetric clamp", dict(**CLAMP, **SYMMETRIC), probes=dict(**READ, steps=steps)),
    row("one feature", dict(levels=[7]), shape=(2, 6, 1), probes=READ),
    row("even levels", dict(levels=[4, 6, 8, 16]), probes=READ),
    row("odd levels", dict(levels=[3, 5, 9, 15]), probes=READ),
    row("many levels", dict(levels=[64, 33]), shape=(2, 6, 2), data=lambda x: x * 2, probes=READ),
    row("two levels, symmetric", dict(levels=[2] * 4, **SYMMETRIC), probes=READ),
    row("even levels, symmetric", dict(levels=[4, 6, 8, 16], **SYMMETRIC), probes=READ),
    row("large inputs", data=lambda x: x * 20),
    row("small inputs", data=lambda x: x * 1e-3),
    row("large inputs, clamp", CLAMP, data=lambda x: x * 20),
    row("projected", dict(dim=16), shape=(2, 6, 16), probes=READ),
    row(
        "projected, no bias", dict(dim=16, projection_has_bias=False), shape=(2, 6, 16), probes=READ
    ),
    row("two codebooks", dict(num_codebooks=2), shape=(2, 6, 2 * DIM), probes=READ),
    row("two codebooks, projected", dict(num_codebooks=2, dim=16), shape=(2, 6, 16), probes=READ),
    row("three codebooks, symmetric", dict(num_codebooks=3, **SYMMETRIC), shape=(2, 6, 3 * DIM)),
    row("axis of one codebook", dict(keep_num_codebooks_dim=True), probes=READ),
    row("no axis of codebooks", dict(keep_num_codebooks_dim=False), probes=READ),
    row("dim as the codes", dict(dim=DIM), probes=READ),
    row("image", shape=(2, DIM, 3, 5), probes=READ),
    row("image, projected", dict(dim=16), shape=(2, 16, 3, 5), probes=READ),
    row("image, two codebooks", dict(num_codebooks=2), shape=(2, 2 * DIM, 3, 5), probes=READ),
    row("video", shape=(2, DIM, 2, 3, 4), probes=READ),
    row("channel first", FIRST, shape=(2, DIM, 7), probes=READ),
    row("channel first, projected", dict(dim=16, **FIRST), shape=(2, 16, 7), probes=READ),
    row(
        "channel first, several", dict(num_codebooks=2, **FIRST), shape=(2, 2 * DIM, 7), probes=READ
    ),
    row("channel first, one token", FIRST, shape=(3, DIM)),
    row("rotation", ROTATED, probes=READ),
    row("rotation, symmetric", dict(**ROTATED, **SYMMETRIC), probes=READ),
    row("rotation, projected", dict(dim=16, **ROTATED), shape=(2, 6, 16), probes=READ),
    row(
        "rotation, two codebooks",
        dict(num_codebooks=2, **ROTATED),
        shape=(2, 6, 2 * DIM),
        probes=READ,
    ),
    row("without indices", dict(return_indices=False)),
    row("scale", dict(scale=2.0)),
    row("dtypes", dict(allowed_dtypes=(torch.float32,))),
    row("native precision", dict(force_quantization_f32=False)),
    row("float64", dtype=torch.float64),
    row("float16", dtype=torch.float16),
    row("bfloat16, symmetric", SYMMETRIC, dtype=torch.bfloat16),
    row("noise in evaluation", NOISY, steps=0),
    row("one token", shape=(1, 1, DIM)),
    row("no tokens", shape=(2, 0, DIM)),
    row("transposed", shape=(DIM, 6, 2), data=lambda x: x.permute(2, 1, 0)),
    row("many tokens", shape=(3, 1500, DIM), steps=1),
]

RANDOM: list[Row] = []

DIFFERENT = [
    row("noise of half a step", NOISY, differs="noise of +-0.5", oracle=oracle.half_a_step),
    row(
        "a tenth of the elements",
        dict(preserve_symmetry=True, noise_dropout=0.1),
        differs="half of the elements whatever was asked",
        oracle=oracle.fraction_moved,
    ),
    row(
        "all elements",
        dict(preserve_symmetry=True, noise_dropout=1.0),
        differs="half of the elements whatever was asked",
        oracle=oracle.fraction_moved,
    ),
    row(
        "sixteen features",
        dict(levels=[4] * 16),
        differs="PR 137: 34 GB of codes at construction",
        oracle=oracle.large_codebook,
    ),
    row("int64 indices", differs="int32 indices", oracle=oracle.indices_are_int64),
    row("single latents", differs="vectors are refused", oracle=oracle.vectors),
    row("masked", differs="no mask", oracle=oracle.mask_is_selection),
    row("masked, projected", dict(dim=9), differs="no mask", oracle=oracle.mask_is_selection),
    row("index outside", differs="index out of range decodes", oracle=oracle.outside_is_refused),
    row("index of padding", differs="-1 decodes to a code", oracle=oracle.padding_is_zero),
    row("not finite", differs="section E: a token with NaN has an index", oracle=oracle.not_finite),
    row(
        "bfloat16 module",
        dict(dim=16),
        differs="float32 codes meet bfloat16 projections",
        oracle=oracle.half_precision_module,
    ),
    row(
        "rotation in bfloat16",
        dict(**ROTATED, **SYMMETRIC),
        differs="the rotation is rounded with the module",
        oracle=oracle.rotation_stays_exact,
    ),
    row("tie of zero", dict(levels=[8, 6, 4, 2], **SYMMETRIC), oracle=oracle.zero_goes_up),
]

X = torch.zeros(2, 6, DIM)

CONSTRUCTION = [
    Refused("two levels without symmetry", dict(levels=[2, 3])),
    Refused("noise without symmetry", dict(noise_dropout=0.5)),
    Refused("several codebooks without axis", dict(num_codebooks=2, keep_num_codebooks_dim=False)),
    Refused("unknown option", dict(no_such_option=1)),
]

FORWARD = [
    Refused("wrong feature size", {}, torch.zeros(2, 6, DIM + 1)),
    Refused("wrong feature size, projected", dict(dim=16), X),
    Refused("scalar", {}, torch.zeros(())),
    Refused("nothing", {}, None),
]
