"""BinaryMapper as a module: draws, masks, precision, compilation, checkpointing, state."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import torchvq
from torchvq import BinaryMapper
from torchvq.binary_mapper import BinaryMapper as ByPath


def test_module_path_is_the_reference_s():
    assert ByPath is BinaryMapper


def test_training_draws_anew_and_evaluation_does_not(generator):
    logits = torch.randn(64, 5, generator=generator)
    module = BinaryMapper(5)
    first, second = (module(logits, return_indices=True).indices for _ in range(2))
    assert not torch.equal(first, second)
    module.eval()
    before = module.rng.clone()
    first, second = (module(logits, return_indices=True) for _ in range(2))
    assert torch.equal(first.indices, second.indices) and torch.equal(module.rng, before)
    assert first.aux_kl_loss == 0 and not first.one_hot.requires_grad


def test_draws_in_evaluation_when_asked(generator):
    logits = torch.randn(64, 5, generator=generator)
    module = BinaryMapper(5).eval()
    first, second = (
        module(logits, deterministic=False, return_indices=True).indices for _ in range(2)
    )
    assert not torch.equal(first, second)


def test_the_seed_is_torch_s_and_a_checkpoint_resumes(generator):
    logits = torch.randn(40, 6, generator=generator)
    torch.manual_seed(3)
    one = BinaryMapper(6)
    torch.manual_seed(3)
    two = BinaryMapper(6)
    for module in (one, two):
        module(logits)
    resumed = BinaryMapper(6)
    resumed.load_state_dict(one.state_dict())
    expected = one(logits, return_indices=True).indices
    for module in (two, resumed, copy.deepcopy(two), pickle.loads(pickle.dumps(two))):
        if module.rng[1] == 1:
            assert torch.equal(module(logits, return_indices=True).indices, expected)
    assert one.load_state_dict({}, strict=True) is not None and one.rng[1] == 0


def test_a_mask_is_the_real_tokens_alone(generator):
    logits = torch.randn(4, 7, 3, generator=generator)
    mask = torch.rand(4, 7, generator=generator) < 0.6
    padded = logits.masked_fill(~mask[..., None], math.nan).requires_grad_()
    alone = logits[mask].requires_grad_()
    module = BinaryMapper(3, kl_loss_threshold=0.01)
    twin = copy.deepcopy(module)
    weight = torch.randn(8, generator=generator)
    out, expected = module(padded, mask=mask, return_indices=True), twin(alone, return_indices=True)
    assert torch.equal(out.indices[mask], expected.indices) and (out.indices[~mask] == -1).all()
    assert torch.equal(out.one_hot[mask], expected.one_hot) and (out.one_hot[~mask] == 0).all()
    torch.testing.assert_close(out.aux_kl_loss, expected.aux_kl_loss)
    ((out.one_hot * weight).sum() + out.aux_kl_loss).backward()
    ((expected.one_hot * weight).sum() + expected.aux_kl_loss).backward()
    torch.testing.assert_close(padded.grad[mask], alone.grad)
    assert (padded.grad[~mask] == 0).all()
    none = module(padded, mask=torch.zeros_like(mask))
    assert none.aux_kl_loss == 0 and (none.one_hot == 0).all()
    assert torch.equal(module.rng, twin.rng)  # a step without tokens does not advance the generator


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_tokens_are_those_of_float32(dtype, generator):
    logits = torch.randn(200, 8, generator=generator).to(dtype)
    module = BinaryMapper(8)
    twin, cast = copy.deepcopy(module), copy.deepcopy(module).to(dtype)
    out = module(logits, return_indices=True)
    assert out.one_hot.dtype == dtype and out.indices.dtype == torch.int64
    assert torch.equal(out.indices, twin(logits.float(), return_indices=True).indices)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(out.indices, cast(logits, return_indices=True).indices)


def test_logits_of_other_dtypes_draw_nothing(generator):
    module = BinaryMapper(8)
    before = module.rng.clone()
    logits = torch.randn(4, 8, generator=generator).to(torch.float8_e4m3fn)
    with pytest.raises(TypeError, match=r"BinaryMapper: expected logits to be float16, .*float8"):
        module(logits)
    assert torch.equal(module.rng, before)


def test_logits_of_other_layouts_draw_nothing(generator):
    module = BinaryMapper(8)
    before = module.rng.clone()
    logits = torch.randn(4, 8, generator=generator)
    for other in (logits.to_sparse(), logits.to_mkldnn()):
        with pytest.raises(TypeError, match="BinaryMapper: expected logits to be a dense tensor"):
            module(other)
    assert torch.equal(module.rng, before)


@pytest.mark.parametrize("wrong", ["layout", "device"])
def test_masks_of_another_layout_or_device_draw_nothing(wrong, generator):
    module = BinaryMapper(8)
    before = module.rng.clone()
    mask = torch.ones(4, dtype=torch.bool)
    mask, error, message = {
        "layout": (mask.to_sparse(), TypeError, "expected mask to be a dense tensor"),
        "device": (
            mask.to("meta"),
            RuntimeError,
            "expected logits and mask to be on the same device",
        ),
    }[wrong]
    with pytest.raises(error, match=f"BinaryMapper: {message}"):
        module(torch.randn(4, 8, generator=generator), mask=mask)
    assert torch.equal(module.rng, before)


@pytest.mark.parametrize("masked", [False, True])
def test_compiled_is_eager(masked, generator):
    logits = torch.randn(3, 8, 4, generator=generator)
    mask = torch.rand(3, 8, generator=generator) < 0.7 if masked else None
    eager = BinaryMapper(4, kl_loss_threshold=0.1)
    module = copy.deepcopy(eager)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    for _ in range(3):
        results = []
        for call in (eager, compiled):
            x = logits.clone().requires_grad_()
            out = call(x, temperature=0.7, return_indices=True, mask=mask)
            (
                out.one_hot.square().sum(-1).mean() * 2 + out.one_hot[..., 3].sum() + out[2]
            ).backward()
            results.append((out.indices, out.one_hot.detach(), out[2].detach(), x.grad))
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b)
    assert torch.equal(eager.rng, module.rng) and eager.rng[1] == 3


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_draws_once(reentrant, generator):
    logits = torch.randn(50, 4, generator=generator)
    weight = torch.randn(16, generator=generator)
    module = BinaryMapper(4)
    twin = copy.deepcopy(module)
    seen = []

    def region(m, x):
        out = m(x * 2, return_indices=True)
        seen.append(out.indices)
        return (out.one_hot * weight).square().sum() + out.aux_kl_loss

    x = logits.clone().requires_grad_()
    checkpoint(region, module, x, use_reentrant=reentrant).backward()
    y = logits.clone().requires_grad_()
    region(twin, y).backward()
    assert torch.equal(seen[0], seen[1]) and torch.equal(seen[0], seen[2])
    torch.testing.assert_close(x.grad, y.grad)
    assert torch.equal(module.rng, twin.rng)


def test_not_finite_tokens_are_nan_and_leave_the_others(generator):
    logits = torch.randn(6, 3, generator=generator)
    bad = logits.clone()
    bad[1, 0], bad[4, 2] = math.nan, math.inf
    module = BinaryMapper(3)
    out = module(bad, return_indices=True, straight_through=False)
    good = torch.tensor([0, 2, 3, 5])
    assert out.one_hot[[1, 4]].isnan().all() and (out.indices[[1, 4]] == 0).all()
    assert torch.equal(out.one_hot[good].sum(-1), torch.ones(4))


def test_indices_may_be_written_to_before_backward(generator):
    gradients = []
    for writes in (False, True):
        torch.manual_seed(0)
        logits = torch.randn(8, 5, generator=generator.manual_seed(1)).requires_grad_()
        one_hot, indices, *_ = BinaryMapper(5)(logits, return_indices=True)
        if writes:
            indices[3:] = -1
        one_hot.mul(torch.arange(32)).sum().backward()
        gradients.append(logits.grad)
    assert gradients[0].ne(0).any() and torch.equal(*gradients)


def test_any_strides_and_no_tokens(generator):
    wide = torch.randn(5, 4, 6, generator=generator)
    module = BinaryMapper(5).eval()
    view = wide.permute(1, 2, 0)
    assert torch.equal(
        module(view, return_indices=True).indices,
        module(view.contiguous(), return_indices=True).indices,
    )
    module.train()
    out = module(torch.zeros(2, 0, 5, requires_grad=True), return_indices=True)
    assert out.one_hot.shape == (2, 0, 32) and out.aux_kl_loss == 0 and module.rng[1] == 0
    out.aux_kl_loss.backward()


def test_bits_learn_to_carry_a_code():
    """Three bits between an embedding and a table: the codes of eight inputs become distinct."""
    torch.manual_seed(0)
    logits = torch.nn.Parameter(torch.randn(8, 3) * 0.1)
    decoder = torch.nn.Linear(8, 8)
    mapper = BinaryMapper(3, kl_loss_threshold=math.inf)
    optimizer = torch.optim.Adam([logits, *decoder.parameters()], lr=0.05)
    target = torch.arange(8)
    for _ in range(400):
        code = mapper(logits.repeat(16, 1)).one_hot
        loss = torch.nn.functional.cross_entropy(decoder(code), target.repeat(16))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    mapper.eval()
    assert (decoder(mapper(logits).one_hot).argmax(-1) == target).sum() >= 6


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: BinaryMapper(0), ValueError),
        (lambda: BinaryMapper(31), ValueError),
        (lambda: BinaryMapper(3, math.nan), ValueError),
        (lambda: BinaryMapper(3)(torch.zeros(2, 4)), ValueError),
        (lambda: BinaryMapper(3)(torch.zeros(())), ValueError),
        (lambda: BinaryMapper(3)(torch.zeros(2, 3).long()), TypeError),
        (lambda: BinaryMapper(3)("x"), TypeError),
        (lambda: BinaryMapper(3)(torch.zeros(2, 3), temperature=-1.0), ValueError),
        (lambda: BinaryMapper(3)(torch.zeros(2, 3), mask=torch.ones(2)), TypeError),
        (lambda: BinaryMapper(3)(torch.zeros(2, 3), mask=torch.ones(3).bool()), ValueError),
        (lambda: BinaryMapper(3).log_prob(torch.zeros(2, 3)), ValueError),
        (
            lambda: BinaryMapper(3).log_prob(torch.zeros(2, 3), indices=torch.tensor([1])),
            ValueError,
        ),
        (
            lambda: BinaryMapper(3).log_prob(torch.zeros(2, 3), indices=torch.tensor([1, 2, 3])),
            ValueError,
        ),
        (lambda: BinaryMapper(3).log_prob(torch.zeros(2, 3), one_hot=torch.eye(2)), ValueError),
        (lambda: BinaryMapper(3).log_prob(torch.zeros(2, 3), one_hot=torch.eye(8)), ValueError),
        (
            lambda: BinaryMapper(3).log_prob(torch.zeros(2, 3), one_hot=torch.zeros(2, 0)),
            ValueError,
        ),
    ],
)
def test_bad_arguments_are_refused_by_name(call, error):
    with pytest.raises(error, match=r"BinaryMapper|binary"):
        call()


def test_repr_and_meta():
    assert "bits=3" in repr(BinaryMapper(3))
    with torch.device("meta"):
        module = BinaryMapper(3)
    assert module.rng.device.type == "cpu" and torchvq.BinaryMapper is BinaryMapper


def test_padding_has_no_log_probability():
    """By index and by one-hot code alike."""
    mapper, x = BinaryMapper(2), torch.randn(3, 2)
    output, indices, _ = mapper(x, return_indices=True, mask=torch.tensor([True, False, True]))
    by_index, by_code = (
        mapper.log_prob(x, indices=indices),
        mapper.log_prob(x, one_hot=output.detach()),
    )
    assert by_index[1] == 0
    torch.testing.assert_close(by_index, by_code)
