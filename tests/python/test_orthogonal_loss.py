"""orthogonal_loss: codes should point in different directions (include/torchvq/ops/orthogonal_loss.h)."""

from __future__ import annotations

import numpy
import pytest
import torch
from vector_quantize_pytorch import VectorQuantize

from support import any_path

ops = torch.ops.torchvq
op = ops.orthogonal_loss
RNG = torch.tensor([7, 3])
SHAPES = [(2, 6, 4), (2, 4, 6), (1, 1, 1), (1, 300, 7)]


def make_codebook(generator, shape=(2, 6, 4), dtype=torch.float64):
    return torch.randn(shape, generator=generator).to(dtype)


def make_indices(generator, codebook, tokens=3):
    return torch.randint(-1, codebook.size(1), (codebook.size(0), tokens), generator=generator)


def oracle(codebook, indices=None):
    """All pairs explicitly, one head at a time, in numpy."""
    total = 0.0
    for h, codes in enumerate(codebook.detach().double().numpy()):
        if indices is not None:
            codes = codes[sorted(set(indices[h].tolist()) - {-1})]
        if len(codes):
            unit = codes / numpy.maximum(numpy.linalg.norm(codes, axis=1)[:, None], 1e-12)
            total += ((unit @ unit.T) ** 2).mean() - 1 / len(codes)
    return total / codebook.size(0)


@pytest.mark.parametrize("shape", SHAPES)
def test_orthogonal_loss_matches_numpy(shape, generator):
    codebook = make_codebook(generator, shape)
    indices = make_indices(generator, codebook)
    assert op(codebook).item() == pytest.approx(oracle(codebook), rel=1e-11, abs=1e-14)
    assert op(codebook, indices=indices).item() == pytest.approx(
        oracle(codebook, indices), rel=1e-11, abs=1e-14
    )
    assert op(codebook.float()).dtype == torch.float32


