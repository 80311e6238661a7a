"""codebook_diversity_loss: minus the entropy of mean code usage (include/torchvq/ops/codebook_diversity_loss.h)."""

from __future__ import annotations

import math

import numpy
import pytest
import torch
from score_losses import (
    METRICS,
    compiled_token_gradient,
    gradients,
    log_softmax,
    make_tokens,
    numpy_rows,
    scores,
)
from vector_quantize_pytorch import VectorQuantize

from support import any_path

ops = torch.ops.torchvq
op = ops.codebook_diversity_loss


def oracle(x, codebook, temperature, metric, mask=None):
    """Oracle. Heads without tokens add 0."""
    total = 0.0
    for h in range(x.size(0)):
        log_p = log_softmax(temperature * scores(numpy_rows(x[h]), numpy_rows(codebook[h]), metric))
        p = numpy.exp(log_p if mask is None else log_p[mask[h].numpy()])
        if len(p):
            mean = p.mean(0)
            total += (mean[mean > 0] * numpy.log(mean[mean > 0])).sum()
    return total / x.size(0)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("temperature", [0.0, 1.0, 100.0])
@pytest.mark.parametrize(
    "sizes", [{}, {"heads": 1, "tokens": 1, "codes": 1, "dim": 1}, {"tokens": 900, "codes": 999}]
)
def test_codebook_diversity_loss_matches_numpy(sizes, temperature, metric, generator):
    x, codebook, mask = make_tokens(generator, torch.float64, **sizes)
    for m in (None, mask):
        expected = oracle(x, codebook, temperature, metric, m)
        loss = op(x, codebook, temperature=temperature, metric=metric, mask=m)
        assert loss.item() == pytest.approx(expected, rel=1e-10, abs=1e-13)
    single = op(x.float(), codebook.float(), temperature=temperature, metric=metric)
    assert single.dtype == torch.float32 and single.shape == ()


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("temperature", [0.5, 10.0])
def test_codebook_diversity_loss_gradient_matches_finite_differences(
    temperature, metric, generator
):
    x, codebook, mask = make_tokens(generator, torch.float64)
    for m in (None, mask):
        assert torch.autograd.gradcheck(
            lambda x, c, m=m: op(x, c, temperature=temperature, metric=metric, mask=m),
            (x.requires_grad_(), codebook.requires_grad_()),
        )


@pytest.mark.parametrize("temperature", [1.0, 5.0, 100.0])
@pytest.mark.parametrize(
    "options", [{"learnable_codebook": True, "ema_update": False}, {"use_cosine_sim": True}]
)
def test_codebook_diversity_loss_equals_the_reference_for_one_position(
    options, temperature, generator
):
    """The reference averages over the batch but not over positions: with one position they agree."""
    torch.manual_seed(0)
    module = VectorQuantize(
        dim=4, codebook_size=6, codebook_diversity_loss_weight=1.0, codebook_diversity_temperature=temperature,
        freeze_codebook=True, **options,
    )  # fmt: skip
    codebook = module._codebook.embed.detach().clone()
    x = torch.randn(12, 1, 4, generator=generator).requires_grad_()
    *_, breakdown = module(x, return_loss_breakdown=True)
    breakdown.codebook_diversity.backward()

    token, leaf = (
        x.detach().requires_grad_(),
        codebook.requires_grad_("learnable_codebook" in options),
    )
    metric = "cosine" if "use_cosine_sim" in options else "euclidean"
    ours = op(token.view(1, 12, 4), leaf, temperature=temperature, metric=metric)
    ours.backward()
    # The temperature multiplies the float32 rounding of the reference's distances.
    tolerance = {"rtol": 1e-5 * max(1.0, temperature / 5), "atol": 1e-6 * max(1.0, temperature / 5)}
    torch.testing.assert_close(ours, breakdown.codebook_diversity, **tolerance)
    torch.testing.assert_close(token.grad, x.grad, **tolerance)
    if leaf.requires_grad:
        torch.testing.assert_close(leaf.grad, module._codebook.embed.grad, **tolerance)


