"""The line "Refused here" of docs/migrating.md: what the reference takes and torchvq does not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import vector_quantize_pytorch as reference

import torchvq


def tokens() -> torch.Tensor:
    return torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(1))


REFUSED: list[tuple[str, dict[str, Any], type[Exception]]] = [
    (
        "VectorQuantize",
        dict(orthogonal_reg_weight=1.0, orthogonal_reg_max_codes=-1),
        ValueError,
    ),
    ("VectorQuantize", dict(codebook_diversity_temperature=-1.0), ValueError),
    (
        "ResidualVQ",
        dict(
            num_quantizers=1,
            implicit_neural_codebook=True,
            in_place_codebook_optimizer=lambda codes: torch.optim.SGD(codes, lr=0.1),
        ),
        ValueError,
    ),
    ("VectorQuantize", dict(use_cosine_sim=None), TypeError),
    ("VectorQuantize", dict(use_cosine_sim="x"), TypeError),
    ("VectorQuantize", dict(use_cosine_sim=1.5), TypeError),
    ("VectorQuantize", dict(threshold_ema_dead_code=False), TypeError),
    ("ResidualVQ", dict(num_quantizers=2, quant_grad_frac=2.0), ValueError),
    ("LFQ", dict(codebook_scale=0.0), ValueError),
    ("LFQ", dict(codebook_size=1), ValueError),
]


@pytest.mark.parametrize(("name", "options", "error"), REFUSED)
def test_what_the_page_says_is_refused(
    name: str, options: dict[str, Any], error: type[Exception]
) -> None:
    options = dict(dim=4, codebook_size=16) | options
    getattr(reference, name)(**options)(tokens())
    with pytest.raises(error, match=f"{name}: expected "):
        getattr(torchvq, name)(**options)


def test_an_input_is_an_image_or_a_volume() -> None:
    both = dict(dim=4, codebook_size=16, accept_image_fmap=True, accept_3d_fmap=True)
    reference.VectorQuantize(**both)
    with pytest.raises(ValueError, match="VectorQuantize: expected at most one of accept_image_fm"):
        torchvq.VectorQuantize(**both)


@pytest.mark.parametrize("indices", [3, [3, 1], torch.tensor([3, 1]).numpy()], ids=str)
def test_indices_to_decode_are_tensors(indices: Any) -> None:
    assert reference.VectorQuantize(4, 16).get_codes_from_indices(indices).shape[-1] == 4
    with pytest.raises(TypeError, match="VectorQuantize: expected indices to be a tensor"):
        torchvq.VectorQuantize(4, 16).get_codes_from_indices(indices)


@pytest.mark.parametrize(
    ("name", "options"), [("FSQ", dict(levels=[4, 4])), ("LFQ", dict(codebook_size=16))]
)
def test_indices_and_inputs_of_scalar_classes_are_integers_and_floats(
    name: str, options: dict[str, Any]
) -> None:
    theirs, ours = (getattr(package, name)(**options) for package in (reference, torchvq))
    indices, width = torch.tensor([[3.0, 1.0]]), theirs.codebook_dim
    for use in (
        lambda module: module.indices_to_codes(indices),
        lambda module: module(torch.ones(2, 6, width, dtype=torch.long)),
    ):
        use(theirs)
        with pytest.raises(TypeError, match=f"{name}: expected "):
            use(ours)


def test_the_bound_of_fsq_has_one_eps() -> None:
    reference.FSQ([5, 5]).bound(tokens()[..., :2], eps=1e-2)
    with pytest.raises(ValueError, match=r"expected eps to be 1e-3, but got 0\.01"):
        torchvq.FSQ([5, 5]).bound(tokens()[..., :2], eps=1e-2)
