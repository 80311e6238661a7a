"""ONNX: translations of the operators of evaluation, for ``torch.onnx.export`` (docs/serving.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

import torchvq._library  # noqa: F401  (registers the operators)
from torchvq._tools.onnx_tables import level_codes, level_thresholds, place_values

_ops = torch.ops.torchvq

__all__ = ["export", "translations"]

# The exporter reads the annotations of the translations at run time, and treats anything that is not a number as a
# tensor.
_Value = Any
_FLOAT, _INT32, _INT64, _BOOL, _DOUBLE = 1, 6, 7, 9, 11  # onnx.TensorProto


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """The ``custom_translation_table`` of ``torch.onnx.export(..., dynamo=True)``.

    It covers the operators of evaluation of ``VectorQuantize``, ``ResidualVQ`` (without beam), SimVQ, FSQ, LFQ, their
    residual and grouped stacks, ``HierarchicalVQ`` and ``RandomProjectionQuantizer``, and the decoder of
    ``LatentQuantize``. Scalars, signs and all decoding give the same bits as
    torchvq. The search of codebooks is float32 arithmetic of the runtime: if two codes are equally near up to rounding,
    it may choose another code than the exact search. A zero vector gets code 0 in cosine searches, as in torchvq.

    Raises:
        ImportError: onnxscript is not installed.
    """
    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "torchvq.onnx: expected onnxscript to be installed (pip install onnx onnxscript), but got "
            f"{error}"
        ) from error
    table = {getattr(_ops, name).default: function for name, function in _TABLE.items()}
    # An ATen operator that the exporter does not know, for the shortlists of implicit codebooks.
    table[torch.ops.aten.sort.stable] = _stable_sort
    return table


def export(
    model: torch.nn.Module | torch.export.ExportedProgram,
    args: tuple[Any, ...],
    path: str,
    **options: Any,
) -> Any:
    """``torch.onnx.export`` of a model in evaluation, with ``translations()``.

    Args:
        model: a module or an exported program with operators of torchvq in it.
        args: example inputs; unused for an exported program.
        path: the ``.onnx`` file to write.
        **options: further arguments of ``torch.onnx.export``, such as ``kwargs`` and ``dynamic_shapes``, which an
            exported program has already.

    Returns:
        What ``torch.onnx.export`` returns.

    Raises:
        ValueError: the model uses an operator without a translation, or one with arguments or in float64, for which it
            has none; the message names it. Or an exported program comes with ``kwargs`` or ``dynamic_shapes``.
            ImportError: onnxscript is missing.
    """
    table = translations()
    own = {name: options.pop(name, None) for name in ("kwargs", "dynamic_shapes")}
    with torch.no_grad():
        program = _exported(model, args, own).run_decompositions()
    _check_calls([node for node in program.graph.nodes if node.op == "call_function"], table)
    return torch.onnx.export(
        program, (), path, dynamo=True, custom_translation_table=table, **options
    )


def _exported(
    model: torch.nn.Module | torch.export.ExportedProgram,
    args: tuple[Any, ...],
    own: dict[str, Any],
) -> torch.export.ExportedProgram:
    if not isinstance(model, torch.export.ExportedProgram):
        return torch.export.export(model, args, **own)
    for name, value in own.items():
        if value is not None:
            raise ValueError(
                f"torchvq.onnx: expected {name} to be None for an exported program, but got {value}"
            )
    return model


def _check_calls(nodes: list[Node], table: dict[Any, Callable[..., Any]]) -> None:
    """Raises ValueError for calls of operators of torchvq that have no translation.

    An error of a translation would reach the user as one of the exporter, which says neither operator nor argument.
    """
    own = [node for node in nodes if str(node.target).startswith("torchvq.")]
    missing = sorted({str(node.target) for node in own if node.target not in table})
    if missing:
        raise ValueError(
            "torchvq.onnx: expected operators that ONNX has a translation for (docs/serving.md lists them), but got "
            + ", ".join(missing)
        )
    for node in own:
        name = str(node.target).split(".")[1]
        given = signature(table[node.target]).bind(*node.args, **node.kwargs).arguments
        _expect_absent(name, **{each: given.get(each) for each in _UNTRANSLATED.get(name, ())})
        if name not in _OF_ANY_DTYPE:
            _expect_absent(name, float64=_returns_float64(node))


def _returns_float64(node: Node) -> bool:
    found = node.meta["val"]
    results = found if isinstance(found, list | tuple) else [found]
    return any(result.dtype == torch.float64 for result in results)


# Parts of graphs ---------------------------------------------------------------------------------------------------


class _Opset:
    """The operators of ONNX; their package is imported when the first of them is used."""

    def __getattr__(self, name: str) -> Any:
        # A special name of Python, which tools such as doctest look up, is no operator.
        if name.startswith("__"):
            raise AttributeError(name)
        from onnxscript import opset18

        return getattr(opset18, name)


op: Any = _Opset()


def _constant(tensor: Tensor) -> _Value:
    import onnx_ir

    return op.Constant(value=onnx_ir.tensor(tensor.numpy()))


def _number(value: float) -> _Value:
    """A float32 constant, as all arithmetic here, whatever torch's default dtype is."""
    return _constant(torch.tensor(value, dtype=torch.float32))


