"""LFQ rows. A mild inverse temperature keeps probabilities above 1e-5, at which the reference clamps its logarithm; its
behaviour below is a separate row, decided by an oracle.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from .harness import Row, Table

DIM, CODES = 8, 256
MILD = dict(inv_temperature=0.1, return_loss_breakdown=True)


def name_outputs(row, returned):
    if row.forward_kwargs(0).get("return_loss_breakdown"):
        output, breakdown = returned
        names = dict(zip(("quantized", "indices", "loss"), output, strict=True))
        return {**names, "breakdown": breakdown}
    return dict(zip(("quantized", "indices", "loss"), returned, strict=True))


TABLE = Table(
    class_name="LFQ",
    defaults=dict(dim=DIM, codebook_size=CODES, commitment_loss_weight=0.25),
    outputs=name_outputs,
)


def row(name, shape=(2, 6, DIM), forward=MILD, **kwargs):
    return Row(name, kwargs, shape=shape, forward=forward, probes=PROBES)


def tiny(x):
    return x * 0.001


def decoded(module, seen):
    return module.indices_to_codes(seen["indices"])


def decoded_inside(module, seen):
    return module.indices_to_codes(seen["indices"], project_out=False)


def codes_of_bits(module, seen):
    return module.bits_to_codes(torch.tensor([[1.0, 0.0] * (module.codebook_dim // 2)]))


PROBES = {"decode": decoded, "decode inside": decoded_inside, "bits": codes_of_bits}
WITHOUT_BITS = {"decode": decoded, "decode inside": decoded_inside}
HALF = dict(dtype=torch.bfloat16, tolerance=1e-2)


def keep(step=0):
    return torch.tensor([[True, False, True, True, False, True], [True] * 5 + [False]])


def masked(step):
    return dict(MILD, mask=keep())


SAME = [
    row("defaults", commitment_loss_weight=0.0),
    row("masked", forward=masked),
    row("masked codebooks", forward=masked, codebook_size=16, num_codebooks=2),
    Row("sure tokens", {}, forward=dict(return_loss_breakdown=True)),
    row("commitment"),
    Row("inverse temperature of 100", {}, data=tiny, forward=dict(return_loss_breakdown=True)),
    Row("without breakdown", {}, data=tiny, tolerance=2e-5),
    # Two entropies of about 5 nearly cancel.
    Row("entropy weight", dict(entropy_loss_weight=1.5), forward=MILD, tolerance=2e-5),
    row("no entropy", entropy_loss_weight=0.0),
    row("diversity gamma", diversity_gamma=2.5),
    row("no diversity", diversity_gamma=0.0),
    row("several codebooks", codebook_size=16, num_codebooks=2),
    row("four codebooks of an image", shape=(2, DIM, 3, 2), codebook_size=4, num_codebooks=4),
    row("axis of one codebook", keep_num_codebooks_dim=True),
    row("axis of two codebooks", codebook_size=16, num_codebooks=2, keep_num_codebooks_dim=True),
    row("scale", codebook_scale=0.5),
    row("size from dim", codebook_size=None),
    row("dim from size", dim=None),
    row("projections", codebook_size=16),
    row("projections asked for", has_projections=True),
    row("projections without bias", codebook_size=16, projection_has_bias=False),
    row("projections and codebooks", codebook_size=4, num_codebooks=3),
    row("soft clamp", soft_clamp_input_value=1.5),
    row("soft clamp of a projection", codebook_size=64, soft_clamp_input_value=2.0),
    row("cosine projection", codebook_size=16, cosine_sim_project_in=True),
    row(
        "cosine projection, scale", codebook_size=16, cosine_sim_project_in=True, codebook_scale=2.0
    ),
    row(
        "cosine projection, own scale",
        codebook_size=16,
        cosine_sim_project_in=True,
        cosine_sim_project_in_scale=0.5,
    ),
    row("image", shape=(2, DIM, 3, 4)),
    row("video", shape=(1, DIM, 2, 3, 2)),
    row("sequence with features first", shape=(2, DIM, 5), channel_first=True),
    row("sequence with features last", channel_first=False),
    row("softplus", experimental_softplus_entropy_loss=True),
    row("softplus, offset", experimental_softplus_entropy_loss=True, entropy_loss_offset=1.0),
    row("spherical, bits", spherical=True, codebook_scale=1.0),
    row("rotation", orthogonal_rotation=True),
    row("spherical rotation", orthogonal_rotation=True, spherical=True),
    row("activation", straight_through_activation=nn.Tanh()),
    row("float32 not forced", force_quantization_f32=False),
    row("one token", shape=(1, 1, DIM)),
    Row("bfloat16 input", {}, forward=MILD, **HALF),
]
# The reference decodes bits of spherical codes to the corners of the cube.
SAME = [
    Row(**{**r.__dict__, "probes": WITHOUT_BITS})
    if r.kwargs.get("spherical") or r.kwargs.get("codebook_size") == 8
    else r
    for r in SAME
]


# Oracles ---------------------------------------------------------------------------------------------------------


def mean_entropies(x, sharpness):
    """Per-sample and batch entropy, by listing all codes in float64."""
    bits = x.shape[-1]
    codes = torch.tensor(
        [[2.0 * ((k >> (bits - 1 - d)) & 1) - 1 for d in range(bits)] for k in range(2**bits)],
        dtype=torch.float64,
    )
    log_p = (x.double() @ codes.mT * (sharpness / 2)).log_softmax(-1)
    log_mean = log_p.logsumexp(0) - math.log(len(x))
    return -(log_p.exp() * log_p).sum(-1).mean(), -(log_mean.exp() * log_mean).sum()


def by_enumeration(build, row):
    module = build().train()
    x = row.input(0)
    _, terms = module(x, return_loss_breakdown=True)
    wide = x.detach().double().requires_grad_()
    per_sample, batch = mean_entropies(wide.flatten(0, 1), 400.0)
    torch.testing.assert_close(terms[0].double(), per_sample, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(terms[1].double(), batch, rtol=1e-5, atol=0)
    terms[1].backward()
    batch.backward()
    torch.testing.assert_close(
        x.grad.double(), wide.grad, rtol=1e-3, atol=1e-5 * wide.grad.abs().max().item()
    )


def mask_is_absence(build, row):
    module = build().train()
    x, mask = row.input(0).detach(), keep()
    (quantized, indices, loss), terms = module(x, mask=mask, **MILD)
    rest, expected = module(x[mask].unsqueeze(0), **MILD)
    for value, right in zip(terms, expected, strict=True):
        torch.testing.assert_close(value, right)
    torch.testing.assert_close(loss, rest[2])
    assert quantized[~mask].eq(0).all() and indices[~mask].eq(-1).all()


def nothing_costs_nothing(build, row):
    module = build().train()
    loss = module(row.input(0), mask=torch.zeros(2, 6, dtype=torch.bool))[2]
    loss.backward()
    assert loss == 0


def smallest_fraction_is_a_token(build, row):
    assert torch.isfinite(build().train()(row.input(0))[2])


def some_of_the_tokens(build, row):
    """Both entropies are those of some half of the four tokens."""
    module = build().train()
    x = row.input(0).detach()
    _, terms = module(x, **MILD)
    pairs = [(a, b) for a in range(4) for b in range(a)]
    rows = x.flatten(0, 1).detach()
    right = [mean_entropies(rows[list(pair)], 0.4) for pair in pairs]
    found = torch.stack(terms[:2]).double()
    assert min((found - torch.stack(pair)).abs().max() for pair in right) < 1e-5


def absent_is_zero(build, row):
    codes = build().indices_to_codes(torch.full((1, 3), -1))
    assert codes.eq(0).all()


def outside_is_an_error(build, row):
    module = build()
    try:
        module.indices_to_codes(torch.tensor([[CODES]]))
    except IndexError:
        return
    raise AssertionError("no error")


def bits_decode_to_the_sphere(build, row):
    codes = build().bits_to_codes(torch.ones(DIM))
    torch.testing.assert_close(codes.norm(), torch.tensor(1.0))


def not_finite_is_seen(build, row):
    module = build().train()
    x = row.input(0).detach()
    x[0, 1, 3] = float("nan")
    quantized, indices, _ = module(x)
    assert quantized[0, 1].isnan().all() and indices[0, 1] == 0


RANDOM = [
    Row(
        "half of the tokens",
        dict(frac_per_sample_entropy=0.5),
        shape=(2, 2, DIM),
        oracle=some_of_the_tokens,
    ),
]
DIFFERENT = [
    Row(
        "entropy beyond the clamp",
        dict(codebook_size=2**12, dim=12),
        shape=(2, 20, 12),
        data=lambda x: x * 0.008,
        oracle=by_enumeration,
        differs="the logarithm is clamped at 1e-5",
    ),
    Row("mask", oracle=mask_is_absence, differs="the entropies cancel, outputs stay"),
    Row("all masked", oracle=nothing_costs_nothing, differs="NaN"),
    Row(
        "less than a token",
        dict(frac_per_sample_entropy=0.01),
        oracle=smallest_fraction_is_a_token,
        differs="NaN",
    ),
    Row("index -1", oracle=absent_is_zero, differs="-1 is the last code"),
    Row("index outside", oracle=outside_is_an_error, differs="bits above are dropped"),
    Row(
        "spherical bits",
        dict(spherical=True),
        oracle=bits_decode_to_the_sphere,
        differs="bits decode to corners of the cube",
    ),
    Row("NaN", oracle=not_finite_is_seen, differs="a NaN feature counts as a bit that is not set"),
]
