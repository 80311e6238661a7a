"""Search among each token's own codes, in memory (src/functional/token_codes.cpp)."""

import pytest
import torch

import torchvq  # noqa: F401

_ops = torch.ops.torchvq
RNG = torch.zeros(2, dtype=torch.long)


def search(x, codes, metric, **options):
    return _ops.quantize(x, codes, RNG, metric=metric, estimator="none", **options)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_indices_are_those_of_a_search_in_float64_and_of_the_candidates(metric):
    generator = torch.Generator().manual_seed(0)
    x, codes = (
        torch.randn(2, 9, 5, generator=generator),
        torch.randn(2, 9, 7, 5, generator=generator),
    )
    codes[0, 0, 3] = codes[0, 0, 5] = x[0, 0]  # the lowest of equal ones
    codes[1, 2, 0] = torch.nan  # never chosen while others are finite
    _, indices, chosen, _ = search(x, codes, metric)
    first = search(x, codes, metric, topk=2)[1][..., 0]
    assert torch.equal(indices, first)
    assert indices[0, 0] == 3
    unit = torch.nn.functional.normalize if metric == "cosine" else (lambda rows, dim: rows)
    rows, own = unit(x.double(), dim=-1), unit(codes.double(), dim=-1)
    scores = (rows.unsqueeze(2) - own).square().sum(-1).nan_to_num(torch.inf)
    assert torch.equal(indices, scores.argmin(-1))
    taken = torch.gather(codes, 2, indices[..., None, None].expand(-1, -1, 1, 5)).squeeze(2)
    if metric == "euclidean":
        assert torch.equal(chosen, taken)


def test_a_token_without_a_finite_score_gets_the_first_code():
    x, codes = torch.full((1, 2, 3), torch.nan), torch.randn(1, 2, 4, 3)
    assert not search(x, codes, "euclidean")[1].any()


def test_codes_get_their_gradient():
    x, codes = torch.randn(1, 4, 3), torch.randn(1, 4, 6, 3, requires_grad=True)
    _, indices, chosen, _ = search(x, codes, "euclidean")
    chosen.sum().backward()
    expected = torch.zeros(1, 4, 6, 3).scatter_(
        2, indices[..., None, None].expand(-1, -1, 1, 3), 1.0
    )
    assert torch.equal(codes.grad, expected)
