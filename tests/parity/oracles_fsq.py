"""Oracles of FSQ where the reference does not decide."""

from __future__ import annotations

import torch


def codes_and_noise(build, row):
    """The module, the output of a training forward, and the codes of its indices."""
    module = build().train()
    torch.manual_seed(0)
    x = torch.randn(4, 5000, module.dim) * 0.7
    quantized, indices = module(x)
    exact = module.indices_to_codes(indices)
    return module, quantized, exact


def half_a_step(build, row):
    module, quantized, exact = codes_and_noise(build, row)
    step = 2 / (torch.tensor(row.constructor_kwargs().get("levels", [8, 5, 5, 5])) - 1.0)
    moved = (quantized - exact).abs() / step
    assert (moved <= 0.5 + 1e-6).all() and (moved.amax((0, 1)) > 0.49).all()
    # Uniform noise has mean 0 and variance 1/12 in units of a step.
    chosen = (moved > 0).float().mean()
    variance = ((quantized - exact) / step).pow(2).mean() / chosen
    assert abs(variance - 1 / 12) < 2e-3
    assert abs(((quantized - exact) / step).mean()) < 5e-3


def fraction_moved(build, row):
    module, quantized, exact = codes_and_noise(build, row)
    asked = row.constructor_kwargs()["noise_dropout"]
    assert abs((quantized != exact).float().mean() - asked) < 0.01


def large_codebook(build, row):
    module = build()
    assert module.codebook_size == 4**16
    x = torch.randn(3, 100, 16)
    quantized, indices = module(x)
    assert torch.equal(module.indices_to_codes(indices), quantized)
    assert indices.max() > 2**31


def indices_are_int64(build, row):
    module = build()
    indices = module(row.input(0))[1]
    assert indices.dtype == torch.int64
    assert module.codes_to_indices(torch.zeros(3, 4)).dtype == torch.int64


def vectors(build, row):
    module, x = build(), torch.randn(7, 4)
    quantized, indices = module(x)
    wide, wide_indices = module(x.unsqueeze(1))
    assert torch.equal(quantized, wide.squeeze(1)) and torch.equal(indices, wide_indices.squeeze(1))


def mask_is_selection(build, row):
    module = build()
    torch.manual_seed(1)
    x = torch.randn(3, 8, module.dim)
    mask = torch.rand(3, 8) < 0.5
    padded = torch.where(mask.unsqueeze(-1), x, float("nan")).requires_grad_()
    quantized, indices = module(padded, mask=mask)
    alone = x[mask].unsqueeze(0).requires_grad_()
    expected, expected_indices = module(alone)
    torch.testing.assert_close(quantized[mask], expected[0], rtol=1e-6, atol=1e-6)
    assert torch.equal(indices[mask], expected_indices[0])
    assert quantized[~mask].eq(0).all() and indices[~mask].eq(-1).all()
    quantized.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(padded.grad[mask], alone.grad[0], rtol=1e-5, atol=1e-6)
    assert padded.grad[~mask].eq(0).all()


def outside_is_refused(build, row):
    module = build()
    for index in (module.codebook_size, -2):
        try:
            module.indices_to_codes(torch.full((1, 2), index))
        except IndexError:
            continue
        raise AssertionError("an index outside the codebook was decoded")


def padding_is_zero(build, row):
    codes = build().indices_to_codes(torch.tensor([[0, -1]]))
    assert codes[0, 1].eq(0).all() and codes[0, 0].eq(-1).all()


def not_finite(build, row):
    x = torch.zeros(1, 3, 4)
    x[0, 0, 1], x[0, 1, 2] = float("nan"), float("inf")
    quantized, indices = build()(x)
    assert quantized[0, :2].isnan().all() and indices[0, :2].eq(0).all()
    assert quantized[0, 2].isfinite().all()


def half_precision_module(build, row):
    module = build().bfloat16()
    x = torch.randn(2, 6, 16, dtype=torch.bfloat16)
    quantized, indices = module(x)
    assert quantized.dtype == torch.bfloat16
    assert torch.equal(module.indices_to_codes(indices), quantized)


def rotation_stays_exact(build, row):
    module = build()
    before = module.orthogonal_rot.clone()
    module.bfloat16()
    assert torch.equal(module.orthogonal_rot, before)
    x = torch.randn(2, 500, 4).bfloat16()
    assert torch.equal(module(x)[1], build_like(build, before)(x.float())[1])


def build_like(build, rotation):
    module = build()
    module.orthogonal_rot.copy_(rotation)
    return module


def zero_goes_up(build, row):
    codes, _ = build()(torch.zeros(1, 1, 4))
    assert (codes > 0).all()
