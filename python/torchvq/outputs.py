"""Named results of the quantizers: they unpack like tuples and are read by name."""

from typing import Any, NamedTuple

from torch import Tensor

from torchvq._base.torch_private import register_namedtuple


class LossBreakdown(NamedTuple):
    """The terms of the loss, unweighted; absent terms are 0."""

    commitment: Tensor
    codebook_diversity: Tensor
    orthogonal_reg: Tensor
    inplace_optimize: Tensor


class QuantizeOutput(NamedTuple):
    """What a forward returns."""

    quantized: Tensor
    indices: Tensor
    loss: Tensor


class QuantizeOutputWithBreakdown(NamedTuple):
    """What a forward with ``return_loss_breakdown=True`` returns."""

    quantized: Tensor
    indices: Tensor
    loss: Tensor
    loss_breakdown: LossBreakdown


#: What a forward returns; with ``indices=`` the plain tuples, which hold no indices.
QuantizeResult = (
    QuantizeOutput
    | QuantizeOutputWithBreakdown
    | tuple[Tensor, Tensor]
    | tuple[Tensor, Tensor, LossBreakdown]
)


class ResidualOutput(NamedTuple):
    """What a forward of a residual stack returns."""

    quantized: Tensor
    indices: Tensor
    loss: Tensor


class ResidualOutputWithCodes(NamedTuple):
    """What a forward of a residual stack with ``return_all_codes=True`` returns."""

    quantized: Tensor
    indices: Tensor
    loss: Tensor
    all_codes: Tensor | tuple[Tensor, ...]


class HierarchicalOutput(NamedTuple):
    """What a forward of HierarchicalVQ returns."""

    quantized: Tensor
    indices: tuple[Tensor, ...]
    loss: Tensor


class HierarchicalOutputWithCutoff(NamedTuple):
    """What a forward of HierarchicalVQ with ``return_cutoff=True`` returns."""

    quantized: Tensor
    indices: tuple[Tensor, ...]
    loss: Tensor
    cutoff: int | Tensor | None


#: What a forward of HierarchicalVQ returns; with ``indices=`` the plain pair, which holds no indices.
HierarchicalResult = HierarchicalOutput | HierarchicalOutputWithCutoff | tuple[Tensor, Tensor]


class ScalarOutput(NamedTuple):
    """What a forward of a quantizer without a codebook to learn returns."""

    quantized: Tensor
    indices: Tensor | None


class ScalarOutputWithCodes(NamedTuple):
    """What a forward of a residual stack of them with ``return_all_codes=True`` returns."""

    quantized: Tensor
    indices: Tensor
    all_codes: Tensor | tuple[Tensor, ...]


#: What a forward of a residual stack returns; with ``indices=`` the plain pair, which holds no indices.
ResidualResult = ResidualOutput | ResidualOutputWithCodes | tuple[Tensor, Tensor]


class LookupFreeOutput(NamedTuple):
    """What a forward of a lookup-free quantizer returns."""

    quantized: Tensor
    indices: Tensor
    entropy_aux_loss: Tensor


class LookupFreeLossBreakdown(NamedTuple):
    """The terms of the loss of a lookup-free quantizer, unweighted; 0 in evaluation."""

    per_sample_entropy: Tensor
    batch_entropy: Tensor
    commitment: Tensor


class BinaryMapperOutput(NamedTuple):
    """What a forward of BinaryMapper returns."""

    one_hot: Tensor
    aux_kl_loss: Tensor


class BinaryMapperOutputWithIndices(NamedTuple):
    """What a forward of BinaryMapper with ``return_indices=True`` returns."""

    one_hot: Tensor
    indices: Tensor
    aux_kl_loss: Tensor


class FSPOutput(NamedTuple):
    """What a forward of FSP returns."""

    quantized: Tensor
    indices: Tensor
    norm_loss: Tensor
    other_info: dict[str, Any]


def exportable(output: type) -> None:
    """Lets exported programs that return this named tuple be saved."""
    register_namedtuple(output, f"torchvq.{output.__name__}")


for _output in (
    BinaryMapperOutput,
    BinaryMapperOutputWithIndices,
    FSPOutput,
    HierarchicalOutput,
    HierarchicalOutputWithCutoff,
    LossBreakdown,
    QuantizeOutput,
    QuantizeOutputWithBreakdown,
    ResidualOutput,
    ResidualOutputWithCodes,
    LookupFreeOutput,
    LookupFreeLossBreakdown,
    ScalarOutput,
    ScalarOutputWithCodes,
):
    exportable(_output)
