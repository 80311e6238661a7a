"""kmeans: the operator and torchvq.kmeans (include/torchvq/ops/kmeans.h)."""

from __future__ import annotations

import math

import faiss
import pytest
import torch
from scipy.stats import chi2
from torch import Tensor

import torchvq

ops = torch.ops.torchvq
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def mixture(generator, points=2000, dim=6, centres=40, spread=0.3):
    means = torch.randn(centres, dim, generator=generator) * 3
    chosen = torch.randint(0, centres, (points,), generator=generator)
    return means[chosen] + torch.randn(points, dim, generator=generator) * spread


def error(x, codebook):
    """Oracle: brute force in float64."""
    return torch.cdist(x.double(), codebook.double()).amin(-1).square().mean().item()


def nearest(x, codebook):
    return torch.cdist(x.double(), codebook.double()).argmin(-1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_kmeans_separates_clusters(dtype, generator):
    x = mixture(generator, centres=10, spread=0.01).to(dtype)
    codebook, counts = torchvq.kmeans(x, 10)
    assert codebook.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert counts.sum() == len(x) and (counts > 0).all()
    assert error(x, codebook) < 6 * 0.01**2 * 1.2 + 2 * torch.finfo(dtype).eps ** 2 * 100


def chances_of_seeds(points, seeds):
    """Oracle: the chance of each set of seeds by k-means++, over all orders in which they are drawn."""
    squared = torch.cdist(points, points).square()
    chances = {}

    def draw(drawn, chance):
        if len(drawn) == seeds:
            chances[frozenset(drawn)] = chances.get(frozenset(drawn), 0.0) + chance
            return
        weights = squared[:, drawn].amin(-1) if drawn else torch.ones(len(points)).double()
        for point, share in enumerate((weights / weights.sum()).tolist()):
            if share > 0:
                draw([*drawn, point], chance * share)

    draw([], 1.0)
    return chances


@pytest.mark.parametrize(
    ("points", "seeds"), [([0.0, 0.5, 10.0, 10.5, 30.0], 3), ([0.0, 1.0, 2.0, 10.0, 11.0], 3)]
)
def test_kmeans_seeds_are_those_of_k_means_plus_plus(points, seeds):
    """Also where few points have most of the weight, so that a rejected proposal counts."""
    points, draws = torch.tensor(points).double()[:, None], 1500
    found = dict.fromkeys(chances := chances_of_seeds(points, seeds), 0)
    for step in range(draws):
        codes, _ = ops.kmeans(points.float()[None], seeds, torch.tensor([3, step]), iterations=0)
        found[frozenset(nearest(codes[0], points).tolist())] += 1
    likely = [s for s in chances if chances[s] * draws >= 5]
    rest = draws - sum(found[s] for s in likely), draws * (1 - sum(chances[s] for s in likely))
    cells = [(found[s], chances[s] * draws) for s in likely] + [rest]
    chi_square = sum((seen - expected) ** 2 / expected for seen, expected in cells)
    assert chi2.sf(chi_square, len(cells) - 1) > 1e-6


def test_kmeans_finds_far_clusters_of_few_tokens(generator):
    errors = []
    for seed in range(20):
        far = torch.randn(7, 2, generator=generator) * 20
        around = far.repeat(3, 1) + torch.randn(21, 2, generator=generator) * 0.01
        x = torch.cat([torch.randn(2000, 2, generator=generator) * 0.01, around])
        errors.append(error(x, torchvq.kmeans(x, 8, seed=seed).codebook))
    assert sorted(errors)[10] < 1e-3  # 4e-4 is the variance of the clusters


def test_kmeans_counts_belong_to_the_returned_codebook(generator):
    x = mixture(generator)
    for iterations in (0, 1, 5):
        codebook, counts = torchvq.kmeans(x, 60, iterations=iterations)
        assert torch.equal(counts, torch.bincount(nearest(x, codebook), minlength=60))


def lloyd(x, codebook, stride):
    """Oracle: one step in float64, `stride` times as far as the means."""
    assigned = nearest(x, codebook)
    assert (torch.bincount(assigned, minlength=len(codebook)) > 0).all()
    means = torch.stack([x[assigned == k].double().mean(0) for k in range(len(codebook))])
    return codebook + stride * (means - codebook)


def test_kmeans_iterations_are_lloyd_steps_of_which_the_last_ends_at_the_means(generator):
    """For batches this small, the early steps do not run on a sample."""
    x = mixture(generator)
    expected = torchvq.kmeans(x, 30, iterations=0).codebook.double()
    for iterations in (1, 2, 3):
        found = torchvq.kmeans(x, 30, iterations=iterations).codebook
        torch.testing.assert_close(found.double(), lloyd(x, expected, 1.0), rtol=1e-5, atol=1e-5)
        expected = lloyd(x, expected, 1.7)


def test_kmeans_ends_at_the_means_of_its_clusters(generator):
    x = mixture(generator, points=400)
    codebook, _ = torchvq.kmeans(x, 12, iterations=60)
    torch.testing.assert_close(codebook.double(), lloyd(x, codebook, 1.0), rtol=1e-5, atol=1e-5)


def test_kmeans_of_the_largest_numbers_stays_finite(generator):
    x = mixture(generator, points=300).sign() * 3e38
    assert torchvq.kmeans(x, 20, iterations=5).codebook.isfinite().all()


def test_kmeans_error_falls(generator):
    x = mixture(generator, centres=300)
    errors = [error(x, torchvq.kmeans(x, 100, iterations=i).codebook) for i in (0, 1, 3, 10)]
    assert errors == sorted(errors, reverse=True)


def test_kmeans_seeds_are_distinct_tokens_and_spread(generator):
    x = mixture(generator, centres=40, spread=0.01)
    codebook, _ = torchvq.kmeans(x, 40, iterations=0)
    assert {tuple(r) for r in codebook.tolist()} <= {tuple(r) for r in x.tolist()}
    assert len({tuple(r) for r in codebook.tolist()}) == 40
    random = x[torch.randperm(len(x), generator=generator)[:40]]
    assert error(x, codebook) < error(x, random) / 3


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_kmeans_depends_on_the_points_alone(metric, generator):
    x = mixture(generator)
    one = torchvq.kmeans(x, 100, metric=metric)
    shuffled = x[torch.randperm(len(x), generator=generator)]
    torch.set_num_threads(2)
    two = torchvq.kmeans(shuffled, 100, metric=metric)
    assert torch.equal(one.codebook, two.codebook) and torch.equal(one.counts, two.counts)
    assert torch.equal(one.codebook, torchvq.kmeans(x, 100, metric=metric).codebook)
    assert not torch.equal(one.codebook, torchvq.kmeans(x, 100, metric=metric, seed=1).codebook)


def test_kmeans_mask_and_non_finite_rows_equal_leaving_rows_out(generator):
    x = mixture(generator, points=500)
    dirty = torch.cat(
        [x, torch.full((20, 6), 1e6), torch.full((5, 6), math.nan), torch.full((5, 6), math.inf)]
    )
    mask = torch.ones(530, dtype=torch.bool)
    mask[500:520] = False
    order = torch.randperm(530, generator=generator)
    clean, masked = torchvq.kmeans(x, 30), torchvq.kmeans(dirty[order], 30, mask=mask[order])
    assert torch.equal(clean.codebook, masked.codebook) and torch.equal(clean.counts, masked.counts)


def test_kmeans_heads_are_independent(generator):
    x = torch.stack([mixture(generator), mixture(generator)])
    codebook, counts = torchvq.kmeans(x, 20)
    for h in range(2):
        alone = torchvq.kmeans(x[h], 20)
        assert torch.equal(alone.codebook, codebook[h]) and torch.equal(alone.counts, counts[h])
    mask = torch.rand(2, 2000, generator=generator) < 0.5
    assert torch.equal(
        torchvq.kmeans(x, 20, mask=mask).codebook[1], torchvq.kmeans(x[1][mask[1]], 20).codebook
    )


def test_kmeans_cosine_is_spherical(generator):
    x = mixture(generator) * torch.rand(2000, 1, generator=generator) * 9
    x[3] = 0
    codebook, counts = torchvq.kmeans(x, 30, metric="cosine")
    torch.testing.assert_close(codebook.norm(dim=-1), torch.ones(30))
    assert counts.sum() == 1999
    similarity = torch.nn.functional.normalize(x, dim=-1) @ codebook.T
    seeds, _ = torchvq.kmeans(x, 30, metric="cosine", iterations=0)
    assert (
        similarity.amax(-1).mean()
        > (torch.nn.functional.normalize(x, dim=-1) @ seeds.T).amax(-1).mean()
    )


@pytest.mark.parametrize("iterations", [0, 10])
def test_kmeans_fewer_points_than_codes(iterations, generator):
    x = torch.randn(7, 4, generator=generator)
    codebook, counts = torchvq.kmeans(torch.cat([x, x[:3]]), 20, iterations=iterations)
    assert error(x, codebook) == 0
    assert {tuple(r) for r in codebook.tolist()} == {tuple(r) for r in x.tolist()}
    assert counts.sum() == 10 and (counts > 0).sum() == 7
    assert len({tuple(r) for r in codebook[counts > 0].tolist()}) == 7


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_kmeans_of_one_point_and_of_equal_points(metric):
    for x in (torch.tensor([[3.0, 4.0]]), torch.tensor([[3.0, 4.0]]).expand(50, 2)):
        codebook, counts = torchvq.kmeans(x, 3, metric=metric)
        expected = x[0] if metric == "euclidean" else x[0] / 5
        torch.testing.assert_close(codebook, expected.expand(3, 2))
        assert counts.tolist() == [len(x), 0, 0]


def test_kmeans_uses_every_code_while_there_are_distinct_points(generator):
    """Two distant clusters and many duplicates: no empty code, no repeated code, no code at the origin."""
    x = torch.cat(
        [
            torch.full((500, 2), 5.0),
            torch.full((500, 2), -5.0),
            torch.randn(40, 2, generator=generator) + 50,
        ]
    )
    codebook, counts = torchvq.kmeans(x, 32)
    assert (counts > 0).all() and len({tuple(r) for r in codebook.tolist()}) == 32
    assert codebook.norm(dim=-1).min() > 1


@pytest.mark.parametrize("offset", [0.0, 1e3], ids=["centred", "offset"])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6], ids=str)
def test_kmeans_at_any_scale_and_offset(scale, offset, generator):
    x = (mixture(generator, centres=10, spread=0.01) + offset) * scale
    codebook, counts = torchvq.kmeans(x, 10)
    assert (counts > 0).all()
    assert error(x / scale, codebook / scale) < 6 * 0.01**2 * 1.3


