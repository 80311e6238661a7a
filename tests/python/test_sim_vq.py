"""SimVQ (python/torchvq/sim_vq.py) beyond parity."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from torchvq import ResidualSimVQ, SimVQ

DIM, CODES = 6, 11


def perceptron(width: int = 4, dim: int = DIM) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 9), nn.Tanh(), nn.Linear(9, dim))


def build(**options) -> SimVQ:
    torch.manual_seed(1)
    return SimVQ(**{"dim": DIM, "codebook_size": CODES, **options})


CASES = {
    "plain": lambda: build(),
    "narrow": lambda: build(frozen_codebook_dim=3),
    "network": lambda: build(codebook_transform=perceptron(), frozen_codebook_dim=4),
    "straight_through": lambda: build(rotation_trick=False),
}
every_case = pytest.mark.parametrize("case", CASES)


def data(*shape: int, seed: int = 2) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@every_case
@pytest.mark.parametrize("shape", [(5,), (2, 5), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_output_is_the_nearest_code_and_what_indices_decode_to(case, shape, training):
    module = CASES[case]().train(training)
    x = data(*shape, DIM)
    quantized, indices, _ = module(x)
    distances = torch.cdist(x.double().flatten(0, -2), module.codebook.detach().double())
    assert torch.equal(indices, distances.argmin(-1).view(shape))
    assert torch.equal(quantized, module.codebook[indices])
    assert torch.equal(quantized, module.indices_to_codes(indices))


def test_channel_first_is_the_same_with_other_axes():
    x = data(2, 3, 4, DIM)
    last, first = build()(x), build(channel_first=True)(x.movedim(-1, 1))
    assert torch.equal(first.quantized.movedim(1, -1), last.quantized)
    assert torch.equal(first.indices, last.indices) and torch.equal(first.loss, last.loss)
    decoded = build(channel_first=True).indices_to_codes(first.indices)
    assert torch.equal(decoded, first.quantized)


@every_case
def test_loss_by_its_formula(case):
    module = CASES[case]()
    module.commitment_weight, module.input_to_quantize_commit_loss_weight = 0.7, 0.3
    x = data(2, 5, DIM).requires_grad_()
    found = module(x)
    codes = module.codebook[found.indices]
    mse = nn.functional.mse_loss
    expected = 0.7 * (mse(x.detach(), codes) + 0.3 * mse(x, codes.detach()))
    torch.testing.assert_close(found.loss, expected)
    tensors = [x, *module.parameters()]
    for a, b in zip(
        torch.autograd.grad(found.loss, tensors),
        torch.autograd.grad(expected, tensors),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_output_has_the_estimator_s_gradient_and_the_transform_none():
    x = data(2, 5, DIM).requires_grad_()
    module = build(rotation_trick=False)
    module(x).quantized.sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))
    assert module.code_transform.weight.grad is None
    turned = build()
    y = data(2, 5, DIM).requires_grad_()
    weight = data(2, 5, DIM, seed=3)
    quantized = turned(y).quantized
    (quantized * weight).sum().backward()
    flat = (1, -1, DIM)
    expected = torch.ops.torchvq.rotation_trick_backward(
        weight.view(flat), y.detach().view(flat), quantized.detach().view(flat)
    )
    torch.testing.assert_close(y.grad, expected.view(2, 5, DIM))


def test_every_code_moves_with_the_transform():
    """The purpose of the class: codes that no latent chose move along with those that were chosen."""
    module = build(codebook_size=64)
    x = data(256, DIM) * 0.3 + 2.0
    optimizer = torch.optim.Adam(module.parameters(), 0.05)
    before, used = module.codebook.detach(), len(module(x).indices.unique())
    for _ in range(200):
        module(x).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    after = module.codebook.detach()
    assert ((after - before).norm(dim=-1) > 1e-3).all()
    assert len(module(x).indices.unique()) >= used
    assert module(x).loss < 0.5 * build(codebook_size=64)(x).loss


def test_masked_is_absent():
    module = build()
    x = data(2, 6, DIM)
    mask = torch.rand(2, 6, generator=torch.Generator().manual_seed(4)) < 0.6
    x[~mask] = float("nan")
    x.requires_grad_()
    found = module(x, mask=mask)
    rest = module(x.detach()[mask].unsqueeze(0))
    torch.testing.assert_close(found.loss, rest.loss)
    assert torch.equal(found.indices[mask], rest.indices[0])
    assert found.quantized[~mask].eq(0).all() and found.indices[~mask].eq(-1).all()
    (found.loss + found.quantized.sum()).backward()
    assert x.grad.isfinite().all() and x.grad[~mask].eq(0).all()


@pytest.mark.parametrize("cast", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", ["plain", "network"])
def test_half_precision_decodes_to_the_output(case, cast):
    module = CASES[case]().to(cast).eval()
    assert module.frozen_codebook.dtype == torch.float32
    x = data(2, 5, DIM).to(cast)
    with torch.autocast("cpu", torch.bfloat16):
        quantized, indices, loss = module(x)
    assert quantized.dtype == cast and loss.dtype == torch.float32
    assert torch.equal(module.indices_to_codes(indices).to(cast), quantized)


def test_init_fn_sees_the_codes_as_drawn_and_gives_those_that_are_kept():
    seen = []

    def halved(codes: Tensor) -> Tensor:
        seen.append(codes.clone())
        return codes / 2

    module = build(codebook_size=4000, frozen_codebook_dim=4, init_fn=halved)
    assert torch.equal(module.frozen_codebook, seen[0] / 2)
    assert abs(seen[0].var().item() - 1 / 4) < 0.02


def test_what_init_fn_returns_is_copied():
    codes = data(11, DIM)
    before = codes.clone()
    stack = ResidualSimVQ(dim=DIM, num_quantizers=2, codebook_size=11, init_fn=lambda _: codes)
    other = ResidualSimVQ(dim=DIM, num_quantizers=2, codebook_size=11)
    stack.load_state_dict(other.state_dict())
    for own, loaded in zip(stack.layers, other.layers, strict=True):
        assert torch.equal(own.frozen_codebook, loaded.frozen_codebook)
    assert torch.equal(codes, before)
    assert build(init_fn=lambda c: c[:1].expand_as(c)).frozen_codebook.is_contiguous()


def test_a_checkpoint_has_the_reference_s_names():
    assert set(build().state_dict()) == {"frozen_codebook", "code_transform.weight"}
    assert not any(b is build().frozen_codebook for b in build().parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(dim=0), "expected dim to be at least 1, but got 0"),
        (dict(codebook_size=0), "expected codebook_size to be at least 1, but got 0"),
        (dict(frozen_codebook_dim=0), "expected frozen_codebook_dim to be at least 1"),
        (dict(commitment_weight=-1.0), "expected commitment_weight to be 0 or more"),
        (
            dict(input_to_quantize_commit_loss_weight=float("nan")),
            "expected input_to_quantize_commit_loss_weight to be 0 or more and finite, but got nan",
        ),
        (dict(init_fn=lambda codes: codes[0]), r"init_fn to return codes of shape \[11, 6\]"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=f"SimVQ: .*{message}"):
        build(**options)


def test_a_transform_to_other_features_is_refused():
    module = build(codebook_transform=nn.Linear(DIM, 5))
    with pytest.raises(ValueError, match=r"codebook_transform to return codes of shape \[11, 6\]"):
        module(data(2, 5, DIM))


def test_wrong_input():
    module = build()
    for wrong in (data(2, 5, 7), data(6)):
        with pytest.raises(ValueError, match=r"SimVQ: expected x to have (6 features|shape)"):
            module(wrong)
    with pytest.raises(TypeError, match="SimVQ: expected x to be a floating-point tensor"):
        module(torch.zeros(2, 5, DIM, dtype=torch.long))
    for index in (-2, CODES):
        with pytest.raises(IndexError):
            module.indices_to_codes(torch.tensor([index]))


def test_a_layer_with_another_forward_is_called():
    """Libraries that move layers between devices replace `forward` in this way."""
    module = build().train()
    own = module.code_transform.forward
    module.code_transform.forward = lambda codes: own(codes) * 3
    quantized, indices, _ = module(data(4, 5, DIM))
    torch.testing.assert_close(quantized, module.indices_to_codes(indices), rtol=0, atol=0)
