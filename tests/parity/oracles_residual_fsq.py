"""Oracles of the residual stacks of FSQ where the reference does not decide."""

from __future__ import annotations

import torch
from torch import nn


def slopes(module, x):
    """Float64: the gains of the soft clamp and of each level, and the sum of the codes."""
    x = x.detach().double()
    levels = torch.tensor(module.levels, dtype=torch.float64)
    limit = module.soft_clamp_input_value
    outer = torch.ones_like(x)
    if limit is not None:
        outer = 1 - (x / limit.double()).tanh().square()
        x = (x / limit.double()).tanh() * limit.double()
    residual, gains, total = x, [], torch.zeros_like(x)
    for n in range(module.num_quantizers):
        z = residual * levels**n
        hard = module.layers[0].bound_hard_clamp
        bounded = z.clamp(-1, 1) if hard else z.tanh()
        gains.append((z.abs() <= 1).double() if hard else 1 - bounded.square())
        code = ((bounded + 1) * (levels - 1) / 2 + 0.5).floor() * 2 / (levels - 1) - 1
        total = total + code * levels**-n
        residual = residual - code * levels**-n
    return outer, gains, total


def gain_of_the_function(build, row):
    module = build()
    x = (torch.randn(4, 50, 3) * 0.9).requires_grad_()
    quantized = module(x)[0]
    quantized.sum().backward()
    outer, gains, total = slopes(module, x)
    left = torch.ones_like(outer)
    for gain in gains:
        left = left * (1 - gain)
    expected = outer * (1 - left)
    # At the edge of a level, rounding may decide differently.
    clear = (quantized.detach().double() - total).abs() < 1e-5
    assert clear.double().mean() > 0.98
    torch.testing.assert_close(x.grad.double()[clear], expected[clear], rtol=1e-4, atol=1e-4)
    assert (x.grad <= 1 + 1e-5).all()


def error_falls(build, row):
    """The residual after level n is at most L^-n / (L - 1)."""
    module = build().eval()
    x = torch.randn(8, 200, 3) * 0.5
    levels = torch.tensor(module.levels, dtype=torch.float32)
    target = module.soft_clamp_input_value * (x / module.soft_clamp_input_value).tanh()
    codes = module(x, return_all_codes=True)[2]
    left = target
    for n, level in enumerate(codes):
        left = left - level
        assert (left.abs() <= levels ** -float(n) / (levels - 1) + 1e-6).all()


def decodes_its_layout(build, row):
    """The output equals that on plain tokens, and that of decoding its indices."""
    module = build().eval()
    x = row.input(0)
    quantized, indices = module(x)[:2]
    assert quantized.shape == x.shape
    torch.testing.assert_close(
        module.get_output_from_indices(indices), quantized, rtol=1e-5, atol=1e-5
    )
    grouped = hasattr(module, "rvqs")
    first = getattr(module, "is_channel_first", False) or getattr(
        module, "accept_image_fmap", False
    )
    tokens = x.movedim(1, -1) if first and x.dim() > 2 else x
    flat = tokens.reshape(1, -1, x.shape[1] if first else x.shape[-1])
    twin = build_last(module, flat)
    expected, expected_indices = twin(flat)[:2]
    place = quantized.movedim(1, -1) if first and x.dim() > 2 else quantized
    torch.testing.assert_close(place.reshape(flat.shape), expected, rtol=1e-5, atol=1e-5)
    levels = indices.shape[-1]
    start = 1 if grouped else 0
    assert indices.shape[start:-1] == tokens.shape[:-1]
    assert torch.equal(indices.reshape(*indices.shape[:start], 1, -1, levels), expected_indices)


def build_last(module, flat) -> nn.Module:
    """The same module for features on the last axis."""
    for stack in getattr(module, "rvqs", [module]):
        stack.is_channel_first = False
    if hasattr(module, "accept_image_fmap"):
        module.accept_image_fmap = False
    return module


def codes_sum_to_the_output(build, row):
    module = build().eval()
    x = row.input(0)
    quantized, indices, codes = module(x, return_all_codes=True)
    assert codes.shape == (3, 2, 7, 3)
    torch.testing.assert_close(codes.sum(0).movedim(-1, 1), quantized)
    assert torch.equal(module.get_codes_from_indices(indices), codes)


def indices_are_int64(build, row):
    assert build()(row.input(0))[1].dtype == torch.int64


def mask_is_selection(build, row):
    module = build()
    x = row.input(0).detach()
    mask = torch.rand(2, 6, generator=torch.Generator().manual_seed(2)) < 0.6
    padded = torch.where(mask.unsqueeze(-1), x, torch.nan).requires_grad_()
    quantized, indices = module(padded, mask=mask)
    alone = x[mask].unsqueeze(0).requires_grad_()
    expected, expected_indices = module(alone)
    torch.testing.assert_close(quantized[mask], expected[0], rtol=1e-5, atol=1e-5)
    assert torch.equal(indices[mask], expected_indices[0])
    assert quantized[~mask].eq(0).all() and indices[~mask].eq(-1).all()
    quantized.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(padded.grad[mask], alone.grad[0], rtol=1e-4, atol=1e-5)
    assert padded.grad[~mask].eq(0).all()
    assert module.get_output_from_indices(indices)[~mask].eq(0).all()


def half_precision(build, row):
    module = build().bfloat16().eval()
    x = row.input(0).detach().bfloat16()
    quantized, indices = module(x)
    assert quantized.dtype == torch.bfloat16
    assert torch.equal(module.get_output_from_indices(indices), quantized)
    # Deep levels still quantize the residual, not its rounding: the sum of all codes is near the latent.
    latent = module.project_in(x).float()
    limit = module.soft_clamp_input_value
    codes = module.get_codes_from_indices(indices).sum(0)
    assert (codes - limit * (latent / limit).tanh()).abs().max() < 0.03


def noise_is_half_a_step(build, row):
    module = build().train()
    x = torch.randn(2, 3000, 3)
    quantized, indices = module(x)
    noise = (quantized - module.get_output_from_indices(indices)).abs()
    half = 1 / (torch.tensor(module.levels) - 1.0)
    assert (noise <= half + 1e-6).all() and abs((noise > 0).float().mean() - 0.5) < 0.02


def outside_is_refused(build, row):
    module = build()
    try:
        module.get_output_from_indices(torch.full((1, 1, 3), module.codebook_size))
    except IndexError:
        return
    raise AssertionError("an index outside the codebook was decoded")


def large_codebook(build, row):
    module = build().eval()
    x = torch.randn(2, 5, 16)
    quantized, indices = module(x)
    assert torch.equal(module.get_output_from_indices(indices), quantized)


def groups_drop_the_same(build, row):
    module = build().train()
    for seed in range(8):
        indices = module(row.input(seed), rand_quantize_dropout_fixed_seed=seed)[1]
        depths = (indices >= 0).sum(-1)
        assert (depths == depths.flatten()[0]).all()
    depths = {int((module(row.input(0))[1] >= 0).sum(-1).unique()) for _ in range(60)}
    assert depths == {1, 2, 3, 4}