def test_kmeans_error_is_at_most_that_of_faiss(generator):
    for x in (
        mixture(generator, points=6000, dim=8, centres=150),
        torch.randn(6000, 8, generator=generator),
    ):
        ours = (
            sum(error(x, torchvq.kmeans(x, 128, iterations=20, seed=s).codebook) for s in range(3))
            / 3
        )
        # Two local optima of the same problem, which on unclustered data differ by chance.
        assert ours <= error_of_faiss(x, 128, 20) * 1.01


def error_of_faiss(x: Tensor, codes: int, iterations: int) -> float:
    """Mean over three seeds, all points in each iteration."""
    errors = []
    for seed in range(3):
        other = faiss.Kmeans(
            x.shape[1], codes, niter=iterations, seed=seed + 1, max_points_per_centroid=10**9
        )
        other.train(x.numpy())
        errors.append(error(x, torch.from_numpy(other.centroids)))
    return sum(errors) / 3


def test_early_iterations_see_many_points(generator):
    """Ten iterations, most of them on a part of the points, are near 25 of faiss on all; if each took the part from
    which the seeds are drawn, they would be 1.1 % off.
    """
    x = torch.randn(60000, 8, generator=generator)
    ours = sum(error(x, torchvq.kmeans(x, 256, seed=seed).codebook) for seed in range(3)) / 3
    assert ours <= error_of_faiss(x, 256, 25) * 1.0075


