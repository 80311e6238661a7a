"""ResidualFSQ and GroupedResidualFSQ rows: numbers of the reference, and oracles where it is wrong or accepts less.

The gradient differs on purpose, so rows that compare gradients are compatible ones, have one level, or have an
oracle.
"""

from __future__ import annotations

import torch

from . import oracles_residual_fsq as oracle
from .errors_vector_quantize import Refused
from .harness import Row, Table

LEVELS = [8, 5, 4]
DIM = len(LEVELS)


def name_outputs(row: Row, returned) -> dict:
    names = ("quantized", "indices", "all_codes")
    named = dict(zip(names, returned, strict=False))
    return {**named, "indices": named["indices"].long()}


RESIDUAL = Table("ResidualFSQ", dict(levels=LEVELS, num_quantizers=3), name_outputs)
GROUPED = Table(
    "GroupedResidualFSQ", dict(dim=2 * DIM, groups=2, levels=LEVELS, num_quantizers=3), name_outputs
)

SOFT = dict(bound_hard_clamp=False)
DROPOUT = dict(num_quantizers=4, quantize_dropout=True)
CODES_TOO = dict(return_all_codes=True)
ROTATED = dict(levels=[5] * 3, orthogonal_rotation=True)
FIRST = dict(is_channel_first=True)


def decode(module, seen):
    return module.get_output_from_indices(seen["indices"])


def decode_codes(module, seen):
    return module.get_codes_from_indices(seen["indices"])


def codebooks(module, seen):
    return dict(codes=module.codebooks, size=torch.tensor(module.codebook_size))


def buffers(module, seen):
    return dict(scales=module.scales, limit=module.soft_clamp_input_value)


READ = dict(codes=decode_codes, decoded=decode)


def seeded(step: int) -> dict:
    return dict(rand_quantize_dropout_fixed_seed=step)


def row(name: str, kwargs=None, shape=(2, 6, DIM), **more) -> Row:
    return Row(name, kwargs or {}, shape=shape, **{"steps": 2, "input_grad": False, **more})


def compatible(name: str, kwargs=None, **more) -> Row:
    """A row with the gradient of the input, which equals the reference's only under the switch."""
    return row(f"compatible, {name}", kwargs or {}, input_grad=True, **more)


SAME = [
    row("defaults", probes=dict(**READ, codebooks=codebooks, buffers=buffers)),
    row("tanh", SOFT, probes=dict(**READ, codebooks=codebooks)),
    row("soft clamp of one number", dict(soft_clamp_input_value=2.0, **SOFT), probes=READ),
    row("soft clamp of each", dict(soft_clamp_input_value=[2.0, 1.5, 1.2], **SOFT), probes=READ),
    row(
        "soft clamp of a tensor", dict(soft_clamp_input_value=torch.tensor([2.0, 1.5, 1.2]), **SOFT)
    ),
    row("one level", dict(num_quantizers=1), input_grad=True, probes=READ),
    row("one level, tanh", dict(num_quantizers=1, **SOFT), input_grad=True),
    row("one level, projected", dict(num_quantizers=1, dim=8), shape=(2, 6, 8), input_grad=True),
    row("eight levels", dict(levels=[3, 4, 3], num_quantizers=8), probes=READ),
    row("two levels each", dict(levels=[2, 2, 3]), probes=READ),
    row("large inputs", data=lambda x: x * 30),
    row("small inputs", data=lambda x: x * 1e-2),
    row("all codes", forward=CODES_TOO),
    row("seeded dropout", DROPOUT, forward=seeded, steps=6),
    row(
        "seeded dropout, cutoff and multiple",
        dict(
            levels=[3, 3, 4],
            num_quantizers=7,
            quantize_dropout=True,
            quantize_dropout_cutoff_index=1,
            quantize_dropout_multiple_of=3,
        ),
        forward=seeded,
        steps=6,
    ),
    row("dropout, all codes", DROPOUT, forward=lambda step: {**seeded(step), **CODES_TOO}),
    row("axis of codebooks", dict(keep_num_codebooks_dim=True)),
    row("rotation", ROTATED),
    row("scale", dict(scale=2.0)),
    row("dtypes", dict(allowed_dtypes=(torch.float32,), force_quantization_f32=False)),
    row("bias of levels", dict(projection_has_bias=False)),
    row("noise in evaluation", dict(noise_dropout=0.5), steps=0),
    row("no noise", dict(noise_dropout=0.0)),
    row("one token", shape=(1, 1, DIM)),
    row("channel first, one token", FIRST, shape=(4, DIM)),
    row("transposed", shape=(DIM, 6, 2), data=lambda x: x.permute(2, 1, 0)),
    row("float64", dtype=torch.float64),
    compatible("defaults"),
    compatible("tanh", SOFT),
    compatible("eight levels", dict(levels=[3, 4, 3], num_quantizers=8)),
    compatible("projected", dict(dim=8), shape=(2, 6, 8), probes=READ),
    compatible("projected, tanh", dict(dim=8, **SOFT), shape=(2, 6, 8)),
    compatible("rotation", ROTATED),
    compatible("dropout", DROPOUT, forward=seeded, steps=4),
    compatible("all codes", forward=CODES_TOO),
]

