"""ResidualLFQ: a stack of lookup-free quantizers, each of which quantizes the residual of the ones before."""

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from torchvq._base.compat import vqp_compat_of
from torchvq._base.contained import contained
from torchvq._base.layout import Layout
from torchvq._base.not_here import found_in
from torchvq._base.options import check_options, take_out
from torchvq._base.projection import decoding_dtype, projects_nothing
from torchvq._base.ranks import ranks_of
from torchvq._base.replaced import methods_of
from torchvq._residual.calls import shared_ranks, without_codebook_axis
from torchvq._residual.engine import in_use, only_if, stack_levels
from torchvq._residual.stack import (
    LevelResult,
    LevelsRequest,
    LevelsResult,
    ResidualStack,
    StackResult,
)
from torchvq._scalar import lookup_free as _lookup_free
from torchvq._scalar.lookup_free import LFQRequest, Pending, Signs
from torchvq.lookup_free_quantization import LFQ
from torchvq.outputs import ResidualOutput, ResidualOutputWithCodes

logger = logging.getLogger("torchvq")
_ops = torch.ops.torchvq
# Options of LFQ that the stack sets, and what to do instead.
_OWN = {
    "num_codebooks": "use more quantizers, or groups",
    "codebook_scale": "each level halves it",
    "has_projections": "use dim",
}


class ScoredLevel(NamedTuple):
    """A level in use, for the losses of the stack."""

    signs: Signs
    loss: Tensor | None = None  # None if it waits for other levels or ranks


class _Level(LFQ):
    """A level, which does not warn because its stack does."""

    _warns = False

    def _get_name(self) -> str:
        return "LFQ"


