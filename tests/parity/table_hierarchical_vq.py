"""HierarchicalVQ rows."""

from __future__ import annotations

import torch

from .harness import Row, Table

DIM, CODES = 6, 16


def name_outputs(row, returned):
    named = dict(zip(("quantized", "indices", "loss"), returned, strict=False))
    scales = named.pop("indices")
    return named | {f"scale.{n}": indices for n, indices in enumerate(scales)}


def levels_of(module):
    return [module.get_vq(n) for n in range(module.num_levels)]


def large_codes(module):
    """Codes of the size of the data, so that different tokens choose different codes."""
    generator = torch.Generator().manual_seed(3)
    for level in dict.fromkeys(levels_of(module)):
        codes = torch.randn(level._codebook.embed.shape, generator=generator) * 0.7
        level._codebook.embed.copy_(codes)
        level._codebook.embed_avg.copy_(codes)


TABLE = Table(
    class_name="HierarchicalVQ",
    # Without k-means and dead codes, for which each package draws its own random numbers.
    defaults=dict(
        dim=DIM,
        codebook_size=CODES,
        scales=(1, 2, 4),
        kmeans_init=False,
        threshold_ema_dead_code=0,
    ),
    outputs=name_outputs,
    prepare=large_codes,
)


def decoded(module, seen):
    scales = [seen[f"scale.{n}"] for n in range(module.num_levels)]
    shape = seen["quantized"].shape
    full = shape[2:] if module.channel_first else shape[1:-1]
    # Masked indices cannot be decoded without the mask.
    if any(scale.lt(0).any() for scale in scales):
        return None
    return module.get_output_from_indices(scales, tuple(full))


def decoded_by_default(module, seen):
    scales = [seen[f"scale.{n}"] for n in range(module.num_levels)]
    return module.get_output_from_indices(scales)


def row(name, shape=(3, DIM, 6), forward=None, probes=None, steps=3, **kwargs):
    own = {"decode": decoded} if probes is None else probes
    return Row(name, kwargs, shape=shape, forward=forward or {}, probes=own, steps=steps)


def masked(*shape):
    def forward(step):
        return dict(mask=torch.rand(shape, generator=torch.Generator().manual_seed(step)) < 0.6)

    return forward


IMAGE = dict(accept_image_fmap=True)
VOLUME = dict(accept_3d_fmap=True)
SAME = [
    row("defaults"),
    row("size of the last scale", shape=(3, DIM, 4), probes={"decode": decoded_by_default}),
    row("smaller than the last scale", shape=(3, DIM, 3)),
    row("odd size", shape=(3, DIM, 11)),
    row("one scale", scales=(3,)),
    row("equal scales", scales=(2, 2, 4)),
    row("channel last", shape=(3, 6, DIM), channel_first=False),
    row("image", shape=(2, DIM, 5, 4), **IMAGE),
    row("image, grids", shape=(2, DIM, 5, 4), scales=(1, (2, 3), (5, 4)), **IMAGE),
    row("image, channel last", shape=(2, 5, 4, DIM), channel_first=False, **IMAGE),
    # More steps down this objective would move the weights of a volume's convolution far away.
    row("volume", shape=(2, DIM, 3, 4, 2), steps=1, **VOLUME),
    row("mask", forward=masked(3, 6)),
    row("image mask", shape=(3, DIM, 5, 4), forward=masked(3, 5, 4), **IMAGE),
    row("volume mask", shape=(2, DIM, 3, 4, 2), forward=masked(2, 3, 4, 2), steps=1, **VOLUME),
    row("lens", forward=dict(lens=torch.tensor([6, 3, 1]))),
    row("own codebooks", shared_codebook=False),
    row("own sizes", shared_codebook=False, codebook_size=(4, 8, 16)),
    row("rotation", rotation_trick=True),
    row("rotation, mask", rotation_trick=True, forward=masked(3, 6)),
    row("commitment", commitment_weight=0.3),
    row("no commitment", commitment_weight=0.0),
    row("slow", decay=0.5),
    row("two convolutions", share_quant_resi=2, scales=(1, 2, 3, 4, 6)),
    row("four convolutions", share_quant_resi=4, scales=(1, 2, 3, 4, 6)),
    row("a convolution each", share_quant_resi=0, quant_resi=0.8),
    row("too many convolutions", share_quant_resi=9),
    row("no convolution", quant_resi=0.0),
    row("all convolution", quant_resi=1.0),
    row("negative ratio", quant_resi=-0.3),
    row("orthogonal, own", orthogonal_reg_weight=0.5, shared_codebook=False),
    row(
        "orthogonal, active",
        orthogonal_reg_weight=0.5,
        orthogonal_reg_active_codes_only=True,
        shared_codebook=False,
    ),
]