def test_kmeans_without_points(generator):
    rng = torch.tensor([0, 0])
    for x, mask in (
        (torch.zeros(2, 0, 3), None),
        (torch.ones(2, 4, 3), torch.zeros(4, dtype=torch.bool)),
    ):
        codebook, counts = ops.kmeans(x, 5, rng, mask=mask)
        assert codebook.shape == (2, 5, 3) and not codebook.any() and not counts.any()
        with pytest.raises(ValueError, match="kmeans: expected x to hold at least 1 finite vector"):
            torchvq.kmeans(x, 5, mask=mask)


def test_kmeans_leaves_zero_vectors_out_with_cosine():
    x = torch.zeros(20, 3)
    assert torchvq.kmeans(x, 2).counts.tolist() == [20, 0]
    with pytest.raises(
        ValueError, match=r"finite vector that is not masked or zero, .* none of 20"
    ):
        torchvq.kmeans(x, 2, metric="cosine")
    x[5] = 1
    assert torchvq.kmeans(x, 2, metric="cosine").counts.tolist() == [1, 0]


def test_kmeans_takes_gradients_strides_and_tracing(generator):
    x = mixture(generator, points=200)
    expected = torchvq.kmeans(x, 9)
    result = torchvq.kmeans(x.T.contiguous().T.requires_grad_(), 9)
    assert not result.codebook.requires_grad and torch.equal(result.codebook, expected.codebook)
    rng = torch.tensor([0, 0])
    torch.library.opcheck(ops.kmeans.default, (x.detach()[None], 9, rng))
    compiled = torch.compile(lambda x: ops.kmeans(x, 9, rng), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x.detach()[None])[0][0], expected.codebook)


