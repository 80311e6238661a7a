"""The effect of a precision on a module: changed tokens, differences of loss and output, time of a step."""

import copy
import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchvq._base.arguments import expect_kind
from torchvq._base.wide_buffers import HALF


class Precision(NamedTuple):
    """One way to run a module, compared with float32 input, module and arithmetic."""

    dtype: torch.dtype  # of input or module
    how: str  # "input", "module" (cast with its input) or "autocast"
    tokens_changed: float  # share of the indices that differ, in evaluation
    loss_difference: float  # relative, of the sum of the losses of a training step
    output_difference: float  # largest, relative to the largest output, in evaluation
    seconds: float  # of a training step, forward and backward; the fastest of three


def precision_report(
    module: nn.Module,
    x: Tensor,
    *,
    dtypes: Sequence[torch.dtype] = (torch.float32, torch.bfloat16, torch.float16),
    **kwargs: Any,
) -> list[Precision]:
    """Measures a quantizer in several precisions on your own data, on copies: the module stays as it is.

    Args:
        module: any quantizer of this package.
        x: its input, on its device; cast to each dtype.
        dtypes: what to measure. A half precision is measured as input, as a cast of module and input, and as autocast;
            other dtypes as input and as cast.
        **kwargs: further arguments of the module's forward, for example ``mask``.

    Returns:
        One ``Precision`` for each way, in the order of ``dtypes``.

    Raises:
        TypeError: a module that is no quantizer, an input that is no tensor, a dtype that is not floating point.

    Tokens follow a projection that a cast or autocast rounds; without projections none changes (docs/dtype_policy.md).

    Example:
        >>> vq = VectorQuantize(dim=8, codebook_size=16)
        >>> [row.tokens_changed for row in precision_report(vq, torch.randn(4, 32, 8).bfloat16())][0]
        0.0
    """
    _check(module, x, dtypes)
    expected = _run(module, x, torch.float32, "input", kwargs)
    rows = []
    for dtype in dtypes:
        for how in ("input", "module", "autocast") if dtype in HALF else ("input", "module"):
            found = _run(module, x, dtype, how, kwargs)
            rows.append(_compared(dtype, how, found, expected))
    return rows


def _check(module: nn.Module, x: Tensor, dtypes: Sequence[torch.dtype]) -> None:
    for name, given, kind in (("module", module, nn.Module), ("x", x, Tensor)):
        expect_kind("precision_report", name, given, kind, f"a {kind.__name__}")
    if not isinstance(dtypes, Iterable):
        raise TypeError(f"precision_report: expected dtypes to be a sequence, but got {dtypes}")
    for dtype in dtypes:
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise TypeError(
                f"precision_report: expected dtypes to be floating point, but got {dtype!r}"
            )


class _Run(NamedTuple):
    output: Tensor
    indices: Tensor | None
    loss: Tensor
    seconds: float


def _run(module: nn.Module, x: Tensor, dtype: torch.dtype, how: str, kwargs: Any) -> _Run:
    own = copy.deepcopy(module)
    if how == "module":
        own = own.to(dtype)
    given = x.detach().to(torch.float32 if how == "autocast" else dtype)
    seconds = float("inf")
    first: Tensor | None = None
    autocast = torch.autocast(x.device.type, dtype=dtype) if how == "autocast" else nullcontext()
    with autocast:
        for _ in range(3):
            stepped = copy.deepcopy(own).train()
            start = _now(x)
            _, _, loss = _parts(stepped(given.clone().requires_grad_(), **kwargs))
            if loss.requires_grad:
                loss.backward()  # type: ignore[no-untyped-call]
            seconds = min(seconds, _now(x) - start)
            first = loss.detach().double() if first is None else first
        with torch.no_grad():
            output, indices, _ = _parts(own.eval()(given, **kwargs))
    assert first is not None
    return _Run(output.detach().double(), indices, first, seconds)


def _now(x: Tensor) -> float:
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
    return time.perf_counter()


def _parts(result: Any) -> tuple[Tensor, Tensor | None, Tensor]:
    """Output, indices, and the sum of the losses, of any class."""
    if isinstance(result, Tensor):  # a class that returns only indices
        if result.is_floating_point():
            raise TypeError(
                f"precision_report: expected module to be a quantizer, but got one that returns {result.dtype} alone"
            )
        nothing = torch.zeros((), device=result.device)
        return nothing, result, nothing
    output, *others = result
    losses = [each for each in others if isinstance(each, Tensor) and each.is_floating_point()]
    indices = [found for each in others if (found := _indices(each)) is not None]
    # Some classes, and BinaryMapper at its threshold, have no differentiable loss: use the mean square of the output.
    total = torch.stack([each.float().sum() for each in losses]).sum() if losses else None
    if total is None or not total.requires_grad:
        total = output.float().square().mean()
    return output, (indices[0] if indices else None), total


def _indices(part: Any) -> Tensor | None:
    """A part of the output, if it is indices: a tensor, or one of each scale, as one row."""
    parts = part if isinstance(part, tuple) else (part,)
    whole = (torch.int32, torch.int64)
    if not parts or not all(isinstance(each, Tensor) and each.dtype in whole for each in parts):
        return None
    return torch.cat([each.flatten() for each in parts])


def _compared(dtype: torch.dtype, how: str, found: _Run, expected: _Run) -> Precision:
    changed = 0.0
    if found.indices is not None and expected.indices is not None and found.indices.numel():
        changed = (found.indices != expected.indices).double().mean().item()
    return Precision(
        dtype,
        how,
        changed,
        _relative((found.loss - expected.loss).abs(), expected.loss.abs()),
        _relative(_largest(found.output - expected.output), _largest(expected.output)),
        found.seconds,
    )


def _largest(tensor: Tensor) -> Tensor:
    return tensor.abs().max() if tensor.numel() else tensor.new_zeros(())


def _relative(gap: Tensor, length: Tensor) -> float:
    return 0.0 if gap == 0 else (gap / length).item()
