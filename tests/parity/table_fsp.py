"""FSP rows: the reference's numbers, and intended differences."""

from __future__ import annotations

import math

import torch

from .harness import Row, Table

LEVELS = [8, 5, 4]
QUANTIZED = dict(quantize_rate=1.0)


def name_outputs(row: Row, returned) -> dict:
    quantized, indices, loss, info = returned
    # The reference's indices are int32, its level indices floating point.
    level_indices = info["level_indices"].long()
    # A tuple of statistics, which the reference omits if it does not use them.
    norm = info["norm_info"] or {}
    return dict(
        quantized=quantized, indices=indices.long(), loss=loss, levels=level_indices, norm=norm
    )


TABLE = Table(class_name="FSP", defaults=dict(levels=LEVELS), outputs=name_outputs)


def decode(module, seen):
    indices = seen["indices"]
    levels = module.indices_to_level_indices(indices)
    return dict(
        codes=module.indices_to_codes(indices),
        levels=levels,
        indices=module.level_indices_to_indices(levels).long(),
        acts=module.indices_to_act_value(indices),
    )


def acts(module, seen):
    values = torch.linspace(0, 1, 30).view(10, 3)
    centres, levels = module.quantize_act_value(values, 1e-6)
    return dict(centres=centres, levels=levels.long())


READ = dict(decoded=decode, acts=acts)
SHAPE = dict(shape=(2, 7, 3))


def quantized(**kwargs) -> dict:
    return dict(QUANTIZED, **kwargs)


SAME = [
    *[
        Row(f"{act}, {norm}", quantized(act_name=act, vector_norm=norm), probes=READ, **SHAPE)
        for act, norm in (
            ("tanh", "var_tanh"),
            ("sigmoid", "var_sigmoid"),
            ("normal", "var"),
            ("laplace", "var_laplace"),
            ("cauchy", "none"),
            ("tanh", "kurt"),
        )
    ],
    *[
        Row(f"{act}, inverse", quantized(act_name=act, need_inv_act=True), probes=READ, **SHAPE)
        for act in ("tanh", "sigmoid", "normal", "laplace", "cauchy")
    ],
    Row("evaluation of a perturbed module", steps=0, probes=READ, **SHAPE),
    Row("projections", quantized(dim=6), shape=(2, 7, 6), probes=READ, tolerance=5e-5),
    Row(
        "projections without bias",
        quantized(dim=6, projection_has_bias=False),
        shape=(2, 7, 6),
        probes=READ,
    ),
    Row("channel first", quantized(channel_first=True), shape=(2, 3, 4, 5), probes=READ),
    Row(
        "channel first, projections",
        quantized(channel_first=True, dim=5),
        shape=(2, 5, 6),
        probes=READ,
    ),
    Row("image, features last", QUANTIZED, shape=(2, 4, 5, 3), probes=READ),
    Row("vectors", QUANTIZED, shape=(9, 3), probes=READ),
    Row("other eps", quantized(need_inv_act=True), forward=dict(eps=0.05), **SHAPE),
    Row("two levels", quantized(levels=[2, 2, 3]), probes=READ, **SHAPE),
    Row("shifted inputs", quantized(vector_norm="kurt"), data=lambda x: x * 2 + 1, **SHAPE),
    Row(
        "small inputs",
        quantized(vector_norm="kurt"),
        data=lambda x: x * 1e-3,
        tolerance=5e-5,
        **SHAPE,
    ),
]


def noise_fills_the_bin(build, row):
    """For equal latents, noise is uniform in half a bin's width around them."""
    module = build()
    x = torch.tensor([0.1, -0.2, 0.3]).expand(1, 20_000, 3)
    offset = (module(x)[0] / math.sqrt(12) + 0.5 - (x.tanh() + 1) / 2) * torch.tensor(LEVELS)
    assert offset.abs().max() <= 0.5 + 1e-5
    for feature in offset.unbind(-1):
        counts = feature.histc(10, -0.5, 0.5)
        assert (counts / feature.numel() - 0.1).abs().max() < 0.012
    assert torch.corrcoef(offset[0].T).triu(1).abs().max() < 0.04


