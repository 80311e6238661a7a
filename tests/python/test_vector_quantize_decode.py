"""decode(indices) is the output, for every layout and option, in evaluation and in training without updates."""

from __future__ import annotations

import pytest
import torch
from vector_quantize_cases import CASES, build, data, options_of, same, train_step

from torchvq import VectorQuantize

# The output of these is not the code but a point near it, with noise in its direction.
NOT_THE_CODE = {"directional"}


def trained(case: str) -> VectorQuantize:
    module = build(case)
    for step in range(2):
        train_step(module, module, data(module, step))
    return module


@pytest.mark.parametrize("case", CASES)
def test_decode_equals_output_in_evaluation(case: str) -> None:
    module = trained(case).eval()
    quantized, indices, _ = module(data(module, 9))
    assert same(module.get_output_from_indices(indices), quantized)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case not in NOT_THE_CODE and case != "learnable_heads"]
)
def test_decode_equals_output_in_training_without_updates(case: str) -> None:
    module = trained(case)
    x = data(module, 9)
    kwargs = dict(freeze_codebook=True)
    quantized, indices, _ = module(x, **kwargs)
    if case == "compat":  # rotates in floating point, as the reference does
        torch.testing.assert_close(module.get_output_from_indices(indices), quantized)
    else:
        assert same(module.get_output_from_indices(indices), quantized)


# k-means and the affine statistics change the codes within the step that uses them; the test above covers them.
CODES_OF_THE_STEP = [
    case
    for case in CASES
    if case not in NOT_THE_CODE | {"learnable_heads", "compat"}
    and "kmeans" not in case
    and "affine" not in case
]


@pytest.mark.parametrize("case", CODES_OF_THE_STEP)
def test_training_output_is_the_code_before_the_update(case: str) -> None:
    module = build(case)
    before = build(case).eval()
    quantized, indices, _ = module(data(module))
    assert same(before.get_output_from_indices(indices), quantized)


@pytest.mark.parametrize("case", CASES)
def test_codes_then_projection_is_the_output(case: str) -> None:
    module = trained(case).eval()
    _, indices, _ = module(data(module, 9))
    codes = module.get_codes_from_indices(indices)
    projected = module.project_out(codes.movedim(1, -1) if module._layout.channel_first else codes)
    projected = projected.movedim(-1, 1) if module._layout.channel_first else projected
    assert same(projected, module.get_output_from_indices(indices))


@pytest.mark.parametrize(
    "case", ["default", "cosine", "image", "channel_first", "affine", "bridge", "layer_norm"]
)
def test_candidates_decode_to_their_outputs(case: str) -> None:
    module = trained(case).eval()
    quantized, indices, loss = module(data(module, 9), topk=3)
    assert indices.shape[-1] == 3 and loss.shape == indices.shape
    assert same(module.get_output_from_indices(indices), quantized)
    nearest, first, _ = module(data(module, 9))
    assert torch.equal(indices[..., 0], first)
    # Up to rounding: project_out gets three times as many rows, and its matrix product may sum in another order.
    torch.testing.assert_close(
        quantized[..., 0] if module._layout.channel_first else quantized[..., 0, :], nearest
    )


def _sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


IN_PLACE = dict(in_place_codebook_optimizer=_sgd, learnable_codebook=True, ema_update=False)


@pytest.mark.parametrize(
    "options",
    [
        IN_PLACE,
        dict(commitment_weight=0.0),
        dict(commitment_weight=0.0, codebook_dim=4),
        dict(commitment_weight=0.0, accept_image_fmap=True),
        dict(directional_reparam=True, threshold_ema_dead_code=1),
    ],
    ids=["in-place", "no-commitment", "projected", "image", "directional"],
)
def test_candidates_have_losses_in_evaluation(options: dict) -> None:
    module = VectorQuantize(8, 16, **options).eval()
    x = torch.randn(2, 8, 3, 4) if module.accept_image_fmap else torch.randn(2, 12, 8)
    _, indices, loss, breakdown = module(x, topk=3, return_loss_breakdown=True)
    assert loss.shape == breakdown.commitment.shape == indices.shape
    assert loss.diff(dim=-1).ge(0).all()
    if not module.accept_image_fmap:
        distances = module.project_in(x).unsqueeze(2) - module.get_codes_from_indices(indices)
        torch.testing.assert_close(loss, distances.square().mean(-1))


