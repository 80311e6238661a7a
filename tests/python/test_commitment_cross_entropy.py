"""commitment_cross_entropy: commitment by classification (include/torchvq/ops/commitment_cross_entropy.h)."""

from __future__ import annotations

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
op = ops.commitment_cross_entropy


def make_arguments(generator, dtype=torch.float32, **sizes):
    x, codebook, mask = make_tokens(generator, dtype, **sizes)
    targets = torch.randint(-1, codebook.size(1), x.shape[:2], generator=generator)
    targets[:, :1] = 1
    return x, codebook, targets, mask


def oracle(x, codebook, targets, metric, mask=None):
    losses = []
    for h in range(x.size(0)):
        log_p = log_softmax(scores(numpy_rows(x[h]), numpy_rows(codebook[h]), metric))
        for n, target in enumerate(targets[h].tolist()):
            if target >= 0 and (mask is None or mask[h, n]):
                losses.append(-log_p[n, target])
    return numpy.mean(losses)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    "sizes", [{}, {"heads": 1, "tokens": 1, "codes": 1, "dim": 1}, {"tokens": 900, "codes": 999}]
)
def test_commitment_cross_entropy_matches_numpy(sizes, metric, generator):
    x, codebook, targets, mask = make_arguments(generator, torch.float64, **sizes)
    if codebook.size(1) == 1:
        targets.zero_()
    for m in (None, mask):
        expected = oracle(x, codebook, targets, metric, m)
        assert op(x, codebook, targets, metric=metric, mask=m).item() == pytest.approx(
            expected, rel=1e-11, abs=1e-14
        )
    single = op(x.float(), codebook.float(), targets, metric=metric)
    assert single.dtype == torch.float32 and single.shape == ()