def test_kmeans_names_bad_arguments(generator):
    x, rng = torch.randn(1, 9, 3), torch.tensor([0, 0])
    cases = [
        (
            lambda: ops.kmeans(x[0], 3, rng),
            ValueError,
            r"expected x to have 3 dimensions \(H, N, D\)",
        ),
        (lambda: ops.kmeans(x.long(), 3, rng), TypeError, "expected x to be floating point"),
        (
            lambda: ops.kmeans(x, 0, rng),
            ValueError,
            "expected codebook_size to be at least 1, but got 0",
        ),
        (lambda: ops.kmeans(x, 3, rng[:1]), ValueError, r"expected rng to have shape \(2,\)"),
        (
            lambda: ops.kmeans(x, 3, rng, iterations=-1),
            ValueError,
            "expected iterations to be at least 0",
        ),
        (lambda: ops.kmeans(x, 3, rng, metric="dot"), ValueError, "expected metric to be"),
        (
            lambda: ops.kmeans(x, 3, rng, mask=torch.ones(8).bool()),
            ValueError,
            "expected mask to have size 9",
        ),
        (lambda: torchvq.kmeans(x[0, 0], 3), ValueError, r"expected x to have shape \(N, D\)"),
        (lambda: torchvq.kmeans(x, 3, metric=None), TypeError, "expected metric to be a string"),
    ]
    for call, error_type, fragment in cases:
        with pytest.raises(error_type, match=f"kmeans: {fragment}"):
            call()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tokens_and_their_opposites_start_codes(dtype: torch.dtype) -> None:
    half = torch.randn(8, 4, dtype=dtype)
    x = torch.cat([half, -half])[None]
    vq = torchvq.VectorQuantize(4, 16, kmeans_init=True).to(dtype)
    quantized, indices, _ = vq(x)
    assert torch.equal(quantized, x) and len(indices.unique()) == 16