@pytest.mark.parametrize(
    "options", [{}, dict(learnable_codebook=True, ema_update=False), dict(codebook_dim=4), IN_PLACE]
)
def test_no_loss_of_candidates_in_evaluation_has_a_gradient(options: dict) -> None:
    module = VectorQuantize(8, 16, **options).eval()
    x = torch.randn(2, 12, 8, requires_grad=True)
    found = module(x, topk=3, return_loss_breakdown=True)
    assert not found.loss.requires_grad and not found.loss_breakdown.commitment.requires_grad
    if options is not IN_PLACE:
        assert module.train()(x, topk=3).loss.requires_grad


def test_refused_candidates_say_why() -> None:
    x = torch.randn(2, 12, 8)
    with pytest.raises(ValueError, match="None in training with in_place_codebook_optimizer"):
        VectorQuantize(8, 16, **IN_PLACE)(x, topk=3)
    with pytest.raises(ValueError, match="topk to be None with several heads, but got 3"):
        VectorQuantize(8, 16, heads=2).eval()(x, topk=3)
    with pytest.raises(ValueError, match="topk to be at least 1, but got 0"):
        VectorQuantize(8, 16).eval()(x, topk=0)


@pytest.mark.parametrize(
    "case", ["default", "shared_heads", "separate_heads", "projections", "image_projections"]
)
def test_single_vectors_decode(case: str) -> None:
    module = build(case).eval()
    x = torch.randn(5, 8)
    quantized, indices, _ = module(x)
    assert quantized.shape == x.shape
    assert same(module.get_output_from_indices(indices), quantized)


@pytest.mark.parametrize(
    "case",
    [
        "default",
        "separate_heads",
        "image",
        "volume",
        "cosine",
        "projections",
        "image_projections",
        "layer_norm",
    ],
)
def test_masked_index_decodes_to_the_masked_output(case: str) -> None:
    module = build(case).eval()
    x = data(module)
    positions = x.shape[2:] if module._layout.channel_first else x.shape[1:-1]
    mask = torch.rand(x.shape[0], *positions) > 0.4
    quantized, indices, _ = module(x, mask=mask)
    assert (indices == -1).any()
    assert same(module.get_output_from_indices(indices), quantized)


@pytest.mark.parametrize("index", [-2, 16, 2**40])
def test_index_out_of_range(index: int) -> None:
    with pytest.raises(IndexError, match="lookup_codes"):
        build().get_output_from_indices(torch.tensor([[index]]))


@pytest.mark.parametrize("case", ["shared_heads", "separate_heads"])
def test_codebook_is_decode_of_all_indices(case: str) -> None:
    module = build(case)
    index = torch.arange(16)[None]
    codes = module.get_codes_from_indices(index[..., None].expand(-1, -1, 2))[0].unflatten(
        -1, (2, -1)
    )
    books = module.codebook if case == "separate_heads" else module.codebook.expand(2, -1, -1)
    assert same(codes.transpose(0, 1).contiguous(), books.contiguous())


@pytest.mark.parametrize("case", ["default", "cosine", "affine", "bridge", "learnable"])
def test_codebook_is_decode_of_all_indices_of_one_head(case: str) -> None:
    module = build(case)
    assert same(module.get_codes_from_indices(torch.arange(16)[None])[0], module.codebook)


def test_every_case_builds_with_its_own_options() -> None:
    assert all(options_of(case)["codebook_size"] for case in CASES)