# What we do otherwise ------------------------------------------------------------------------------------------------


def forward_of(module, x, **kwargs):
    returned = module(x, **kwargs)
    return returned[0], returned[1], returned[2]


def moves_once(build, row):
    """One update per forward, in which the averages decay once per scale."""
    module = build().train()
    large_codes_without_grad(module)
    before = module.vq._codebook.cluster_size.clone()
    _, scales, _ = forward_of(module, row.input(0))
    counts = torch.stack([torch.bincount(s.flatten(), minlength=CODES) for s in scales]).sum(0)
    kept = 0.99 ** len(scales)
    expected = kept * before + (1 - kept) * counts
    torch.testing.assert_close(module.vq._codebook.cluster_size, expected)


def large_codes_without_grad(module):
    with torch.no_grad():
        large_codes(module)


def codes_of_kmeans_differ(build, row):
    module = build().train()
    module(row.input(0))
    assert module.vq.codebook.unique(dim=0).shape[0] == CODES


def dropped_scales_decode_to_nothing(build, row):
    module = build().train()
    large_codes_without_grad(module)
    x = row.input(0).detach()
    quantized, scales, _, cutoff = module(x, return_cutoff=True)
    assert cutoff is not None
    before = build()
    large_codes_without_grad(before)
    torch.testing.assert_close(before.get_output_from_indices(scales, (6,)), quantized)


def dropped_scales_teach_nothing(build, row):
    module = build().train()
    large_codes_without_grad(module)
    before = module.vqs[2]._codebook.cluster_size.clone()
    module(row.input(0))
    assert torch.equal(module.vqs[2]._codebook.cluster_size, before)


def targets_are_scored(build, row):
    module = build().train()
    targets = [torch.zeros(3, n, dtype=torch.long) for n in (1, 2, 4)]
    _, loss = module(row.input(0), indices=targets)
    assert loss > 0


def padding_may_be_nan(build, row):
    module = build().eval()
    mask = torch.arange(6) < torch.tensor([6, 3, 1])[:, None]
    x = row.input(0).detach()
    expected = module(x, mask=mask)[0]
    hostile = torch.where(mask.unsqueeze(1), x, torch.nan)
    torch.testing.assert_close(module(hostile, mask=mask)[0], expected)


def absent_decodes_to_zeros(build, row):
    absent = [torch.full((3, n), -1) for n in (1, 2, 4)]
    assert build().get_output_from_indices(absent).eq(0).all()


def half_precision_works(build, row):
    module = build().eval()
    assert module(row.input(0).bfloat16())[0].dtype == torch.bfloat16


def frozen_is_frozen(build, row):
    module = build().train()
    before = module.vq._codebook.embed.clone()
    module(row.input(0), freeze_codebook=True)
    assert torch.equal(module.vq._codebook.embed, before)


def orthogonal_gradient_is_of_its_own_codes(build, row):
    """Its gradient is taken at the codes after the step; with commitment 0, the loss depends only on them."""
    module = build().train()
    large_codes_without_grad(module)
    loss = forward_of(module, row.input(0).detach())[2]
    (found,) = torch.autograd.grad(loss, [module.vq._codebook.embed])
    codes = module.vq._codebook.embed.detach().clone().requires_grad_()
    unit = torch.nn.functional.normalize(codes[0], dim=-1)
    expected = (unit @ unit.T).square().sum() / CODES**2 - 1 / CODES
    (right,) = torch.autograd.grad(expected * 0.5, [codes])
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-6)


def different(name, oracle, reason, **kwargs):
    return Row(name, kwargs, shape=(3, DIM, 6), oracle=oracle, differs=reason)


DIFFERENT = [
    different("one update", moves_once, "one per scale"),
    different("k-means", codes_of_kmeans_differ, "of the coarsest scale", kmeans_init=True),
    different("dropped", dropped_scales_decode_to_nothing, "they have indices", nested_dropout=1.0),
    different(
        "dropped, own",
        dropped_scales_teach_nothing,
        "they teach",
        nested_dropout=1.0,
        shared_codebook=False,
    ),
    different("targets", targets_are_scored, "not implemented"),
    different("NaN in padding", padding_may_be_nan, "zero times NaN"),
    different("absent", absent_decodes_to_zeros, "the offset of phi"),
    different("half precision", half_precision_works, "the convolution refuses it"),
    different("frozen", frozen_is_frozen, "no such argument"),
    different(
        "orthogonal",
        orthogonal_gradient_is_of_its_own_codes,
        "backward reads codes that later scales have moved",
        orthogonal_reg_weight=0.5,
        commitment_weight=0.0,
        vqp_compat=False,
    ),
]
