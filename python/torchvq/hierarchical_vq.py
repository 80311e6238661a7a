"""HierarchicalVQ: residual quantization of a feature map from coarse to fine scales."""

import math
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from torchvq._base.checkpointing import is_checkpointed
from torchvq._base.compat import vqp_compat_of
from torchvq._base.contained import contained, of_kind
from torchvq._base.joined import without_autocast
from torchvq._base.layout import Layout, check_mask
from torchvq._base.options import check_options, named
from torchvq._base.ranks import group_of, ranks_of
from torchvq._base.sharded import gathers
from torchvq._base.wide_buffers import WideBuffers, in_half_dtype, widened
from torchvq._codebook.learning import synced_level
from torchvq._codebook.messages import agree_in_stack
from torchvq._codebook.set_later import check_level
from torchvq._codebook.stats import CodebookStats, fit_to_codes, stats_of
from torchvq._codebook.undo import undo_of
from torchvq._hierarchical import calls as _calls
from torchvq._hierarchical import scales as _scales
from torchvq._hierarchical.phi import Phi, spread
from torchvq._residual.dropout import number_if_free
from torchvq.codebook import Codebook
from torchvq.outputs import HierarchicalOutput, HierarchicalOutputWithCutoff, HierarchicalResult
from torchvq.vector_quantize import VectorQuantize

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_ops = torch.ops.torchvq


