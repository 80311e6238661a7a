"""gumbel_straight_through: hard choice in forward, soft choice in backward (include/torchvq/ops)."""

from __future__ import annotations

import pytest
import torch
from score_losses import METRICS, compiled_token_gradient, make_tokens
from vector_quantize_pytorch import VectorQuantize

from support import any_path

ops = torch.ops.torchvq
op = ops.gumbel_straight_through


def make_arguments(generator, dtype=torch.float32, **sizes):
    x, codebook, _ = make_tokens(generator, dtype, **sizes)
    indices = torch.randint(-1, codebook.size(1), x.shape[:2], generator=generator)
    upstream = torch.randn(x.shape, generator=generator).to(dtype)
    return x, codebook, indices, upstream


def soft_choice(x, codebook, temperature, metric):
    """Oracle: torch's own autograd over all pairs."""
    if metric == "cosine":
        unit = torch.nn.functional.normalize
        logits = unit(x, dim=-1) @ unit(codebook, dim=-1).mT
    else:
        logits = -(x.unsqueeze(2) - codebook.unsqueeze(1)).norm(dim=-1)
    return (logits / temperature).softmax(-1) @ codebook, (logits / temperature).softmax(-1)


def oracle(x, codebook, indices, upstream, temperature, metric):
    x, codebook = x.clone().requires_grad_(), codebook.clone().requires_grad_()
    _, p = soft_choice(x, codebook, temperature, metric)
    hard = torch.nn.functional.one_hot(indices.clamp(min=0), codebook.size(1)).to(p)
    y = (hard + p - p.detach()) @ codebook
    present = (indices >= 0).unsqueeze(-1)
    return torch.autograd.grad(torch.where(present, y, 0), (x, codebook), upstream)


def gradients(x, codebook, indices, upstream, **options):
    x, codebook = x.clone().requires_grad_(), codebook.clone().requires_grad_()
    return torch.autograd.grad(op(x, codebook, indices, **options), (x, codebook), upstream)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str
)
def test_gumbel_straight_through_value_is_the_code_bit_for_bit(dtype, generator):
    x, codebook, indices, _ = make_arguments(generator, dtype)
    for path in (op, any_path("gumbel_straight_through")):
        y = path(x, codebook, indices, temperature=1.0, metric="euclidean")
        assert y.dtype == dtype and torch.equal(y, ops.lookup_codes(codebook, indices))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("temperature", [0.1, 1.0, 7.0])
@pytest.mark.parametrize(
    "sizes", [{}, {"heads": 1, "tokens": 1, "codes": 1, "dim": 1}, {"tokens": 900, "codes": 999}]
)
def test_gumbel_straight_through_gradient_matches_autograd(sizes, temperature, metric, generator):
    arguments = make_arguments(generator, torch.float64, **sizes)
    options = {"temperature": temperature, "metric": metric}
    for ours, expected in zip(
        gradients(*arguments, **options), oracle(*arguments, **options), strict=True
    ):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("metric", METRICS)
def test_gumbel_straight_through_token_gradient_matches_finite_differences_of_the_soft_choice(
    metric, generator
):
    x, codebook, indices, upstream = make_arguments(generator, torch.float64, tokens=3)
    indices.clamp_(min=0)
    grad_x, _ = gradients(x, codebook, indices, upstream, temperature=0.7, metric=metric)
    step = 1e-6
    for place in range(x.numel()):
        shift = torch.zeros(x.numel(), dtype=torch.float64)
        shift[place] = step
        shift = shift.view_as(x)
        up, down = (soft_choice(x + s, codebook, 0.7, metric)[0] for s in (shift, -shift))
        slope = (upstream * (up - down)).sum() / (2 * step)
        assert abs(slope - grad_x.view(-1)[place]) < 1e-7


@pytest.mark.parametrize("cosine", [False, True])
@pytest.mark.parametrize("temperature", [0.5, 1.0])
@pytest.mark.parametrize("stochastic", [False, True])
def test_gumbel_straight_through_equals_the_reference(stochastic, temperature, cosine, generator):
    torch.manual_seed(0)
    module = VectorQuantize(
        dim=4, codebook_size=6, straight_through=True, rotation_trick=False, route_gradients_to_input=False,
        freeze_codebook=True, commitment_weight=0.0, stochastic_sample_codes=stochastic, use_cosine_sim=cosine,
        sample_codebook_temp=temperature,
    )  # fmt: skip
    x = torch.randn(2, 5, 4, generator=generator).requires_grad_()
    upstream = torch.randn(2, 5, 4, generator=generator)
    quantized, indices, _ = module(x)
    quantized.backward(upstream)
    leaf = x.detach().requires_grad_()
    y = op(
        leaf.view(1, 10, 4), module._codebook.embed.detach(), indices.view(1, 10),
        temperature=temperature, metric="cosine" if cosine else "euclidean",
    )  # fmt: skip
    y.backward(upstream.view(1, 10, 4))
    torch.testing.assert_close(y.view_as(quantized), quantized, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(leaf.grad, x.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("metric", METRICS)
def test_gumbel_straight_through_at_temperature_zero_moves_the_chosen_codes_alone(
    metric, generator
):
    x, codebook, indices, upstream = make_arguments(generator)
    grad_x, grad_codebook = gradients(
        x, codebook, indices, upstream, temperature=0.0, metric=metric
    )
    expected = codebook.clone().requires_grad_()
    ops.lookup_codes(expected, indices).backward(upstream)
    assert grad_x.eq(0).all()
    torch.testing.assert_close(grad_codebook, expected.grad)


@pytest.mark.parametrize("metric", METRICS)
def test_gumbel_straight_through_ignores_tokens_without_an_index(metric, generator):
    x, codebook, indices, upstream = make_arguments(generator)
    options = {"temperature": 1.0, "metric": metric}
    expected = gradients(x, codebook, indices, upstream, **options)
    absent = indices < 0
    assert absent.any()
    x[absent], upstream[absent] = float("nan"), float("inf")
    for ours, grad in zip(
        gradients(x, codebook, indices, upstream, **options), expected, strict=True
    ):
        assert torch.equal(ours, grad)
    assert expected[0][absent].eq(0).all()


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("temperature", [1e-3, 1.0])
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-10, 1e10, 1e30])
def test_gumbel_straight_through_gradient_is_finite_for_hostile_norms(
    scale, temperature, metric, generator
):
    x, codebook, indices, upstream = make_arguments(generator)
    for tokens, codes in (
        (x * scale, codebook),
        (x * scale, codebook * min(scale, 1e10)),
        (x, codebook * min(scale, 1e10)),
    ):
        grads = gradients(tokens, codes, indices, upstream, temperature=temperature, metric=metric)
        assert all(grad.isfinite().all() for grad in grads)