class ResidualLFQ(ResidualStack):
    """Residual lookup-free quantization: each level quantizes the residual of the levels before.

    SoundStream (Zeghidour et al. 2021, arXiv:2107.03312) with the sign codes of LFQ (Yu et al. 2023,
    arXiv:2310.05737), halved from level to level: the final residual of an input within plus and minus 2 is at most
    ``2^(1 - Q)``.

    Shapes: ``B`` batch, ``N`` positions, ``Q`` = ``num_quantizers``, ``D`` = log2(codebook_size) bits.

    Args:
        dim: features of the input. If it differs from D, ``project_in`` and ``project_out`` are linear layers.
        num_quantizers: ``Q``, at least 1.
        codebook_size: codes per level, a power of 2 up to 2^62.
        quantize_dropout: in training, use only a random number of the quantizers. Default: False.
        quantize_dropout_cutoff_index: the last quantizer that is never dropped, counted from 0. Default: 0.
        quantize_dropout_multiple_of: the number kept is a multiple of this, or all. Default: 1.
        soft_clamp_input_value: bounds the latents of level n to plus and minus ``value * 2^-n``; at least 1.
            Default: none.
        is_channel_first: features on axis 1, whatever the number of position axes. Default: False.
        **kwargs: options of every level, see ``LFQ``: weights of the losses, ``frac_per_sample_entropy`` (the same
            tokens for all levels), ``spherical``, ``orthogonal_rotation``, ``straight_through_activation``,
            ``keep_num_codebooks_dim``, ``sync_codebook``, ``process_group``. ``projection_has_bias``,
            ``cosine_sim_project_in`` and ``cosine_sim_project_in_scale`` have no effect, as in the reference: the
            stack's projections are linear layers with a bias. ``vqp_compat=True`` gives the gradient of
            ``vector_quantize_pytorch``, whose gain is the number of levels, with the losses at full weight, and its
            entropies.

    Raises:
        ValueError: an option out of range, or options that exclude each other. TypeError: unknown options.

    Gradient: straight-through: that of the output goes to the projected input once, for any number of levels; with
    ``spherical``, ``soft_clamp_input_value`` or ``straight_through_activation`` the mean over the levels, each through
    its normalization, clamp and activation. The losses of every level reach the input, too, divided by
    ``Q``. In a step that drops levels the gradient of the output has the weight of the share that is left.

    Distributed: the entropies of all levels cover the tokens of all ranks, with one all-reduce per step; ranks
    drop the same levels; evaluation never communicates.

    Differences from ``vector_quantize_pytorch`` are listed in ``docs/migrating.md``.

    Example:
        >>> rlfq = ResidualLFQ(dim=256, codebook_size=256, num_quantizers=8, commitment_loss_weight=0.25)
        >>> quantized, indices, losses = rlfq(torch.randn(1, 1024, 256))
        >>> quantized.shape, indices.shape, losses.shape
        (torch.Size([1, 1024, 256]), torch.Size([1, 1024, 8]), torch.Size([8]))
    """

    communicates = True

    def __init__(
        self,
        *,
        dim: int,
        num_quantizers: int,
        codebook_size: int,
        quantize_dropout: bool = False,
        quantize_dropout_cutoff_index: int = 0,
        quantize_dropout_multiple_of: int = 1,
        soft_clamp_input_value: float | None = None,
        is_channel_first: bool = False,
        **kwargs: Any,
    ) -> None:
        own = {name: value for name, value in locals().items() if name != "kwargs"}
        # LFQ calls the option channel_first; that name is taken, too.
        own["is_channel_first"] = is_channel_first = is_channel_first or (
            kwargs.pop("channel_first", None) or False
        )
        take_out("ResidualLFQ", kwargs, _OWN, num_codebooks=1)
        check_options("ResidualLFQ", own | kwargs)
        vqp_compat = vqp_compat_of(kwargs.pop("vqp_compat", None))
        options = dict(kwargs, codebook_size=codebook_size, vqp_compat=vqp_compat)
        # Has the options of all levels, and is no level: what it draws is part of what a seed gives.
        first = _Level(**options, soft_clamp_input_value=soft_clamp_input_value)
        if first._is_unbounded:
            # On behalf of the levels, for which other weights are recommended than for an LFQ.
            logger.warning(
                "ResidualLFQ: commitment_loss_weight is 0, so nothing keeps latents from growing without bound; "
                "start with commitment_loss_weight=0.25 (torchvq.recommended('ResidualLFQ')), "
                "or set soft_clamp_input_value"
            )
        super().__init__(
            dim=dim,
            inner_dim=first.codebook_dim,
            num_quantizers=num_quantizers,
            is_channel_first=is_channel_first,
            quantize_dropout=quantize_dropout,
            quantize_dropout_cutoff_index=quantize_dropout_cutoff_index,
            quantize_dropout_multiple_of=quantize_dropout_multiple_of,
            draws=first.frac_per_sample_entropy < 1,
        )
        self.vqp_compat = vqp_compat
        # Where a level normalizes or clamps its input, only a gradient through that keeps latents from growing. An
        # activation has another slope at each level.
        bounds = first.spherical or soft_clamp_input_value is not None
        averages = bounds or not projects_nothing(first.activation)
        self.gradient = "summed" if vqp_compat else "averaged" if averages else "estimated"
        self.codebook_size = codebook_size
        self.soft_clamp_input_value = soft_clamp_input_value
        self.layers = nn.ModuleList()
        for index in range(num_quantizers):
            # Deep levels stay at the smallest normal float32: clamps to zero have no gradient but NaN.
            scale = 2.0 ** -min(index, 126)
            clamp = None if soft_clamp_input_value is None else soft_clamp_input_value * scale
            level = _Level(**options, codebook_scale=scale, soft_clamp_input_value=clamp)
            level.forget_rng()
            self.layers.append(level)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        return_all_codes: bool = False,
        rand_quantize_dropout_fixed_seed: int | None = None,
    ) -> ResidualOutput | ResidualOutputWithCodes:
        """Quantizes x.

        Args:
            x: (B, *, dim) with any number of position axes; with ``is_channel_first`` (B, dim, *). Images and volumes
                (B, dim, *) are taken, too, if there are no projections: with two or more position axes and dim
                features on axis 1, that is the axis of features. Any floating dtype but float8.
            mask: bool, one per position (B, *), or per item (B,), True for real tokens. Padding has no effect; its
                output is zero, its indices -1.
            return_all_codes: append the codes of all levels, (Q, B, *, D); their sum over levels, projected, is the
                output.
            rand_quantize_dropout_fixed_seed: seed that decides which levels are dropped, as in the reference. Default:
                the step number, so that all ranks drop the same levels.

        Returns:
            ``(quantized, indices, loss)``, named: indices int64 (B, *, Q), -1 where masked or dropped, and with
            ``keep_num_codebooks_dim`` (B, *, 1, Q); loss (Q,), 0 in evaluation and for dropped levels.

        Raises:
            ValueError: wrong shapes. TypeError: wrong dtypes.
        """
        seed, layout = rand_quantize_dropout_fixed_seed, self._layout_of(x)
        result = self.run(x, mask=mask, return_all_codes=return_all_codes, seed=seed, layout=layout)
        (losses,) = losses_of([self], [result])
        indices = self.shaped_indices(result.indices)
        if result.all_codes is not None:
            return ResidualOutputWithCodes(result.quantized, indices, losses, result.all_codes)
        return ResidualOutput(result.quantized, indices, losses)

    def _layout_of(self, x: Tensor) -> Layout:
        # As in the reference, whose levels take images and volumes as LFQ does.
        maps = isinstance(x, Tensor) and x.dim() >= 4 and not self.has_projections
        maps = maps and x.shape[1] == self.dim
        return self.layout._replace(channel_first=True) if maps else self.layout

    @property
    def quantizers(self) -> list[LFQ]:
        """``layers``, with their type."""
        return contained(self, "layers", LFQ)

    @property
    def codebooks(self) -> Tensor:
        """All codes of each level, (Q, codebook_size, D), computed at each use; before rotation."""
        return torch.stack([level.codebook for level in self.quantizers])

    # Methods that ResidualStack calls --------------------------------------------------------------------

    def quantize_level(
        self, index: int, residual: Tensor, mask: Tensor | None, rng: Tensor | None
    ) -> LevelResult:
        level = self.quantizers[index]
        found, _ = _lookup_free.step(level, residual, self._request_of(level, mask, rng))
        return LevelResult(found.quantized, found.indices, ScoredLevel(found.signs, found.loss))

    def process_at_once(self, inputs: Tensor, request: LevelsRequest) -> LevelsResult | None:
        mask, rng, depth, all_codes = request
        if not isinstance(depth, int):
            return None
        levels = self.quantizers[:depth]
        own = self._request_of(levels[0], mask, rng)
        if not _lookup_free.can_step_levels(levels, own.estimates):
            return None
        found = _lookup_free.step_levels(levels, inputs, own)
        codes = [level.reshape(inputs.shape) for level in found.codes] if all_codes else []
        details = [ScoredLevel(signs) for signs in found.signs]
        waits = levels[0].training and not own.scores
        losses = None if waits else found.losses
        return LevelsResult(found.total, found.indices, codes, details, losses)

    def _request_of(self, level: LFQ, mask: Tensor | None, rng: Tensor | None) -> LFQRequest:
        ranks = ranks_of(level, "ResidualLFQ", self.dim)
        # Losses over ranks, and those of summed gradients, are computed after all levels.
        waits = not ranks.alone or self.gradient == "summed"
        estimates = level.training and self.gradient != "estimated"
        scores = level.training and not waits
        return LFQRequest(mask, rng, ranks, estimates=estimates, scores=scores)

    def estimate(self, inputs: Tensor, total: Tensor) -> Tensor:
        if not self.training:
            return total
        return _ops.straight_through(self.quantizers[0].activation(inputs), total)

    def handshake(self, inputs: Tensor) -> None:
        ranks = shared_ranks(self.quantizers, "ResidualLFQ", self.dim)
        rng = self._buffers.get("rng")
        _lookup_free.handshake(self.quantizers, rng, ranks, inputs, self.signature)

    def losses_of(self, result: StackResult, totals: list[Tensor | None]) -> Tensor:
        """The losses (Q,) of a forward, 0 for dropped levels."""
        levels = self.quantizers
        if result.losses is not None:
            dropped = len(levels) - len(result.details)
            return pad(result.losses, (0, dropped)) if dropped else result.losses
        losses = []
        for index, (found, own) in enumerate(zip(result.details, totals, strict=True)):
            level, loss = levels[index], found.loss
            # A level that learns by itself has no part in the totals of the others.
            alone = own is None or ranks_of(level, "ResidualLFQ").alone
            if level.training and (not alone or self.gradient == "summed"):
                loss = _lookup_free.loss(level, found.signs, None if alone else own)
            losses.append(only_if(in_use(result.depth, index), loss))
        return stack_levels(losses, len(levels))

    def decode_level(self, index: int, indices: Tensor) -> Tensor:
        level = self.quantizers[index]
        codes = _ops.sign_decode(
            indices,
            level.codebook_dim,
            scale=level.code_value,
            dtype=decoding_dtype(self.project_in, self.project_out, state=level._buffers.values()),
        )
        if level.orthogonal_rotation:
            codes = _ops.rotate_features(codes, level.orthogonal_rot, inverse=True)
        return codes

    def plain_indices(self, indices: Tensor) -> Tensor:
        kept = self.quantizers[0].keep_num_codebooks_dim
        return without_codebook_axis("ResidualLFQ", indices) if kept else indices

    def shaped_indices(self, indices: Tensor) -> Tensor:
        """The inverse of ``plain_indices``."""
        return indices.unsqueeze(-2) if self.quantizers[0].keep_num_codebooks_dim else indices


ResidualLFQ.level_steps = methods_of(ResidualLFQ, "quantize_level")


def losses_of(stacks: Sequence[ResidualLFQ], results: Sequence[StackResult]) -> list[Tensor]:
    """The losses (Q,) of each stack; ranks share the entropies of all levels of all stacks in one all-reduce."""
    levels = (level for stack in stacks for level in stack.quantizers)
    ranks = shared_ranks(levels, "ResidualLFQ", stacks[0].dim)
    pending = [
        Pending(stack.quantizers, [found.signs for found in result.details], result.step)
        for stack, result in zip(stacks, results, strict=True)
    ]
    totals = _lookup_free.shared_totals(pending, ranks)
    return [
        stack.losses_of(result, own)
        for stack, result, own in zip(stacks, results, totals, strict=True)
    ]


__all__ = ["GroupedResidualLFQ", "ResidualLFQ"]  # noqa: F822
__getattr__ = found_in("torchvq.grouped_residual_lfq", "GroupedResidualLFQ", __name__)
