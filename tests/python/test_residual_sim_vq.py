"""ResidualSimVQ (python/torchvq/residual_sim_vq.py) beyond parity."""

from __future__ import annotations

import pytest
import torch
import vector_quantize_pytorch
from torch import Tensor

from torchvq import ResidualSimVQ, SimVQ

DIM, CODES, LEVELS = 6, 11, 3
CASES = {
    "plain": {},
    "heads": dict(heads=2),
    "channel_first": dict(channel_first=True),
    "heads_first": dict(heads=3, channel_first=True),
    "narrow": dict(frozen_codebook_dim=3),
    "beam": dict(eval_beam_size=4),
    "beam_heads": dict(eval_beam_size=3, heads=2),
    "dropout": dict(quantize_dropout=True),
    "compatible": dict(vqp_compat=True),
}


def build(case: str = "plain", **options) -> ResidualSimVQ:
    torch.manual_seed(1)
    own = dict(dim=DIM, codebook_size=CODES, num_quantizers=LEVELS)
    return ResidualSimVQ(**{**own, **CASES[case], **options})


def data(*shape: int, seed: int = 2) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def sized(stack: ResidualSimVQ, *positions: int) -> Tensor:
    x = data(2, *positions, DIM)
    return x.movedim(-1, 1) if stack.channel_first and x.dim() > 2 else x


@pytest.mark.parametrize("rotation_trick", [True, False])
def test_the_gradient_over_the_levels_as_in_the_reference(rotation_trick):
    """Its gradients of the levels in use add up; those of the stack are that sum over all levels."""
    ours = build("dropout", rotation_trick=rotation_trick)
    theirs = vector_quantize_pytorch.ResidualSimVQ(
        dim=DIM,
        codebook_size=CODES,
        num_quantizers=LEVELS,
        rotation_trick=rotation_trick,
        quantize_dropout=True,
    )
    theirs.load_state_dict(ours.state_dict(), strict=False)
    depths = set()
    for seed in range(8):
        gradients = []
        for module in (ours, theirs):
            x = data(2, 5, DIM).requires_grad_()
            output, indices, losses = module(x, rand_quantize_dropout_fixed_seed=seed)
            gradients.append(torch.autograd.grad((output**3).sum() + 20 * losses.sum(), x)[0])
        depths.add(int(indices[0, 0].ne(-1).sum()))
        torch.testing.assert_close(gradients[0] * LEVELS, gradients[1], rtol=1e-4, atol=1e-4)
    assert len(depths) > 1