def rate_is_that_of_quantization(build, row):
    module = build()
    x = torch.tensor([0.1, -0.2, 0.3]).expand(1, 20_000, 3)
    output, indices, _, info = module(x)
    at_centre = (output - module.indices_to_codes(indices)).abs() < 1e-6
    assert (at_centre.double().mean((0, 1)) - 0.25).abs().max() < 0.02
    assert info["p_accept_prob"] == 1


def what_would_leave_stays(build, row):
    module = build()
    x = torch.full((1, 20_000, 3), 1.5)
    output, _, _, info = module(x)
    u = output / math.sqrt(12) + 0.5
    assert u.max() <= 1 and u.min() >= 0
    stays = (u - (x.tanh() + 1) / 2).abs() < 1e-6
    edge = (1 - math.tanh(1.5)) / 2  # distance to the border, which is less than half a bin
    expected = torch.tensor([0.5 - edge * count for count in LEVELS])
    assert (stays.double().mean((0, 1)) - expected).abs().max() < 0.02
    assert abs(info["p_accept_prob"] - (1 - expected.mean())) < 0.02


def one_token_has_a_loss(build, row):
    x = torch.full((1, 1, 3), 0.5, requires_grad=True)
    loss = build()(x)[2]
    loss.backward()
    torch.testing.assert_close(loss, torch.tensor(0.1 * 0.25))
    torch.testing.assert_close(x.grad, torch.full((1, 1, 3), 0.1 * 2 * 0.5 / 3))


def constant_features_have_a_gradient(build, row):
    x = torch.ones(1, 9, 3, requires_grad=True)
    build()(x)[2].backward()
    torch.testing.assert_close(x.grad, torch.full((1, 9, 3), 0.1 * 2 / 27))


def many_codes_come_back(build, row):
    module = build().eval()
    x = torch.randn(500, 12, generator=torch.Generator().manual_seed(3))
    output, indices, *_ = module(x)
    assert torch.equal(module.indices_to_codes(indices), output)
    u = ((x.double().tanh() + 1) / 2 * 8).floor().long()
    assert torch.equal(module.indices_to_level_indices(indices), u)


def half_precision_works(build, row):
    output = build().bfloat16()(row.input(0).bfloat16())[0]
    assert output.dtype == torch.bfloat16 and output.isfinite().all()


def indices_outside_are_refused(build, row):
    try:
        build().indices_to_codes(torch.tensor([[160]]))
    except IndexError:
        return
    raise AssertionError("decoded index 160 of 160 codes")


def no_tokens_work(build, row):
    output, indices, loss, _ = build()(torch.zeros(0, 7, 3))
    assert output.shape == (0, 7, 3) and indices.shape == (0, 7) and loss == 0


def evaluation_has_no_gradient_in_the_loss(build, row):
    assert not build().eval()(row.input(0))[2].requires_grad


RANDOM = [
    Row("noise", oracle=noise_fills_the_bin),
    Row("rate", dict(quantize_rate=0.25), oracle=rate_is_that_of_quantization),
    Row("border", oracle=what_would_leave_stays),
]
DIFFERENT = [
    Row("one token", oracle=one_token_has_a_loss, differs="unbiased variance of one is NaN"),
    Row(
        "constant",
        dict(vector_norm="kurt"),
        oracle=constant_features_have_a_gradient,
        differs="square root at 0",
    ),
    Row("many codes", dict(levels=[8] * 12), oracle=many_codes_come_back, differs="int32"),
    Row("bfloat16", dict(dim=8), oracle=half_precision_works, differs="dtype error"),
    Row("outside", oracle=indices_outside_are_refused, differs="decodes silently"),
    Row("no tokens", oracle=no_tokens_work, differs="einops error or NaN"),
    Row(
        "evaluation",
        oracle=evaluation_has_no_gradient_in_the_loss,
        differs="requires grad",
        **SHAPE,
    ),
]
