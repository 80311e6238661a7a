"""RandomProjectionQuantizer and Sequential rows."""

from __future__ import annotations

import torch

from .harness import Row, Table

DIM, CODES, INNER = 6, 16, 4


def name_outputs(row, returned):
    return {"loss" if returned.is_floating_point() else "indices": returned}


TABLE = Table(
    class_name="RandomProjectionQuantizer",
    defaults=dict(dim=DIM, codebook_size=CODES, codebook_dim=INNER),
    outputs=name_outputs,
)


def targets(shape):
    def of_step(step):
        generator = torch.Generator().manual_seed(step)
        return dict(indices=torch.randint(CODES, shape, generator=generator))

    return of_step


def row(name, forward=None, shape=(2, 7, DIM), **kwargs):
    return Row(name, kwargs, shape=shape, forward=forward or {})


SAME = [
    row("defaults"),
    row("no norm", norm=False),
    row("wide", codebook_dim=9),
    row("option of the quantizer", decay=0.5, sync_codebook=False),
]
SCORED = [
    row("targets", targets((2, 7))),
]


def a_forward_in_training_moves_nothing(build, row):
    module = build().train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    for step in range(3):
        module(row.input(step))
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), name


def masked_is_absent(build, row):
    module = build()
    x = row.input(0).detach()
    mask = torch.rand(2, 7, generator=torch.Generator().manual_seed(4)) < 0.6
    indices = module(x, mask=mask)
    assert indices[~mask].eq(-1).all() and torch.equal(indices[mask], module(x)[mask])


def images_have_indices_of_images(build, row):
    x = torch.randn(2, DIM, 3, 4, generator=torch.Generator().manual_seed(5))
    module = build()
    assert torch.equal(module(x), module(x.flatten(2)).view(2, 3, 4))


def no_tokens_have_no_indices(build, row):
    assert build()(torch.zeros(0, 7, DIM)).shape == (0, 7)
    empty = torch.zeros(2, 0, dtype=torch.long)
    assert build()(torch.zeros(2, 0, DIM), indices=empty) == 0


def half_precision_has_the_tokens_of_float32(build, row):
    module = build().bfloat16()
    x = torch.randn(4, 2000, DIM, generator=torch.Generator().manual_seed(6)).bfloat16()
    assert torch.equal(module(x), build()(x.float()))


def different(name, oracle, reason, **kwargs):
    return Row(name, kwargs, shape=(2, 7, DIM), oracle=oracle, differs=reason)


RIGHT = [Row("nothing moves", oracle=a_forward_in_training_moves_nothing, shape=(2, 7, DIM))]
DIFFERENT = [
    different("mask", masked_is_absent, "takes no mask"),
    different("no tokens", no_tokens_have_no_indices, "a mean of nothing is NaN"),
    different("bfloat16", half_precision_has_the_tokens_of_float32, "projections are rounded"),
    different(
        "channel first", images_have_indices_of_images, "features last alone", channel_last=False
    ),
]