def _last_axis() -> _Value:
    return _constant(torch.tensor([-1]))


def _float(x: _Value) -> _Value:
    return op.Cast(x, to=_FLOAT)


def _gather(codebook: _Value, indices: _Value) -> _Value:
    """Codes (H, N, D) of indices (H, N); zeros for -1."""
    zero = _constant(torch.tensor(0))
    last = _last_axis()
    codes = op.GatherND(codebook, op.Unsqueeze(op.Max(indices, zero), last), batch_dims=1)
    absent = op.Unsqueeze(op.Less(indices, zero), last)
    return op.Where(absent, op.CastLike(_number(0.0), codes), codes)


def _of_heads(codebook: _Value, like: _Value) -> _Value:
    """Codes (H, K, D), also of a codebook that the heads of ``like`` (H, ...) share."""
    if len(codebook.shape) == 3 and codebook.shape[0] == like.shape[0]:
        return codebook
    heads = op.Shape(like, start=0, end=1)
    return op.Expand(codebook, op.Concat(heads, _constant(torch.tensor([1, 1])), axis=0))


def _nonfinite_rows(x: _Value, mask: _Value = None) -> _Value:
    """Rows (H, N) with a NaN or infinity, among the tokens of the mask (H, N)."""
    bad = op.Or(op.IsNaN(x), op.IsInf(x))
    rows = op.Cast(op.ReduceMax(op.Cast(bad, to=_INT32), _last_axis(), keepdims=0), to=_BOOL)
    return rows if mask is None else op.And(rows, mask)


def _zero_rows(x: _Value) -> _Value:
    """Rows (H, N) of zeros only."""
    return op.Equal(op.ReduceL1(x, _last_axis(), keepdims=0), _number(0.0))


def _unit(x: _Value) -> _Value:
    # Squares of very small and very large numbers would be 0 and infinity.
    last, zero, one = _last_axis(), _number(0.0), _number(1.0)
    largest = op.ReduceMax(op.Abs(x), last, keepdims=1)
    x = op.Div(x, op.Where(op.Equal(largest, zero), one, largest))
    norm = op.ReduceL2(x, last, keepdims=1)
    return op.Div(x, op.Where(op.Equal(norm, zero), one, norm))


def _nearest(x: _Value, codebook: _Value, metric: str, mask: _Value) -> _Value:
    """Indices (H, N); -1 for padding. The mean of the codes is subtracted first, so that a common offset costs no
    digits.
    """
    cosine = metric == "cosine"
    if cosine:
        x, codebook = _unit(x), _unit(codebook)
    # To a zero vector all unit codes are equally near; the rounding of their norms must not decide.
    ties = _zero_rows(x) if cosine else None
    mean = op.ReduceMean(codebook, _constant(torch.tensor([-2])), keepdims=1)
    x, codebook = op.Sub(x, mean), op.Sub(codebook, mean)
    squares = op.ReduceSumSquare(codebook, _last_axis(), keepdims=0)
    norms = op.Unsqueeze(op.Mul(squares, _number(0.5)), _constant(torch.tensor([-2])))
    products = op.MatMul(x, op.Transpose(codebook, perm=[0, 2, 1]))
    found = op.ArgMin(op.Sub(norms, products), axis=-1, keepdims=0)
    rows = _nonfinite_rows(x)
    indices = op.Where(op.Or(rows, ties) if cosine else rows, _constant(torch.tensor(0)), found)
    return indices if mask is None else op.Where(mask, indices, _constant(torch.tensor(-1)))


