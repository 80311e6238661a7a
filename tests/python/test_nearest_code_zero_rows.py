"""Rows of zeros, such as padding, in the search by the cosine."""

import pytest
import torch

import torchvq  # noqa: F401


@pytest.mark.parametrize("rows", [3, 40, 300])
@pytest.mark.parametrize("aside", [False, True])
def test_rows_of_zeros_get_the_first_finite_code_by_the_cosine(rows, aside):
    """Their score is the same for all codes: padding decides nothing code by code."""
    generator = torch.Generator().manual_seed(0)
    x, codes = (
        torch.randn(1, rows, 32, generator=generator),
        torch.randn(1, 512, 32, generator=generator),
    )
    x[:, ::2] = 0
    codes[0, 0] = torch.nan
    if aside:
        codes[0, 1] *= 1e30  # beyond the squares of float32
    found = torch.ops.torchvq.nearest_code(x, codes, metric="cosine")[0]
    assert (found[:, ::2] == 1).all()
    units = torch.nn.functional.normalize(codes.double(), dim=-1).nan_to_num(0)
    scores = (x.double() @ units.mT).masked_fill(codes.isnan().any(-1)[:, None], -torch.inf)
    assert torch.equal(found[:, 1::2], scores.argmax(-1)[:, 1::2])
