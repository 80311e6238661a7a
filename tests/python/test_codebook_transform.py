"""``codebook_transform_fn``, codes of each token: search, sampling, gradients and losses against plain float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torchvq import VectorQuantize

DIM, CODES, BATCH, LENGTH = 5, 7, 2, 9
METRICS = pytest.mark.parametrize("cosine", [False, True], ids=["euclidean", "cosine"])


def make(**options):
    torch.manual_seed(0)
    return VectorQuantize(DIM, CODES, freeze_codebook=True, **options).double()


def shifts(heads=1, batch=BATCH, length=LENGTH):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(heads, batch, length, CODES, DIM, generator=generator, dtype=torch.float64)


def transform(codes: Tensor) -> Tensor:
    """(H, K, D) to codes of each token."""
    return codes[:, None, None].double() * 0.5 + shifts(codes.shape[0])


def data(generator, batch=BATCH, length=LENGTH):
    return torch.randn(batch, length, DIM, generator=generator, dtype=torch.float64)


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def scores_of(vq, x: Tensor) -> tuple[Tensor, Tensor]:
    """The scores (B, N, K) by their definition, and the codes (B, N, K, D) that are compared."""
    codes = transform(vq._codebook.embed)[0]
    if vq.use_cosine_sim:
        return (unit(x)[..., None, :] * unit(codes)).sum(-1), unit(codes)
    return -(x[..., None, :] - codes).norm(dim=-1), codes


@METRICS
@pytest.mark.parametrize("topk", [None, 1, 3, CODES])
def test_search(cosine, topk, generator):
    vq, x = make(use_cosine_sim=cosine), data(generator)
    scores, codes = scores_of(vq, x)
    expected = scores.sort(dim=-1, descending=True, stable=True).indices[..., : topk or 1]
    found = vq(x, codebook_transform_fn=transform, topk=topk)
    indices = found.indices if topk else found.indices[..., None]
    assert torch.equal(indices, expected)
    chosen = torch.take_along_dim(codes, expected[..., None], -2)
    torch.testing.assert_close(found.quantized.view_as(chosen), chosen)


@METRICS
@pytest.mark.parametrize("temperature", [0.3, 2.0])
def test_samples_follow_the_softmax(cosine, temperature):
    """Pearson's chi-square with 6 degrees of freedom exceeds 32 by chance once in 60,000 runs."""
    draws = 4000
    vq = make(use_cosine_sim=cosine, stochastic_sample_codes=True, sample_codebook_temp=temperature)
    x = data(torch.Generator().manual_seed(2), 1, 1)
    codes = shifts(batch=1, length=1)
    found = vq(
        x.expand(1, draws, DIM),
        codebook_transform_fn=lambda _: codes.expand(1, 1, draws, CODES, DIM),
    )
    own = codes[0, 0, 0]
    scores = unit(own) @ unit(x[0, 0]) if cosine else -(own - x[0, 0]).norm(dim=-1)
    expected = (scores / temperature).softmax(-1) * draws
    counts = torch.bincount(found.indices[0], minlength=CODES)
    assert ((counts - expected) ** 2 / expected).sum() < 32


def test_heads_that_share_a_codebook_count_as_items(generator):
    """The codes of head h of item b are those of item b * heads + h of what the function returns."""
    torch.manual_seed(0)
    vq = VectorQuantize(2 * DIM, CODES, heads=2, codebook_dim=DIM).double().eval()
    x = torch.randn(BATCH, LENGTH, 2 * DIM, generator=generator, dtype=torch.float64)
    codes = shifts(batch=2 * BATCH)
    found = vq(x, codebook_transform_fn=lambda _: codes)
    own = codes[0].unflatten(0, (BATCH, 2)).transpose(1, 2)
    distances = (x.unflatten(-1, (2, DIM)).unsqueeze(3) - own).norm(dim=-1)
    assert torch.equal(found.indices, distances.argmin(-1))
    chosen = torch.take_along_dim(own, found.indices[..., None, None], 3).flatten(2)
    torch.testing.assert_close(found.quantized, chosen)


def test_codes_of_another_shape_are_refused(generator):
    vq = make()
    for shape in ((1, BATCH, LENGTH + 1, CODES, DIM), (1, LENGTH, BATCH, CODES, DIM)):
        with pytest.raises(ValueError, match=r"H, B and N being \[1, 2, 9\], but got shape"):
            vq(data(generator), codebook_transform_fn=lambda _, shape=shape: torch.zeros(shape))


def test_sampled_candidates_are_different_codes(generator):
    vq, x = make(stochastic_sample_codes=True), data(generator)
    found = vq(x, codebook_transform_fn=transform, topk=4)
    assert found.indices.sort(-1).values.diff(dim=-1).gt(0).all()
    codes = scores_of(vq, x)[1]
    chosen = torch.take_along_dim(codes, found.indices[..., None], -2)
    torch.testing.assert_close(found.quantized, chosen)
    torch.testing.assert_close(found.loss, (x[..., None, :] - chosen).square().mean(-1))