WIDE = (2, 6, 2 * DIM)
GROUPED_SAME = [
    row("groups", shape=WIDE, probes=dict(**READ, codebooks=codebooks)),
    row("one group", dict(groups=1, dim=DIM), probes=READ),
    row("groups, projected", dict(dim=8, num_quantizers=1), shape=(2, 6, 8), probes=READ),
    row("groups, all codes", shape=WIDE, forward=CODES_TOO),
    row("groups, tanh", SOFT, shape=WIDE),
    compatible("groups", shape=WIDE),
    # One step, because after an optimizer has moved the projections, rounding decides at the edges of levels.
    compatible("groups, projected", dict(dim=8), shape=(2, 6, 8), steps=1, evaluate=False),
]

DIFFERENT = [
    row("gain", differs="gain of the number of levels", oracle=oracle.gain_of_the_function),
    row("gain, tanh", SOFT, differs="gains add up", oracle=oracle.gain_of_the_function),
    row(
        "gain of eight",
        dict(num_quantizers=8),
        differs="gain of the number of levels",
        oracle=oracle.gain_of_the_function,
    ),
    row("error", dict(num_quantizers=6), oracle=oracle.error_falls),
    row(
        "channel first",
        dict(dim=8, **FIRST),
        shape=(2, 8, 7),
        differs="indices that cannot be decoded",
        oracle=oracle.decodes_its_layout,
    ),
    row(
        "channel first, all codes",
        FIRST,
        shape=(2, DIM, 7),
        forward=CODES_TOO,
        differs="all codes of channel-first inputs",
        oracle=oracle.codes_sum_to_the_output,
    ),
    row(
        "image",
        dict(dim=8, **FIRST),
        shape=(2, 8, 3, 5),
        differs="indices that cannot be decoded",
        oracle=oracle.decodes_its_layout,
    ),
    row(
        "positions of maps with features last",
        shape=(2, 3, 5, DIM),
        differs="quantizes axis 1 as the features",
        oracle=oracle.decodes_its_layout,
    ),
    row(
        "single latents",
        dict(dim=8),
        shape=(7, 8),
        differs="vectors",
        oracle=oracle.decodes_its_layout,
    ),
    row(
        "rotation decodes",
        ROTATED,
        differs="raw tables used",
        oracle=oracle.decodes_its_layout,
    ),
    row("int64", differs="int32 indices", oracle=oracle.indices_are_int64),
    row("masked", differs="no mask", oracle=oracle.mask_is_selection),
    row(
        "masked, projected",
        dict(dim=8),
        shape=(2, 6, 8),
        differs="no mask",
        oracle=oracle.mask_is_selection,
    ),
    row(
        "half precision",
        dict(dim=8),
        shape=(2, 6, 8),
        differs="the residual is in half precision, and decoding fails",
        oracle=oracle.half_precision,
    ),
    row(
        "noise",
        dict(noise_dropout=0.5, num_quantizers=1),
        differs="noise of +-0.5",
        oracle=oracle.noise_is_half_a_step,
    ),
    row("index outside", differs="decodes silently", oracle=oracle.outside_is_refused),
    row(
        "large codebooks",
        dict(levels=[4] * 16),
        differs="tables at construction",
        oracle=oracle.large_codebook,
    ),
]

DIFFERENT_GROUPED = [
    row(
        "groups, image",
        dict(accept_image_fmap=True),
        shape=(2, 2 * DIM, 3, 5),
        differs="accept_image_fmap is not handed on",
        oracle=oracle.decodes_its_layout,
    ),
    row(
        "groups, image, projected",
        dict(accept_image_fmap=True, dim=16),
        shape=(2, 16, 3, 5),
        differs="accept_image_fmap is not handed on",
        oracle=oracle.decodes_its_layout,
    ),
    row(
        "groups, rotation",
        ROTATED,
        shape=WIDE,
        differs="raw tables used",
        oracle=oracle.decodes_its_layout,
    ),
    row(
        "groups, dropout",
        DROPOUT,
        shape=WIDE,
        differs="a collective for each seed, and no seed of the call",
        oracle=oracle.groups_drop_the_same,
    ),
]

CONSTRUCTION = [
    Refused("soft clamp with the hard clamp", dict(soft_clamp_input_value=2.0)),
    Refused("cutoff below zero", dict(quantize_dropout=True, quantize_dropout_cutoff_index=-1)),
    Refused("several codebooks", dict(num_codebooks=2)),
    Refused("asymmetric levels", dict(preserve_symmetry=False)),
    Refused("unknown option", dict(no_such_option=1)),
]

FORWARD = [
    Refused("wrong feature size", {}, torch.zeros(2, 6, DIM + 1)),
    Refused("wrong feature size, projected", dict(dim=8), torch.zeros(2, 6, DIM)),
    Refused("nothing", {}, None),
]
