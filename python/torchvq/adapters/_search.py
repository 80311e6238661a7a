"""Building blocks of adapters: searches and sums in the layouts of tokenizers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from torchvq._base.arguments import expect_floating, expect_kind, expect_tensor
from torchvq._base.integers import as_int64
from torchvq._base.options import expect

_ops = torch.ops.torchvq


def nearest(
    x: Tensor, codebook: Tensor, *, metric: str = "euclidean", bias: Tensor | None = None
) -> Tensor:
    """Indices (*), int64, of the codes nearest to the vectors of ``x`` (*, D), exactly.

    Args:
        x: Floating point, any strides; half precision is compared in float32.
        codebook: (K, D).
        metric: ``"euclidean"`` or ``"cosine"``.
        bias: (K,), added to the distance of each code; see :func:`torchvq.ops.nearest_code`.

    No gradient. Ties: the lowest index. Empty: no indices. ValueError for other shapes, TypeError for other dtypes.
    """
    _check_vectors("nearest", x, codebook)
    if bias is not None:
        expect_tensor("nearest", "bias", bias)
    with torch.no_grad():
        found = _ops.nearest_code(
            x.reshape(-1, x.shape[-1]), codebook, metric=metric, bias=bias, return_codes=False
        )[0]
    return found.view(x.shape[:-1])


def nearest_by_angle(x: Tensor, codebook: Tensor, *, zero_code: float = 0.0) -> Tensor:
    """Indices (*) of the codes (K, D) whose unit vectors are nearest to those of ``x`` (*, D).

    Unit vectors are those that torch's ``normalize`` makes, in float32 or float64; among them the search is exact.
    Their squared distances, and not their cosines, are compared: where vectors are close, cosines in float32 say
    little.
    ``zero_code`` is added to the distance of codes of zeros, which have no direction and the distance 1.
    """
    _check_vectors("nearest_by_angle", x, codebook)
    wide = torch.promote_types(codebook.dtype, torch.float32)
    bias = None
    with torch.no_grad():
        # If no code has a zero in the first feature, no code is all zeros; this check costs a third of the full one.
        # Compilers, and devices that would have to be waited for, skip it.
        ask = codebook.is_cpu and not torch.compiler.is_compiling()
        if zero_code and not (ask and bool(codebook[:, 0].all())):
            bias = codebook.any(1).logical_not().to(wide) * zero_code
        units = functional.normalize(x.to(wide), dim=-1), functional.normalize(codebook.to(wide))
    return nearest(*units, bias=bias)


def residual_nearest(
    x: Tensor, codebooks: Sequence[Tensor], *, prepared: Sequence[Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """The nearest code of every level, of what the levels before have left of ``x`` (B, D, T).

    Args:
        x: Features on axis 1, floating point; half precision is computed in float32.
        codebooks: Q >= 1 of (K_q, D).
        prepared: What :func:`torchvq.ops.prepare_codes` has made of each of them as they are now: a few frames are
            then searched faster, to the same tokens. Default: none.

    Returns:
        The sum of the codes, (B, D, T), float32 or float64, and indices (Q, B, T), int64. No gradient. Ties: the lowest
        index. Empty: no indices. ValueError for other shapes, TypeError for other dtypes.
    """
    expect_tensor("residual_nearest", "x", x)
    _check_shape("residual_nearest", "x", x, x.dim() == 3, "(B, D, T)")
    _check_codebooks("residual_nearest", codebooks)
    codes, indices = _ops.residual_encode(x.transpose(1, 2), codebooks, prepared=prepared)
    return codes.transpose(1, 2), indices.permute(2, 0, 1).contiguous()


def residual_sum(indices: Tensor, codebooks: Sequence[Tensor]) -> Tensor:
    """The sum (B, D, T) of the codes of all levels, added up in order.

    Args:
        indices: (Q, B, T), integers; -1 adds nothing.
        codebooks: Q >= 1 of (K_q, D), whose dtype is that of the result; half precision is added up in float32.

    Gradient to the codebooks. IndexError for an index outside [-1, K), ValueError for other shapes, TypeError for other
    dtypes.
    """
    whole = as_int64("residual_sum", indices)
    _check_shape("residual_sum", "indices", whole, whole.dim() == 3, "(Q, B, T)")
    _check_codebooks("residual_sum", codebooks)
    return _ops.residual_decode(whole.permute(1, 2, 0), codebooks).transpose(1, 2)


def _check_vectors(owner: str, x: Tensor, codebook: Tensor) -> None:
    """Raises TypeError or ValueError unless there are vectors (*, D), D above 0, and codes (K, D)."""
    for name, given in (("x", x), ("codebook", codebook)):
        expect_floating(owner, name, given)
    _check_shape(owner, "x", x, x.dim() > 0 and x.shape[-1] > 0, "(*, D) with D at least 1")
    _check_shape(owner, "codebook", codebook, codebook.dim() == 2, "(K, D)")


def _check_codebooks(owner: str, codebooks: Sequence[Tensor]) -> None:
    expect_kind(owner, "codebooks", codebooks, (list, tuple), "a list of tensors")
    for codes in codebooks:
        expect_tensor(owner, "each of codebooks", codes)


def _check_shape(owner: str, name: str, given: Tensor, fits: bool, shape: str) -> None:
    expect(owner, fits, name, f"of shape {shape}", f"shape {list(given.shape)}")
