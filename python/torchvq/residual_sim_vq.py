"""ResidualSimVQ: a stack of SimVQ, each of which quantizes the residual of the ones before."""

from typing import Any

import torch
from torch import Tensor, nn

from torchvq._base import joined as _joined
from torchvq._base.compat import vqp_compat_of
from torchvq._base.contained import contained
from torchvq._base.options import check_options
from torchvq._base.replaced import is_replaced, methods_of
from torchvq._base.sharded import gathers
from torchvq._residual.calls import shared_ranks
from torchvq._residual.engine import in_use, only_if, stack_levels
from torchvq._residual.stack import (
    LevelResult,
    LevelsRequest,
    LevelsResult,
    ResidualStack,
    StackResult,
    sum_of_levels,
)
from torchvq.outputs import ResidualOutput, ResidualOutputWithCodes
from torchvq.sim_vq import SimSearchResult, SimVQ, handshake

_ops = torch.ops.torchvq


class ResidualSimVQ(ResidualStack):
    """Residual vector quantization with frozen codes and learnt transforms of them.

    SoundStream (Zeghidour et al. 2021, arXiv:2107.03312) with the codes of SimVQ (Zhu et al. 2024, arXiv:2411.02038):
    each level quantizes the residual of the levels before.

    Shapes: ``B`` batch, ``N`` positions, ``Q`` = ``num_quantizers``, ``K`` = ``codebook_size``.

    Args:
        dim: features of the input, a multiple of ``heads``.
        num_quantizers: ``Q``, at least 1.
        codebook_size: codes per level ``K``, at least 1.
        heads: codes per latent and level, all from the codebook of the level; the features are split over them, and the
            first belong to head 0. Default: 1.
        quantize_dropout: in training, use only a random number of the quantizers. Default: False.
        quantize_dropout_cutoff_index: the last quantizer that is never dropped, counted from 0. Default: 0.
        quantize_dropout_multiple_of: the number kept is a multiple of this, or all. Default: 1.
        channel_first: features on axis 1, whatever the number of position axes. Default: False.
        rotation_trick: rotate and scale the gradient from each level's code to its input (arXiv:2410.06424), with a
            bounded gain, and average it over the levels; otherwise it is copied once. Default: True, as in the
            reference; False learns better in our measurements.
        eval_beam_size: paths through the levels that the search keeps in evaluation, at least 1. Default: none, the
            nearest code of each level.
        **sim_vq_kwargs: options of every level, see ``SimVQ``: ``codebook_transform`` (one module is shared by all
            levels), ``init_fn``, ``frozen_codebook_dim``, both weights of the loss, ``sync_codebook``,
            ``process_group``. ``vqp_compat=True`` gives the gradient of ``vector_quantize_pytorch``, whose gain is the
            number of levels.

    Raises:
        ValueError: an option out of range, or options that exclude each other. TypeError: unknown options.

    Gradient: that of one level for any number of levels: copied once, or with ``rotation_trick`` the mean over the
        levels. The gradients of the losses of every level reach its transform and, divided by the number of levels,
        the input, with the same balance as the sum over the levels has. In a step that drops levels the gradient of the
        output has the weight of the share that is left. See docs/design/residual.md.

        Transforms of dropped levels get a gradient of zero.

    Distributed: before the first training step ranks take rank 0's frozen codes; they drop the same levels. Evaluation
        never communicates.

    Differences from ``vector_quantize_pytorch`` are listed in ``docs/migrating.md``.

    Example:
        >>> residual_sim_vq = ResidualSimVQ(dim=512, num_quantizers=4, codebook_size=1024)
        >>> quantized, indices, losses = residual_sim_vq(torch.randn(1, 1024, 512))
        >>> quantized.shape, indices.shape, losses.shape
        (torch.Size([1, 1024, 512]), torch.Size([1, 1024, 4]), torch.Size([4]))
    """

    communicates = True

    def __init__(
        self,
        *,
        dim: int,
        num_quantizers: int,
        codebook_size: int,
        heads: int = 1,
        quantize_dropout: bool = False,
        quantize_dropout_cutoff_index: int = 0,
        quantize_dropout_multiple_of: int = 1,
        channel_first: bool = False,
        rotation_trick: bool = True,
        eval_beam_size: int | None = None,
        **sim_vq_kwargs: Any,
    ) -> None:
        own = {name: value for name, value in locals().items() if name != "sim_vq_kwargs"}
        check_options("ResidualSimVQ", own | sim_vq_kwargs)
        super().__init__(
            dim=dim,
            inner_dim=dim,
            num_quantizers=num_quantizers,
            is_channel_first=channel_first,
            quantize_dropout=quantize_dropout,
            quantize_dropout_cutoff_index=quantize_dropout_cutoff_index,
            quantize_dropout_multiple_of=quantize_dropout_multiple_of,
        )
        self.vqp_compat = vqp_compat_of(sim_vq_kwargs.pop("vqp_compat", None))
        self.gradient = (
            "summed" if self.vqp_compat else "averaged" if rotation_trick else "estimated"
        )
        self.heads = heads
        self.channel_first = channel_first
        self.rotation_trick = rotation_trick
        self.eval_beam_size = eval_beam_size
        self.layers = nn.ModuleList(
            SimVQ(
                dim=dim // heads,
                codebook_size=codebook_size,
                rotation_trick=rotation_trick,
                vqp_compat=self.vqp_compat,
                **sim_vq_kwargs,
            )
            for _ in range(num_quantizers)
        )

    @gathers("layers")
    def forward(
        self,
        x: Tensor,
        return_all_codes: bool = False,
        rand_quantize_dropout_fixed_seed: int | None = None,
        *,
        mask: Tensor | None = None,
    ) -> ResidualOutput | ResidualOutputWithCodes:
        """Quantizes x.

        Args:
            x: (B, *, dim) with any number of position axes; with ``channel_first`` (B, dim, *). Any floating
                dtype but float8.
            return_all_codes: append the codes of all levels, (Q, B, *, dim), with ``channel_first`` (Q, B, dim, *);
                their sum over levels is the output.
            rand_quantize_dropout_fixed_seed: seed that decides which levels are dropped, as in the reference. Default:
                the step number, so that all ranks drop the same levels.
            mask: bool, one per position (B, *), or per item (B,), True for real tokens. Padding has no effect; its
                output is zero, its indices -1.

        Returns:
            ``(quantized, indices, loss)``, named: indices int64 (B, *, Q), with several heads (B, *, heads, Q), -1
            where masked or dropped; loss (Q,), 0 for dropped levels, with gradient only in training.

        Raises:
            ValueError: wrong shapes. TypeError: wrong dtypes.
        """
        result = self.run(
            x, mask=mask, return_all_codes=return_all_codes, seed=rand_quantize_dropout_fixed_seed
        )
        losses = self._losses(result)
        if result.all_codes is not None:
            codes = self._placed(result.all_codes)
            return ResidualOutputWithCodes(result.quantized, result.indices, losses, codes)
        return ResidualOutput(result.quantized, result.indices, losses)

    @property
    def quantizers(self) -> list[SimVQ]:
        """``layers``, with their type."""
        return contained(self, "layers", SimVQ)

    @property
    def codebook_size(self) -> int:
        """Number of codes per level."""
        return self.quantizers[0].codebook_size

    @property
    def codebook_dim(self) -> int:
        """Features of a code."""
        return self.quantizers[0].dim

    @property
    def codebooks(self) -> Tensor:
        """The codes of each level, (Q, codebook_size, codebook_dim), computed at each use."""
        return _joined.stack([level.codebook for level in self.quantizers])

    # Methods that ResidualStack calls --------------------------------------------------------------------

    def quantize_level(
        self, index: int, residual: Tensor, mask: Tensor | None, rng: Tensor | None
    ) -> LevelResult:
        return self.quantize_chosen(index, residual, mask, None)

    def quantize_chosen(
        self, index: int, residual: Tensor, mask: Tensor | None, indices: Tensor | None
    ) -> LevelResult:
        level, estimates = self.quantizers[index], self._estimates_levels
        found = level.choose(
            residual.flatten(0, 1).unsqueeze(0),
            None if mask is None else mask.reshape(1, -1),
            level.estimator if estimates else "none",
            None if indices is None else indices.reshape(1, -1),
        )
        codes = found.quantized if estimates else found.codes
        if self.training and not estimates:
            # Codes learn only from the losses.
            codes = codes.detach()
        return LevelResult(
            codes.view_as(residual), found.indices.view(residual.shape[:2]), detail=(found, mask)
        )

    @property
    def _estimates_levels(self) -> bool:
        """Whether each level gives its codes a gradient to its residual."""
        return self.gradient == "summed" or (self.training and self.gradient == "averaged")

    def process_at_once(self, inputs: Tensor, request: LevelsRequest) -> LevelsResult | None:
        if not self.training or not isinstance(request.depth, int):
            return None
        levels = self.quantizers[: request.depth]
        estimators = {level.estimator if self._estimates_levels else "none" for level in levels}
        if len(estimators) > 1:
            return None
        found = [level.plain_map(inputs.dtype) for level in levels]
        maps = [own for own in found if own is not None]
        biases = [own.bias for own in maps if own.bias is not None]
        if len(maps) < len(levels) or len(biases) not in (0, len(levels)):
            return None
        weights = [level.loss_weights for level in levels]
        total, indices, losses, codes = _ops.residual_linear_quantize(
            inputs,
            [own.frozen for own in maps],
            [own.weight for own in maps],
            biases,
            mask=request.mask,
            estimator=estimators.pop(),
            to_inputs=[to_inputs for to_inputs, _ in weights],
            to_codes=[to_codes for _, to_codes in weights],
        )
        return LevelsResult(total, indices, codes, losses=losses)

    def choose_codes(self, inputs: Tensor, mask: Tensor | None) -> Tensor | None:
        if self.training or self.eval_beam_size in (None, 1):
            return None
        rows = inputs.detach().flatten(0, 1).unsqueeze(0)
        paths = _ops.residual_beam_search(
            rows,
            [level.codes_for(rows.dtype).detach() for level in self.quantizers],
            self.eval_beam_size,
            mask=None if mask is None else mask.reshape(1, -1),
        )
        # Any valid code serves for padding.
        return paths.clamp_min(0).view(*inputs.shape[:2], self.num_quantizers)

    def estimate(self, inputs: Tensor, total: Tensor) -> Tensor:
        rng = torch.zeros(2, dtype=torch.long, device=inputs.device)
        rows = inputs.flatten(0, 1).unsqueeze(0), total.flatten(0, 1).unsqueeze(0)
        output = _ops.estimate(*rows, rng, estimator=self.quantizers[0].estimator)
        return output.view_as(inputs)

    def handshake(self, inputs: Tensor) -> None:
        ranks = shared_ranks(self.quantizers, "ResidualSimVQ", self.dim)
        rng = self._buffers.get("rng")
        handshake(self.quantizers, ranks, rng, "ResidualSimVQ", self.signature)

    @gathers("layers")
    def get_codes_from_indices(self, indices: Tensor) -> Tensor:
        """Codes (Q, B, *, dim), with ``channel_first`` (Q, B, dim, *), of indices (B, *, q), or (B, *, heads, q).

        q is the number of levels; with ``quantize_dropout`` it may be smaller, and missing levels give zeros. -1 gives
        zeros. ValueError for another number of levels, IndexError for an index outside.
        """
        return self._placed(super().get_codes_from_indices(indices))

    @gathers("layers")
    def get_output_from_indices(self, indices: Tensor) -> Tensor:
        """The output of ``forward`` in evaluation for these indices, in the same layout; zeros where all are -1."""
        if is_replaced(self, self.decoding):
            return sum_of_levels(self.get_codes_from_indices(indices).unbind())
        # As in the reference: callers may flatten it with `view`.
        return super().get_output_from_indices(indices).contiguous()

    def _placed(self, codes: Tensor) -> Tensor:
        """Codes (Q, B, *, dim) with the features where the layout has them; (B, dim) has no position axis to move."""
        return codes.movedim(-1, 2) if self.channel_first and codes.dim() > 3 else codes

    def decode_level(self, index: int, indices: Tensor) -> Tensor:
        return self.quantizers[index].decode_tokens(indices)

    def _losses(self, result: StackResult) -> Tensor:
        """The losses (Q,) of a forward, 0 for dropped levels."""
        every = self.num_quantizers
        if result.losses is None:
            losses = [
                only_if(in_use(result.depth, index), self._loss(index, *found))
                for index, found in enumerate(result.details)
            ]
        elif result.losses.shape[0] == every:
            return result.losses
        else:
            losses = list(result.losses.unbind())
        if losses and self.training:
            # Graphs compute all levels, and wrappers wait for a gradient of every parameter: dropped levels get zero.
            nothing = losses[0].new_zeros(1, 0, self.codebook_dim)
            losses += [
                self._loss(index, self.quantizers[index].choose(nothing, None, "none"), None)
                for index in range(len(losses), every)
            ]
        return stack_levels(losses, every)

    def _loss(self, index: int, found: SimSearchResult, mask: Tensor | None) -> Tensor:
        return self.quantizers[index].loss_of(found, None if mask is None else mask.reshape(1, -1))


ResidualSimVQ.decoding = methods_of(ResidualSimVQ, "get_codes_from_indices")
ResidualSimVQ.level_steps = methods_of(ResidualSimVQ, "quantize_level", "quantize_chosen")