@pytest.mark.parametrize("shape", [(1, 1024, 64), (2, 300, 70), (1, 4096, 16)])
def test_orthogonal_loss_of_sizes_of_use(shape, generator):
    """Norms of many codes are summed in parts."""
    codebook = make_codebook(generator, shape).float()
    leaf = codebook.clone().requires_grad_()
    loss = op(leaf)
    assert loss.item() == pytest.approx(oracle(codebook.double()), rel=1e-6)
    loss.backward()
    wide = codebook.double().requires_grad_()
    unit = torch.nn.functional.normalize(wide, dim=-1)
    ((unit @ unit.mT).square().mean()).backward()
    torch.testing.assert_close(leaf.grad.double(), wide.grad, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("shape", SHAPES[:3])
@pytest.mark.parametrize("max_codes", [None, 2, 99])
@pytest.mark.parametrize("active", [False, True])
def test_orthogonal_loss_gradient_matches_finite_differences(active, max_codes, shape, generator):
    codebook = make_codebook(generator, shape)
    indices = make_indices(generator, codebook) if active else None
    assert torch.autograd.gradcheck(
        lambda c: op(c, indices=indices, max_codes=max_codes, rng=RNG), codebook.requires_grad_()
    )


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("active", [False, True])
def test_orthogonal_loss_equals_the_reference(active, heads, generator):
    if active and heads > 1:
        heads = 1  # the reference has no active codes with several heads
    torch.manual_seed(0)
    module = VectorQuantize(
        dim=4 * heads, codebook_dim=4, codebook_size=6, heads=heads, separate_codebook_per_head=heads > 1,
        freeze_codebook=True, orthogonal_reg_weight=1.0, orthogonal_reg_active_codes_only=active,
    )  # fmt: skip
    x = torch.randn(1, 5, 4 * heads, generator=generator)
    _, indices, _, breakdown = module(x, return_loss_breakdown=True)
    breakdown.orthogonal_reg.backward()
    leaf = module._codebook.embed.detach().clone().requires_grad_()
    ours = op(leaf, indices=indices.view(5, heads).T if active else None)
    ours.backward()
    torch.testing.assert_close(ours, breakdown.orthogonal_reg, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(leaf.grad, module._codebook.embed.grad, rtol=1e-5, atol=1e-6)


def test_orthogonal_loss_draws_a_subset_that_one_selection_explains(generator):
    """Pairwise cosines are distinct, so the loss of two codes identifies the pair."""
    codebook = make_codebook(generator, (1, 6, 4))
    pairs = {(i, j): oracle(codebook[:, [i, j]]) for i in range(6) for j in range(i)}
    drawn = set()
    for step in range(200):
        loss = op(codebook, max_codes=2, rng=torch.tensor([1, step])).item()
        (pair,) = [pair for pair, value in pairs.items() if abs(value - loss) < 1e-12]
        drawn.add(pair)
    assert drawn == set(pairs)


def test_orthogonal_loss_draws_among_active_codes_alone(generator):
    codebook = make_codebook(generator, (1, 6, 4))
    indices = torch.tensor([[5, 1, 1, -1, 3, 5]])
    allowed = [oracle(codebook[:, list(pair)]) for pair in ((1, 3), (1, 5), (3, 5))]
    for step in range(20):
        loss = op(codebook, indices=indices, max_codes=2, rng=torch.tensor([1, step])).item()
        assert min(abs(loss - value) for value in allowed) < 1e-12
    more = op(codebook, indices=indices, max_codes=4, rng=RNG)
    assert more.item() == pytest.approx(oracle(codebook, indices), rel=1e-11)


def test_orthogonal_loss_is_zero_for_orthonormal_codes():
    assert op(torch.eye(5).unsqueeze(0) * 3).item() == pytest.approx(0, abs=1e-7)


@pytest.mark.parametrize("max_codes", [None, 2])
def test_orthogonal_loss_without_active_codes_is_zero_with_zero_gradient(max_codes, generator):
    codebook = make_codebook(generator)
    codebook[0, 0, 0] = float("nan")
    for indices in (torch.full((2, 3), -1), torch.empty(2, 0, dtype=torch.long)):
        leaf = codebook.clone().requires_grad_()
        loss = op(leaf, indices=indices, max_codes=max_codes, rng=RNG)
        loss.backward()
        assert loss.item() == 0 and leaf.grad.eq(0).all()


def test_orthogonal_loss_ignores_inactive_codes_whatever_they_hold(generator):
    codebook = make_codebook(generator, (1, 6, 4))
    indices = torch.tensor([[1, 4, 4]])
    expected = oracle(codebook, indices)
    codebook[0, 0] = float("nan")
    leaf = codebook.requires_grad_()
    loss = op(leaf, indices=indices)
    loss.backward()
    assert loss.item() == pytest.approx(expected, rel=1e-11)
    assert leaf.grad[0, [0, 2, 3, 5]].eq(0).all() and leaf.grad[0, [1, 4]].ne(0).all()


def test_orthogonal_loss_reports_a_nan_code(generator):
    codebook = make_codebook(generator)
    codebook[0, 0, 0] = float("nan")
    assert op(codebook).isnan()


@pytest.mark.parametrize("scale", [0.0, 1e-38, 1e-30, 1e-10, 1e10, 1e30])
def test_orthogonal_loss_gradient_is_finite_for_hostile_norms(scale, generator):
    codebook = make_codebook(generator, dtype=torch.float32)
    codebook[:, ::2] *= scale
    leaf = codebook.requires_grad_()
    loss = op(leaf)
    loss.backward()
    assert loss.isfinite() and leaf.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_orthogonal_loss_of_half_codes_is_float32(dtype, generator):
    leaf = make_codebook(generator, dtype=dtype).requires_grad_()
    loss = op(leaf)
    loss.backward()
    assert loss.dtype == torch.float32 and leaf.grad.dtype == dtype
    assert loss.item() == pytest.approx(oracle(leaf), rel=1e-6)


def test_orthogonal_loss_compiled_gradient_uses_the_codebook_of_the_forward(generator, compiler):
    codebook, indices = make_codebook(generator), torch.tensor([[0, 1, 5], [2, 2, 4]])

    def step(leaf, buffer):
        # The loss's input changes in place afterwards, as a parameter under EMA does.
        rows = ops.snapshot(leaf)
        loss = op(rows, indices=indices, max_codes=3, rng=RNG)
        rows.mul_(-3).add_(1)
        buffer.copy_(rows)
        return loss

    expected = codebook.clone().requires_grad_()
    op(expected, indices=indices, max_codes=3, rng=RNG).backward()
    leaf, buffer = codebook.clone().requires_grad_(), codebook.clone()
    torch.compile(step, fullgraph=True, backend=compiler)(leaf, buffer).backward()
    assert torch.equal(leaf.grad, expected.grad)
    assert torch.equal(buffer, codebook * -3 + 1)


def test_orthogonal_loss_refuses_a_second_derivative(generator):
    leaf = make_codebook(generator).requires_grad_()
    with pytest.raises(NotImplementedError, match="orthogonal_loss: expected backward to run with"):
        torch.autograd.grad(op(leaf), leaf, create_graph=True)


def test_orthogonal_loss_passes_opcheck(generator):
    codebook = make_codebook(generator)
    indices = make_indices(generator, codebook)
    leaf = codebook.clone().requires_grad_()
    torch.library.opcheck(op.default, (leaf,))
    torch.library.opcheck(op.default, (leaf,), {"indices": indices, "max_codes": 2, "rng": RNG})
    for grad in (False, True):
        options = {"indices": indices, "max_codes": 2, "rng": RNG, "grad": grad}
        torch.library.opcheck(ops.orthogonal_loss_forward.default, (codebook,), options)


@pytest.mark.parametrize(
    ("arguments", "error", "fragment"),
    [
        ({"codebook": torch.zeros(2, 3)}, ValueError, "expected codebook to have 3 dimensions"),
        (
            {"codebook": torch.zeros(1, 0, 3)},
            ValueError,
            "expected codebook to have at least 1 code",
        ),
        (
            {"codebook": torch.zeros(1, 2, 3).int()},
            TypeError,
            "expected codebook to be floating point",
        ),
        ({"indices": torch.zeros(1, 3).long()}, ValueError, "expected indices to have size 2"),
        ({"indices": torch.zeros(2, 3)}, TypeError, "expected indices to be Long"),
        (
            {"indices": torch.full((2, 3), 6)},
            IndexError,
            r"expected indices to be in \[-1, 6\), but got 6",
        ),
        (
            {"indices": torch.full((2, 3), -2)},
            IndexError,
            r"expected indices to be in \[-1, 6\), but got -2",
        ),
        (
            {"max_codes": 0, "rng": RNG},
            ValueError,
            "expected max_codes to be at least 1, but got 0",
        ),
        ({"max_codes": 3}, ValueError, "expected rng to be given with max_codes, but got None"),
        ({"max_codes": 3, "rng": RNG[:1]}, ValueError, r"expected rng to have shape \(2,\)"),
        ({"max_codes": 3, "rng": RNG.int()}, TypeError, "expected rng to be Long"),
    ],
)
def test_orthogonal_loss_names_bad_arguments(arguments, error, fragment):
    arguments = {"codebook": torch.zeros(2, 6, 4), **arguments}
    for path in (op, any_path("orthogonal_loss")):
        with pytest.raises(error, match=f"orthogonal_loss: {fragment}"):
            path(**arguments)
