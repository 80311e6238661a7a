"""ResidualVQ: a stack of codebooks, each of which quantizes the residual of the ones before."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchvq._base import joined as _joined
from torchvq._base.checkpointing import is_checkpointed
from torchvq._base.compat import vqp_compat_of
from torchvq._base.contained import contained, first_contained
from torchvq._base.integers import as_int64
from torchvq._base.layout import Layout, layout_by_options
from torchvq._base.not_here import found_in
from torchvq._base.options import check_options, keep_values, named
from torchvq._base.projection import make_projections, project_codes, projected_tokens
from torchvq._base.replaced import Methods, methods_of
from torchvq._base.sharded import gathers
from torchvq._base.wide_buffers import in_half_dtype
from torchvq._codebook import in_place as _in_place
from torchvq._codebook.losses import sees_padding
from torchvq._codebook.stats import CodebookStats, draws_frozen, fit_to_codes, read_stats
from torchvq._residual.calls import Siblings, StackRequest, agree, checked_call
from torchvq._residual.decode import decode_levels, decode_sum
from torchvq._residual.dropout import Levels, depth_of, drops_levels
from torchvq._residual.engine import stack_levels
from torchvq._residual.implicit_codebook import MLP
from torchvq._residual.level_options import level_options
from torchvq._residual.results import Started, finish, search
from torchvq.codebook import Codebook
from torchvq.outputs import ResidualResult
from torchvq.vector_quantize import VectorQuantize

_ops = torch.ops.torchvq


class ResidualVQ(_in_place.OptimizerInCheckpoint, Levels):
    """Residual vector quantization: each level quantizes the residual of the levels before.

    SoundStream (Zeghidour et al. 2021, arXiv:2107.03312), RQ-VAE (Lee et al. 2022, arXiv:2203.01941). Every level
    is a ``VectorQuantize`` (``layers``); the output is the sum of their codes.

    Shapes: ``B`` batch, ``N`` positions, ``Q`` = ``num_quantizers``, ``D`` = ``codebook_dim``, ``K`` =
    ``codebook_size``.

    Args:
        dim: features of the input, at least 1.
        num_quantizers: levels ``Q``, at least 1. May be left out if ``codebook_size`` is a list.
        codebook_size: codes per level: a number, or one for each level; with ``shared_codebook`` all the same.
        codebook_dim: features of a code. Default: ``dim``. If it differs, ``project_in`` and ``project_out`` are linear
            layers around the stack.
        shared_codebook: all levels use one codebook (RQ-VAE), which learns once per forward from the residuals of all
            levels. Default: False.
        diveq: DiVeQ over the whole stack (https://openreview.net/forum?id=KRVnpTbx7R): in training the output is the
            latent, moved by its distance from the sum of the codes in a noisy direction towards it, with noise of
            variance ``directional_reparam_variance``; codes learn by gradient, without commitment loss. Evaluation
            gives the sum of the codes. Not with ``use_cosine_sim`` or ``straight_through``. Default: False.
        heads: codes per latent and level; see ``VectorQuantize``. Default: 1.
        quantize_dropout: in training, use only a random number of the levels. Default: False.
        quantize_dropout_cutoff_index: the last level that is never dropped, counted from 0. Default: 0.
        quantize_dropout_multiple_of: the number kept is a multiple of this, or all levels. Default: 1.
        accept_image_fmap: input is (B, dim, H, W). Default: False. ``accept_3d_fmap`` and ``channel_last`` are also
            options.
        implicit_neural_codebook: QINCo (arXiv:2401.14732): for each level after the first, a network computes the codes
            of each token from what the levels before have decoded. Codes and networks learn by gradient. Not with
            ``use_cosine_sim``, ``straight_through`` or ``in_place_codebook_optimizer``. Default: False.
        mlp_kwargs: ``dim_hidden`` (default: the features of a code) and ``depth`` (default: 4) of these networks.
        beam_size: paths through the levels that the search keeps; it returns the path with the smallest final residual.
            1 takes the nearest code of each level. Larger is better and slower. In training with
            ``stochastic_sample_codes`` each path draws that many different codes. Default: 1.
        eval_beam_size: ``beam_size`` in evaluation. Default: ``beam_size``.
        beam_score_quantizer_weights: a weight for each level: the score of a path is then the weighted sum of the
            residuals after each level. Default: the residual after the last level.
        quant_grad_frac: fraction of a level's gradient that reaches the residual of the next level, in [0, 1]. The
            gradient of each commitment loss is scaled by ``1 - quant_grad_frac`` for every level before it. Default: 0.
        return_zeros_for_masked_padding: masked outputs are zero; otherwise the input. Default: True.
        **vq_kwargs: options of every level; see ``VectorQuantize``. ``layernorm_after_project_in`` has no effect, as in
            the reference: the levels have no projection.

    Raises:
        ValueError: an option out of range, or options that exclude each other.

    Gradient: one estimator between latent and sum of codes. Several levels are straight-through by default, so the
    gain is 1; ``rotation_trick=True``, the default of a single level and with ``use_cosine_sim=True``, gives the mean
    over levels, each of which rotates, and so does ``directional_reparam=True``, with which each simulates its error.
    The gradient of the losses to the encoder is divided by the number of levels in use (with ``quant_grad_frac`` f by
    ``sum (1 - f)**n``). In the reference, with one estimator per level, the gradient of the output is larger by this
    factor, so the balance of both is the same. The values of the losses and the gradients of codes are not divided.

    Differences from ``vector_quantize_pytorch`` are listed in ``docs/migrating.md``; ``vqp_compat=True`` restores
    its gradient (one estimator per level, gain Q), its Q updates of a shared codebook, and the other differences marked
    there.

    Example:
        >>> rvq = ResidualVQ(dim=256, num_quantizers=8, codebook_size=1024)
        >>> quantized, indices, loss = rvq(torch.randn(1, 1024, 256))
        >>> quantized.shape, indices.shape, loss.shape
        (torch.Size([1, 1024, 256]), torch.Size([1, 1024, 8]), torch.Size([8]))
    """

    dim: int
    heads: int
    codebook_dim: int
    # Methods whose override in a subclass makes `get_output_from_indices` sum the codes that they return.
    decoding: Methods
    shared_codebook: bool
    diveq: bool
    accept_image_fmap: bool
    accept_3d_fmap: bool
    channel_last: bool
    implicit_neural_codebook: bool
    quant_grad_frac: float
    return_zeros_for_masked_padding: bool
    vqp_compat: bool
    beam_size: int | None
    eval_beam_size: int | None
    beam_score_quantizer_weights: list[float] | None

    def __init__(
        self,
        *,
        dim: int,
        num_quantizers: int | None = None,
        codebook_size: int | Sequence[int],
        codebook_dim: int | None = None,
        shared_codebook: bool = False,
        diveq: bool = False,
        heads: int = 1,
        quantize_dropout: bool = False,
        quantize_dropout_cutoff_index: int = 0,
        quantize_dropout_multiple_of: int = 1,
        accept_image_fmap: bool = False,
        implicit_neural_codebook: bool = False,
        mlp_kwargs: Mapping[str, Any] = {},
        beam_size: int | None = None,
        eval_beam_size: int | None = None,
        beam_score_quantizer_weights: list[float] | None = None,
        quant_grad_frac: float = 0.0,
        return_zeros_for_masked_padding: bool = True,
        **vq_kwargs: Any,
    ) -> None:
        super().__init__()
        options = {name: value for name, value in locals().items() if name != "vq_kwargs"}
        sizes = tuple(check_options("ResidualVQ", options | vq_kwargs))

        kept = named(
            options,
            "dim heads shared_codebook diveq accept_image_fmap implicit_neural_codebook "
            "return_zeros_for_masked_padding quantize_dropout_cutoff_index "
            "quantize_dropout_multiple_of beam_size beam_score_quantizer_weights",
        )
        keep_values(
            self,
            **kept,
            codebook_dim=dim if codebook_dim is None else codebook_dim,
            accept_3d_fmap=vq_kwargs.get("accept_3d_fmap", False),
            channel_last=vq_kwargs.get("channel_last", True),
            quant_grad_frac=1.0 if diveq else quant_grad_frac,
            quantize_dropout=quantize_dropout and len(sizes) > 1,
            vqp_compat=vqp_compat_of(vq_kwargs.get("vqp_compat")),
            eval_beam_size=beam_size if eval_beam_size is None else eval_beam_size,
        )

        inner_dim = self.codebook_dim * heads
        self.has_projections = inner_dim != dim
        self.project_in, self.project_out = make_projections(dim, inner_dim)
        self.in_place_codebook_optimizer: Optimizer | None = None
        self.layers = nn.ModuleList(self._make_levels(sizes, inner_dim, vq_kwargs))
        if self.in_place_codebook_optimizer is not None:
            _in_place.keep_optimizer_in_checkpoint(self)
        self.mlps: nn.ModuleList | tuple[None, ...] = (None,) * (self.num_quantizers - 1)
        if implicit_neural_codebook:
            self.mlps = nn.ModuleList(
                MLP(self.codebook_dim, **mlp_kwargs) for _ in range(self.num_quantizers - 1)
            )

    def _make_levels(
        self, sizes: Sequence[int], inner_dim: int, vq_kwargs: dict[str, Any]
    ) -> list[VectorQuantize]:
        options = level_options(self, vq_kwargs, len(sizes) > 1)
        levels = [
            VectorQuantize(
                dim=inner_dim,
                codebook_size=size,
                codebook_dim=self.codebook_dim,
                heads=self.heads,
                accept_image_fmap=self.accept_image_fmap,
                return_zeros_for_masked_padding=self.return_zeros_for_masked_padding,
                **options,
            )
            for size in sizes
        ]
        if self.shared_codebook:
            for level in levels[1:]:
                level._codebook = levels[0]._codebook  # type: ignore[misc]
        make_optimizer = vq_kwargs.get("in_place_codebook_optimizer")
        if self.shared_codebook and make_optimizer is not None:
            self.in_place_codebook_optimizer = make_optimizer(levels[0]._codebook.parameters())
        return levels

    # Forward -----------------------------------------------------------------------------------------------

    @gathers("layers", "mlps")
    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        indices: Tensor | list[Tensor] | None = None,
        return_all_codes: bool = False,
        sample_codebook_temp: float | None = None,
        freeze_codebook: bool = False,
        beam_size: int | None = None,
        rand_quantize_dropout_fixed_seed: int | None = None,
    ) -> ResidualResult:
        """Quantizes x; in training also updates the codebooks.

        Args:
            x: (B, *, dim), with any number of position axes or none, or as the layout options say. Any floating dtype
                but float8.
            mask: bool, (B, *), True for real tokens. Padding has no effect; its indices are -1.
            indices: target codes, in the shape of the returned indices or as a list of one tensor per level: the result
                is then ``(quantized, loss)``, with the sum over levels of the cross-entropy of the distances with these
                targets as loss. The residual is that of the nearest codes, not of the targets. -1 is left out.
            return_all_codes: append the codes of all levels, (Q, B, N, D); their sum over levels, projected, is the
                output.
            sample_codebook_temp: overrides the option for this call.
            freeze_codebook: freezes the codebooks for this call, in addition to the option.
            beam_size: overrides the option for this call, in training and evaluation.
            rand_quantize_dropout_fixed_seed: seed that decides which levels are dropped, as in the reference. Default:
                the module's own generator.

        Returns:
            ``(quantized, indices, loss)``, named: indices (B, N, Q), with several heads (B, N, heads, Q), -1 where
            masked or dropped; loss (Q,), 0 where dropped and in evaluation.

        Raises:
            ValueError: wrong shapes or conflicting arguments. TypeError: wrong dtypes. IndexError: a target out of
                range.
        """
        call = checked_call(
            self, x, mask, indices, sample_codebook_temp, freeze_codebook, beam_size
        )
        with ExitStack() as steps:
            seed = rand_quantize_dropout_fixed_seed
            started = self.start(x, steps, call, return_all_codes=return_all_codes, seed=seed)
            return finish(search([started], steps))[0]

    def start(
        self,
        x: Tensor,
        steps: ExitStack,
        call: StackRequest,
        *,
        return_all_codes: bool = False,
        seed: int | None = None,
        depth: int | Tensor | None = None,
        siblings: Siblings | None = None,
    ) -> Started:
        """The beginning of ``forward``, up to the handshake with other ranks; ``search`` and ``finish`` follow.

        Args:
            steps: open until the end of the step.
            depth: number of levels to use if this forward drops some; drawn if None.
            siblings: the stacks that learn in the same step, if there are others.
        """
        if self.training:
            for level in call.levels:
                fit_to_codes(level)
        if self.training and is_checkpointed():
            for codebook in self._codebooks():
                steps.enter_context(codebook.recorded_step())
        seen = None if sees_padding(self, self.first_level) else call.mask
        tokens = projected_tokens(x, seen, call.layout, self.project_in)
        depth = self._agree_on_depth(siblings, call, tokens.dtype, seed, depth)
        request = call._replace(batch=tokens.shape[:2], depth=depth)
        return Started(self, call.layout, x, request, return_all_codes, tokens)

    # Stages of forward ---------------------------------------------------------------------------------------

    @property
    def layout(self) -> Layout:
        """The order of batch, positions and features in inputs and outputs."""
        separate = self.first_level.separate_codebook_per_head
        return layout_by_options(self, self.heads, separate, type(self).__name__)

    @property
    def levels(self) -> list[VectorQuantize]:
        """``layers``, with their type."""
        return contained(self, "layers", VectorQuantize)

    @property
    def first_level(self) -> VectorQuantize:
        """``layers[0]``, with its type; all levels have its options but for the number of codes."""
        return cast(VectorQuantize, first_contained(self, "layers", VectorQuantize))

    @property
    def codebook_sizes(self) -> tuple[int, ...]:
        """Number of codes of each level."""
        return tuple(level.codebook_size for level in self.levels)

    @property
    def uniform_codebook_size(self) -> bool:
        """Whether all levels have the same number of codes."""
        return len(set(self.codebook_sizes)) == 1

    def mlp(self, level: int) -> MLP:
        """The network that computes the codes of a level of an implicit codebook, from level 1 on."""
        return cast(MLP, self.mlps[level - 1])

    @property
    def estimates_levels(self) -> bool:
        """Whether the gradient of the output is the sum or mean over the levels, not of one estimator for the stack."""
        first = self.first_level
        by_codes = first.straight_through and not first.route_gradients_to_input
        # Each level rotates by its own angle, normalizes its own input, and simulates its own error; but noise must not
        # reach the condition of implicit codes, which decoding computes, too.
        simulates = first.directional_reparam and not self.implicit_neural_codebook
        several = self.num_quantizers > 1
        own = first.use_cosine_sim or (several and (first.rotation_trick or simulates))
        return self.training and not self.diveq and (self.vqp_compat or by_codes or own)

    @property
    def draws(self) -> bool:
        """Whether a frozen stack draws random numbers."""
        return any(map(draws_frozen, self.levels)) or self.diveq or self.quantize_dropout

    @property
    def vq_is_ema_updating(self) -> bool:
        """Whether the codebooks follow moving averages."""
        return self.first_level.ema_update

    def _codebooks(self) -> list[Codebook]:
        levels = self.levels[:1] if self.shared_codebook else self.levels
        return [level._codebook for level in levels]

    def _level_rng(self, level: int) -> Tensor:
        rng = self.levels[level]._codebook.step_rng
        return _ops.level_rng(rng, level, self.shared_codebook)

    def _agree_on_depth(
        self,
        siblings: Siblings | None,
        call: StackRequest,
        dtype: torch.dtype,
        seed: int | None,
        depth: int | Tensor | None,
    ) -> int | Tensor:
        """The number of levels that this forward uses. Ranks agree before it is drawn, so that they draw alike."""
        drops = drops_levels(self)
        seeded = drops and seed is not None
        if depth is None and seeded:
            depth = depth_of(self, seed)
        named = cast(int, depth) if seeded else None
        agree(self, siblings, call.ranks, frozen=call.frozen, dtype=dtype, depth=named)
        if not drops:
            return self.num_quantizers
        return depth_of(self, None, self.first_level._codebook.rng) if depth is None else depth

    def beam_weights(self, levels: int) -> list[float]:
        """The weights of the first levels' residuals in the score of a path; none: the last residual is the score."""
        given = self.beam_score_quantizer_weights
        if given is None:
            given = [1.0] * self.num_quantizers if self.vqp_compat else []
        return given[:levels]

    # Codes -----------------------------------------------------------------------------------------------------

    @property
    def codebook_size(self) -> int:
        """Number of codes of the first level."""
        return self.first_level.codebook_size

    @property
    def codebooks(self) -> Tensor | tuple[Tensor, ...]:
        """The codes of all levels: (Q, K, D), or a tuple of (K, D) if levels differ in size; with one codebook per head
        (Q, H, K, D). For implicit codebooks these are the base codes."""
        codes = tuple(level._codebook.codes() for level in self.levels)
        if self.first_level._codebook.num_codebooks == 1:
            codes = tuple(own.squeeze(0) for own in codes)
        return _joined.stack(codes) if self.uniform_codebook_size else codes

    @gathers("layers", "mlps")
    def get_codes_from_indices(self, indices: Tensor) -> Tensor:
        """Codes of indices, level by level.

        Args:
            indices: integer (B, *, q), with several heads (B, *, heads, q), with q levels: all of them, or with
                ``quantize_dropout`` the first ones. -1 gives zeros.

        Returns:
            (Q, B, *, heads * D), features last in every layout; zeros for the missing levels.

        Raises:
            ValueError: for another number of levels. IndexError: for an index outside [-1, K).
        """
        codes = stack_levels(decode_levels(self, indices), self.num_quantizers)
        return in_half_dtype(self.first_level._codebook.half_dtype, codes)

    @gathers("layers", "mlps")
    def get_output_from_indices(self, indices: Tensor) -> Tensor:
        """The output of ``forward`` in evaluation for these indices, in the same layout.

        Zeros where all indices are -1.
        """
        indices = as_int64("ResidualVQ", indices)
        half = self.first_level._codebook.half_dtype
        output = project_codes(self.project_out, decode_sum(self, indices), indices, half)
        return self.layout.place_features(output)

    def stats(self, synced: bool = False) -> tuple[CodebookStats, ...]:
        """The use of the codes of each level in the last training forward; see ``VectorQuantize.stats``.

        One exchange for all levels if ``synced``. A dropped level has no tokens. Levels that share a codebook each
        report its dead and replaced codes.
        """
        return tuple(read_stats(self.levels, synced))

    # Learning outside of forward -------------------------------------------------------------------------------

    def update_in_place_optimizer(self) -> None:
        """Steps the in-place optimizers of the codebooks, then clears their gradients; does nothing without any."""
        for level in self.levels:
            level.update_in_place_optimizer()
        _in_place.step_in_place_optimizer(self)


ResidualVQ.decoding = methods_of(ResidualVQ, "get_codes_from_indices")

__all__ = ["MLP", "GroupedResidualVQ", "ResidualVQ"]  # noqa: F822
__getattr__ = found_in("torchvq.grouped_residual_vq", "GroupedResidualVQ", __name__)
