"""Every class x input dtype x module cast x autocast: training, evaluation and decoding against float32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from cells import Cell
from classes import ROWS, build, data, decode, forward
from float32_twin import HALF, MADE_BY_NETWORK, Twins, difference
from torch import Tensor, nn

import torchvq
from support import CASTS, DTYPES, HALF_CASTS

AUTOCAST = {"off": None, "bfloat16": torch.bfloat16, "float16": torch.float16}
TABLE = "precision"
LOSS = 1e-5
# Rows whose training forward moves parameters: in half precision these are rounded after each step, as with any
# optimizer, and later results differ by that.
STEPS_PARAMETERS = ("vq_orthogonal", "latent_in_place")
# Rows that draw by a hash of the tokens' bits, which differs between float64 and float32 tokens of equal value.
DRAWS_BY_BITS = ("vq_kmeans", "vq_dead_codes")


def autocast(dtype: torch.dtype | None) -> AbstractContextManager[None]:
    return nullcontext() if dtype is None else torch.autocast("cpu", dtype=dtype)


def coarsest(module: nn.Module, dtype: torch.dtype, inside: torch.dtype | None) -> torch.dtype:
    """The dtype with the fewest digits between input and loss."""
    present = {dtype} | {parameter.dtype for parameter in module.parameters()}
    if inside is not None and next(module.parameters(), None) is not None:
        present.add(inside)
    return max(present, key=lambda each: torch.finfo(each).eps)


def allowed(module: nn.Module, dtype: torch.dtype) -> float:
    """Tolerance of gradients and outputs: one rounding; with projections several, and their sum over tokens."""
    roundings = 12 if next(module.parameters(), None) is not None else 1
    return max(roundings * torch.finfo(dtype).eps, 1e-5)


def backward(quantized: Tensor, loss: Tensor) -> None:
    weights = torch.linspace(-1, 1, quantized.numel()).bfloat16().to(quantized.dtype)
    total = loss.sum().double()
    if quantized.requires_grad:
        total = total + (quantized.double() * weights.view(quantized.shape)).sum()
    if total.requires_grad:
        total.backward()


def output_dtype(module: nn.Module, output: Tensor, dtype: torch.dtype) -> torch.dtype:
    """The input's dtype; for an autoencoder, that of its decoder."""
    return output.dtype if isinstance(module, torchvq.EvoLFQ) else dtype


def ends_in_network(module: nn.Module) -> bool:
    """Whether decoding ends in a layer, of which autocast may decide the dtype."""
    names = [name for name, _ in module.named_parameters()]
    return any("project_out" in name or name.startswith("decoder") for name in names)


def same_codes(quantized: Tensor, decoded: Tensor) -> None:
    """The same bits, or in dtypes of which one is half precision the same codes, each rounded once."""
    if quantized.dtype == decoded.dtype:
        assert torch.equal(quantized, decoded)
    rounding = max(torch.finfo(output.dtype).eps for output in (quantized, decoded))
    torch.testing.assert_close(decoded.double(), quantized.double(), rtol=rounding, atol=1e-6)


def check_buffers(module: nn.Module, kinds: dict[str, torch.dtype]) -> None:
    for name, buffer in module.named_buffers():
        kind = kinds[name]
        wide = (torch.float32, torch.float64) if kind.is_floating_point else (kind,)
        assert buffer.dtype in wide, (name, buffer.dtype)
        assert not buffer.is_floating_point() or buffer.isfinite().all(), name