@METRICS
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_cross_entropy(cosine, masked, given, generator):
    vq = make(use_cosine_sim=cosine, commitment_use_cross_entropy_loss=True)
    x = data(generator).requires_grad_()
    mask = torch.rand(BATCH, LENGTH, generator=generator) > 0.4 if masked else None
    targets = torch.randint(CODES, (BATCH, LENGTH), generator=generator) if given else None
    found = vq(x, mask=mask, indices=targets, codebook_transform_fn=transform)
    loss = found[1] if given else found.loss
    real = torch.ones(BATCH, LENGTH, dtype=torch.bool) if mask is None else mask
    scores = scores_of(vq, x)[0]
    wanted = scores.argmax(-1) if targets is None else targets
    expected = torch.nn.functional.cross_entropy(scores[real], wanted[real])
    torch.testing.assert_close(loss, expected)
    actual, oracle = (torch.autograd.grad(value, x)[0] for value in (loss, expected))
    torch.testing.assert_close(actual, oracle)


@METRICS
@pytest.mark.parametrize("masked", [False, True])
def test_diversity(cosine, masked, generator):
    """Codes of the same index count as the same code."""
    options = dict(codebook_diversity_loss_weight=1.0, codebook_diversity_temperature=3.0)
    vq = make(use_cosine_sim=cosine, commitment_weight=0.0, **options)
    x = data(generator).requires_grad_()
    mask = torch.rand(BATCH, LENGTH, generator=generator) > 0.4 if masked else None
    loss = vq(x, mask=mask, codebook_transform_fn=transform).loss
    real = torch.ones(BATCH, LENGTH, dtype=torch.bool) if mask is None else mask
    mean = (scores_of(vq, x)[0] * 3).softmax(-1)[real].mean(0)
    expected = (mean * mean.log()).sum()
    torch.testing.assert_close(loss, expected)
    actual, oracle = (torch.autograd.grad(value, x)[0] for value in (loss, expected))
    torch.testing.assert_close(actual, oracle)


def test_diversity_of_separate_heads_is_their_mean(generator):
    options = dict(codebook_diversity_loss_weight=1.0, codebook_diversity_temperature=3.0)
    torch.manual_seed(0)
    vq = VectorQuantize(
        2 * DIM,
        CODES,
        heads=2,
        codebook_dim=DIM,
        separate_codebook_per_head=True,
        commitment_weight=0.0,
        freeze_codebook=True,
        **options,
    ).double()
    x = torch.randn(BATCH, LENGTH, 2 * DIM, generator=generator, dtype=torch.float64)
    loss = vq(x, codebook_transform_fn=transform).loss
    parts = vq.project_in(x).unflatten(-1, (2, DIM)).movedim(2, 0)
    codes = transform(vq._codebook.embed)
    mean = (-3 * (parts[..., None, :] - codes).norm(dim=-1)).softmax(-1).mean((1, 2))
    torch.testing.assert_close(loss, (mean * mean.log()).sum(-1).mean())


@METRICS
@pytest.mark.parametrize("topk", [None, 3])
def test_gumbel_gradient(cosine, topk, generator):
    options = dict(straight_through=True, rotation_trick=False, route_gradients_to_input=False)
    vq = make(use_cosine_sim=cosine, sample_codebook_temp=0.7, **options)
    x = data(generator).requires_grad_()
    found = vq(x, codebook_transform_fn=transform, topk=topk)
    scores, codes = scores_of(vq, x)
    mixed = ((scores / 0.7).softmax(-1).unsqueeze(-2) @ codes.detach()).squeeze(-2)
    weight = torch.randn(found.quantized.shape, generator=generator, dtype=torch.float64)
    of_token = weight if topk is None else weight.sum(-2)
    actual = torch.autograd.grad((found.quantized * weight).sum(), x)[0]
    torch.testing.assert_close(actual, torch.autograd.grad((mixed * of_token).sum(), x)[0])


def test_gradients_reach_the_transform(generator):
    """A function with parameters learns from every loss."""
    options = dict(
        learnable_codebook=True,
        ema_update=False,
        commitment_use_cross_entropy_loss=True,
        codebook_diversity_loss_weight=0.5,
    )
    torch.manual_seed(0)
    vq = VectorQuantize(DIM, CODES, **options)
    scale = torch.ones(DIM, requires_grad=True)

    def scaled(codes):
        return codes[:, None, None] * scale + shifts(codes.shape[0]).float()

    vq(data(generator).float(), codebook_transform_fn=scaled).loss.backward()
    assert scale.grad.abs().min() > 0 and vq._codebook.embed.grad.abs().sum() > 0