def test_gumbel_straight_through_of_no_tokens(generator):
    x, codebook, indices, upstream = make_arguments(generator, tokens=1)
    empty = (x[:, :0], codebook, indices[:, :0], upstream[:, :0])
    grad_x, grad_codebook = gradients(*empty, temperature=1.0, metric="euclidean")
    assert grad_x.shape == (2, 0, 5) and grad_codebook.eq(0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_gumbel_straight_through_accepts_half_tokens_and_float_codes(dtype, generator):
    x, codebook, indices, upstream = make_arguments(generator)
    options = {"temperature": 1.0, "metric": "euclidean"}
    grads = gradients(x.to(dtype), codebook, indices, upstream, **options)
    assert [grad.dtype for grad in grads] == [dtype, torch.float32]
    expected = oracle(x.to(dtype).float(), codebook, indices, upstream, **options)
    torch.testing.assert_close(grads[0].float(), expected[0], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("metric", METRICS)
def test_gumbel_straight_through_compiled_gradient_uses_the_codebook_of_the_forward(
    metric, generator, compiler
):
    x, codebook, indices, upstream = make_arguments(generator)
    loss = lambda x, c: (op(x, c, indices, temperature=0.5, metric=metric) * upstream).sum()  # noqa: E731
    expected, _ = gradients(x, codebook, indices, upstream, temperature=0.5, metric=metric)
    assert torch.equal(compiled_token_gradient(loss, x, codebook, compiler), expected)


def test_gumbel_straight_through_gradient_survives_an_update_in_place(generator):
    x, codebook, indices, upstream = make_arguments(generator)
    options = {"temperature": 1.0, "metric": "euclidean"}
    expected = gradients(x, codebook, indices, upstream, **options)
    x.requires_grad_(), codebook.requires_grad_()
    y = op(x, codebook, indices, **options)
    with torch.no_grad():
        codebook.zero_()
    y.backward(upstream)
    assert torch.equal(x.grad, expected[0]) and torch.equal(codebook.grad, expected[1])


@pytest.mark.parametrize("metric", METRICS)
def test_gumbel_straight_through_passes_opcheck(metric, generator):
    x, codebook, indices, upstream = make_arguments(generator)
    options = {"temperature": 0.5, "metric": metric}
    leaves = (x.clone().requires_grad_(), codebook.clone().requires_grad_(), indices)
    torch.library.opcheck(op.default, leaves, options)
    backward = ops.gumbel_straight_through_backward.default
    for wanted in ([True, True], [True, False], [False, True]):
        torch.library.opcheck(
            backward, (upstream, x, codebook, indices), {**options, "grads": wanted}
        )


@pytest.mark.parametrize(
    ("change", "error", "fragment"),
    [
        (
            lambda x, c, i: (x[0], c, i, 1.0, "cosine"),
            ValueError,
            "expected x to have 3 dimensions",
        ),
        (
            lambda x, c, i: (x, c[..., :2], i, 1.0, "cosine"),
            ValueError,
            "expected codebook to have size 5",
        ),
        (
            lambda x, c, i: (x, c, i[:, :2], 1.0, "cosine"),
            ValueError,
            "expected indices to have size 9",
        ),
        (lambda x, c, i: (x, c, i.int(), 1.0, "cosine"), TypeError, "expected indices to be Long"),
        (
            lambda x, c, i: (x, c, i, -1.0, "cosine"),
            ValueError,
            "expected temperature to be finite and non-negative",
        ),
        (
            lambda x, c, i: (x, c, i, 1.0, "dot"),
            ValueError,
            "expected metric to be 'euclidean' or 'cosine'",
        ),
    ],
)
def test_gumbel_straight_through_names_bad_arguments(change, error, fragment, generator):
    x, codebook, indices, temperature, metric = change(*make_arguments(generator)[:3])
    for path in (op, any_path("gumbel_straight_through")):
        with pytest.raises(error, match=f"gumbel_straight_through: {fragment}"):
            path(x, codebook, indices, temperature=temperature, metric=metric)


def test_gumbel_straight_through_rejects_indices_out_of_range(generator):
    x, codebook, indices, _ = make_arguments(generator)
    with pytest.raises(IndexError, match=r"expected indices to be in \[-1, 6\), but got"):
        op(x, codebook, indices + 9, temperature=1.0, metric="cosine")