@pytest.mark.parametrize("inside", AUTOCAST)
@pytest.mark.parametrize("cast", CASTS)
@pytest.mark.parametrize("row", ROWS)
def test_dtypes(row: str, cast: str, inside: str, cell: Cell) -> None:
    cell(TABLE, row, "inputs", "float64, float32, float16, bfloat16")
    cell(TABLE, row, "casts", "none, half, bfloat16, double, to")
    cell(TABLE, row, "autocast", "off, bfloat16, float16")
    kinds = {name: buffer.dtype for name, buffer in build(row).named_buffers()}
    for dtype in DTYPES:
        twins = Twins(row, CASTS[cast])
        module, twin = twins.module, twins.twin
        assert {name for name, _ in module.named_buffers()} == set(kinds)
        check_buffers(module, kinds)
        x = data(row, dtype=dtype).requires_grad_()
        wide = data(row).requires_grad_()
        fewest = coarsest(module, dtype, AUTOCAST[inside])
        exact = row not in (MADE_BY_NETWORK if fewest in HALF else ())
        exact = exact and not (row in DRAWS_BY_BITS and dtype == torch.float64)
        bound = allowed(module, fewest)

        with autocast(AUTOCAST[inside]):
            found = forward(module, x)
        expected = forward(twin, wide)
        assert found.quantized.dtype == output_dtype(module, found.quantized, dtype)
        assert found.indices.dtype == torch.int64
        assert found.loss.dtype in (torch.float32, torch.float64)
        assert found.quantized.isfinite().all() and found.loss.isfinite().all()
        backward(found.quantized, found.loss)
        backward(expected.quantized, expected.loss)
        assert (x.grad is None) == (wide.grad is None)
        assert x.grad is None or (x.grad.dtype == dtype and x.grad.isfinite().all())
        for parameter in module.parameters():
            assert parameter.grad is None or parameter.grad.dtype == parameter.dtype
        check_buffers(module, kinds)
        if exact:
            assert torch.equal(found.indices, expected.indices), "tokens in training"
            gap = difference(found.loss, expected.loss)
            cell(TABLE, row, "loss", gap)
            stepped = row in STEPS_PARAMETERS and fewest in HALF
            assert gap < (bound if stepped else LOSS), gap
            pairs = [] if x.grad is None else [("x", x.grad, wide.grad)]
            for name, own, other in [*pairs, *twins.gradients()]:
                assert (own is None) == (other is None), name
                if own is not None:
                    gap = difference(own, other)
                    cell(TABLE, row, "gradient", gap)
                    assert gap < bound, (name, gap)

        module.eval(), twin.eval()
        with autocast(AUTOCAST[inside]):
            quantized, indices, _ = forward(module, x)
            decoded = decode(module, indices)
        again = forward(twin, wide)
        assert (
            quantized.dtype == output_dtype(module, quantized, dtype)
            and indices.dtype == torch.int64
        )
        if exact:
            assert torch.equal(indices, again.indices), "tokens in evaluation"
            gap = difference(quantized, again.quantized)
            cell(TABLE, row, "output", gap)
            assert gap < bound, gap
        if decoded is not None and cast in HALF_CASTS and not ends_in_network(module):
            assert decoded.dtype == HALF_CASTS[cast]
            same_codes(quantized, decoded)
        elif decoded is not None:
            # Sums in float64 on one side and in float32 on the other differ in the last digit.
            wider = torch.float64 in (dtype, decoded.dtype) and dtype != decoded.dtype
            eps = max(torch.finfo(dtype).eps, 1e-6) if wider else 0.0
            own = decoded.to(quantized.dtype)
            torch.testing.assert_close(own, quantized, rtol=eps, atol=min(eps, 1e-6))


@pytest.mark.parametrize("cast", HALF, ids=str)
@pytest.mark.parametrize("row", ROWS)
def test_state_of_a_half_precision_checkpoint_is_wide(row: str, cast: torch.dtype) -> None:
    """Also where it is assigned. The next checkpoint, which may be float32, is copied and must not be rounded."""
    module, original = build(row, seed=1), build(row).eval()
    kinds = {name: buffer.dtype for name, buffer in module.named_buffers()}
    state = original.state_dict()
    narrow = {
        name: value.to(cast) if value.is_floating_point() else value
        for name, value in state.items()
    }
    module.eval().load_state_dict(narrow, assign=True)
    check_buffers(module, kinds)
    module.load_state_dict(state)
    for name, buffer in module.named_buffers():
        assert name not in state or torch.equal(buffer, original.get_buffer(name)), name
