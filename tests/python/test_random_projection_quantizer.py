"""RandomProjectionQuantizer (python/torchvq/random_projection_quantizer.py) beyond parity."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from support import assert_close_to_rounding
from torchvq import RandomProjectionQuantizer

DIM, CODES, INNER = 6, 11, 4
op = torch.ops.torchvq.random_projection


def build(**options) -> RandomProjectionQuantizer:
    torch.manual_seed(1)
    own = dict(dim=DIM, codebook_size=CODES, codebook_dim=INNER)
    return RandomProjectionQuantizer(**{**own, **options})


def data(*shape: int, seed: int = 2) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def cosines(module: RandomProjectionQuantizer, x: Tensor) -> Tensor:
    """(*, C, K), in float64."""
    wide = x.double()
    if module.norm:
        wide = nn.functional.layer_norm(wide, (DIM,))
    projected = torch.einsum("...d,cde->...ce", wide, module.rand_projs.double())
    if module.num_codebooks > 1:
        layer = module.vq.project_in
        spread = projected.flatten(-2) @ layer.weight.double().T + layer.bias.double()
        projected = spread.unflatten(-1, (module.num_codebooks, -1))
    codes = module.vq._codebook.embed.double()
    unit = nn.functional.normalize
    return torch.einsum("...ce,cke->...ck", unit(projected, dim=-1), unit(codes, dim=-1))


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("codebooks", [1, 3])
@pytest.mark.parametrize("shape", [(5,), (2, 5), (2, 3, 4)], ids=str)
def test_nearest_direction(shape, codebooks, norm):
    module = build(num_codebooks=codebooks, norm=norm)
    x = data(*shape, DIM)
    expected = cosines(module, x).argmax(-1)
    assert torch.equal(module(x), expected if codebooks > 1 else expected.squeeze(-1))


@pytest.mark.parametrize("codebooks", [1, 3])
def test_cross_entropy_of_the_cosines(codebooks):
    module = build(num_codebooks=codebooks)
    x = data(2, 5, DIM).requires_grad_()
    shape = (2, 5, codebooks) if codebooks > 1 else (2, 5)
    targets = torch.randint(CODES, shape, generator=torch.Generator().manual_seed(3))
    loss = module(x, indices=targets)
    expected = nn.functional.cross_entropy(cosines(module, x).flatten(0, -2), targets.flatten())
    torch.testing.assert_close(loss.double(), expected)
    (own,) = torch.autograd.grad(loss, x)
    torch.testing.assert_close(own, torch.autograd.grad(expected, x)[0], rtol=1e-4, atol=1e-6)
    assert torch.equal(torch.autograd.grad(module.eval()(x, indices=targets), x)[0], own)


def test_targets_of_minus_one_and_padding_are_left_out():
    module = build(num_codebooks=2)
    x = data(2, 5, DIM)
    targets = torch.zeros(2, 5, 2, dtype=torch.long)
    targets[0] = -1
    assert torch.equal(module(x, indices=targets), module(x[1:], indices=targets[1:]))
    mask = torch.tensor([[False] * 5, [True] * 5])
    x[0] = float("nan")
    assert torch.equal(
        module(x, indices=targets.abs(), mask=mask), module(x[1:], indices=targets[1:])
    )


def test_masked_and_non_finite_tokens_stay_alone():
    module = build(num_codebooks=2)
    x = data(2, 6, DIM)
    expected = module(x)
    mask = torch.rand(2, 6, generator=torch.Generator().manual_seed(4)) < 0.6
    x[~mask] = float("inf")
    found, bare = module(x, mask=mask), module(x)
    assert torch.equal(found[mask], expected[mask]) and found[~mask].eq(-1).all()
    assert torch.equal(bare[mask], expected[mask]) and bare[~mask].eq(0).all()


def test_layouts():
    x = data(2, 3, 4, DIM)
    expected = build(num_codebooks=2)(x)
    for options in (dict(channel_last=False), dict(accept_image_fmap=True)):
        assert torch.equal(build(num_codebooks=2, **options)(x.movedim(-1, 1)), expected)
    with pytest.raises(ValueError, match="RandomProjectionQuantizer: expected x to have shape"):
        build(accept_image_fmap=True)(data(2, DIM, 5))


@pytest.mark.parametrize("codebooks", [1, 3])
def test_nothing_moves_and_no_parameter_requires_a_gradient(codebooks):
    module = build(num_codebooks=codebooks)
    assert not any(parameter.requires_grad for parameter in module.parameters())
    assert codebooks == 1 or module.vq.project_in.bias.eq(0).all()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    for step in range(3):
        module(data(2, 5, DIM, seed=step))
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_casts_change_no_token(dtype):
    x = data(4, 500, DIM).bfloat16().half()
    expected = build()(x.float())
    module = build().to(dtype)
    assert module.rand_projs.dtype in (torch.float32, torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(module(x.to(dtype)), expected)


def test_the_second_layer_of_several_codebooks_runs_in_its_own_dtype():
    x = data(2, 5, DIM).bfloat16()
    module = build(num_codebooks=2).bfloat16()
    assert module(x).shape == (2, 5, 2)
    assert module(x, indices=module(x)).dtype == torch.float32


def test_projections_are_xavier_s():
    drawn = torch.ops.torchvq.random_projections(8, 60, 40)
    assert drawn.shape == (8, 60, 40) and abs(drawn.var().item() - 2 / 100) < 1e-3


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_operator(dtype, norm):
    x, projections = data(2, 7, DIM).to(dtype), data(3, DIM, INNER, seed=5)
    found = op(x, projections, norm)
    wide = x.double()
    wide = nn.functional.layer_norm(wide, (DIM,)) if norm else wide
    expected = torch.einsum("bnd,cde->bnce", wide, projections.double()).flatten(2)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_operator_s_gradient():
    x, projections = data(2, 7, DIM).double(), data(3, DIM, INNER, seed=5).double()
    assert torch.autograd.gradcheck(op, (x.requires_grad_(), projections.requires_grad_()))


def test_operator_takes_no_tokens_strides_and_refuses_the_rest():
    projections = data(3, DIM, INNER)
    assert op(torch.zeros(0, DIM), projections).shape == (0, 12)
    x = data(DIM, 7).t()
    assert_close_to_rounding(op(x, projections), op(x.contiguous(), projections))
    with pytest.raises(ValueError, match="random_projection: expected x to have 6 features"):
        op(data(2, 5), projections)
    with pytest.raises(ValueError, match="expected projections to have 3 dimensions"):
        op(data(2, 6), projections[0])
    with pytest.raises(TypeError, match="expected x to be floating point"):
        op(torch.zeros(2, 6, dtype=torch.long), projections)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(dim=0), "expected dim to be at least 1, but got 0"),
        (dict(codebook_dim=0), "expected codebook_dim to be at least 1"),
        (dict(num_codebooks=0), "expected num_codebooks to be at least 1"),
        (dict(kmeans_init=True), r"expected kmeans_init to be left out \(nothing learns\)"),
        (dict(heads=2), r"expected heads to be left out \(use num_codebooks\), but got 2"),
        (
            dict(accept_image_fmap=True, accept_3d_fmap=True),
            "expected at most one of accept_image_fmap and accept_3d_fmap",
        ),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=f"RandomProjectionQuantizer: {message}"):
        build(**options)
    with pytest.raises(TypeError):
        build(unknown=1)


def test_targets_outside_are_refused():
    with pytest.raises(IndexError):
        build()(data(2, 5, DIM), indices=torch.full((2, 5), CODES))
