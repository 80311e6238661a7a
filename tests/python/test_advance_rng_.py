"""advance_rng_: the step of a counter-based generator (include/torchvq/ops/advance_rng_.h)."""

from __future__ import annotations

import pytest
import torch

from support import any_path

ops = torch.ops.torchvq
PATHS = {"cpu": ops.advance_rng_, "any": any_path("advance_rng_")}
PATH = pytest.mark.parametrize("path", PATHS.values(), ids=PATHS.keys())


@PATH
@pytest.mark.parametrize(
    ("mask", "counts"),
    [
        (None, True),
        (torch.tensor([False, True]), True),
        (torch.zeros(2, 3, dtype=torch.bool), False),
        (torch.zeros(0, dtype=torch.bool), False),
        (torch.tensor([[0, 2, 0]]), True),
        (torch.tensor([[0, 0]], dtype=torch.int32), False),
        (torch.ones(1, 4, dtype=torch.bool).expand(3, 4), True),
        (torch.eye(4, dtype=torch.long)[:, ::2], True),
    ],
    ids=str,
)
def test_a_step_with_tokens_counts(path, mask, counts):
    rng = torch.tensor([5, 2])
    path(rng, mask)
    assert rng.tolist() == [5, 3 if counts else 2]


@PATH
def test_a_generator_of_any_stride(path):
    both = torch.tensor([[5, 7], [2, 9]])
    path(both[:, 0])
    assert both.tolist() == [[5, 7], [3, 9]]


def test_the_last_step_is_followed_by_the_first():
    rng = torch.tensor([5, 2**63 - 1])
    ops.advance_rng_(rng)
    assert rng.tolist() == [5, -(2**63)]


def test_autograd_is_told_of_the_write():
    rng = torch.tensor([5, 2])
    before = rng._version
    ops.advance_rng_(rng)
    assert rng._version > before


@PATH
@pytest.mark.parametrize(
    ("rng", "mask", "error", "message"),
    [
        (torch.tensor([5.0, 2.0]), None, TypeError, "expected rng"),
        (torch.tensor([[5, 2]]), None, ValueError, "expected rng"),
        (torch.tensor([5, 2, 1]), None, ValueError, "expected rng"),
        (torch.tensor([5]).expand(2), None, ValueError, "expected rng to have memory of its own"),
        (torch.tensor([5, 2]), torch.tensor([1.0]), TypeError, "expected mask"),
    ],
    ids=str,
)
def test_bad_arguments_are_refused(path, rng, mask, error, message):
    before = rng.clone()
    with pytest.raises(error, match=f"advance_rng_: {message}"):
        path(rng, mask)
    assert torch.equal(rng, before)
