"""Named results of the quantizers: they unpack like tuples and are read by name."""

from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from torchvq._base.torch_private import register_namedtuple


class LossBreakdown(NamedTuple):
    """The terms of the loss, unweighted; absent terms are 0."""

    commitment: Tensor
    codebook_diversity: Tensor
    orthogonal_reg: Tensor
    inplace_optimize: Tensor


class QuantizeOutput(NamedTuple):
    """The result of a forward."""

    quantized: Tensor
    indices: Tensor
    loss: Tensor


class QuantizeOutputWithBreakdown(NamedTuple):
    """The result of a forward with ``return_loss_breakdown=True``."""

    quantized: Tensor
    indices: Tensor
    loss: Tensor
    loss_breakdown: LossBreakdown


#: The result of a forward; with ``indices=`` the plain tuples, which hold no indices.
QuantizeResult = (
    QuantizeOutput
    | QuantizeOutputWithBreakdown
    | tuple[Tensor, Tensor]
    | tuple[Tensor, Tensor, LossBreakdown]
)


class ResidualOutput(NamedTuple):
    """The result of a forward of a residual stack."""

    quantized: Tensor
    indices: Tensor
    loss: Tensor


class ResidualOutputWithCodes(NamedTuple):
    """The result of a forward of a residual stack with ``return_all_codes=True``."""

    quantized: Tensor
    indices: Tensor
    loss: Tensor
    all_codes: Tensor | tuple[Tensor, ...]


class HierarchicalOutput(NamedTuple):
    """The result of a forward of HierarchicalVQ."""

    quantized: Tensor
    indices: tuple[Tensor, ...]
    loss: Tensor


class HierarchicalOutputWithCutoff(NamedTuple):
    """The result of a forward of HierarchicalVQ with ``return_cutoff=True``."""

    quantized: Tensor
    indices: tuple[Tensor, ...]
    loss: Tensor
    cutoff: int | Tensor | None


#: The result of a forward of HierarchicalVQ; with ``indices=`` the plain pair, which holds no indices.
HierarchicalResult = HierarchicalOutput | HierarchicalOutputWithCutoff | tuple[Tensor, Tensor]


class ScalarOutput(NamedTuple):
    """The result of a forward of a quantizer that learns no codebook."""

    quantized: Tensor
    indices: Tensor | None


class ScalarOutputWithCodes(NamedTuple):
    """The result of a forward of a residual stack of them with ``return_all_codes=True``."""

    quantized: Tensor
    indices: Tensor
    all_codes: Tensor | tuple[Tensor, ...]


#: The result of a forward of a residual stack; with ``indices=`` the plain pair, which holds no indices.
ResidualResult = ResidualOutput | ResidualOutputWithCodes | tuple[Tensor, Tensor]


class LookupFreeOutput(NamedTuple):
    """The result of a forward of a lookup-free quantizer."""

    quantized: Tensor
    indices: Tensor
    entropy_aux_loss: Tensor


class LookupFreeLossBreakdown(NamedTuple):
    """The terms of the loss of a lookup-free quantizer, unweighted; 0 in evaluation. A commitment of weight 0 is 0."""

    per_sample_entropy: Tensor
    batch_entropy: Tensor
    commitment: Tensor


_Terms = TypeVar("_Terms", LossBreakdown, LookupFreeLossBreakdown)


def copied(terms: _Terms) -> _Terms:
    """The terms of a loss as tensors of their own: absent ones may be one zero, and a write to it would change all."""
    return type(terms)(*[term.clone() for term in terms])


class BinaryMapperOutput(NamedTuple):
    """The result of a forward of BinaryMapper."""

    one_hot: Tensor
    aux_kl_loss: Tensor


class BinaryMapperOutputWithIndices(NamedTuple):
    """The result of a forward of BinaryMapper with ``return_indices=True``."""

    one_hot: Tensor
    indices: Tensor
    aux_kl_loss: Tensor


class FSPOutput(NamedTuple):
    """The result of a forward of FSP."""

    quantized: Tensor
    indices: Tensor
    norm_loss: Tensor
    other_info: dict[str, Any]


def exportable(output: type) -> None:
    """Allows saving exported programs that return this named tuple, and ``torch.load`` of a saved one."""
    register_namedtuple(output, f"torchvq.{output.__name__}")
    torch.serialization.add_safe_globals([output])


for _output in list(vars().values()):
    if hasattr(_output, "_fields"):
        exportable(_output)