class HierarchicalVQ(WideBuffers):
    """Residual quantization from coarse to fine: each scale quantizes an average of the residual of the coarser ones.

    The quantizer of VAR (Tian et al. 2024, arXiv:2404.02905). The tokens of scale n are averages over the cells of a
    grid; their codes, interpolated to the size of the input and smoothed by a convolution, are subtracted from it; the
    output is the sum of all scales. An image of 16 x 16 becomes 1, 4, 9 ... 256 tokens.

    Shapes: ``B`` batch, ``*S`` positions (one axis; two for images, three for volumes), ``Q`` scales, ``K`` codes.

    Args:
        dim: features of the input and of a code, at least 1.
        codebook_size: number of codes ``K``, at least 1; with ``shared_codebook=False`` it may be a list with one
            number for each scale.
        scales: the grid of each scale, coarsest first: a number for all axes, or one per axis; along no axis smaller
            than the scale before.
        shared_codebook: one codebook for all scales. Default: True.
        channel_first: features on axis 1, otherwise on the last. Default: True.
        sync_codebook: see ``VectorQuantize``. Default: None.
        decay: see ``VectorQuantize``; a shared codebook has one update per forward, with ``decay ** Q``. Default: 0.99.
        commitment_weight: see ``VectorQuantize``. Default: 1.
        rotation_trick: see ``VectorQuantize``. Default: False.
        kmeans_init: initialise the codes by k-means on the first training tokens of all scales (of each, without
            ``shared_codebook``). Default: True.
        kmeans_iters: Lloyd iterations of the k-means initialisation, 0 or more. Default: 10.
        threshold_ema_dead_code: see ``VectorQuantize``. Default: 2.
        stochastic_sample_codes: see ``VectorQuantize``. Default: False.
        sample_codebook_temp: see ``VectorQuantize``. Default: 0.1.
        orthogonal_reg_weight: see ``VectorQuantize``. Default: 0.
        orthogonal_reg_max_codes: see ``VectorQuantize``. Default: 128.
        orthogonal_reg_active_codes_only: see ``VectorQuantize``. Default: False.
        quant_resi: share of the convolution in the map of a scale, taken as absolute value; finite. Default: 0.5.
        share_quant_resi: number of convolutions that the scales share; below 1 or from ``Q`` on, each scale has its
            own. Default: 1.
        nested_dropout: probability that a training forward drops the last scales, in [0, 1]. Default: 0.
        nested_dropout_min_levels: scales that are never dropped, at least 1. Default: 1.
        accept_image_fmap: input is (B, dim, H, W). Default: False.
        accept_3d_fmap: input is (B, dim, T, H, W). Default: False.
        use_cosine_sim: see ``VectorQuantize``. Default: False.
        freeze_codebook: see ``VectorQuantize``. Default: False.
        dead_code_threshold_fraction: see ``VectorQuantize``. Default: 0.
        process_group: see ``VectorQuantize``. Default: all.
        reduction: see ``VectorQuantize``. Default: "exact".
        sync_every: see ``VectorQuantize``. Default: 1.
        vqp_compat: behave as ``vector_quantize_pytorch``: k-means on the coarsest scale, an update after each scale,
            dropped scales that have indices and update the codebook; and the differences of ``VectorQuantize``.
            Default: set by ``TORCHVQ_COMPAT``.

    Raises:
        ValueError: an option out of range, or options that exclude each other.

    Gradient: straight-through at each scale: of the output and of the loss to the input and to the convolutions. In
        evaluation only to the convolutions.

    Dtypes: the output has the dtype of the input, indices are int64. The scales are computed in float32 (float64 for
        float64 input) under any autocast or module cast.

    State: ``vq._codebook.*``, or ``vqs.N._codebook.*`` without ``shared_codebook``; ``phi_shared.conv.*``, or
        ``phi_levels.N.conv.*``.

    Differences from ``vector_quantize_pytorch`` are listed in ``docs/migrating.md``.

    Example:
        >>> hvq = HierarchicalVQ(dim=32, codebook_size=4096, scales=(1, 2, 4, 8, 16), accept_image_fmap=True)
        >>> quantized, indices, loss = hvq(torch.randn(2, 32, 16, 16))
        >>> quantized.shape, [tuple(scale.shape) for scale in indices], loss.shape
        (torch.Size([2, 32, 16, 16]), [(2, 1, 1), (2, 2, 2), (2, 4, 4), (2, 8, 8), (2, 16, 16)], torch.Size([]))
    """

    scale_counts: Tensor

    def __init__(
        self,
        *,
        dim: int,
        codebook_size: int | Sequence[int],
        scales: Sequence[int | Sequence[int]],
        shared_codebook: bool = True,
        channel_first: bool = True,
        sync_codebook: bool | None = None,
        decay: float = 0.99,
        commitment_weight: float = 1.0,
        rotation_trick: bool = False,
        kmeans_init: bool = True,
        kmeans_iters: int = 10,
        threshold_ema_dead_code: float = 2,
        stochastic_sample_codes: bool = False,
        sample_codebook_temp: float = 0.1,
        orthogonal_reg_weight: float = 0.0,
        orthogonal_reg_max_codes: int | None = 128,
        orthogonal_reg_active_codes_only: bool = False,
        quant_resi: float = 0.5,
        share_quant_resi: int = 1,
        nested_dropout: float = 0.0,
        nested_dropout_min_levels: int = 1,
        accept_image_fmap: bool = False,
        accept_3d_fmap: bool = False,
        use_cosine_sim: bool = False,
        freeze_codebook: bool = False,
        dead_code_threshold_fraction: float = 0.0,
        process_group: "ProcessGroup | str | None" = None,
        reduction: str = "exact",
        sync_every: int = 1,
        vqp_compat: bool | None = None,
    ) -> None:
        super().__init__()
        resolved = check_options("HierarchicalVQ", locals())
        count, axes = len(scales), 3 if accept_3d_fmap else 2 if accept_image_fmap else 1
        sizes, grids = resolved[:count], resolved[count : count * (axes + 1)]

        self.dim = dim
        self.spatial_dims = axes
        self.channel_first = channel_first
        self.level_shapes = tuple(tuple(grids[n * axes : (n + 1) * axes]) for n in range(count))
        self.num_levels = count
        self.codebook_sizes = tuple(sizes)
        self.shared_codebook = shared_codebook
        self.nested_dropout = nested_dropout
        self.nested_dropout_min_levels = nested_dropout_min_levels
        self.vqp_compat = vqp_compat_of(vqp_compat)
        self._convolutions = resolved[count * (axes + 1) :]

        of_levels = named(
            locals(),
            "dim sync_codebook decay commitment_weight rotation_trick kmeans_init kmeans_iters "
            "threshold_ema_dead_code stochastic_sample_codes sample_codebook_temp "
            "orthogonal_reg_weight orthogonal_reg_max_codes orthogonal_reg_active_codes_only "
            "use_cosine_sim freeze_codebook dead_code_threshold_fraction process_group reduction "
            "sync_every",
        )
        quantizers = [
            VectorQuantize(codebook_size=size, vqp_compat=self.vqp_compat, **of_levels)
            for size in (sizes[:1] if shared_codebook else sizes)
        ]
        self.vq = quantizers[0] if shared_codebook else None
        self.vqs = None if shared_codebook else nn.ModuleList(quantizers)
        shared = share_quant_resi == 1
        self.phi_shared = Phi(dim, axes, quant_resi) if shared else None
        self.phi_levels: nn.ModuleList | None = None
        if not shared:
            several = range(max(self._convolutions) + 1)
            self.phi_levels = nn.ModuleList(Phi(dim, axes, quant_resi) for _ in several)
        if shared_codebook:
            self._keep_counts()
            self.register_load_state_dict_post_hook(_forget_counts)  # type: ignore[no-untyped-call]

    def extra_repr(self) -> str:
        """The options, for ``print``."""
        return f"dim={self.dim}, scales={self.level_shapes}, codebook_sizes={self.codebook_sizes}"

    # Forward -----------------------------------------------------------------------------------------------

    @gathers("vq", "vqs")
    def forward(
        self,
        x: Tensor,
        indices: Sequence[Tensor] | None = None,
        mask: Tensor | None = None,
        lens: Tensor | None = None,
        sample_codebook_temp: float | None = None,
        return_cutoff: bool = False,
        *,
        freeze_codebook: bool | None = None,
    ) -> HierarchicalResult:
        """Quantizes x; in training also updates the codebook.

        Args:
            x: (B, dim, *S), without ``channel_first`` (B, *S, dim); S of any size. Any floating dtype but float8.
            indices: target codes, one tensor for each scale in the shape of the returned indices: the result is then
                ``(quantized, loss)``, with the mean over scales of the cross-entropy of the distances with these
                targets as loss. The residual is that of the nearest codes, not of the targets. -1 is left out.
            mask: bool (B, *S), True for real positions. Averages are over real positions; a cell without any has index
                -1. Padding has output 0.
            lens: (B,) integer, lengths of sequences, instead of mask.
            sample_codebook_temp: overrides the option for this call.
            return_cutoff: append the last scale in use, or None if no scale was dropped. If only the device knows it,
                this is a 0-d tensor, ``Q - 1`` if no scale was dropped.
            freeze_codebook: overrides the option for this call.

        Returns:
            ``(quantized, indices, loss)``, named: indices a tuple of int64 (B, *shape) for each scale, -1 where
            dropped; loss a scalar, the mean over the scales in use; 0 in evaluation. No positions, or all masked: loss
            0, nothing updated. A token with NaN or infinity gives NaN and index 0, and does not reach the codebook.

        Raises:
            ValueError: wrong shapes or conflicting arguments. TypeError: wrong dtypes. IndexError: a target out of
                range.
        """
        self._check(x)
        layout = self._layout
        token_mask = layout.token_mask(x, mask, lens)
        targets = _scales.targets_of(self, x, indices, sample_codebook_temp)
        if self.training:
            self._fit_to_codes()
        with ExitStack() as steps:
            if self.training and is_checkpointed():
                for codebook in self._codebooks():
                    steps.enter_context(codebook.recorded_step())
            # Decoding may happen outside autocast.
            with without_autocast(x):
                request = _scales.ScaleRequest(
                    mask=self._map_mask(x, token_mask),
                    targets=targets,
                    temperature=sample_codebook_temp,
                    frozen=freeze_codebook,
                    depth=self.num_levels,
                    ranks=ranks_of(synced_level(self._quantizers()), "HierarchicalVQ"),
                )
                done, depth = self._walk(x, token_mask, request)
                loss = _scales.reach_dropped(self, done.loss, depth)
                quantized = self._restore(done.output, x, token_mask)
        if targets is not None:
            return quantized, loss
        found = self._indices(done, x.shape[0])
        if return_cutoff:
            return HierarchicalOutputWithCutoff(quantized, found, loss, self._cutoff(depth))
        return HierarchicalOutput(quantized, found, loss)

    # Stages of forward ---------------------------------------------------------------------------------------

    @property
    def _layout(self) -> Layout:
        return Layout(self.dim, self.channel_first, "HierarchicalVQ")

    def _check(self, x: Tensor) -> None:
        self._layout.check_input(x)
        if x.dim() != self.spatial_dims + 2:
            raise ValueError(
                f"HierarchicalVQ: expected x to have {self.spatial_dims} axes of positions, "
                f"but got shape {list(x.shape)}"
            )

    def _map_mask(self, x: Tensor, mask: Tensor | None) -> Tensor | None:
        positions = self._layout.positions(x)
        if mask is not None:
            return mask.view(x.shape[0], *positions)
        # Without positions, no cell has a real position.
        if x.shape[0] == 0 or 0 not in positions:
            return None
        return x.new_ones(x.shape[0], *positions, dtype=torch.bool)

    def _walk(
        self, x: Tensor, mask: Tensor | None, request: _scales.ScaleRequest
    ) -> tuple[_scales.ScaleWalk, int | Tensor]:
        """The walk, and how many scales it used."""
        codebooks, layout = self._codebooks(), self._layout
        rows = widened(layout.pack(x, mask))  # (B, P, D), zeros for padding
        if not request.ranks.alone:
            # Before the depth is drawn, so that ranks draw the same depth.
            text = _scales.options_text(self, request)
            levels, frozen = self.levels, all(map(request.freezes, self.levels))
            agree_in_stack(levels, codebooks, request.ranks, text, frozen=frozen, dtype=rows.dtype)
        if self.training:
            for vq in self._quantizers():
                check_level(vq, request.freezes(vq))
        depth = self._depth()
        request = request._replace(depth=depth)
        # Under vqp_compat a scale learns before the next one is searched, through modules of the caller. If one of them
        # fails, the scales before have learnt, which is undone.
        undo = undo_of(codebooks, apart=self.vqp_compat) if self.training else None
        with undo or nullcontext():
            done = _scales.walk(self, rows, layout.positions(x), request)
        if self.training:
            _scales.finish_scales(self, done, request)
        return done, depth

    def _depth(self) -> int | Tensor:
        """The number of scales that this forward uses: a Python number if reading it costs nothing."""
        if not (self.training and self.nested_dropout > 0):
            return self.num_levels
        return number_if_free(self._drawn_depth())

    def _drawn_depth(self) -> Tensor:
        return _ops.drawn_scales(
            self._quantizers()[0]._codebook.rng,
            self.num_levels,
            self.nested_dropout,
            self.nested_dropout_min_levels,
        )

    def _cutoff(self, depth: int | Tensor) -> int | Tensor | None:
        if isinstance(depth, Tensor):
            return depth - 1
        return None if depth == self.num_levels else depth - 1

    def _restore(self, output: Tensor, x: Tensor, mask: Tensor | None) -> Tensor:
        tokens = output.to(x.dtype)
        if mask is not None:
            tokens = _ops.fill_padding(tokens.contiguous(), mask)
        return self._layout.unpack(tokens, x).contiguous()  # callers take views of it

    def _indices(self, done: _scales.ScaleWalk, batch: int) -> tuple[Tensor, ...]:
        indices = [scale.indices for scale in done.scales]
        shapes = self.level_shapes
        found = [part.view(batch, *shape) for part, shape in zip(indices, shapes, strict=False)]
        # Dropped scales have no index.
        dropped = [indices[0].new_full((batch, *shape), -1) for shape in shapes[len(found) :]]
        return (*found, *dropped)

    # Parts -------------------------------------------------------------------------------------------------

    @property
    def scales(self) -> tuple[int | tuple[int, ...], ...]:
        """The grid of each scale: one number if it is the same along all axes."""
        return tuple(shape[0] if len(set(shape)) == 1 else shape for shape in self.level_shapes)

    @property
    def levels(self) -> list[VectorQuantize]:
        """The quantizer of each scale; the scales may share one."""
        quantizers = self._quantizers()
        return quantizers * self.num_levels if self.vqs is None else quantizers

    def _quantizers(self) -> list[VectorQuantize]:
        """The quantizers of all scales, each once."""
        if self.vqs is None:
            # A lookup through the module takes six times as long.
            return [of_kind(self, "vq", self._modules["vq"], VectorQuantize)]
        return contained(self, "vqs", VectorQuantize, self.num_levels)

    def _codebooks(self) -> list[Codebook]:
        return [level._codebook for level in self._quantizers()]

    def get_vq(self, level_index: int) -> VectorQuantize:
        """The quantizer of a scale."""
        return self.levels[level_index]

    def choose_phi(self, level_index: int) -> nn.Module:
        """The module that computes the map of a scale. One that you set is called with the interpolated codes."""
        if self.phi_levels is None:
            return cast(nn.Module, self.phi_shared)
        return self.phi_levels[self._convolutions[level_index]]

    def _phis(self) -> list[nn.Module]:
        """The modules that compute the maps of the scales, each once."""
        return [*self.phi_levels] if self.phi_levels is not None else [self.choose_phi(0)]

    def pool_residual(
        self, t: Tensor, level_shape: Sequence[int] | int, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Averages of a map (B, D, *S) over the cells of a grid, (B, D, *shape); and the real cells, (B, *shape).

        ``level_shape`` may be an entry of ``scales``: a number is the size along all axes.
        """
        shape = list(_calls.positions_of(level_shape, self.spatial_dims, "level_shape"))
        tokens = _ops.pool_scale(t, shape, mask=mask)
        pooled = tokens.transpose(1, 2).reshape(*t.shape[:2], *shape)
        if mask is None:
            return pooled, None
        return pooled, _ops.pool_scale_mask(mask, shape).view(t.shape[0], *shape)

    def upsample_to_full(
        self, q: Tensor, full_shape: Sequence[int] | int, level_index: int
    ) -> Tensor:
        """The map (B, D, *full_shape) of codes (B, D, *shape) of a scale; a number is the size of all axes."""
        full = _calls.positions_of(full_shape, self.spatial_dims)
        tokens = q.flatten(2).transpose(1, 2).contiguous()
        return spread(self.choose_phi(level_index), tokens, q.shape[2:], full)

    def sample_nested_cutoff(self, device: object = None) -> int | None:
        """The last scale that the next training forward uses; None: all. ``device`` is not needed."""
        return cast("int | None", self._cutoff(int(self._drawn_depth())))

    # Codes -----------------------------------------------------------------------------------------------------

    @gathers("vq", "vqs")
    def get_output_from_indices(
        self,
        indices: Sequence[Tensor],
        full_shape: Sequence[int] | int | None = None,
        *,
        mask: Tensor | None = None,
    ) -> Tensor:
        """The output of ``forward`` in evaluation for these indices, in the same layout.

        Args:
            indices: integer (B, *shape) for each scale. -1 gives a zero vector; a scale of only -1 adds nothing.
            full_shape: positions of the input, which the indices do not tell. Default: those of the last scale.
                A number is the size along all axes.
            mask: bool (B, *full_shape), the mask of forward; the output of padding is 0.

        Returns:
            (B, dim, *full_shape), without ``channel_first`` (B, *full_shape, dim); float32, float64 for a double
            module, or the half precision that the module was cast to.

        Raises:
            ValueError: for other shapes. TypeError: for other dtypes. IndexError: for an index outside [-1, K).
        """
        indices = _calls.whole_indices(indices, self.level_shapes, None)
        sizes = self.level_shapes[-1] if full_shape is None else full_shape
        full = _calls.positions_of(sizes, self.spatial_dims)
        if mask is not None:
            check_mask("HierarchicalVQ", mask, (indices[0].shape[0], *full))
        total: Tensor | None = None
        for index, found in enumerate(indices):
            decoded = self._decode_scale(index, found, full)
            total = torch.zeros_like(decoded) + decoded if total is None else total + decoded
        assert total is not None
        if mask is not None:
            total = total.masked_fill(mask.logical_not().unsqueeze(1), 0)
        total = in_half_dtype(self.levels[0]._codebook.half_dtype, total)
        return total if self.channel_first else total.movedim(1, -1)

    def _decode_scale(self, index: int, found: Tensor, full: Sequence[int]) -> Tensor:
        codes = _ops.lookup_codes(self.levels[index]._codebook.codes(), found.reshape(1, -1))
        tokens = widened(codes).view(found.shape[0], math.prod(found.shape[1:]), self.dim)
        decoded = spread(self.choose_phi(index), tokens, self.level_shapes[index], full)
        absent = (found < 0).flatten(1).all(1)
        return decoded.masked_fill(absent.view(-1, *[1] * (self.spatial_dims + 1)), 0)

    # Statistics ------------------------------------------------------------------------------------------------

    def _keep_counts(self) -> None:
        """Tokens of each code in the last training forward of this rank, (Q, 1, K), of scales with one codebook."""
        counts = self.levels[0].step_counts
        self.register_buffer(
            "scale_counts", counts.new_zeros(self.num_levels, *counts.shape), persistent=False
        )

    def _fit_to_codes(self) -> None:
        """``fit_to_codes`` for all scales, and for their counts of a codebook that they share."""
        quantizers = self._quantizers()
        for level in quantizers:
            fit_to_codes(level)
        counts = quantizers[0].step_counts
        if self.shared_codebook and self.scale_counts.shape[1:] != counts.shape:
            self._keep_counts()

    def counts_of_scales(self) -> list[Tensor]:
        """Tokens of each code in the last training forward of this rank, (1, K) for each scale."""
        if self.shared_codebook:
            return list(self.scale_counts.unbind(0))
        return [level.step_counts for level in self.levels]

    def stats(self, synced: bool = False) -> tuple[CodebookStats, ...]:
        """The use of the codes of each scale in the last training forward; see ``VectorQuantize.stats``.

        One exchange for all scales if ``synced``. A dropped scale has no tokens. Scales that share a codebook each
        report its dead and replaced codes.
        """
        levels = self.levels
        group = group_of(levels[0]) if synced else ""
        return tuple(stats_of(self.counts_of_scales(), [vq._codebook for vq in levels], group))


@torch.inference_mode(False)  # as forget_step
def _forget_counts(hvq: HierarchicalVQ, _: object = None) -> None:
    """Clears the counts, because a loaded state has had no step yet."""
    hvq._keep_counts()
