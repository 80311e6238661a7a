"""LFQ: lookup-free quantization, whose codes are the corners of a cube."""

import logging
import math
from contextlib import nullcontext
from operator import index
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from torchvq._base.compat import vqp_compat_of
from torchvq._base.constants import expect_same_codes, to_default_device
from torchvq._base.integers import as_int64
from torchvq._base.layout import Layout
from torchvq._base.not_here import explain_absent
from torchvq._base.options import check_options, expect, keep_values, named
from torchvq._base.own_handle import OwnHandle
from torchvq._base.projection import (
    decoding_dtype,
    project,
    project_codes,
    projected_tokens,
    projects_nothing,
)
from torchvq._base.random_state import RandomState
from torchvq._base.ranks import group_name, ranks_of
from torchvq._base.torch_private import as_constants
from torchvq._base.wide_buffers import in_half_dtype, wide_default
from torchvq._scalar import lookup_free as _lookup_free
from torchvq._scalar.lookup_free import LFQRequest, LFQResult
from torchvq.outputs import LookupFreeLossBreakdown, LookupFreeOutput, copied

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

logger = logging.getLogger("torchvq")
_ops = torch.ops.torchvq

#: Names in the reference.
Return = LookupFreeOutput
LossBreakdown = LookupFreeLossBreakdown