def test_codebook_diversity_loss_prefers_the_nearest_code_and_even_use():
    """The sign: probabilities peak at the nearest code, and the loss falls as usage evens out."""
    codebook = torch.eye(4).unsqueeze(0)
    even, uneven = codebook.clone(), codebook[:, [0, 0, 0, 1]].clone()
    loss = [op(x, codebook, temperature=50.0, metric="euclidean").item() for x in (even, uneven)]
    assert loss[0] == pytest.approx(-math.log(4), abs=1e-6)
    assert loss[1] == pytest.approx(0.25 * math.log(0.25) + 0.75 * math.log(0.75), abs=1e-6)
    x = (codebook[:, [0, 0, 0, 0, 1]] * 0.6).requires_grad_()
    op(x, codebook, temperature=5.0, metric="euclidean").backward()
    step = x.detach() - x.grad
    after = op(step, codebook, temperature=5.0, metric="euclidean")
    assert after < op(x, codebook, temperature=5.0, metric="euclidean")


def test_codebook_diversity_loss_averages_over_all_tokens_of_a_head(generator):
    """Not per position: the order of tokens, and their split into sequences, do not matter."""
    x, codebook, _ = make_tokens(generator, heads=1, tokens=12)
    expected = op(x, codebook, temperature=3.0, metric="euclidean")
    shuffled = x[:, torch.randperm(12, generator=generator)]
    torch.testing.assert_close(
        op(shuffled, codebook, temperature=3.0, metric="euclidean"), expected
    )


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("garbage", [1e6, float("nan"), float("inf")])
def test_codebook_diversity_loss_ignores_padding(garbage, metric, generator):
    x, codebook, mask = make_tokens(generator, heads=1, tokens=40)
    kept = mask[0]
    expected = op(x[:, kept], codebook, temperature=3.0, metric=metric)
    grads = gradients(lambda x, c: op(x, c, temperature=3.0, metric=metric), x[:, kept], codebook)
    x[:, ~kept] = garbage
    loss = lambda x, c: op(x, c, temperature=3.0, metric=metric, mask=mask)  # noqa: E731
    torch.testing.assert_close(loss(x, codebook), expected, rtol=1e-6, atol=0)
    grad_x, grad_codebook = gradients(loss, x, codebook)
    torch.testing.assert_close(grad_x[:, kept], grads[0])
    torch.testing.assert_close(grad_codebook, grads[1])
    assert grad_x[:, ~kept].eq(0).all()


@pytest.mark.parametrize("metric", METRICS)
def test_codebook_diversity_loss_without_tokens_is_zero_with_zero_gradient(metric, generator):
    x, codebook, mask = make_tokens(generator)
    x[0, 0, 0] = float("nan")
    for tokens, m in ((x, mask & False), (x[:, :0], None), (x[:, :0], mask[:, :0])):
        loss = lambda x, c, m=m: op(x, c, temperature=9.0, metric=metric, mask=m)  # noqa: E731
        assert loss(tokens, codebook).item() == 0
        assert all(grad.eq(0).all() for grad in gradients(loss, tokens, codebook))


def test_codebook_diversity_loss_counts_an_empty_head_as_zero(generator):
    x, codebook, mask = make_tokens(generator)
    mask[1] = False
    x[1] = float("nan")
    half = op(x[:1], codebook[:1], temperature=9.0, metric="euclidean", mask=mask[:1]) / 2
    torch.testing.assert_close(
        op(x, codebook, temperature=9.0, metric="euclidean", mask=mask), half
    )


@pytest.mark.parametrize("metric", METRICS)
def test_codebook_diversity_loss_reports_an_unmasked_nan(metric, generator):
    x, codebook, mask = make_tokens(generator)
    x[0, 0, 0] = float("nan")
    assert op(x, codebook, temperature=9.0, metric=metric, mask=mask).isnan()


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("temperature", [1.0, 1e4])
@pytest.mark.parametrize("scale", [0.0, 1e-38, 1e-30, 1e-10, 1e10, 1e30])
def test_codebook_diversity_loss_gradient_is_finite_for_hostile_norms(
    scale, temperature, metric, generator
):
    x, codebook, mask = make_tokens(generator)
    mixed = x.clone()
    mixed[:, ::2] *= scale
    for tokens, codes in (
        (x * scale, codebook),
        (x, codebook * scale),
        (x * scale, codebook * scale),
        (mixed, codebook),
    ):
        loss = lambda x, c: op(x, c, temperature=temperature, metric=metric, mask=mask)  # noqa: E731
        assert loss(tokens, codes).isfinite()
        assert all(grad.isfinite().all() for grad in gradients(loss, tokens, codes))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_codebook_diversity_loss_of_half_tokens_is_float32(dtype, generator):
    x, codebook, _ = make_tokens(generator)
    x = x.to(dtype)
    loss = op(x, codebook, temperature=3.0, metric="euclidean")
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(oracle(x, codebook, 3.0, "euclidean"), rel=1e-6)
    grads = gradients(lambda x, c: op(x, c, temperature=3.0, metric="euclidean"), x, codebook)
    assert [grad.dtype for grad in grads] == [dtype, torch.float32]


