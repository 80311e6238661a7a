"""ResidualLFQ and GroupedResidualLFQ rows. Small latents keep the reference's probabilities above its clamp; its
gradient, with a gain of the number of levels, is that under the switch.
"""

from __future__ import annotations

import torch
from torch import nn

from .harness import Row, Table

DIM, CODES, LEVELS = 6, 16, 3


def name_outputs(row, returned):
    names = ("quantized", "indices", "loss", "all_codes")
    return dict(zip(names, returned, strict=False))


def small(x):
    return x * 0.002


def decoded(module, seen):
    return module.get_output_from_indices(seen["indices"])


def codes(module, seen):
    return module.get_codes_from_indices(seen["indices"])


TABLE = Table(
    class_name="ResidualLFQ",
    defaults=dict(dim=4, codebook_size=CODES, num_quantizers=LEVELS),
    outputs=name_outputs,
)
GROUPED = Table(
    class_name="GroupedResidualLFQ",
    defaults=dict(dim=8, codebook_size=CODES, num_quantizers=LEVELS, groups=2),
    outputs=name_outputs,
)
PROBES = {"decode": decoded, "codes": codes}
# Two entropies nearly cancel.
ROUGH = 2e-5


def row(name, shape=(2, 5, 4), forward=None, **kwargs):
    return Row(
        name, kwargs, shape=shape, forward=forward or {}, data=small, probes=PROBES, tolerance=ROUGH
    )


def without_decoding(row_):
    return Row(**{**row_.__dict__, "probes": {}})


def dropped(step):
    return dict(rand_quantize_dropout_fixed_seed=step)


SAME = [
    row("defaults"),
    row("commitment", commitment_loss_weight=0.25),
    row("no entropy", entropy_loss_weight=0.0, commitment_loss_weight=1.0),
    row("gamma", diversity_gamma=2.0),
    row("soft clamp", soft_clamp_input_value=1.5, commitment_loss_weight=0.1),
    row("projections", dim=DIM, shape=(2, 5, DIM)),
    row("all codes", forward=dict(return_all_codes=True)),
    row("one level", num_quantizers=1),
    # The reference keeps the axis in what it decodes, too.
    without_decoding(row("axis of codebooks", keep_num_codebooks_dim=True)),
    row("softplus", experimental_softplus_entropy_loss=True),
    row("activation", straight_through_activation=nn.Tanh(), commitment_loss_weight=0.1),
    row("dropout", quantize_dropout=True, forward=dropped),
    row(
        "dropout, rule",
        quantize_dropout=True,
        quantize_dropout_cutoff_index=1,
        quantize_dropout_multiple_of=2,
        num_quantizers=5,
        forward=dropped,
    ),
    # The reference decodes these to the corners of the cube.
    without_decoding(row("spherical", spherical=True, commitment_loss_weight=0.1)),
    without_decoding(row("rotation", orthogonal_rotation=True, commitment_loss_weight=0.1)),
]
SAME_GROUPED = [
    row("groups", shape=(2, 5, 8)),
    row("groups, commitment", shape=(2, 5, 8), commitment_loss_weight=0.25),
    row("groups, projections", shape=(2, 5, 12), dim=12),
    row("groups, one", shape=(2, 5, 4), dim=4, groups=1),
    without_decoding(
        row("groups, axis of codebooks", shape=(2, 5, 8), keep_num_codebooks_dim=True)
    ),
    row("groups, all codes", shape=(2, 5, 8), forward=dict(return_all_codes=True)),
]


def round_trip(build, row):
    module = build().eval()
    quantized, indices, _ = module(row.input(0))
    torch.testing.assert_close(module.get_output_from_indices(indices), quantized)


def gain_of_one(build, row):
    module = build().train()
    x = row.input(0)
    module(x)[0].sum().backward()
    torch.testing.assert_close(x.grad, torch.ones_like(x))


def masked_is_absent(build, row):
    module = build().train()
    x = row.input(0).detach()
    mask = torch.tensor([[True, False, True, True, False], [True] * 5])
    quantized, indices, loss = module(x, mask=mask)
    right = module(x[mask].unsqueeze(0))
    torch.testing.assert_close(loss, right[2])
    assert quantized[~mask].eq(0).all() and indices[~mask].eq(-1).all()


def images(build, row):
    module = build().eval()
    x = row.input(0)
    assert module(x)[0].shape == x.shape


DIFFERENT = [
    Row(
        "gain",
        dict(entropy_loss_weight=0.0),
        shape=(2, 5, 4),
        oracle=gain_of_one,
        differs="the gain is the number of levels",
    ),
    Row(
        "mask",
        dict(commitment_loss_weight=0.1),
        shape=(2, 5, 4),
        oracle=masked_is_absent,
        differs="padding is quantized, losses cancel",
    ),
    Row(
        "spherical round trip",
        dict(spherical=True),
        shape=(2, 5, 4),
        oracle=round_trip,
        differs="decodes to the corners of the cube",
    ),
    Row(
        "rotation round trip",
        dict(orthogonal_rotation=True),
        shape=(2, 5, 4),
        oracle=round_trip,
        differs="decodes without rotation",
    ),
    Row(
        "one token per item",
        dict(dim=DIM),
        shape=(3, DIM),
        oracle=images,
        differs="(B, dim) is refused",
    ),
]