class CosineSimLinear(nn.Module):
    """A projection to scaled cosines: ``scale * <x, w_j> / (|x| |w_j|)``.

    Args:
        dim_in: features of the input.
        dim_out: features of the output; ``w_j`` are the columns of ``weight`` (dim_in, dim_out).
        scale: factor of the cosines. Default: 1.
    """

    def __init__(self, dim_in: int, dim_out: int, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.weight = nn.Parameter(torch.randn(dim_in, dim_out))

    def forward(self, x: Tensor) -> Tensor:
        """Maps (..., dim_in) to (..., dim_out), in float32, or float64 for float64 input."""
        return _ops.cosine_linear(x, self.weight, scale=self.scale)


class LFQ(OwnHandle, RandomState):
    """Lookup-free quantization: replaces each latent by its vector of signs, the bits of its index.

    Yu et al. 2023, arXiv:2310.05737; with ``spherical`` binary spherical quantization, Zhao et al. 2024,
    arXiv:2406.07548. No codebook is stored or searched. An entropy loss makes the choice of each token certain and
    spreads tokens over all codes; it costs a matrix product of 2^bits per token, and memory for 2^bits numbers.

    Shapes: ``B`` batch, ``*`` positions, ``C`` = ``num_codebooks``, ``D`` = log2(codebook_size) bits.

    Args:
        dim: features of the input. Default: ``C * D``.
        codebook_size: codes per codebook, a power of 2 up to 2^62. Default: 2^dim.
        entropy_loss_weight: weight of ``per_sample_entropy - diversity_gamma * batch_entropy``. Default: 0.1.
        commitment_loss_weight: weight of the mean squared distance between latents and codes. Default: 0, with which
            latents grow without bound unless another option bounds them; the constructor then writes a message to the
            logger ``torchvq``, which ``logging.getLogger("torchvq").setLevel(logging.ERROR)`` silences.
        diversity_gamma: weight of the batch entropy. Default: 1.
        straight_through_activation: module through which the gradient of the output reaches the latents; training
            only. Default: identity.
        num_codebooks: number of codebooks; the features are split over them, and the first belong to codebook 0.
            Default: 1.
        keep_num_codebooks_dim: indices keep the axis of codebooks. Default: with several codebooks, where False is an
            error.
        codebook_scale: codes have +- this in each feature, or this length with ``spherical``. Default: 1.
        frac_per_sample_entropy: fraction, in (0, 1], of the tokens of a training batch that enter both entropies, drawn
            in each step. Default: 1.
        has_projections: linear maps to and from the ``C * D`` features. Default: if dim differs from C * D.
        projection_has_bias: whether the linear maps have a bias. Default: True.
        soft_clamp_input_value: bounds projected latents to +- this by tanh; at least codebook_scale. Default: none.
        cosine_sim_project_in: project_in is a ``CosineSimLinear``. Default: False.
        cosine_sim_project_in_scale: scale of the ``CosineSimLinear``. Default: codebook_scale.
        channel_first: features on axis 1. Default: for inputs of 4 axes or more.
        experimental_softplus_entropy_loss: the loss is softplus(entropy loss + ``entropy_loss_offset``), which is
            positive. Default: False.
        entropy_loss_offset: offset in the softplus. Default: 5.
        spherical: latents are projected to the sphere of radius codebook_scale and codes lie on it. Default: False.
        force_quantization_f32: has no effect; arithmetic is float32 (float64 for float64) in any case.
        orthogonal_rotation: quantize latents rotated by a fixed random matrix, the buffer ``orthogonal_rot``, and
            rotate codes back. Default: False.
        sync_codebook: whether the entropies in training cover the tokens of all ranks. Default: with more than one
            rank; never with ``vqp_compat``.
        process_group: group of these ranks, or its name. Default: the default group.
        vqp_compat: behave as ``vector_quantize_pytorch``: logarithms of the entropies are clamped at 1e-5; with a mask
            the batch entropy equals that of the tokens, so that the two cancel, and padding keeps its output and index.
            Takes memory for tokens times codes. Default: set by ``TORCHVQ_COMPAT``.

    State: ``mask`` (D,), the value of each bit; ``project_in.*``, ``project_out.*``, ``orthogonal_rot`` (D, D); with
    ``frac_per_sample_entropy`` below 1 also ``rng`` (2,), which checkpoints of the reference lack.

    Gradient: that of the output reaches the latents through ``straight_through_activation``, by default unchanged, and
    in training alone; those of the entropies and of the commitment loss reach them directly. The entropies of more than
    24 bits are those of groups of bits (operator ``sign_entropy``).

    Dtypes: any floating input but float8; the arithmetic is float32, or float64 for float64. The output has the dtype
    of the input, indices are int64, the loss is float32 (float64).

    Distributed: the entropies in training cover the tokens of all ranks, with one all-reduce per step; evaluation
    never communicates.

    Raises:
        ValueError: an option out of range, or options that exclude each other. TypeError: an option of a wrong type.

    Differences from ``vector_quantize_pytorch`` are listed in ``docs/migrating.md``.

    Example:
        >>> weights = dict(commitment_loss_weight=0.1, entropy_loss_weight=0.005)
        >>> lfq = LFQ(dim=16, codebook_size=2**12, spherical=True, **weights)
        >>> quantized, indices, loss = lfq(torch.randn(1, 16, 32, 32))
        >>> quantized.shape, indices.shape, loss.shape
        (torch.Size([1, 16, 32, 32]), torch.Size([1, 32, 32]), torch.Size([]))
        >>> torch.equal(lfq.eval().indices_to_codes(indices), quantized)
        True
    """

    mask: Tensor
    _warns = True  # levels do not: their stack does

    codebook_size: int
    codebook_dim: int
    num_codebooks: int
    dim: int
    keep_num_codebooks_dim: bool
    entropy_loss_weight: float
    commitment_loss_weight: float
    diversity_gamma: float
    codebook_scale: float
    frac_per_sample_entropy: float
    soft_clamp_input_value: float | None
    channel_first: bool | None
    experimental_softplus_entropy_loss: bool
    entropy_loss_offset: float
    spherical: bool
    force_quantization_f32: bool
    orthogonal_rotation: bool
    vqp_compat: bool
    sync_codebook: bool | None
    process_group: str | None

    def __init__(
        self,
        *,
        dim: int | None = None,
        codebook_size: int | None = None,
        entropy_loss_weight: float = 0.1,
        commitment_loss_weight: float = 0.0,
        diversity_gamma: float = 1.0,
        straight_through_activation: nn.Module | None = None,
        num_codebooks: int = 1,
        keep_num_codebooks_dim: bool | None = None,
        codebook_scale: float = 1.0,
        frac_per_sample_entropy: float = 1.0,
        has_projections: bool | None = None,
        projection_has_bias: bool = True,
        soft_clamp_input_value: float | None = None,
        cosine_sim_project_in: bool = False,
        cosine_sim_project_in_scale: float | None = None,
        channel_first: bool | None = None,
        experimental_softplus_entropy_loss: bool = False,
        entropy_loss_offset: float = 5.0,
        spherical: bool = False,
        force_quantization_f32: bool = True,
        orthogonal_rotation: bool = False,
        sync_codebook: bool | None = None,
        process_group: "ProcessGroup | str | None" = None,
        vqp_compat: bool | None = None,
    ) -> None:
        super().__init__()
        check_options("LFQ", locals())
        bits = _bits(dim, codebook_size, num_codebooks)
        vqp_compat = vqp_compat_of(vqp_compat)
        kept = named(
            locals(),
            "num_codebooks entropy_loss_weight commitment_loss_weight diversity_gamma "
            "codebook_scale frac_per_sample_entropy soft_clamp_input_value channel_first "
            "experimental_softplus_entropy_loss entropy_loss_offset spherical "
            "force_quantization_f32 orthogonal_rotation vqp_compat",
        )
        keep_values(
            self,
            **kept,
            codebook_size=2**bits,
            codebook_dim=bits,
            dim=bits * num_codebooks if dim is None else dim,
            keep_num_codebooks_dim=(
                num_codebooks > 1 if keep_num_codebooks_dim is None else keep_num_codebooks_dim
            ),
            sync_codebook=False if vqp_compat else sync_codebook,
            process_group=group_name("LFQ", process_group),
        )
        self.activation = (
            nn.Identity() if straight_through_activation is None else straight_through_activation
        )

        inner = bits * num_codebooks
        self.has_projections = self.dim != inner if has_projections is None else has_projections
        scale = (
            codebook_scale if cosine_sim_project_in_scale is None else cosine_sim_project_in_scale
        )
        self._make_projections(inner, scale if cosine_sim_project_in else None, projection_has_bias)
        self.register_buffer("mask", 2 ** torch.arange(bits - 1, -1, -1))
        if orthogonal_rotation:
            with wide_default():
                rotation = to_default_device(_ops.random_rotation(bits))
            self.register_buffer("orthogonal_rot", rotation)
        if frac_per_sample_entropy < 1:
            self.keep_rng()
        self.handle = _ops.new_handle()
        if self._warns and self._is_unbounded:
            logger.warning(
                "LFQ: commitment_loss_weight is 0, so nothing keeps latents from growing without bound; "
                "start with spherical=True, commitment_loss_weight=0.1 and entropy_loss_weight=0.005 "
                "(torchvq.recommended('LFQ')), or set one of the first two or soft_clamp_input_value"
            )

    def _make_projections(self, inner: int, cosine_scale: float | None, bias: bool) -> None:
        self.project_in: nn.Module = nn.Identity()
        self.project_out: nn.Module = nn.Identity()
        if not self.has_projections:
            return
        if cosine_scale is not None:
            self.project_in = CosineSimLinear(self.dim, inner, cosine_scale)
        else:
            self.project_in = nn.Linear(self.dim, inner, bias=bias)
        self.project_out = nn.Linear(inner, self.dim, bias=bias)

    @property
    def _is_unbounded(self) -> bool:
        """Whether the losses let latents grow, and no option bounds them."""
        grow = self.commitment_loss_weight == 0 and self.entropy_loss_weight > 0
        bounded = self.spherical or isinstance(self.project_in, CosineSimLinear)
        return grow and not bounded and self.soft_clamp_input_value is None

    @property
    def code_value(self) -> float:
        """The magnitude of each feature of a code."""
        scale = self.codebook_scale
        return scale / math.sqrt(self.codebook_dim) if self.spherical else scale

    @property
    def signature(self) -> str:
        """The options in which all ranks must agree, as text; they may change while the module trains."""
        scale, fraction = as_constants((self.codebook_scale, self.frac_per_sample_entropy))
        return (
            f"LFQ of {self.num_codebooks} codebooks of {self.codebook_dim} bits, scale {scale}, "
            f"spherical {self.spherical}, fraction {fraction}, vqp_compat {self.vqp_compat}"
        )

    # Forward -------------------------------------------------------------------------------------------------

    def forward(
        self,
        x: Tensor,
        inv_temperature: float = 100.0,
        return_loss_breakdown: bool = False,
        mask: Tensor | None = None,
    ) -> LookupFreeOutput | tuple[LookupFreeOutput, LookupFreeLossBreakdown]:
        """Quantizes x.

        Args:
            x: (B, *, dim), or (B, dim, *) channel-first: images and volumes unless ``channel_first=False``. Any
                floating dtype but float8.
            inv_temperature: inverse temperature of the soft assignment in the entropies, 0 or more; larger is sharper.
            return_loss_breakdown: append a ``LossBreakdown`` of the unweighted terms, zeros in evaluation;
                ``commitment`` is 0 if its weight is.
            mask: bool, one per position (B, *), or per item (B,), True for real tokens. Padding takes no part in
                anything; its output is zero, its index -1.

        Returns:
            ``(quantized, indices, entropy_aux_loss)``, named. quantized has layout and dtype of x, indices are int64
            (B, *), with codebook axis (B, *, C). The gradient of quantized to the latents is that of the activation,
            identity by default, in training; none in evaluation. No tokens, or all masked: loss 0 (with softplus, its
            value at 0). A token with NaN or infinity gives NaN and index 0. A feature of 0 is an unset bit.

        Raises:
            ValueError: wrong shapes. TypeError: wrong dtypes.
        """
        layout = self._layout(x)
        layout.check_input(x)
        token_mask = layout.mask_of_items(x, mask)
        ranks = ranks_of(self, "LFQ")
        # A recomputation needs to know of draws, and of what ranks have added up.
        records = self.training and ("rng" in self._buffers or not ranks.alone)
        with self.drawing() if records else nullcontext() as rng:
            trains = self.training
            request = LFQRequest(
                token_mask, rng, ranks, inv_temperature, estimates=trains, scores=trains
            )
            return self._forward(x, layout, request, return_loss_breakdown)

    def _forward(
        self, x: Tensor, layout: Layout, request: LFQRequest, breakdown: bool
    ) -> LookupFreeOutput | tuple[LookupFreeOutput, LookupFreeLossBreakdown]:
        # The reference quantizes padding as well.
        filled_mask = None if self.vqp_compat else request.mask
        projects = not projects_nothing(self.project_in, self.project_out)
        if projects:
            tokens = projected_tokens(x, filled_mask, layout, self.project_in)
        else:
            tokens, request = x, request._replace(channel_first=layout.channel_first)
        _lookup_free.handshake([self], self._buffers.get("rng"), request.ranks, tokens)
        found = self._quantize(tokens, request)
        quantized, indices = found.quantized, found.indices
        if projects:
            quantized = project(self.project_out, quantized).to(x.dtype)
            quantized = layout.unpack(quantized, x, filled_mask)
            indices = layout.unpack_positions(indices, x)
        if self.keep_num_codebooks_dim and self.num_codebooks == 1:
            indices = indices.unsqueeze(-1)
        result = LookupFreeOutput(quantized, indices, found.loss)
        return (result, copied(found.terms)) if breakdown else result

    def _quantize(self, tokens: Tensor, request: LFQRequest) -> LFQResult:
        """One step; the recomputation of a checkpointed one communicates nothing."""
        record = self.step_record
        if record is not None and record.replayed:
            request = request._replace(totals=record.totals)
        found, totals = _lookup_free.step(self, tokens, request)
        if record is not None:
            record.keep_totals(totals)
        return found

    def replicated_state(self) -> list[Tensor]:
        """State that ranks share, apart from the generator."""
        rotation = self._buffers.get("orthogonal_rot")
        return [] if rotation is None else [rotation]

    def _layout(self, x: Tensor) -> Layout:
        maps = isinstance(x, Tensor) and x.dim() >= 4
        return self._layout_of(maps if self.channel_first is None else self.channel_first)

    def _layout_of(self, channel_first: bool) -> Layout:
        return Layout(self.dim, channel_first, "LFQ", self.num_codebooks, separate=True)

    # Codes ---------------------------------------------------------------------------------------------------

    @property
    def codebook(self) -> Tensor:
        """All codes (codebook_size, D), computed at each use, before rotation and projection."""
        every = torch.arange(self.codebook_size, device=self.mask.device)
        return _ops.sign_decode(every, self.codebook_dim, scale=self.code_value)

    @codebook.setter
    def codebook(self, codes: Tensor) -> None:
        expect_same_codes("LFQ", "codebook", codes, self.codebook)

    def bits_to_codes(self, bits: Tensor) -> Tensor:
        """Codes of bits (..., D), bool or numbers, which are set if above 0; before rotation and projection.

        ValueError for other shapes, TypeError for other dtypes.
        """
        if not isinstance(bits, Tensor) or bits.is_complex():
            got = bits.dtype if isinstance(bits, Tensor) else type(bits).__name__
            raise TypeError(f"LFQ: expected bits to be a tensor of bool or numbers, but got {got}")
        fits = bits.dim() > 0 and bits.shape[-1] == self.codebook_dim
        condition = f"of {self.codebook_dim} on the last axis"
        expect("LFQ", fits, "bits", condition, f"shape {list(bits.shape)}")
        # Not every device compares every dtype, and float32 has no numbers as small as float64.
        wide = bits if bits.dtype == torch.float64 else bits.float()
        return _ops.sign_quantize(wide.gt(0).float(), scale=self.code_value)[0]

    def indices_to_codes(self, indices: Tensor, project_out: bool = True) -> Tensor:
        """The output of ``forward`` in evaluation for these indices.

        Args:
            indices: integer, in any shape that ``forward`` returns, or without batch. -1 gives zeros.
            project_out: False returns the concatenated codes of all codebooks, before ``project_out``.

        Returns:
            (B, *, dim), or with the features on axis 1 if forward has them there (with ``channel_first=None`` for
            indices of 3 axes or more, not counting the axis of codebooks).

        Raises:
            IndexError: for an index outside [-1, codebook_size).
        """
        indices = as_int64("LFQ", indices)
        per_codebook = indices if self.keep_num_codebooks_dim else indices.unsqueeze(-1)
        if per_codebook.dim() == 0 or per_codebook.shape[-1] != self.num_codebooks:
            raise ValueError(
                f"LFQ: expected indices to have {self.num_codebooks} codebooks on the last axis, "
                f"but got shape {list(indices.shape)}"
            )
        dtype = decoding_dtype(self.project_in, self.project_out, state=self._buffers.values())
        codes = _ops.sign_decode(
            per_codebook, self.codebook_dim, scale=self.code_value, dtype=dtype
        )
        if self.orthogonal_rotation:
            codes = _ops.rotate_features(codes, self.orthogonal_rot, inverse=True)
        output = codes.flatten(-2)
        if project_out:
            output = project_codes(self.project_out, output, per_codebook, self.half_dtype)
        else:
            output = in_half_dtype(self.half_dtype, output)
        positions = per_codebook.dim() - 1
        maps = positions >= 3 if self.channel_first is None else self.channel_first
        return self._layout_of(maps).place_features(output)


def _bits(dim: int | None, codebook_size: int | None, num_codebooks: int) -> int:
    if codebook_size is not None:
        return index(codebook_size).bit_length() - 1  # NumPy's integers have no bit_length
    assert dim is not None
    return dim


explain_absent(
    __name__,
    "default entropy exists identity is_distributed l2norm log maybe_distributed_mean "
    "pack_one unpack_one",
)