def _nan_in_rows(codes: _Value, rows: _Value) -> _Value:
    """Codes, with NaN in rows whose input is not finite."""
    nan = op.CastLike(_number(float("nan")), codes)
    return op.Where(op.Unsqueeze(rows, _last_axis()), nan, codes)


def _index(digits: _Value, places: Tensor) -> _Value:
    """Indices (...) of digits (..., D)."""
    last, half = _last_axis(), _constant(torch.tensor(2**31))
    terms = op.Mul(digits, _constant(places))
    # onnxruntime rounds sums of integers as float64 does, so each sum has at most 53 bits.
    high = op.ReduceSum(op.Div(terms, half), last, keepdims=0)
    low = op.ReduceSum(op.Mod(terms, half), last, keepdims=0)
    return op.Add(op.Mul(high, half), low)


def _digits(indices: _Value, levels: Sequence[int]) -> _Value:
    """Level of each feature (..., D); -1 for the index -1."""
    last = _last_axis()
    places, counts = _constant(place_values(levels)), _constant(torch.tensor(levels))
    wide = op.Unsqueeze(op.Max(indices, _constant(torch.tensor(0))), last)
    digits = op.Mod(op.Div(wide, places), counts)
    absent = op.Unsqueeze(op.Less(indices, _constant(torch.tensor(0))), last)
    return op.Where(absent, _constant(torch.tensor(-1)), digits)


def _table(digits: _Value, codes: Tensor) -> _Value:
    """Codes (..., D) of levels (..., D), from a table (D, L)."""
    features = _constant(torch.arange(len(codes)))
    column = op.Expand(features, op.Shape(digits))
    last = _last_axis()
    pairs = op.Concat(op.Unsqueeze(column, last), op.Unsqueeze(digits, last), axis=-1)
    return op.GatherND(_constant(codes), pairs)


def _scalars(x: _Value, levels: Sequence[int], bound: str) -> tuple[_Value, _Value]:
    wide = op.Unsqueeze(x, _last_axis())
    reached = op.Cast(
        op.GreaterOrEqual(wide, _constant(level_thresholds(levels, bound))), to=_INT64
    )
    digits = op.ReduceSum(reached, _last_axis(), keepdims=0)
    indices = _index(digits, place_values(levels))
    rows = _nonfinite_rows(x)
    codes = _table(digits, level_codes(levels, bound.startswith("symmetric")))
    return _nan_in_rows(codes, rows), op.Where(rows, _constant(torch.tensor(0)), indices)


# Operators -----------------------------------------------------------------------------------------------------------


def _expect_absent(op: str, **unsupported: object) -> None:
    for name, value in unsupported.items():
        if value not in (None, False):
            raise ValueError(
                f"torchvq.onnx: expected {name} of {op} to be left out, but got {value}; see docs/serving.md"
            )


def _nearest_code(
    x: _Value,
    codebook: _Value,
    metric: str = "euclidean",
    bias: _Value = None,
    topk: int | None = None,
    return_codes: bool = False,
    return_distances: bool = False,
    mask: _Value = None,
) -> tuple[_Value, ...]:
    _expect_absent("nearest_code", bias=bias, topk=topk, return_distances=return_distances)
    wide, table = _float(x), _float(codebook)
    indices = _nearest(wide, table, metric, mask)
    empty = _constant(torch.zeros(0, dtype=torch.float32))
    rows = _nonfinite_rows(wide, mask)
    codes = _nan_in_rows(_gather(table, indices), rows) if return_codes else empty
    return indices, codes, empty


def _residual_encode(
    x: _Value,
    codebooks: Sequence[Any],
    metric: str = "euclidean",
    depth: _Value = None,
    mask: _Value = None,
    prepared: Any = None,  # only makes the search on the CPU faster
) -> tuple[_Value, _Value]:
    _expect_absent("residual_encode", depth=depth)
    left = wide = _float(x)
    chosen, total = [], None
    for codebook in codebooks:
        table = _float(_of_heads(codebook, x))
        indices = _nearest(left, table, metric, mask)
        codes = _gather(table, indices)
        total = codes if total is None else op.Add(total, codes)
        left = op.Sub(left, codes)
        chosen.append(op.Unsqueeze(indices, _last_axis()))
    return _nan_in_rows(total, _nonfinite_rows(wide, mask)), op.Concat(*chosen, axis=-1)


