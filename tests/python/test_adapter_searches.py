"""The building blocks of adapters refuse what they cannot search or add up; tests/adapters checks what they find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchvq.adapters import nearest, nearest_by_angle, residual_nearest, residual_sum

CODES = torch.arange(8.0).view(4, 2)
X = torch.ones(3, 2)
TOKENS = torch.ones(1, 2, 5)  # (B, D, T)
INDICES = torch.ones(1, 1, 5).long()  # (Q, B, T)
SEARCHES = [nearest, nearest_by_angle]


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize(
    ("x", "codebook", "error", "message"),
    [
        ([[1.0, 2.0]], CODES, TypeError, "x to be a floating-point tensor, but got list"),
        (X, [[1.0, 2.0]], TypeError, "codebook to be a floating-point tensor, but got list"),
        (X.long(), CODES, TypeError, "x to be a floating-point tensor, but got torch.int64"),
        (X, CODES.to(torch.complex64), TypeError, "codebook to be a floating-point tensor"),
        (X[0, 0], CODES, ValueError, r"x to be of shape \(\*, D\)"),
        (X[:, :0], CODES[:, :0], ValueError, r"x to be of shape \(\*, D\) with D at least 1"),
        (X, CODES[0], ValueError, r"codebook to be of shape \(K, D\), but got shape \[2\]"),
    ],
)
def test_vectors_that_cannot_be_searched(
    search: Callable[..., Any], x: Any, codebook: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"^{search.__name__}: expected {message}"):
        search(x, codebook)


def test_a_bias_is_a_tensor() -> None:
    with pytest.raises(TypeError, match="nearest: expected bias to be a tensor, but got list"):
        nearest(X, CODES, bias=[0.0] * 4)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("add_or_search", "given", "name"),
    [(residual_nearest, TOKENS, "x"), (residual_sum, INDICES, "indices")],
)
def test_stacks_that_cannot_be_used(
    add_or_search: Callable[..., Any], given: Any, name: str
) -> None:
    owner = f"^{add_or_search.__name__}: expected"
    assert add_or_search(given, [CODES]) is not None
    with pytest.raises(TypeError, match=f"{owner} {name} to be a tensor, but got list"):
        add_or_search(given.tolist(), [CODES])
    for flat in (given[0], given[0, 0], given[0, 0, 0]):
        with pytest.raises(ValueError, match=f"{owner} {name} to be of shape"):
            add_or_search(flat, [CODES])
    with pytest.raises(TypeError, match=f"{owner} codebooks to be a list of tensors, but got Tens"):
        add_or_search(given, CODES[None])
    with pytest.raises(TypeError, match=f"{owner} each of codebooks to be a tensor, but got list"):
        add_or_search(given, [CODES.tolist()])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64], ids=str)
def test_indices_that_are_no_integers_are_not_rounded(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=f"residual_sum: .* integers, but got {dtype}"):
        residual_sum(INDICES.to(dtype), [CODES])


def test_small_integers_are_added_up() -> None:
    assert torch.equal(residual_sum(INDICES.int(), [CODES]), residual_sum(INDICES, [CODES]))
