"""FSP as a module: noise, masks, precision, compilation, checkpointing, state."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import scipy.stats
import torch
from torch.utils.checkpoint import checkpoint

from torchvq import FSP
from torchvq.finite_scalar_perturbation import FSP as ByPath
from torchvq.finite_scalar_perturbation import build_cdf_act

LEVELS = [8, 5, 4]
CONFIGURATIONS = {
    "plain": {},
    "inverse": dict(need_inv_act=True, act_name="normal", vector_norm="kurt"),
    "mixed": dict(quantize_rate=0.4, act_name="laplace"),
    "projections": dict(dim=6, vector_norm="var"),
    "channel_first": dict(dim=6, channel_first=True, act_name="sigmoid"),
}


def input_for(module, positions, generator):
    batch, *rest = positions
    dims = [module.dim, *rest] if module.channel_first else [*rest, module.dim]
    return torch.randn(batch, *dims, generator=generator)


@pytest.mark.parametrize("name", CONFIGURATIONS)
@pytest.mark.parametrize("positions", [(2,), (2, 5), (2, 3, 4), (2, 2, 3, 4)], ids=str)
def test_decoding_gives_the_output_of_evaluation(name, positions, generator):
    module = FSP(LEVELS, **CONFIGURATIONS[name])
    x = input_for(module, positions, generator)
    trained, seen = module(x), module.rng.clone()
    module.eval()
    out = module(x)
    assert out.quantized.shape == x.shape and out.indices.shape == positions
    assert torch.equal(trained.indices, out.indices)  # noise does not change an index
    assert not torch.equal(trained.quantized, out.quantized)
    assert "p_accept_prob" in trained.other_info and "p_accept_prob" not in out.other_info
    assert torch.equal(module.rng, seen) and torch.equal(module(x).quantized, out.quantized)
    torch.testing.assert_close(module.indices_to_codes(out.indices), out.quantized)
    levels = out.other_info["level_indices"]
    assert levels.dtype == torch.int64
    assert torch.equal(module.level_indices_to_indices(levels), out.indices)


def test_one_vector(generator):
    module = FSP(LEVELS, dim=6).eval()
    x = torch.randn(6, generator=generator)
    out = module(x)
    assert out.quantized.shape == (6,) and out.indices.shape == ()
    assert out.other_info["level_indices"].shape == (3,)
    torch.testing.assert_close(module.indices_to_codes(out.indices), out.quantized)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_mask_is_the_real_tokens_alone(name, generator):
    module = FSP(LEVELS, **CONFIGURATIONS[name])
    twin = copy.deepcopy(module)
    x = input_for(module, (3, 8), generator)
    mask = torch.rand(3, 8, generator=generator) < 0.6
    last = x.movedim(1, -1) if module.channel_first else x
    alone = last[mask].clone().requires_grad_()
    padded = last.masked_fill(~mask[..., None], math.nan)
    padded = (padded.movedim(-1, 1) if module.channel_first else padded).clone().requires_grad_()
    out, expected = module(padded, mask=mask), twin(alone)
    quantized = out.quantized.movedim(1, -1) if module.channel_first else out.quantized
    torch.testing.assert_close(quantized[mask], expected.quantized)
    assert torch.equal(out.indices[mask], expected.indices)
    assert (quantized[~mask] == 0).all() and (out.indices[~mask] == -1).all()
    torch.testing.assert_close(out.norm_loss, expected.norm_loss)
    torch.testing.assert_close(out.other_info["norm_info"], expected.other_info["norm_info"])
    for result in (out, expected):
        (result.quantized.square().sum() + result.norm_loss).backward()
    grad = padded.grad.movedim(1, -1) if module.channel_first else padded.grad
    torch.testing.assert_close(grad[mask], alone.grad)
    assert (grad[~mask] == 0).all()
    for a, b in zip(module.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    none = module(padded, mask=torch.zeros_like(mask))
    assert none.norm_loss == 0 and (none.quantized == 0).all()


@pytest.mark.parametrize("name", ["plain", "inverse", "projections"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_precision(name, dtype, generator):
    module = FSP(LEVELS, **CONFIGURATIONS[name])
    x = input_for(module, (2, 9), generator).to(dtype)
    if not module.has_projections:
        assert torch.equal(module(x).indices, module(x.float()).indices)
    for m in (module, copy.deepcopy(module).to(dtype)):
        for autocast in (False, True):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                out = m(x.clone().requires_grad_())
            assert out.quantized.dtype == dtype and out.norm_loss.isfinite()
            assert out.norm_loss.dtype in (torch.float32, torch.float64)
            (out.quantized.float().sum() + out.norm_loss).backward()
            assert m.indices_to_codes(out.indices).isfinite().all()


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_compiled_is_eager(name, generator):
    eager = FSP(LEVELS, **CONFIGURATIONS[name])
    module = copy.deepcopy(eager)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    x = input_for(eager, (2, 6), generator)
    mask = torch.rand(2, 6, generator=generator) < 0.7
    for _ in range(2):
        results = []
        for call in (eager, compiled):
            tokens = x.clone().requires_grad_()
            out = call(tokens, mask=mask)
            (out.quantized.square().sum() + out.norm_loss).backward()
            results.append([*out[:3], tokens.grad, out.other_info["norm_info"]])
        torch.testing.assert_close(*results)
    assert torch.equal(eager.rng, module.rng) and eager.rng[1] == 2


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_draws_once(reentrant, generator):
    module = FSP(LEVELS)
    twin = copy.deepcopy(module)
    data = torch.randn(2, 30, 3, generator=generator)

    def region(m, x):
        out = m(x * 2)
        return out.quantized.pow(3).sum() + out.norm_loss

    x, y = (data.clone().requires_grad_() for _ in range(2))
    checkpoint(region, module, x, use_reentrant=reentrant).backward()
    region(twin, y).backward()
    torch.testing.assert_close(x.grad, y.grad)
    assert torch.equal(module.rng, twin.rng) and module.rng[1] == 1


def test_copies_pickles_paths_and_strict_loading(generator):
    module = FSP(LEVELS, dim=6)
    x = torch.randn(2, 9, 6, generator=generator)
    module(x)
    twins = [copy.deepcopy(module), pickle.loads(pickle.dumps(module)), FSP(LEVELS, dim=6)]
    twins[2].load_state_dict(module.state_dict())
    expected = module(x).quantized
    assert all(torch.equal(twin(x).quantized, expected) for twin in twins)
    state = {k: v for k, v in module.state_dict().items() if k != "rng"}
    module.load_state_dict(state, strict=True)
    assert module.rng[1] == 0 and ByPath is FSP and "levels=[8, 5, 4]" in repr(module)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: FSP([]), ValueError),
        (lambda: FSP([1, 5]), ValueError),
        (lambda: FSP([65536] * 4), ValueError),
        (lambda: FSP(LEVELS, dim=0), ValueError),
        (lambda: FSP(LEVELS, act_name="relu"), ValueError),
        (lambda: FSP(LEVELS, vector_norm="l2"), ValueError),
        (lambda: FSP(LEVELS, quantize_rate=-0.1), ValueError),
        (lambda: FSP(LEVELS, process_group=3), ValueError),
        (lambda: FSP(LEVELS)(torch.zeros(2, 4)), ValueError),
        (lambda: FSP(LEVELS)(torch.zeros(2, 3).long()), TypeError),
        (lambda: FSP(LEVELS)(torch.zeros(2, 3), eps=0.5), ValueError),
        (lambda: FSP(LEVELS)(torch.zeros(2, 3), mask=torch.ones(2)), TypeError),
        (lambda: FSP(LEVELS).indices_to_codes(torch.tensor([160])), IndexError),
        (lambda: FSP(LEVELS).indices_to_codes(torch.tensor([-2])), IndexError),
        (
            lambda: FSP(LEVELS).indices_to_codes(torch.tensor([2**64 - 1], dtype=torch.uint64)),
            IndexError,
        ),
        (
            lambda: FSP(LEVELS).level_indices_to_indices(
                torch.tensor([[2**64 - 1] * 3], dtype=torch.uint64)
            ),
            IndexError,
        ),
        (lambda: FSP(LEVELS).indices_to_codes(torch.tensor([1.0])), TypeError),
        (lambda: FSP(LEVELS).level_indices_to_indices(torch.tensor([[8, 0, 0]])), IndexError),
        (lambda: FSP(LEVELS).level_indices_to_indices([[1, 0, 0]]), TypeError),
    ],
)
def test_bad_arguments_are_refused(call, error):
    with pytest.raises(error, match="expected"):
        call()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64], ids=str)
def test_levels_that_are_no_integers_are_not_rounded(dtype: torch.dtype) -> None:
    levels = torch.ones(2, 3).to(dtype)
    with pytest.raises(TypeError, match=f"FSP: expected indices to be integers, but got {dtype}"):
        FSP(LEVELS).level_indices_to_indices(levels)


DISTRIBUTIONS = {
    "tanh": scipy.stats.logistic(scale=0.5),
    "sigmoid": scipy.stats.logistic(),
    "normal": scipy.stats.norm(),
    "laplace": scipy.stats.laplace(),
    "cauchy": scipy.stats.cauchy(),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_activations_are_distribution_functions(name: str) -> None:
    """F, its inverse and its density against SciPy, including the tails."""
    act, inverse = build_cdf_act(name)
    known = DISTRIBUTIONS[name]
    # The grid contains 0, which linspace misses by a rounding on some processors.
    x = (torch.arange(-50, 51, dtype=torch.float64) * 0.12).requires_grad_()
    u = act(x)
    torch.testing.assert_close(u.detach(), torch.from_numpy(known.cdf(x.detach())))
    torch.testing.assert_close(inverse(u), x)
    (slope,) = torch.autograd.grad(u.sum(), x)
    torch.testing.assert_close(slope, torch.from_numpy(known.pdf(x.detach())))
    level = torch.linspace(0.01, 0.99, 99, dtype=torch.float64, requires_grad=True)
    (rate,) = torch.autograd.grad(inverse(level).sum(), level)
    torch.testing.assert_close(rate, 1 / torch.from_numpy(known.pdf(inverse(level).detach())))
    ends = inverse(torch.tensor([0.0, 1.0, -0.1, 1.1]))
    assert ends[0] == -math.inf and ends[1] == math.inf and ends[2:].isnan().all()
    assert act(torch.zeros(2, 3, dtype=torch.bfloat16)).dtype == torch.float32
    module = FSP(LEVELS, act_name=name)
    assert torch.equal(module.act_func(x), u) and torch.equal(module.inv_act_func(u), inverse(u))


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(ValueError, match="build_cdf_act: expected act_name to be one of"):
        build_cdf_act("relu")