def _residual_decode(indices: _Value, codebooks: Sequence[Any]) -> _Value:
    total = None
    for level, codebook in enumerate(codebooks):
        table = _of_heads(codebook, indices)
        codes = _gather(table, op.Gather(indices, _constant(torch.tensor(level)), axis=-1))
        total = codes if total is None else op.Add(total, codes)
    return total


def _scalar_quantize(
    x: _Value, levels: Sequence[int], bound: str = "tanh"
) -> tuple[_Value, _Value]:
    return _scalars(_float(x), levels, bound)


def _residual_scalar_quantize(
    x: _Value, levels: Sequence[int], scales: _Value, bound: str = "symmetric_clamp"
) -> tuple[_Value, _Value]:
    left = _float(x)
    total, chosen = None, []
    for level in range(scales.shape[0]):
        scale = op.Gather(scales, _constant(torch.tensor(level)), axis=0)
        codes, indices = _scalars(op.Div(left, scale), levels, bound)
        taken = op.Mul(codes, scale)
        total = taken if total is None else op.Add(total, taken)
        left = op.Sub(left, taken)
        chosen.append(op.Unsqueeze(indices, _last_axis()))
    return total, op.Concat(*chosen, axis=-1)


def _scalar_decode(
    indices: _Value, levels: Sequence[int], symmetric: bool = False, dtype: int | None = None
) -> _Value:
    _expect_absent("scalar_decode", float64=dtype == _DOUBLE)
    digits = _digits(indices, levels)
    zero = _constant(torch.tensor(0))
    codes = _table(op.Max(digits, zero), level_codes(levels, bool(symmetric)))
    return op.Where(op.Less(digits, zero), _number(0.0), codes)


def _sign_quantize(x: _Value, scale: float = 1.0) -> tuple[_Value, _Value]:
    wide = _float(x)
    bits = op.Greater(wide, _number(0.0))
    codes = op.Where(bits, _number(scale), _number(-scale))
    places = place_values([2] * x.shape[-1]).flip(0).contiguous()
    indices = _index(op.Cast(bits, to=_INT64), places)
    rows = _nonfinite_rows(wide)
    return _nan_in_rows(codes, rows), op.Where(rows, _constant(torch.tensor(0)), indices)


def _sign_decode(
    indices: _Value, bits: int, scale: float = 1.0, dtype: int | None = None
) -> _Value:
    _expect_absent("sign_decode", float64=dtype == _DOUBLE)
    # From the last place to the first: the first bit is the most significant.
    digits = op.Gather(
        _digits(indices, [2] * bits), _constant(torch.arange(bits - 1, -1, -1)), axis=-1
    )
    codes = op.Where(op.Equal(digits, _constant(torch.tensor(1))), _number(scale), _number(-scale))
    return op.Where(op.Less(digits, _constant(torch.tensor(0))), _number(0.0), codes)


def _paired_commitment_loss(
    x: _Value, codes: _Value, mask: _Value = None, to_x: float = 0.0, to_codes: float = 0.0
) -> _Value:
    gap = op.Sub(_float(x), _float(codes))
    squares = op.ReduceMean(op.Mul(gap, gap), _last_axis(), keepdims=0)
    if mask is None:
        count = op.Cast(op.Size(squares), to=_FLOAT)
    else:
        squares = op.Where(mask, squares, _number(0.0))
        count = op.ReduceSum(_float(mask), keepdims=0)
    mean = op.Div(op.ReduceSum(squares, keepdims=0), op.Max(count, _number(1.0)))
    return op.Mul(mean, _number(to_x + to_codes))


def _snapshot(codebook: _Value) -> _Value:
    return op.Identity(codebook)


def _stable_sort(
    x: _Value, stable: bool = True, dim: int = -1, descending: bool = False
) -> tuple[_Value, _Value]:
    length = op.Gather(op.Shape(x), _constant(torch.tensor([dim])), axis=0)
    # For equal values, TopK returns the lower index first.
    values, indices = op.TopK(x, length, axis=dim, largest=int(descending), sorted=1)
    return values, indices


def _unit_vectors(x: _Value) -> _Value:
    return _unit(_float(x))


def _row_products(x: _Value, matrix: _Value, offset: _Value) -> _Value:
    return op.Gemm(x, matrix, offset)