@pytest.mark.parametrize("metric", METRICS)
def test_codebook_diversity_loss_compiled_gradient_uses_the_codebook_of_the_forward(
    metric, generator, compiler
):
    x, codebook, mask = make_tokens(generator)
    loss = lambda x, c: op(x, c, temperature=3.0, metric=metric, mask=mask)  # noqa: E731
    expected, _ = gradients(loss, x, codebook)
    assert torch.equal(compiled_token_gradient(loss, x, codebook, compiler), expected)


def test_codebook_diversity_loss_refuses_a_second_derivative(generator):
    x, codebook, _ = make_tokens(generator)
    loss = op(x.requires_grad_(), codebook, temperature=1.0, metric="euclidean")
    with pytest.raises(
        NotImplementedError, match="codebook_diversity_loss: expected backward to run with"
    ):
        torch.autograd.grad(loss, x, create_graph=True)


@pytest.mark.parametrize("metric", METRICS)
def test_codebook_diversity_loss_passes_opcheck(metric, generator):
    x, codebook, mask = make_tokens(generator)
    leaves = (x.clone().requires_grad_(), codebook.clone().requires_grad_())
    options = {"metric": metric, "temperature": 2.0}
    torch.library.opcheck(op.default, leaves, options)
    torch.library.opcheck(op.default, leaves, {**options, "mask": mask})
    for wanted in ([True, True], [False, True]):
        torch.library.opcheck(
            ops.codebook_diversity_loss_forward.default,
            (x, codebook),
            {**options, "mask": mask, "grads": wanted},
        )


@pytest.mark.parametrize(
    ("change", "error", "fragment"),
    [
        (
            lambda x, c, m: (x[0], c, 1.0, "cosine", m),
            ValueError,
            "expected x to have 3 dimensions",
        ),
        (
            lambda x, c, m: (x, c[:1], 1.0, "cosine", m),
            ValueError,
            "expected codebook to have size 2",
        ),
        (
            lambda x, c, m: (x, c, -1.0, "cosine", m),
            ValueError,
            "expected temperature to be finite and non-negative",
        ),
        (
            lambda x, c, m: (x, c, 1.0, "dot", m),
            ValueError,
            "expected metric to be 'euclidean' or 'cosine'",
        ),
        (
            lambda x, c, m: (x, c, 1.0, "cosine", m[:, :1]),
            ValueError,
            "expected mask to have size 9",
        ),
        (
            lambda x, c, m: (x.long(), c, 1.0, "cosine", m),
            TypeError,
            "expected x to be floating point",
        ),
    ],
)
def test_codebook_diversity_loss_names_bad_arguments(change, error, fragment, generator):
    x, codebook, temperature, metric, mask = change(*make_tokens(generator))
    for path in (op, any_path("codebook_diversity_loss")):
        with pytest.raises(error, match=f"codebook_diversity_loss: {fragment}"):
            path(x, codebook, temperature=temperature, metric=metric, mask=mask)


@pytest.mark.parametrize("tokens", [300, 2100])
def test_kept_and_repeated_blocks_have_the_gradient_of_the_formula(tokens):
    # 4096 codes: 128 tokens are a block, and 16 blocks are kept for the gradient.
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(tokens, 3, generator=generator, dtype=torch.float64)
    codes = torch.randn(4096, 3, generator=generator, dtype=torch.float64)
    own, plain = x[None].clone().requires_grad_(), x.clone().requires_grad_()
    ops.codebook_diversity_loss(own, codes[None], temperature=5.0, metric="euclidean").backward()
    distances = torch.cdist(plain, codes, compute_mode="donot_use_mm_for_euclid_dist")
    p = (-5 * distances).softmax(-1).mean(0)
    (p * p.log()).sum().backward()
    torch.testing.assert_close(own.grad[0], plain.grad, rtol=1e-9, atol=1e-15)
