"""nearest_code and padding: with a mask it has no code and changes no other token; without one, tokens are the same."""

from __future__ import annotations

import nearest_code_oracle as oracle
import nearest_code_rows
import numpy as np
import pytest
import torch

from support import any_path
from torchvq.ops import nearest_code

METRICS = ["euclidean", "cosine"]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
PATHS = {"dispatched": torch.ops.torchvq.nearest_code, "any": any_path("nearest_code")}


@pytest.fixture(params=PATHS.values(), ids=PATHS.keys())
def search(request):
    return request.param


SHAPES = {"heads": (3, 40, 9), "one head": (1, 700, 64), "flat": (50, 5), "empty": (2, 0, 5)}


def masked_problem(shape, dtype, generator):
    x = torch.randn(shape, generator=generator).to(dtype)
    codebook = torch.randn(*shape[:-2], 33, shape[-1], generator=generator)
    mask = torch.rand(shape[:-1], generator=generator) > 0.4
    return x, codebook, mask


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("topk", [None, 3])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_padding_has_no_code_and_changes_no_other(search, shape, dtype, topk, metric, generator):
    x, codebook, mask = masked_problem(shape, dtype, generator)
    options = dict(metric=metric, topk=topk, return_codes=True, return_distances=True)
    expected = search(x, codebook, **options)
    found = search(x.masked_fill(~mask.unsqueeze(-1), float("nan")), codebook, mask=mask, **options)
    for own, their, padding in zip(found, expected, (-1, 0, 0), strict=True):
        assert own.dtype == their.dtype
        assert torch.equal(own[mask], their[mask])
        assert own[~mask].eq(padding).all()


@pytest.mark.parametrize("kind", ["all", "none"])
def test_a_mask_of_one_value(search, kind, generator):
    x, codebook, mask = masked_problem((2, 30, 7), torch.float32, generator)
    indices, codes, _ = search(
        x, codebook, return_codes=True, mask=torch.full_like(mask, kind == "all")
    )
    if kind == "all":
        assert torch.equal(indices, search(x, codebook)[0])
    else:
        assert indices.eq(-1).all() and codes.eq(0).all()


@pytest.mark.parametrize("topk", [None, 3])
def test_gradients_of_distances_leave_padding_out(topk, generator):
    x, codebook, mask = masked_problem((2, 12, 5), torch.float64, generator)
    bias = torch.randn(2, 33, generator=generator).double()
    found = []
    for masked in (True, False):
        leaves = [t.double().clone().requires_grad_() for t in (x, codebook, bias)]
        given = dict(mask=mask) if masked else {}
        result = nearest_code(
            leaves[0],
            leaves[1],
            bias=leaves[2],
            topk=topk,
            return_codes=True,
            return_distances=True,
            **given,
        )
        loss = result.distances[mask].square().sum() + result.codes[mask].cos().sum()
        if masked:  # must not matter
            loss = loss + result.distances.sum() + result.codes.sum()
            loss = loss - result.distances[mask].sum() - result.codes[mask].sum()
        found.append(torch.autograd.grad(loss, leaves))
    for own, their in zip(*found, strict=True):
        torch.testing.assert_close(own, their, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("mask", "error"),
    [
        (torch.ones(2, 4, dtype=torch.bool), ValueError),
        (torch.ones(4, dtype=torch.bool), ValueError),
        (torch.ones(2, 3), TypeError),
    ],
    ids=["longer", "flat", "float"],
)
def test_a_mask_of_the_wrong_kind_is_refused(search, mask, error):
    with pytest.raises(error, match="nearest_code: expected mask to "):
        search(torch.zeros(2, 3, 5), torch.zeros(7, 5), mask=mask)


@pytest.mark.parametrize("rows", [64, 300, 700])
@pytest.mark.parametrize("same", [0.0, 0.5])
def test_tokens_that_are_all_the_same(search, same, rows, generator):
    x, codebook = nearest_code_rows.repeated(rows, 600, 64, generator)
    tokens = torch.full_like(x, same)
    expected = oracle.nearest(tokens, codebook, "euclidean", None, 1)[:, 0]
    np.testing.assert_array_equal(search(tokens, codebook)[0].numpy(), expected)
