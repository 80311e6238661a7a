"""hierarchical_quantize: scales of HierarchicalVQ in one call (include/torchvq/functional/hierarchical_quantize.h)."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

op = torch.ops.torchvq.hierarchical_quantize
DIM, CODES = 6, 20
POOLS = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}
CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
MODES = {1: "linear", 2: "bilinear", 3: "trilinear"}
# Positions, grids and kernel.
MAPS = [
    ([4], [[1], [2], [4]], [3]),
    ([7], [[1], [3], [9]], [5]),
    ([5, 6], [[1, 1], [2, 3], [5, 6]], [3, 3]),
    ([3, 4, 2], [[1, 1, 1], [2, 2, 2]], [3, 1, 3]),
]
ESTIMATORS = ("straight_through", "rotation_trick", "none")
every_map = pytest.mark.parametrize(("full", "sizes", "kernel"), MAPS, ids=str)


class Case:
    """The arguments of a call: one convolution for all scales, or one each."""

    def __init__(
        self,
        full: list[int],
        sizes: list[list[int]],
        kernel: list[int],
        *,
        own: bool = False,
        batch: int = 3,
        dtype: torch.dtype = torch.float32,
        weights: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        generator = torch.Generator().manual_seed(len(full) + batch)

        def normal(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

        self.full, self.sizes, self.kernel = full, sizes, kernel
        self.rows = normal(batch, math.prod(full), DIM).requires_grad_()
        self.codebook = normal(1, CODES, DIM)
        count = len(sizes) if own else 1
        kind = dtype if weights is None else weights
        self.weights = [normal(DIM, DIM, *kernel, dtype=kind) for _ in range(count)]
        self.biases = [normal(DIM, dtype=kind) for _ in range(count)]
        for tensor in (*self.weights, *self.biases):
            tensor.requires_grad_()
        self.upstream = normal(*self.rows.shape)
        self.convolutions = list(range(count)) if own else [0] * len(sizes)
        self.options = dict(ratio=0.3, estimator="straight_through") | options

    def learnt(self) -> list[Tensor]:
        return [self.rows, *self.weights, *self.biases]

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        codebooks = [self.codebook] * len(self.sizes)
        grids = dict(
            sizes=[side for size in self.sizes for side in size],
            full=self.full,
            convolutions=self.convolutions,
        )
        return (self.rows, codebooks, self.weights, self.biases), grids | self.options

    def call(self, rows: Tensor | None = None) -> Any:
        (own, *tensors), options = self.arguments()
        return op(own if rows is None else rows, *tensors, **options)

    def gradients(self, quantized: Tensor, loss: Tensor, **options: Any) -> tuple[Tensor, ...]:
        ends = [end for end in ((quantized * self.upstream).sum(), 3 * loss) if end.requires_grad]
        inputs = [tensor for tensor in self.learnt() if tensor.requires_grad]
        return torch.autograd.grad(sum(ends), inputs, allow_unused=True, **options)

    def by_torch(self) -> tuple[Tensor, Tensor, list[Tensor]]:
        """The same as operations of torch, by a straight-through estimator: output, mean loss, indices."""
        axes, batch = len(self.full), len(self.rows)
        residual = self.rows.transpose(1, 2).reshape(batch, DIM, *self.full)
        total, losses, indices = torch.zeros_like(residual), [], []
        for size, convolution in zip(self.sizes, self.convolutions, strict=True):
            tokens = POOLS[axes](residual, size).flatten(2).transpose(1, 2)
            found = torch.cdist(tokens.detach().double(), self.codebook.double()[0]).argmin(-1)
            codes = self.codebook[0][found]
            losses.append((tokens - codes).square().mean())
            passes = self.options["estimator"] == "straight_through"
            chosen = tokens + (codes - tokens).detach() if passes else codes
            grid = chosen.transpose(1, 2).reshape(batch, DIM, *size)
            wide = F.interpolate(grid, self.full, mode=MODES[axes], align_corners=False)
            smooth = CONVOLVE[axes](
                wide,
                self.weights[convolution],
                self.biases[convolution],
                padding=[side // 2 for side in self.kernel],
            )
            ratio = self.options["ratio"]
            taken = (1 - ratio) * wide + ratio * smooth
            total, residual = total + taken, residual - taken
            indices.append(found)
        return total.flatten(2).transpose(1, 2), torch.stack(losses).mean(), indices


def in_turn() -> contextlib.AbstractContextManager[Any]:
    """Where somebody looks at what is saved for backward, the scales are operators of their own."""
    return saved_tensors_hooks(lambda saved: saved, lambda saved: saved)


@every_map
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("estimator", ["straight_through", "none"])
def test_is_what_torch_computes(full, sizes, kernel, own, estimator):
    case = Case(full, sizes, kernel, own=own, dtype=torch.float64, estimator=estimator)
    quantized, loss, tokens, token_indices, indices = case.call()
    expected, expected_loss, chosen = case.by_torch()
    close = dict(rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(quantized, expected, **close)
    torch.testing.assert_close(loss, expected_loss, **close)
    assert all(torch.equal(a, b) for a, b in zip(indices, chosen, strict=True))
    assert torch.equal(token_indices, torch.cat(chosen, 1))
    assert tokens.shape == (*token_indices.shape, DIM) and not tokens.requires_grad
    grads = case.gradients(quantized, loss)
    for found, wanted in zip(grads, case.gradients(expected, expected_loss), strict=True):
        torch.testing.assert_close(found, wanted, **close)


@every_map
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", [1, 3])
def test_one_node_has_the_bits_of_scales_in_turn(full, sizes, kernel, own, estimator, dtype, batch):
    case = Case(full, sizes, kernel, own=own, estimator=estimator, dtype=dtype, batch=batch)
    for takes_gradient in (True, False):
        case.rows.requires_grad_(takes_gradient)
        found = case.call()
        assert "ScalesNode" in found[0].grad_fn.name()
        with in_turn():
            expected = case.call()
            gradients = case.gradients(*expected[:2])
        assert "ScalesNode" not in expected[0].grad_fn.name()
        flat = [*found[:4], *found[4], *case.gradients(*found[:2])]
        for a, b in zip(flat, [*expected[:4], *expected[4], *gradients], strict=True):
            assert torch.equal(a, b)


@every_map
@pytest.mark.parametrize("estimator", ["straight_through", "none"])
def test_second_derivatives_are_those_of_scales_in_turn(full, sizes, kernel, estimator):
    case = Case(full, sizes, kernel, dtype=torch.float64, estimator=estimator)

    def second() -> tuple[Tensor, ...]:
        quantized, loss, *_ = case.call()
        first = case.gradients(quantized.pow(2), loss.pow(2), create_graph=True)
        total = sum(own.pow(2).sum() for own in first if own is not None)
        return torch.autograd.grad(total, case.learnt(), allow_unused=True)

    found = second()
    with in_turn():
        expected = second()
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    assert any(own is not None and own.abs().max() > 0 for own in found)


def test_a_second_derivative_of_the_rotation_trick_is_refused():
    case = Case(*MAPS[0], estimator="rotation_trick")
    quantized, loss, *_ = case.call()
    with pytest.raises(NotImplementedError, match=r"rotation_trick: .*create_graph=False"):
        case.gradients(quantized, loss, create_graph=True)


@pytest.mark.parametrize("end", [0, 1])
def test_each_output_has_a_gradient_of_its_own(end):
    case = Case(*MAPS[2], dtype=torch.float64, own=True)

    def gradients(output: Tensor) -> list[Tensor]:
        found = torch.autograd.grad(output.sum(), case.learnt(), allow_unused=True)
        pairs = zip(found, case.learnt(), strict=True)
        # The loss does not depend on the last scale's map.
        return [torch.zeros_like(own) if grad is None else grad for grad, own in pairs]

    pairs = zip(gradients(case.call()[end]), gradients(case.by_torch()[end]), strict=True)
    for found, expected in pairs:
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("frozen", ["rows", "weights", "biases", "all"])
def test_what_takes_no_gradient_gets_none(frozen):
    case = Case(*MAPS[1], dtype=torch.float64)
    for name in ("rows", "weights", "biases") if frozen == "all" else (frozen,):
        for tensor in [case.rows] if name == "rows" else getattr(case, name):
            tensor.requires_grad_(False)
    quantized, loss, *_ = case.call()
    # The loss of a training step can always be differentiated.
    assert loss.requires_grad and quantized.requires_grad == (frozen != "all")
    if frozen != "all":
        expected = case.by_torch()
        for a, b in zip(
            case.gradients(quantized, loss), case.gradients(*expected[:2]), strict=True
        ):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_evaluation_has_no_loss_and_no_tokens():
    case = Case(*MAPS[0], training=False, estimator="none")
    quantized, loss, tokens, token_indices, indices = case.call()
    assert not loss.requires_grad and loss == 0
    assert tokens.shape == (3, 0, DIM) and token_indices.shape == (3, 0)
    trained = Case(*MAPS[0], estimator="none").call()
    assert torch.equal(quantized, trained[0])
    assert all(torch.equal(a, b) for a, b in zip(indices, trained[4], strict=True))
    with torch.no_grad():
        assert torch.equal(case.call()[0], quantized)


@pytest.mark.parametrize("weight", [0.0, 0.25])
def test_the_loss_has_a_weight(weight):
    full = Case(*MAPS[0], dtype=torch.float64).call()
    case = Case(*MAPS[0], dtype=torch.float64, commitment_weight=weight)
    quantized, loss, *_ = case.call()
    torch.testing.assert_close(loss, weight * full[1])
    for a, b in zip(
        case.gradients(quantized, loss),
        case.gradients(case.by_torch()[0], weight * case.by_torch()[1]),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("weights", [torch.bfloat16, torch.float64])
def test_convolutions_of_other_dtypes_are_converted(weights):
    case = Case(*MAPS[2], weights=weights)
    quantized, loss, *_ = case.call()
    assert quantized.dtype == loss.dtype == torch.float32
    grads = case.gradients(quantized, loss)
    assert [grad.dtype for grad in grads] == [torch.float32, weights, weights]


def test_rows_do_not_depend_on_the_batch_or_on_strides():
    case = Case(*MAPS[2], batch=5)
    whole = case.call()
    for one in range(5):
        alone = case.call(case.rows[one : one + 1])
        assert torch.equal(alone[0], whole[0][one : one + 1])
        assert all(
            torch.equal(a, b[one : one + 1]) for a, b in zip(alone[4], whole[4], strict=True)
        )
    turned = case.rows.mT.contiguous().mT
    assert torch.equal(case.call(turned)[0], whole[0])


@pytest.mark.parametrize("batch", [0, 2])
def test_nothing_gives_nothing(batch):
    case = Case([4] if batch == 0 else [0], [[1], [2]], [3], batch=batch)
    quantized, loss, _, token_indices, indices = case.call()
    assert quantized.shape == case.rows.shape and loss == (0 if batch == 0 else loss)
    assert [tuple(own.shape) for own in indices] == [(batch, 1), (batch, 2)]
    assert token_indices.shape == (batch, 3)
    for grad in case.gradients(quantized, loss):
        assert grad is None or grad.isfinite().all()


def test_opcheck():
    torch.library.opcheck(
        torch.ops.torchvq.hierarchical_quantize.default, *Case(*MAPS[2]).arguments()
    )


def test_compiled_code_has_the_bits_of_eager_code():
    case = Case(*MAPS[2])
    compiled = torch.compile(case.call, fullgraph=True, backend="aot_eager", dynamic=True)
    found, expected = compiled(case.rows), case.call()
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
    pairs = zip(case.gradients(*found[:2]), case.gradients(*expected[:2]), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("hooked", [False, True])
def test_a_backward_under_autocast_is_one_without(hooked):
    case = Case(*MAPS[2])
    with in_turn() if hooked else contextlib.nullcontext():
        expected = case.gradients(*case.call()[:2])
        with torch.autocast("cpu", torch.bfloat16):
            quantized, loss, *_ = case.call()
            ends = ((quantized.float() * case.upstream).sum() + 3 * loss,)
            found = torch.autograd.grad(ends, case.learnt())
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_transforms_give_the_gradient_of_backward():
    case = Case(*MAPS[0], dtype=torch.float64)
    quantized, loss, *_ = case.call()
    (expected, *_) = case.gradients(quantized, loss)
    total = lambda rows: (case.call(rows)[0] * case.upstream).sum() + 3 * case.call(rows)[1]  # noqa: E731
    torch.testing.assert_close(torch.func.grad(total)(case.rows.detach()), expected)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (dict(rows=torch.ones(2, 4, DIM).half()), TypeError, "rows to be float32 or float64"),
        (dict(rows=torch.ones(2, 5, DIM)), ValueError, r"rows to have shape \(B, 4, D\)"),
        (dict(rows=torch.ones(4, DIM)), ValueError, r"rows to have shape \(B, 4, D\)"),
        (dict(sizes=[[1], [0]]), ValueError, "each at least 1"),
        (dict(sizes=[]), ValueError, "sizes to hold at least one grid"),
        (dict(convolutions=[0, 1]), ValueError, r"convolutions to be in \[0, 1\)"),
        (dict(convolutions=[0]), ValueError, "convolutions to be one for each of 2 levels"),
        (dict(biases=[]), ValueError, "biases to be one for each of 1 levels"),
        (dict(codebook=torch.ones(1, 5, 3)), ValueError, "codebooks to have shape"),
        (dict(codebook=torch.ones(2, 5, DIM)), ValueError, "codebooks to have shape"),
        (dict(codebook=torch.ones(1, 5, DIM).long()), TypeError, "codebooks"),
        (
            dict(codebook=torch.ones(1, 5, DIM, device="meta")),
            RuntimeError,
            "codebooks .* same device",
        ),
        (
            dict(weights=[torch.ones(DIM, DIM, 3, device="meta")]),
            RuntimeError,
            "weights .* same device",
        ),
        (dict(biases=[torch.ones(DIM, device="meta")]), RuntimeError, "biases .* same device"),
        (dict(estimator="gumbel"), ValueError, "estimator to be straight_through"),
        (dict(weights=[torch.ones(DIM, DIM, 2)]), ValueError, "odd sizes"),
        (dict(weights=[torch.ones(DIM, 3, 3)]), ValueError, "weight to have shape"),
        (dict(biases=[torch.ones(3)]), ValueError, "bias to have shape"),
        (dict(ratio=math.inf), ValueError, "ratio to be finite"),
    ],
)
@pytest.mark.parametrize("hooked", [False, True])
def test_bad_arguments_are_named(change, kind, message, hooked):
    case = Case([4], [[1], [2]], [3])
    options = {name: value for name, value in change.items() if name in ("estimator", "ratio")}
    case.options |= options
    vars(case).update({name: value for name, value in change.items() if name not in options})
    with in_turn() if hooked else contextlib.nullcontext(), pytest.raises(kind, match=message):
        case.call()
