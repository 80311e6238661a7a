"""Dtypes of VectorQuantize, beyond what tests/matrix/test_precision.py covers for every class."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from vector_quantize_cases import CASES, DIM, LEARNABLE, build, data, same, train_step

from support import CASTS, DTYPES, HALF_CASTS
from torchvq import VectorQuantize

# Cases in which dtypes meet in a way that no row of tests/matrix/test_precision.py covers.
MIXED = [
    "layer_norm", "image_projections", "affine_heads", "affine_kmeans_dead_codes", "learnable_heads", "bridge",
    "orthogonal_active", "orthogonal_some", "gumbel", "copied_gradient", "compat",
]  # fmt: skip


def check_state(module: VectorQuantize) -> None:
    wide = (torch.float32, torch.float64)
    for name, buffer in module._codebook.named_buffers(recurse=False):
        assert buffer.dtype in (*wide, torch.int64, torch.bool), name
        assert buffer.dtype.is_floating_point == (
            name not in ("initted", "rng", "replaced") and "needs_init" not in name
        )
    assert (
        module._codebook.rng.dtype == torch.int64 and module._codebook.initted.dtype == torch.bool
    )


@pytest.mark.parametrize("autocast", [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("cast", CASTS)
@pytest.mark.parametrize("case", MIXED)
def test_every_combination_of_dtypes_works(
    case: str, cast: str, autocast: torch.dtype | None
) -> None:
    for dtype in DTYPES:
        module = build(case)
        CASTS[cast](module)
        context = nullcontext() if autocast is None else torch.autocast("cpu", dtype=autocast)
        x = data(module).to(dtype).requires_grad_()
        with context:
            for _ in range(2):
                quantized, indices, loss = module(x)
                assert quantized.dtype == dtype and indices.dtype == torch.int64
                assert loss.dtype == (
                    torch.float64 if module_space(module, dtype, autocast) else torch.float32
                )
                assert quantized.isfinite().all() and loss.isfinite()
        (quantized.float().sum() + loss).backward()
        if module.route_gradients_to_input:
            assert x.grad is not None and x.grad.dtype == dtype and x.grad.isfinite().all()
        for parameter in module.parameters():
            assert parameter.grad is None or parameter.grad.dtype == parameter.dtype
        check_state(module)
        with context:
            quantized, indices, _ = module.eval()(x)
            decoded = module.get_output_from_indices(indices)
        assert quantized.dtype == dtype
        half = HALF_CASTS.get(cast)
        if half in (None, dtype) or module.has_projections:
            assert torch.equal(decoded.to(dtype), quantized)
        else:  # of the same codes, each rounded once
            assert decoded.dtype == half
            rounding = max(torch.finfo(half).eps, torch.finfo(dtype).eps)
            torch.testing.assert_close(
                decoded.double(), quantized.double(), rtol=rounding, atol=1e-6
            )


def module_space(module: VectorQuantize, dtype: torch.dtype, autocast: torch.dtype | None) -> bool:
    """Whether the search runs in float64, because float64 tokens reach it."""
    if not module.has_projections:
        return dtype == torch.float64
    weight = next(module.project_in.parameters()).dtype
    return weight == torch.float64


@pytest.mark.parametrize("cast", ["none", "half", "bfloat16"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", ["shared_heads"])
def test_tokens_are_those_of_float32(case: str, dtype: torch.dtype, cast: str) -> None:
    """The same values in another dtype, a cast module, with or without autocast: the same tokens."""
    reference = build(case).eval()
    module = build(case).eval()
    CASTS[cast](module)
    x = data(module).to(torch.bfloat16).to(torch.float16)  # values that every dtype represents
    expected = reference(x.float())[1]
    assert torch.equal(module(x.to(dtype))[1], expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(module(x.to(dtype))[1], expected)


@pytest.mark.parametrize("cast", ["half", "bfloat16"])
def test_codes_that_are_half_parameters_follow_their_averages(cast: str) -> None:
    """Steps far below the rounding of the codes accumulate, as they do for float32 codes."""
    codes = torch.tensor([[1.0], [-1.0]])
    x = torch.tensor([[1.5], [-1.5]]).expand(2, 1)
    modules = [VectorQuantize(1, 2, decay=0.999, orthogonal_reg_weight=1.0) for _ in range(2)]
    for module in modules:
        module.codebook = codes
    wide, narrow = modules[0], CASTS[cast](modules[1])
    for _ in range(1000):
        wide(x)
        narrow(x.to(narrow.codebook.dtype))
    assert narrow._codebook.embed.dtype == (torch.float16 if cast == "half" else torch.bfloat16)
    assert wide.codebook[0] > 1.25
    torch.testing.assert_close(narrow.codebook.float(), wide.codebook, rtol=4e-3, atol=0)
    torch.testing.assert_close(
        narrow._codebook.embed_avg, wide._codebook.embed_avg, rtol=1e-5, atol=0
    )


@pytest.mark.parametrize("cast", ["half", "bfloat16"])
def test_learnable_half_codes_follow_their_averages_when_a_call_asks(cast: str) -> None:
    """The same if the codes are parameters of a module that does not use moving averages by default."""
    codes = torch.tensor([[1.0], [-1.0]])
    x = torch.tensor([[1.5], [-1.5]]).expand(2, 1)
    modules = [VectorQuantize(1, 2, decay=0.999, **LEARNABLE) for _ in range(2)]
    for module in modules:
        module.codebook = codes
    wide, narrow = modules[0], CASTS[cast](modules[1])
    largest = 0.0
    for _ in range(1000):
        before = wide.codebook.detach().clone()
        wide(x, ema_update=True)
        narrow(x.to(narrow.codebook.dtype), ema_update=True)
        largest = max(largest, (wide.codebook - before).abs().max().item())
    # Every step is smaller than the spacing of half-precision numbers above 1.
    assert largest < torch.finfo(narrow._codebook.embed.dtype).eps
    assert wide.codebook[0] > 1.25
    torch.testing.assert_close(narrow.codebook.float(), wide.codebook, rtol=4e-3, atol=0)
    torch.testing.assert_close(
        narrow._codebook.embed_avg, wide._codebook.embed_avg, rtol=1e-5, atol=0
    )


@pytest.mark.parametrize("cast", ["half", "bfloat16", "to"])
@pytest.mark.parametrize("case", CASES)
def test_cast_leaves_the_state_bit_unchanged(case: str, cast: str) -> None:
    module = build(case)
    train_step(module, module, data(module))
    before = dict(module._codebook.named_buffers(recurse=False))
    before = {name: buffer.clone() for name, buffer in before.items()}
    CASTS[cast](module)
    CASTS["none"](module).float()
    for name, buffer in module._codebook.named_buffers(recurse=False):
        assert same(buffer, before[name]), name


def test_double_module_has_double_state() -> None:
    module = build("default").double()
    assert module._codebook.embed.dtype == torch.float64
    assert module._codebook.rng.dtype == torch.int64
    module(torch.randn(2, 5, DIM, dtype=torch.float64))
    assert module._codebook.embed_avg.dtype == torch.float64
    assert module.half()._codebook.embed.dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_learnable_codebook_learns_in_half_precision(dtype: torch.dtype) -> None:
    module = build("learnable").to(dtype)
    x = data(module).to(dtype)
    losses = []
    optimizer = torch.optim.SGD(module.parameters(), lr=2.0)
    for _ in range(40):
        loss = module(x)[2]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert module._codebook.embed.dtype == dtype
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_orthogonal_codes_learn_in_half_precision(dtype: torch.dtype) -> None:
    module = build("orthogonal").to(dtype)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for step in range(20):
        _, _, loss = module(data(module, step).to(dtype))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert (
        module._codebook.embed.dtype == dtype and module._codebook.embed_avg.dtype == torch.float32
    )
    assert all(value.isfinite().all() for value in module.state_dict().values())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_large_values_in_half_precision(dtype: torch.dtype) -> None:
    """float16 inputs of size 1e4: their squares exceed the range of half precision, but nothing overflows."""
    module = build("default", commitment_weight=1e-6)
    for step in range(100):
        x = (data(module, step) * 1e4).to(dtype).requires_grad_()
        quantized, _, loss = module(x)
        (loss + quantized.float().mean()).backward()
        assert (
            x.grad is not None
            and x.grad.isfinite().all()
            and quantized.isfinite().all()
            and loss.isfinite()
        )
    assert all(value.isfinite().all() for value in module.state_dict().values())


def test_half_and_float_checkpoints_load_into_each_other() -> None:
    source = build("projections")
    half = {
        name: value.half() if value.is_floating_point() else value
        for name, value in source.state_dict().items()
    }
    for assign in (False, True):
        module = build("projections", seed=1)
        module.load_state_dict(half, assign=assign)
        check_state(module)
        assert module(data(module))[0].dtype == torch.float32
