"""Functions for users, and methods that take no input of a forward, name a wrong argument themselves."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torchvq
from torchvq import (
    LFQ,
    ResidualVQ,
    SimVQ,
    VectorQuantize,
    kmeans,
    precision_report,
    recommended,
    refine,
)
from torchvq.averaging import ema_multi_avg_fn

X = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))


def vq() -> VectorQuantize:
    return VectorQuantize(4, 8)


def refined(**options: Any) -> torchvq.Refinement:
    torch.manual_seed(0)
    return refine(ResidualVQ(dim=4, num_quantizers=2, codebook_size=8), X[None], **options)


def bits_of(given: Any) -> Any:
    return LFQ(dim=4, commitment_loss_weight=0.1).bits_to_codes(given)


class Gives(nn.Module):
    """Gives the same, whatever it gets."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result

    def forward(self, x: torch.Tensor) -> Any:
        return self.result


class Misspelt(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return self.wieght * x


def optimized(result: Any) -> VectorQuantize:
    learnt = dict(learnable_codebook=True, ema_update=False)
    return VectorQuantize(4, 8, in_place_codebook_optimizer=lambda parameters: result, **learnt)


WRONG: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "a number as class": (
        lambda: recommended(5),
        TypeError,
        "recommended: expected quantizer to be a class or its name, but got an object of int",
    ),
    "an object as class": (
        lambda: recommended(vq()),
        TypeError,
        "recommended: expected quantizer to be a class or its name, but got an object of Vector",
    ),
    "a fraction of bits": (
        lambda: recommended("vq", bits=1.5),
        TypeError,
        "recommended: expected bits to be an integer, but got 1.5",
    ),
    "bits beyond 64 bits": (
        lambda: recommended("vq", bits=2**63),
        ValueError,
        f"recommended: expected bits to be an integer of 64 bits, but got {2**63}",
    ),
    "tokens beyond 64 bits": (
        lambda: recommended("vq", tokens=2**63),
        ValueError,
        "recommended: expected tokens to be an integer of 64 bits",
    ),
    "a text as flag": (
        lambda: recommended("vq", tokens=100, moving="no"),
        TypeError,
        "recommended: expected moving to be True or False, but got 'no'",
    ),
    "vectors in a list": (
        lambda: kmeans([[1.0]], 1),
        TypeError,
        "kmeans: expected x to be a tensor, but got list",
    ),
    "a text as seed": (
        lambda: kmeans(X, 4, seed="a"),
        TypeError,
        "kmeans: expected seed to be an integer, but got 'a'",
    ),
    "no seed": (
        lambda: kmeans(X, 4, seed=None),
        TypeError,
        "kmeans: expected seed to be an integer, but got None",
    ),
    "a seed beyond 64 bits": (
        lambda: kmeans(X, 4, seed=2**63),
        ValueError,
        "kmeans: expected seed to be an integer of 64 bits",
    ),
    "a fraction of codes": (
        lambda: kmeans(X, 1.5),
        TypeError,
        "kmeans: expected codebook_size to be an integer, but got 1.5",
    ),
    "a fraction of iterations": (
        lambda: kmeans(X, 4, iterations=1.5),
        TypeError,
        "kmeans: expected iterations to be an integer, but got 1.5",
    ),
    "a mask in a list": (
        lambda: kmeans(X, 4, mask=[True] * 64),
        TypeError,
        "kmeans: expected mask to be bool, but got list",
    ),
    "a fraction of refits": (
        lambda: refined(iterations=1.5),
        TypeError,
        "refine: expected iterations to be an integer, but got 1.5",
    ),
    "a fraction of a path": (
        lambda: refined(beam_size=1.5),
        TypeError,
        "refine: expected beam_size to be an integer, but got 1.5",
    ),
    "a text as tolerance": (
        lambda: refined(tolerance="1e-3"),
        TypeError,
        "refine: expected tolerance to be a number, but got '1e-3'",
    ),
    "a text as dtype": (
        lambda: precision_report(vq(), X[None], dtypes=["float16"]),
        TypeError,
        "precision_report: expected dtypes to be floating point, but got 'float16'",
    ),
    "one dtype": (
        lambda: precision_report(vq(), X[None], dtypes=torch.float16),
        TypeError,
        "precision_report: expected dtypes to be a sequence, but got torch.float16",
    ),
    "no quantizer": (
        lambda: precision_report(nn.Linear(4, 4), X),
        TypeError,
        "precision_report: expected module to be a quantizer, but got one that returns torch.float32",
    ),
    "no module to report": (
        lambda: precision_report(None, X),
        TypeError,
        "precision_report: expected module to be a Module, but got NoneType",
    ),
    "an input in a list": (
        lambda: precision_report(vq(), [1.0]),
        TypeError,
        "precision_report: expected x to be a Tensor, but got list",
    ),
    "no module to verify": (
        lambda: torchvq.verify_replicas(None),
        TypeError,
        "verify_replicas: expected module to be a torch.nn.Module, but got NoneType",
    ),
    "a text as decay": (
        lambda: ema_multi_avg_fn("a"),
        TypeError,
        "ema_multi_avg_fn: expected decay to be a number, but got 'a'",
    ),
    "bits in a list": (
        lambda: bits_of([1, 0]),
        TypeError,
        "LFQ: expected bits to be a tensor of bool or numbers, but got list",
    ),
    "complex bits": (
        lambda: bits_of(torch.ones(4) + 1j),
        TypeError,
        "LFQ: expected bits to be a tensor of bool or numbers, but got torch.complex64",
    ),
    "three bits of four": (
        lambda: bits_of(torch.ones(3)),
        ValueError,
        "LFQ: expected bits to be of 4 on the last axis, but got shape [3]",
    ),
    "a bridge that returns nothing": (
        lambda: VectorQuantize(4, 8, vq_bridge=Gives(None))(X[None]),
        TypeError,
        "VectorQuantize: expected the result of vq_bridge to be a tensor, but got NoneType",
    ),
    "a function of codes that returns nothing": (
        lambda: vq()(X[None], codebook_transform_fn=lambda codes: None),
        TypeError,
        "VectorQuantize: expected the result of codebook_transform_fn to be a tensor, but got None",
    ),
    "a transform that returns two": (
        lambda: SimVQ(4, 8, codebook_transform=Gives((X, X)))(X[None]),
        TypeError,
        "SimVQ: expected the result of codebook_transform to be a tensor, but got tuple",
    ),
    "a transform with an error of its own": (
        lambda: SimVQ(4, 8, codebook_transform=Misspelt())(X[None]),
        RuntimeError,
        "SimVQ: codebook_transform raised AttributeError(\"'Misspelt' object has no attribute 'wie",
    ),
    "a function of frozen codes that returns nothing": (
        lambda: SimVQ(4, 8, init_fn=lambda codes: None),
        TypeError,
        "SimVQ: expected the result of init_fn to be a tensor, but got NoneType",
    ),
    "an activation that returns nothing": (
        lambda: LFQ(dim=4, commitment_loss_weight=0.1, straight_through_activation=Gives(None))(
            X[None]
        ),
        TypeError,
        "LFQ: expected the result of straight_through_activation to be a tensor, but got NoneType",
    ),
    "no optimizer": (
        lambda: optimized(None),
        ValueError,
        "VectorQuantize: expected in_place_codebook_optimizer to return an optimizer, but got none",
    ),
    "no optimizer, but a number": (
        lambda: optimized(0.1),
        ValueError,
        "VectorQuantize: expected in_place_codebook_optimizer to return an optimizer, but got float",
    ),
    "a bit without an axis": (
        lambda: bits_of(torch.tensor(1.0)),
        ValueError,
        "LFQ: expected bits to be of 4 on the last axis, but got shape []",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_named(case: str) -> None:
    call, error, message = WRONG[case]
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        call()


def test_numbers_of_other_packages() -> None:
    assert recommended("vq", bits=np.int64(9)) == recommended("vq", bits=9)
    moving = recommended("vq", tokens=100, moving=np.True_)
    assert moving == recommended("vq", tokens=100, moving=True)
    assert refined(iterations=np.int64(2), tolerance=np.float32(0)) == refined(
        iterations=2, tolerance=0
    )
    codes = kmeans(X, np.int64(4), seed=torch.tensor(3)).codebook
    assert torch.equal(codes, kmeans(X, 4, seed=3).codebook)
    assert ema_multi_avg_fn(np.float32(0.5)).keywords == {"decay": 0.5}


def test_kmeans_of_vectors_without_data_has_the_shapes() -> None:
    codebook, counts = kmeans(X.to("meta"), 4)
    assert codebook.is_meta and codebook.shape == (4, 4) and counts.shape == (4,)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
def test_bits_are_set_if_above_0(dtype: torch.dtype) -> None:
    least = torch.finfo(dtype).smallest_normal
    bits = torch.tensor([least, -least, torch.nan, torch.inf], dtype=dtype)
    assert bits_of(bits).tolist() == [1, -1, -1, 1]


def test_bits_of_any_integers() -> None:
    for dtype in (torch.bool, torch.uint8, torch.int64, torch.uint64):
        assert bits_of(torch.tensor([1, 0, 0, 1]).to(dtype)).tolist() == [1, -1, -1, 1]