@pytest.mark.parametrize("metric", METRICS)
def test_commitment_cross_entropy_gradient_matches_finite_differences(metric, generator):
    x, codebook, targets, mask = make_arguments(generator, torch.float64)
    for m in (None, mask):
        assert torch.autograd.gradcheck(
            lambda x, c, m=m: op(x, c, targets, metric=metric, mask=m),
            (x.requires_grad_(), codebook.requires_grad_()),
        )


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize(
    "options", [{"learnable_codebook": True, "ema_update": False}, {"use_cosine_sim": True}]
)
def test_commitment_cross_entropy_equals_the_reference(options, heads, generator):
    torch.manual_seed(0)
    module = VectorQuantize(
        dim=4 * heads, codebook_dim=4, codebook_size=6, heads=heads, separate_codebook_per_head=heads > 1,
        freeze_codebook=True, commitment_use_cross_entropy_loss=True, **options,
    )  # fmt: skip
    codebook = module._codebook.embed.detach().clone()
    x = torch.randn(2, 5, 4 * heads, generator=generator).requires_grad_()
    _, indices, loss = module(x)
    loss.backward()

    token, leaf = (
        x.detach().requires_grad_(),
        codebook.requires_grad_("learnable_codebook" in options),
    )
    rows = token.view(10, heads, 4).transpose(0, 1)
    metric = "cosine" if "use_cosine_sim" in options else "euclidean"
    ours = op(rows, leaf, indices.view(10, heads).T, metric=metric)
    ours.backward()
    torch.testing.assert_close(ours, loss, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(token.grad, x.grad, rtol=1e-5, atol=1e-6)
    if leaf.requires_grad:
        torch.testing.assert_close(leaf.grad, module._codebook.embed.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("garbage", [1e6, float("nan"), float("inf")])
def test_commitment_cross_entropy_ignores_padding(garbage, metric, generator):
    x, codebook, targets, mask = make_arguments(generator, heads=1, tokens=40)
    kept = (mask & (targets >= 0))[0]
    expected = op(x[:, kept], codebook, targets[:, kept], metric=metric)
    grads = gradients(lambda x, c: op(x, c, targets[:, kept], metric=metric), x[:, kept], codebook)
    x[:, ~kept] = garbage
    loss = lambda x, c: op(x, c, targets, metric=metric, mask=mask)  # noqa: E731
    torch.testing.assert_close(loss(x, codebook), expected, rtol=1e-6, atol=0)
    grad_x, grad_codebook = gradients(loss, x, codebook)
    torch.testing.assert_close(grad_x[:, kept], grads[0])
    torch.testing.assert_close(grad_codebook, grads[1])
    assert grad_x[:, ~kept].eq(0).all()


@pytest.mark.parametrize("metric", METRICS)
def test_commitment_cross_entropy_without_counted_tokens_is_zero_with_zero_gradient(
    metric, generator
):
    x, codebook, targets, mask = make_arguments(generator)
    x[0, 0, 0] = float("nan")
    cases = [
        (x, targets, mask & False),
        (x, targets * 0 - 1, None),
        (x[:, :0], targets[:, :0], None),
        (x[:, :0], targets[:, :0], mask[:, :0]),
    ]
    for tokens, target, m in cases:
        loss = lambda x, c, t=target, m=m: op(x, c, t, metric=metric, mask=m)  # noqa: E731
        assert loss(tokens, codebook).item() == 0
        assert all(grad.eq(0).all() for grad in gradients(loss, tokens, codebook))


@pytest.mark.parametrize("metric", METRICS)
def test_commitment_cross_entropy_reports_a_counted_nan(metric, generator):
    x, codebook, targets, mask = make_arguments(generator)
    x[0, 0, 0] = float("nan")
    assert op(x, codebook, targets, metric=metric, mask=mask).isnan()


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("scale", [0.0, 1e-38, 1e-30, 1e-10, 1e10, 1e30])
def test_commitment_cross_entropy_gradient_is_finite_for_hostile_norms(scale, metric, generator):
    x, codebook, targets, mask = make_arguments(generator)
    mixed = x.clone()
    mixed[:, ::2] *= scale
    for tokens, codes in (
        (x * scale, codebook),
        (x, codebook * scale),
        (x * scale, codebook * scale),
        (mixed, codebook),
    ):
        loss = lambda x, c: op(x, c, targets, metric=metric, mask=mask)  # noqa: E731
        assert loss(tokens, codes).isfinite()
        assert all(grad.isfinite().all() for grad in gradients(loss, tokens, codes))


def test_commitment_cross_entropy_gradient_at_a_code_is_that_of_the_other_codes(generator):
    """-|x - c| has no slope at x = c: that pair adds nothing to the gradient, which stays finite."""
    x, codebook, targets, _ = make_arguments(generator, torch.float64, heads=1, tokens=1)
    x[0, 0] = codebook[0, 3]
    grad_x, _ = gradients(lambda x, c: op(x, c, targets, metric="euclidean"), x, codebook)
    p = numpy.exp(log_softmax(scores(numpy_rows(x[0]), numpy_rows(codebook[0]), "euclidean")))[0]
    expected = torch.zeros(5, dtype=torch.float64)
    for k in range(6):
        if k != 3:
            away = x[0, 0] - codebook[0, k]
            expected -= (p[k] - (k == targets[0, 0].item())) * away / away.norm()
    torch.testing.assert_close(grad_x[0, 0], expected)


def test_commitment_cross_entropy_survives_an_offset_of_the_data(generator):
    x, codebook, targets, _ = make_arguments(generator, dim=64)
    x, codebook = (x * 0.1 + 100), (codebook * 0.1 + 100)
    expected = oracle(x, codebook, targets, "euclidean")
    assert op(x, codebook, targets, metric="euclidean").item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_commitment_cross_entropy_of_half_tokens_is_float32(dtype, generator):
    x, codebook, targets, _ = make_arguments(generator)
    x = x.to(dtype)
    loss = op(x, codebook, targets, metric="euclidean")
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(oracle(x, codebook, targets, "euclidean"), rel=1e-6)
    grads = gradients(lambda x, c: op(x, c, targets, metric="euclidean"), x, codebook)
    assert [grad.dtype for grad in grads] == [dtype, torch.float32]


def test_commitment_cross_entropy_scales_the_loss_before_rounding_half_gradients():
    """A gradient scaler multiplies the loss; a gradient of 1e-9 must not be rounded to 0 in float16 before that."""
    x = torch.zeros(1, 20000, 1, dtype=torch.float16).requires_grad_()
    codebook = torch.tensor([[[1.0], [-1.0]]]) * torch.tensor([1.0, 1.00001]).view(1, 2, 1)
    loss = op(x, codebook, torch.zeros(1, 20000, dtype=torch.long), metric="euclidean")
    (loss * 2.0**16).backward()
    assert x.grad.abs().min() > 1


@pytest.mark.parametrize("metric", METRICS)
def test_commitment_cross_entropy_compiled_gradient_uses_the_codebook_of_the_forward(
    metric, generator, compiler
):
    x, codebook, targets, mask = make_arguments(generator)
    loss = lambda x, c: op(x, c, targets, metric=metric, mask=mask)  # noqa: E731
    expected, _ = gradients(loss, x, codebook)
    assert torch.equal(compiled_token_gradient(loss, x, codebook, compiler), expected)


def test_commitment_cross_entropy_gradient_survives_an_update_in_place(generator):
    x, codebook, targets, _ = make_arguments(generator)
    expected = gradients(lambda x, c: op(x, c, targets, metric="euclidean"), x, codebook)
    x.requires_grad_(), codebook.requires_grad_()
    loss = op(x, codebook, targets, metric="euclidean")
    codebook.data.zero_()
    loss.backward()
    assert torch.equal(x.grad, expected[0]) and torch.equal(codebook.grad, expected[1])


def test_commitment_cross_entropy_refuses_a_second_derivative(generator):
    x, codebook, targets, _ = make_arguments(generator)
    loss = op(x.requires_grad_(), codebook, targets, metric="euclidean")
    with pytest.raises(
        NotImplementedError, match="commitment_cross_entropy: expected backward to run with"
    ):
        torch.autograd.grad(loss, x, create_graph=True)


def test_commitment_cross_entropy_ignores_strides(generator):
    x, codebook, targets, mask = make_arguments(generator)
    expected = op(x, codebook, targets, metric="euclidean", mask=mask)
    strided = op(
        x.mT.contiguous().mT, codebook.mT.contiguous().mT, targets.T.contiguous().T,
        metric="euclidean", mask=mask.repeat_interleave(2, 1)[:, ::2],
    )  # fmt: skip
    torch.testing.assert_close(strided, expected)


@pytest.mark.parametrize("metric", METRICS)
def test_commitment_cross_entropy_passes_opcheck(metric, generator):
    x, codebook, targets, mask = make_arguments(generator)
    leaves = (x.clone().requires_grad_(), codebook.clone().requires_grad_(), targets)
    torch.library.opcheck(op.default, leaves, {"metric": metric})
    torch.library.opcheck(op.default, leaves, {"metric": metric, "mask": mask})
    for wanted in ([True, True], [True, False], [False, True], [False, False]):
        options = {"metric": metric, "mask": mask, "grads": wanted}
        torch.library.opcheck(
            ops.commitment_cross_entropy_forward.default, (x, codebook, targets), options
        )


@pytest.mark.parametrize(
    ("change", "error", "fragment"),
    [
        (
            lambda x, c, t, m: (x[0], c, t, "cosine", m),
            ValueError,
            "expected x to have 3 dimensions",
        ),
        (
            lambda x, c, t, m: (x, c[:1], t, "cosine", m),
            ValueError,
            "expected codebook to have size 2",
        ),
        (
            lambda x, c, t, m: (x, c[..., :2], t, "cosine", m),
            ValueError,
            "expected codebook to have size 5",
        ),
        (
            lambda x, c, t, m: (x, c[:, :0], t, "cosine", m),
            ValueError,
            "expected codebook to have at least 1 code",
        ),
        (
            lambda x, c, t, m: (x, c, t[:, :2], "cosine", m),
            ValueError,
            "expected targets to have size 9",
        ),
        (lambda x, c, t, m: (x, c, t.int(), "cosine", m), TypeError, "expected targets to be Long"),
        (lambda x, c, t, m: (x, c, t, "cosine", m.int()), TypeError, "expected mask to be Bool"),
        (
            lambda x, c, t, m: (x, c, t, "manhattan", m),
            ValueError,
            "expected metric to be 'euclidean' or 'cosine'",
        ),
        (
            lambda x, c, t, m: (x, c, t + 9, "cosine", m),
            IndexError,
            r"expected targets to be in \[-1, 6\), but got",
        ),
        (
            lambda x, c, t, m: (x, c, t - 9, "cosine", m),
            IndexError,
            r"expected targets to be in \[-1, 6\), but got",
        ),
    ],
)
def test_commitment_cross_entropy_names_bad_arguments(change, error, fragment, generator):
    x, codebook, targets, metric, mask = change(*make_arguments(generator))
    for path in (op, any_path("commitment_cross_entropy")):
        with pytest.raises(error, match=f"commitment_cross_entropy: {fragment}"):
            path(x, codebook, targets, metric=metric, mask=mask)