def _resample_scale(
    x: _Value,
    size: Sequence[int],
    full: Sequence[int | _Value],
    direction: str,
    kernel: Sequence[int] = (),
) -> _Value:
    """A product with the weights of each axis in turn, which is moved to the end; then the axes are in order again."""
    averages, axes = direction == "average", len(size)
    taps = list(kernel) or [1] * axes
    if not averages:
        # (B, *cells, *taps, D) to (B, D, *(cells * taps)): cells of an axis before its taps.
        x = op.Reshape(x, _constant(torch.tensor([0, *size, *taps, -1])))
        pairs = [place for axis in range(axes) for place in (1 + axis, 1 + axes + axis)]
        x = op.Transpose(x, perm=[0, 1 + 2 * axes, *pairs])
        joined = [cells * count for cells, count in zip(size, taps, strict=True)]
        x = op.Reshape(x, _constant(torch.tensor([0, 0, *joined])))
    for cells, positions, count in zip(size, full, taps, strict=True):
        length = _constant(torch.tensor(positions)) if isinstance(positions, int) else positions
        weights = _cell_means(cells, length) if averages else _tap_shares(cells, length, count)
        x = op.Transpose(x, perm=[0, 1, *range(3, axes + 2), 2])
        x = op.MatMul(x, op.CastLike(weights, x))
    if not averages:
        return x
    return op.Transpose(op.Reshape(x, _constant(torch.tensor([0, 0, -1]))), perm=[0, 2, 1])


def _cell_means(cells: int, positions: _Value) -> _Value:
    """1 / size of a cell for the positions in it, (positions, cells) in float64."""
    cell, count = _constant(torch.arange(cells)), _constant(torch.tensor(cells))
    start = op.Div(op.Mul(cell, positions), count)
    after = op.Mul(op.Add(cell, _constant(torch.tensor(1))), positions)
    end = op.Div(op.Add(after, _constant(torch.tensor(cells - 1))), count)
    position = op.Unsqueeze(_range(positions), _constant(torch.tensor([1])))
    inside = op.And(op.GreaterOrEqual(position, start), op.Less(position, end))
    return op.Div(op.Cast(inside, to=_DOUBLE), op.Cast(op.Sub(end, start), to=_DOUBLE))


def _tap_shares(cells: int, positions: _Value, taps: int) -> _Value:
    """The shares of cells, for each tap of a convolution, in each position: (cells * taps, positions) in float64."""
    half, zero, one, count, last = (
        _constant(torch.tensor(value, dtype=torch.float64))
        for value in (0.5, 0, 1, cells, cells - 1)
    )
    shift = torch.arange(taps, dtype=torch.float64).repeat(cells).unsqueeze(1) - taps // 2
    read = op.Add(op.Cast(_range(positions), to=_DOUBLE), _constant(shift))
    length = op.Cast(positions, to=_DOUBLE)
    centres = op.Mul(op.Add(read, half), count)
    places = op.Clip(op.Sub(op.Div(centres, length), half), zero, last)
    own = torch.arange(cells, dtype=torch.float64).repeat_interleave(taps).unsqueeze(1)
    shares = op.Max(op.Sub(one, op.Abs(op.Sub(places, _constant(own)))), zero)
    inside = op.And(op.GreaterOrEqual(read, zero), op.Less(read, length))
    return op.Where(inside, shares, zero)


def _range(count: _Value) -> _Value:
    return op.Range(_constant(torch.tensor(0)), count, _constant(torch.tensor(1)))


_TABLE: dict[str, Callable[..., Any]] = {
    "lookup_codes": _gather,
    "nearest_code": _nearest_code,
    "paired_commitment_loss": _paired_commitment_loss,
    "resample_scale": _resample_scale,
    "residual_decode": _residual_decode,
    "residual_encode": _residual_encode,
    "residual_scalar_quantize": _residual_scalar_quantize,
    "row_products": _row_products,
    "scalar_decode": _scalar_decode,
    "scalar_level_indices": _digits,
    "scalar_quantize": _scalar_quantize,
    "sign_decode": _sign_decode,
    "sign_quantize": _sign_quantize,
    "snapshot": _snapshot,
    "unit_vectors": _unit_vectors,
}
# Arguments that the translations of these operators do not take.
_UNTRANSLATED = {
    "nearest_code": ("bias", "topk", "return_distances"),
    "residual_encode": ("depth",),
}
# Operators whose translation takes any dtype; that of the others computes in float32 alone.
_OF_ANY_DTYPE = {"lookup_codes", "resample_scale", "residual_decode", "snapshot"}