@pytest.mark.parametrize("positions", [(), (5,), (3, 4)], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_indices_decode_to_the_output(case, positions):
    stack = build(case).eval()
    x = sized(stack, *positions)
    quantized, indices, losses, codes = stack(x, return_all_codes=True)
    heads = (stack.heads,) if stack.heads > 1 else ()
    assert indices.shape == (2, *positions, *heads, LEVELS) and losses.shape == (LEVELS,)
    assert codes.shape == (LEVELS, *quantized.shape)
    torch.testing.assert_close(codes.sum(0), quantized)
    decoded = stack.get_output_from_indices(indices)
    assert torch.equal(decoded, quantized) and decoded.is_contiguous()
    assert torch.equal(stack.get_codes_from_indices(indices), codes)


def test_levels_are_sim_vq_on_what_is_left():
    stack = build().eval()
    residual = data(2, 5, DIM)
    found = stack(residual)
    total = torch.zeros_like(residual)
    for level, module in enumerate(stack.layers):
        assert isinstance(module, SimVQ)
        quantized, indices, loss = module(residual)
        assert torch.equal(indices, found.indices[..., level])
        assert torch.equal(loss, found.loss[level])
        residual, total = residual - quantized, total + quantized
    assert torch.equal(total, found.quantized)


def test_heads_are_tokens_of_one_codebook():
    stack, alone = build(heads=2), build(dim=DIM // 2)
    x = data(2, 5, DIM)
    found, apart = stack(x), alone(x.view(2, 10, DIM // 2))
    assert torch.equal(found.quantized, apart.quantized.view(2, 5, DIM))
    assert torch.equal(found.indices, apart.indices.view(2, 5, 2, LEVELS))
    assert torch.equal(found.loss, apart.loss)


@pytest.mark.parametrize("case", ["plain", "heads"])
def test_a_beam_is_that_of_the_operator_and_leaves_no_more(case):
    greedy, beam = build(case).eval(), build(case, eval_beam_size=8).eval()
    x = data(1, 300, DIM)
    found = beam(x)
    rows = x.view(1, -1, DIM // beam.heads)
    codebooks = [codes.unsqueeze(0).detach() for codes in beam.codebooks]
    expected = torch.ops.torchvq.residual_beam_search(rows, codebooks, 8)
    assert torch.equal(found.indices.reshape(expected.shape), expected)
    assert (found.quantized - x).square().sum() < (greedy(x).quantized - x).square().sum()
    # Losses are those of the chosen path.
    residual = rows
    for level, codes in enumerate(beam.codebooks):
        left = residual - codes[expected[..., level]]
        torch.testing.assert_close(found.loss[level], 1.25 * left.square().mean())
        residual = left
    # Training is greedy.
    assert torch.equal(beam.train()(x).indices, greedy.train()(x).indices)


@pytest.mark.parametrize("compatible", [False, True])
def test_gain_is_one_or_that_of_the_reference(compatible):
    stack = build(rotation_trick=False, vqp_compat=compatible)
    x = data(2, 5, DIM).requires_grad_()
    stack(x).quantized.sum().backward()
    torch.testing.assert_close(x.grad, torch.full_like(x, LEVELS if compatible else 1))
    assert all(parameter.grad is None for parameter in stack.parameters())


@pytest.mark.parametrize("rotation", [False, True])
def test_losses_and_output_have_the_balance_of_one_estimator_per_level(rotation):
    """Oracle: ``vqp_compat``, whose gradients are longer by the number of levels, and parallel."""
    gradients = []
    for compatible in (False, True):
        stack = build(rotation_trick=rotation, vqp_compat=compatible)
        x = data(1, 20, DIM).requires_grad_()
        found = stack(x)
        (found.quantized.square().sum() + 50 * found.loss.sum()).backward()
        gradients.append((x.grad, [parameter.grad for parameter in stack.parameters()]))
    (ours, weights), (theirs, others) = gradients
    torch.testing.assert_close(ours * LEVELS, theirs)
    for a, b in zip(weights, others, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("case", ["plain", "heads", "beam_heads", "compatible"])
@pytest.mark.parametrize("training", [True, False])
def test_masked_is_absent(case, training):
    stack = build(case).train(training)
    x = data(2, 6, DIM)
    mask = torch.rand(2, 6, generator=torch.Generator().manual_seed(4)) < 0.6
    x[~mask] = float("nan")
    found = stack(x, mask=mask, return_all_codes=True)
    rest = stack(x[mask].unsqueeze(0))
    torch.testing.assert_close(found.loss, rest.loss)
    assert torch.equal(found.indices[mask], rest.indices[0])
    assert found.quantized[~mask].eq(0).all() and found.indices[~mask].eq(-1).all()
    assert found.all_codes[:, ~mask].eq(0).all()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("shape", [(0, 5, DIM), (2, 0, DIM), (0, DIM)], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_without_tokens_there_is_nothing_to_quantize(case, shape, training):
    stack = build(case).train(training)
    x = torch.zeros(shape)
    x = x.movedim(-1, 1) if stack.channel_first else x
    quantized, indices, losses, codes = stack(x, return_all_codes=True)
    heads = (stack.heads,) if stack.heads > 1 else ()
    assert quantized.shape == x.shape and codes.shape == (LEVELS, *x.shape)
    assert indices.shape == (*shape[:-1], *heads, LEVELS) and indices.dtype == torch.int64
    assert torch.equal(losses, torch.zeros(LEVELS))


def test_dropped_levels_are_absent():
    stack = build(num_quantizers=6, quantize_dropout=True, quantize_dropout_cutoff_index=1)
    depths = set()
    for step in range(20):
        found = stack(data(2, 5, DIM), rand_quantize_dropout_fixed_seed=step)
        (depth,) = (found.indices >= 0).sum(-1).unique().tolist()
        assert found.loss[depth:].eq(0).all() and found.loss[:depth].gt(0).all()
        depths.add(depth)
    assert depths == {2, 3, 4, 5, 6}
    assert stack.eval()(data(2, 5, DIM)).indices.ge(0).all()
    fewer = stack.get_output_from_indices(torch.zeros(2, 5, 3, dtype=torch.long))
    assert fewer.shape == (2, 5, DIM)


def test_a_checkpoint_has_the_reference_s_names():
    names = {
        f"layers.{n}.{part}"
        for n in range(3)
        for part in ("frozen_codebook", "code_transform.weight")
    }
    assert set(build().state_dict()) == names
    dropping = build(quantize_dropout=True)
    assert set(dropping.state_dict()) == names | {"rng"}
    dropping.load_state_dict(build().state_dict(), strict=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(num_quantizers=0), "expected num_quantizers to be at least 1, but got 0"),
        (dict(heads=4), "expected heads to be at least 1 and a divisor of dim, but got 4"),
        (dict(heads=0), "expected heads to be at least 1"),
        (
            dict(quantize_dropout=True, quantize_dropout_cutoff_index=3),
            r"expected quantize_dropout_cutoff_index to be in \[0, 2\]",
        ),
        (
            dict(quantize_dropout_multiple_of=0),
            "expected quantize_dropout_multiple_of to be at least 1",
        ),
        (dict(eval_beam_size=0), "expected eval_beam_size to be at least 1, but got 0"),
        (dict(codebook_size=0), "expected codebook_size to be at least 1, but got 0"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        build(**options)
    with pytest.raises(TypeError):
        build(unknown=1)


def test_wrong_indices():
    stack = build(heads=2)
    with pytest.raises(ValueError, match="ResidualSimVQ: expected indices to be of 2 heads"):
        stack.get_output_from_indices(torch.zeros(2, 5, 3, dtype=torch.long))
    with pytest.raises(ValueError, match="ResidualSimVQ: expected indices to be of 3 levels"):
        stack.get_output_from_indices(torch.zeros(2, 5, 2, 4, dtype=torch.long))
    with pytest.raises(IndexError):
        stack.get_output_from_indices(torch.full((2, 5, 2, 3), CODES))


@pytest.mark.parametrize("rotation_trick", [True, False])
def test_callers_may_write_to_inputs_without_a_gradient(rotation_trick):
    """Of a frozen encoder, perhaps in inference mode: losses reach the transforms, and levels keep what they save."""
    gradients = []
    for change in ("none", "write", "inference"):
        stack = build(rotation_trick=rotation_trick)
        with torch.inference_mode(change == "inference"):
            x = data(2, 5, DIM)
        losses = stack(x)[2]
        if change == "write":
            x.zero_()
        losses.sum().backward()
        gradients.append([parameter.grad for parameter in stack.parameters()])
    for own in gradients[1:]:
        for ours, right in zip(own, gradients[0], strict=True):
            assert torch.equal(ours, right)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_a_level_that_a_derived_class_replaces_is_called(training):
    called = []

    class Derived(ResidualSimVQ):
        def quantize_level(self, index, *arguments):
            called.append(index)
            return super().quantize_level(index, *arguments)

    torch.manual_seed(1)
    derived = Derived(dim=DIM, codebook_size=CODES, num_quantizers=LEVELS).train(training)
    ours, right = derived(data(2, 5, DIM)), build().train(training)(data(2, 5, DIM))
    assert called == list(range(LEVELS))
    for a, b in zip(ours, right, strict=True):
        assert torch.equal(a, b)
