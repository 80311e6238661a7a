"""VectorQuantize: one codebook between an encoder and a decoder."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchvq._base.checkpointing import is_checkpointed
from torchvq._base.compat import vqp_compat_of
from torchvq._base.ema_weight import EmaWeight
from torchvq._base.integers import as_int64
from torchvq._base.layout import Layout, layout_by_options
from torchvq._base.options import check_options, keep_values, named
from torchvq._base.projection import make_projections, project_codes, projects_nothing
from torchvq._base.ranks import group_name, ranks_of
from torchvq._base.replaced import Methods, is_replaced, methods_of
from torchvq._base.wide_buffers import in_half_dtype
from torchvq._codebook import forward as _forward
from torchvq._codebook import in_place as _in_place
from torchvq._codebook.decoding import decode
from torchvq._codebook.request import Request, check_call, check_codes
from torchvq._codebook.stats import CodebookStats, keep_counts, read_stats
from torchvq._codebook.vector_quantize_options import VectorQuantizeOptions
from torchvq.codebook import Codebook
from torchvq.outputs import QuantizeOutput, QuantizeOutputWithBreakdown, QuantizeResult, copied

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_ops = torch.ops.torchvq


class VectorQuantize(_in_place.OptimizerInCheckpoint, VectorQuantizeOptions):
    """Vector quantization of latents, with a codebook that learns by moving averages or by gradient.

    Replaces each latent by its nearest code (van den Oord et al. 2017, arXiv:1711.00937). The encoder gets its gradient
    through an estimator; the codebook follows the latents by exponential moving averages.

    Shapes: ``B`` batch, ``N`` positions, ``D`` = ``codebook_dim``, ``K`` = ``codebook_size``, ``H`` codebooks
    (``heads`` with ``separate_codebook_per_head``, else 1).

    Args:
        dim: features of the input, at least 1.
        codebook_size: number of codes ``K``, at least 1.
        codebook_dim: features of a code, per head. Default: ``dim``. If ``heads * codebook_dim`` differs from ``dim``,
            ``project_in`` and ``project_out`` are linear layers, otherwise identities.
        heads: codes per latent; the features are split over them, and the first belong to head 0. Default: 1.
        separate_codebook_per_head: one codebook per head instead of one for all. Default: False.
        decay: decay of the moving averages, in [0, 1]; larger is slower. ``gamma`` in the paper. Default: 0.8.
        eps: Laplace smoothing of the cluster sizes, above 0. Default: 1e-5.
        freeze_codebook: the codebook does not change in training, except for one k-means initialisation if requested;
            losses to the encoder stay. Default: False.
        kmeans_init: initialise the codes by k-means on the first training tokens (SoundStream, arXiv:2107.03312).
            Default: False.
        kmeans_iters: Lloyd iterations of the k-means initialisation, 0 or more. Default: 10.
        sync_kmeans: whether k-means uses the tokens of all ranks that learn together; otherwise only those of rank 0.
            Default: True.
        use_cosine_sim: cosine similarity; latents and codes become unit vectors (arXiv:2110.04627). Not with
            ``learnable_codebook`` or ``affine_param``. Default: False.
        layernorm_after_project_in: layer norm after ``project_in``, if there is a projection. Default: False.
        threshold_ema_dead_code: a code whose moving average of tokens per step is below this is replaced by a token
            of the batch, unless it was used in this step. A step replaces at most one code for every four
            tokens, drawn at random, or with ``vqp_compat`` all. Default: 0, never.
        channel_last: features on the last axis; otherwise on axis 1. Default: True.
        accept_image_fmap: input is (B, dim, H, W). Default: False.
        accept_3d_fmap: input is (B, dim, T, H, W). Default: False.
        commitment_weight: weight of the commitment loss, 0 or more; ``beta`` in the paper. Default: 1.
        commitment_use_cross_entropy_loss: commitment as cross-entropy between the distances and the chosen code
            instead of the mean squared error. Default: False.
        orthogonal_reg_weight: weight of the orthogonal regularisation of the codes (arXiv:2112.00384). Above 0 the
            codes are parameters, and an optimizer's steps on them are kept by the moving averages. Default: 0.
        orthogonal_reg_active_codes_only: regularise the codes of this rank's batch only. Default: False.
        orthogonal_reg_max_codes: regularise a random subset of at most this many codes. Default: all.
        codebook_diversity_loss_weight: weight of minus the entropy of the mean code distribution. Default: 0.
        codebook_diversity_temperature: multiplies the logits of that distribution. Default: 100.
        stochastic_sample_codes: sample codes from softmax(logits / temperature) in training. Default: False.
        sample_codebook_temp: temperature of the sampling; 0 or less takes the nearest code. Default: 1.
        straight_through: with ``route_gradients_to_input=False``, send the gradient through the softmax over the
            codes (Gumbel straight-through, arXiv:1611.01144). Needs ``rotation_trick=False``; not with
            ``learnable_codebook`` or ``directional_reparam``. Default: False.
        rotation_trick: rotate and scale the gradient from code to latent (arXiv:2410.06424), with a bounded gain;
            otherwise it is copied. Default: True, but False with ``directional_reparam`` and with ``dim=1``.
        directional_reparam: DiVeQ: in training the output is the latent, moved by its distance from the code in a noisy
            direction towards it; codes learn by gradient. Needs ``threshold_ema_dead_code`` or
            ``dead_code_threshold_fraction``. Evaluation, and latents without a gradient, give the code. Default: False.
        directional_reparam_variance: variance of the noise on that direction, 0 or more. Default: 0.005.
        sync_codebook: whether ranks learn one codebook from the tokens of all ranks, with the bits that one process
            learns from the whole batch. None or True: in training, if a process group has several ranks. False: no
            communication at all, each process has its own codebook; ``TORCHVQ_SYNC=0`` in the environment means False
            for every module. Evaluation never communicates. Default: None.
        sync_affine_param: whether ranks that learn together also share the affine statistics. Default: False.
        ema_update: whether training updates the codes by moving averages. Default: True, but False with ``vq_bridge``
            and ``directional_reparam``.
        vq_bridge: module from codes (H, K, D) to the codes in use, of the same shape (FVQ); codes and bridge learn
            by the commitment loss. Default: none.
        manual_ema_update: training updates only the averages; ``_codebook.update_ema()`` sets the codes. Default:
            False.
        learnable_codebook: the codes are parameters, pulled by the commitment loss. Needs ``ema_update=False``.
            Default: False, but True with ``vq_bridge`` and ``directional_reparam``.
        in_place_codebook_optimizer: called with the codebook's parameters, returns an optimizer that takes a step
            towards the tokens inside each training forward, before the search; averages and dead codes follow it
            there, from the codes that were nearest before it. Needs codes that are parameters, by
            ``learnable_codebook`` or ``orthogonal_reg_weight``. Default: none.
        manual_in_place_optimizer_update: only accumulate its gradients; ``update_in_place_optimizer()`` takes the step.
            Default: False.
        affine_param: map the codes to the mean and variance of the data (arXiv:2305.08842). Default: False.
        affine_param_batch_decay: decay of the data's statistics, in [0, 1]. Default: 0.99.
        affine_param_codebook_decay: decay of the codes' statistics, in [0, 1]. Default: 0.9.
        sync_update_v: ``nu`` of the synchronous update (arXiv:2305.08842), in [0, 1]. Above 0 it needs
            ``learnable_codebook``. Default: 0.
        return_zeros_for_masked_padding: masked outputs are zero; otherwise the input. Default: True.
        route_gradients_to_input: the output sends its gradient to the input. Default: True.
        dead_code_threshold_fraction: like ``threshold_ema_dead_code``, but as a fraction of the mean number of tokens
            per code, so that it means the same for any batch size. Useful values are 0.01 to 0.1. Default: 0, never.
        process_group: the ranks that learn together: a group, or its name. Default: all.
        reduction: how statistics of ranks are added up: "exact", or "float" for slow networks, with half the bytes, and
            bits that depend on the number of ranks. Default: "exact".
        sync_every: number of training steps per update of the codebook, at least 1: their statistics are accumulated
            exactly and reduced once, so that ranks send one message for all of them, and the last step updates the
            codebook as from one batch with all their tokens. The result is the same on any number of ranks. Not with
            ``vqp_compat``. Default: 1.
        overlap_sync: on several ranks, send the message of a training step in forward and wait for it when backward
            ends, which hides it; the bits are the same. Reading the codebook earlier (``stats``, ``state_dict``, the
            next forward, any of its buffers) waits for the message; between forward and the end of backward either all
            ranks do so or none. Compiled and checkpointed steps, codes that are parameters, ``accum_ema_update`` and a
            function as ``ema_update_weight`` still wait in forward. Not with ``sync_every`` above 1. Default: False.
        vqp_compat: behave as ``vector_quantize_pytorch`` where this class differs on purpose and training depends on
            it; ``docs/migrating.md`` has the list. Default: set by ``TORCHVQ_COMPAT``.

    Raises:
        ValueError: an option out of range, or options that exclude each other.

    Dtypes: the output has the dtype of the input, indices are int64. Under any autocast or module cast distances and
        losses are float32, and float64 for float64 tokens (behind a float32 projection tokens are float32); moving
        averages stay float32 until the module is cast to double.

    Determinism: indices and the learnt codebook do not depend on threads, instruction set or block sizes. Random
    choices come from a counter-based generator, seeded from torch's at construction and saved in checkpoints.

    Differences from ``vector_quantize_pytorch`` are listed in ``docs/migrating.md``.

    Example:
        >>> vq = VectorQuantize(dim=256, codebook_size=512)
        >>> quantized, indices, loss = vq(torch.randn(1, 1024, 256))
        >>> quantized.shape, indices.shape, loss.shape
        (torch.Size([1, 1024, 256]), torch.Size([1, 1024]), torch.Size([]))
    """

    step_counts: Tensor
    # Methods whose override in a subclass makes `get_output_from_indices` project the codes that they return.
    decoding: Methods

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        codebook_dim: int | None = None,
        heads: int = 1,
        separate_codebook_per_head: bool = False,
        decay: float = 0.8,
        eps: float = 1e-5,
        freeze_codebook: bool = False,
        kmeans_init: bool = False,
        kmeans_iters: int = 10,
        sync_kmeans: bool = True,
        use_cosine_sim: bool = False,
        layernorm_after_project_in: bool = False,
        threshold_ema_dead_code: float = 0,
        channel_last: bool = True,
        accept_image_fmap: bool = False,
        accept_3d_fmap: bool = False,
        commitment_weight: float = 1.0,
        commitment_use_cross_entropy_loss: bool = False,
        orthogonal_reg_weight: float = 0.0,
        orthogonal_reg_active_codes_only: bool = False,
        orthogonal_reg_max_codes: int | None = None,
        codebook_diversity_loss_weight: float = 0.0,
        codebook_diversity_temperature: float = 100.0,
        stochastic_sample_codes: bool = False,
        sample_codebook_temp: float = 1.0,
        straight_through: bool = False,
        rotation_trick: bool | None = None,
        directional_reparam: bool = False,
        directional_reparam_variance: float = 0.005,
        sync_codebook: bool | None = None,
        sync_affine_param: bool = False,
        ema_update: bool | None = None,
        vq_bridge: nn.Module | None = None,
        manual_ema_update: bool = False,
        learnable_codebook: bool | None = None,
        in_place_codebook_optimizer: Callable[..., Optimizer] | None = None,
        manual_in_place_optimizer_update: bool = False,
        affine_param: bool = False,
        affine_param_batch_decay: float = 0.99,
        affine_param_codebook_decay: float = 0.9,
        sync_update_v: float = 0.0,
        return_zeros_for_masked_padding: bool = True,
        route_gradients_to_input: bool = True,
        *,
        dead_code_threshold_fraction: float = 0.0,
        process_group: "ProcessGroup | str | None" = None,
        reduction: str = "exact",
        sync_every: int = 1,
        overlap_sync: bool = False,
        vqp_compat: bool | None = None,
    ) -> None:
        super().__init__()
        # Defaults that depend on other options.
        rotates, moves, learns = map(bool, check_options("VectorQuantize", locals()))

        kept = named(
            locals(),
            "dim codebook_size heads separate_codebook_per_head eps freeze_codebook use_cosine_sim "
            "channel_last accept_image_fmap accept_3d_fmap return_zeros_for_masked_padding "
            "sync_codebook sync_kmeans sync_affine_param reduction "
            "commitment_weight commitment_use_cross_entropy_loss "
            "orthogonal_reg_weight orthogonal_reg_active_codes_only orthogonal_reg_max_codes "
            "codebook_diversity_loss_weight codebook_diversity_temperature stochastic_sample_codes "
            "straight_through directional_reparam directional_reparam_variance sync_update_v "
            "route_gradients_to_input manual_in_place_optimizer_update",
        )
        keep_values(
            self,
            **kept,
            process_group=group_name("VectorQuantize", process_group),
            has_commitment_loss=commitment_weight > 0.0 and not directional_reparam,
            has_codebook_orthogonal_loss=orthogonal_reg_weight > 0.0,
            has_codebook_diversity_loss=codebook_diversity_loss_weight > 0.0,
            rotation_trick=rotates,
            learnable_codebook=learns,
            vqp_compat=vqp_compat_of(vqp_compat),
        )

        codebook_dim = dim if codebook_dim is None else codebook_dim
        inner_dim = codebook_dim * heads
        self.has_projections = inner_dim != dim
        self.project_in, self.project_out = make_projections(
            dim, inner_dim, layernorm_after_project_in
        )

        self._codebook = Codebook(  # type: ignore[misc]
            codebook_dim,
            codebook_size,
            heads if separate_codebook_per_head else 1,
            parameter=learns or self.has_codebook_orthogonal_loss,
            vqp_compat=self.vqp_compat,
            ema_update=moves,
            **named(
                locals(),
                "decay eps use_cosine_sim kmeans_init kmeans_iters threshold_ema_dead_code "
                "dead_code_threshold_fraction manual_ema_update vq_bridge affine_param "
                "affine_param_batch_decay affine_param_codebook_decay sync_every overlap_sync "
                "sample_codebook_temp",
            ),
        )
        keep_counts(self)
        self.in_place_codebook_optimizer: Optimizer | None = None
        if in_place_codebook_optimizer is not None:
            self.in_place_codebook_optimizer = in_place_codebook_optimizer(
                self._codebook.parameters()
            )
            _in_place.keep_optimizer_in_checkpoint(self)

    # Forward -----------------------------------------------------------------------------------------------

    def forward(
        self,
        x: Tensor,
        indices: Tensor | None = None,
        mask: Tensor | None = None,
        lens: Tensor | None = None,
        topk: int | None = None,
        sample_codebook_temp: float | None = None,
        freeze_codebook: bool | None = None,
        return_loss_breakdown: bool = False,
        codebook_transform_fn: Callable[[Tensor], Tensor] | None = None,
        ema_update_weight: EmaWeight | None = None,
        accum_ema_update: bool = False,
        ema_update: bool | None = None,
    ) -> QuantizeResult:
        """Quantizes x; in training also updates the codebook.

        Args:
            x: (B, *, dim), with any number of position axes or none; with ``channel_last=False`` (B, dim, *); or as the
                map options say. Any floating dtype but float8.
            indices: target codes: the result is then ``(quantized, loss)``, with the cross-entropy of the distances
                with these targets as loss, in evaluation too. -1 is left out.
            mask: bool, (B, *), True for real tokens. Padding has no effect; its index is -1.
            lens: (B,) integer, lengths of sequences with one position axis, instead of mask; above N means N.
            topk: return the k nearest codes: quantized (B, N, k, dim), indices (B, N, k), loss per candidate (B, N,
                k); without commitment loss a scalar in training, unweighted in evaluation. The codes do not learn from
                this call; the first k-means, and in training the statistics of ``affine_param``, take its tokens.
                k is the last axis of quantized for channel-first layouts, too. Sampling draws k different codes.
                Above K it means K. Only with one head.
            sample_codebook_temp: overrides the option for this call.
            freeze_codebook: overrides the option for this call.
            return_loss_breakdown: append a ``LossBreakdown`` of the unweighted terms.
            codebook_transform_fn: maps codes (H, K, D) to codes of each token (H, B, N, K, D), which are searched
                instead; with heads that share a codebook (1, B * heads, N, K, D).
            ema_update_weight: (K,) or (H, K) tensor, number, or function of (sums (H, K, D), counts (H, K))
                returning one: multiplies 1 - decay of each code. With ``sync_every`` above 1 that of the updating step
                counts, and it may not be a function.
            accum_ema_update: keep this call's statistics for the next call without it, as if both were one batch. With
                ``sync_every`` above 1 both count as one step. Nothing is kept where averages do not learn. What is
                kept is no part of checkpoints: loading a state or assigning ``codebook`` drops it, but for that of
                ``sync_every``.
            ema_update: overrides the option for this call.

        Returns:
            ``(quantized, indices, loss)``, named. loss is a scalar; 0 in evaluation. It requires grad in training
            only, the cross-entropy of ``indices`` in evaluation too. No tokens, or all masked: loss 0, nothing
            updated. A token with NaN or infinity gives NaN and index 0, and does not reach the codebook.

        Raises:
            ValueError: wrong shapes or conflicting arguments. TypeError: wrong dtypes. IndexError: wrong targets.
        """
        layout = self._layout
        layout.check_input(x)
        token_mask = layout.token_mask(x, mask, lens)
        flags = freeze_codebook, accum_ema_update, ema_update
        check_call(self, x, indices, topk, sample_codebook_temp, ema_update_weight, flags)
        asked = indices is not None or topk is not None or codebook_transform_fn is not None
        if not (self.training or asked) and projects_nothing(self.project_in, self.project_out):
            return _forward.evaluate_at_once(self, x, token_mask, layout, return_loss_breakdown)
        updates = self.ema_update if ema_update is None else ema_update
        request = Request(
            targets=indices,
            mask=token_mask,
            topk=None if topk is None else min(topk, self.codebook_size),
            temperature=self.sample_codebook_temp
            if sample_codebook_temp is None
            else sample_codebook_temp,
            frozen=self.freeze_codebook if freeze_codebook is None else freeze_codebook,
            transform=codebook_transform_fn,
            ema_update=updates,
            accumulate=accum_ema_update and self._codebook.learns(updates),
            weight=ema_update_weight,
            ranks=ranks_of(self, "VectorQuantize"),
        )
        recorded = self.training and is_checkpointed()
        with self._codebook.recorded_step() if recorded else nullcontext():
            quantized, chosen, loss, breakdown = _forward.projected_step(self, x, request, layout)
        if indices is not None:
            return (
                (quantized, loss, copied(breakdown)) if return_loss_breakdown else (quantized, loss)
            )
        if return_loss_breakdown:
            return QuantizeOutputWithBreakdown(quantized, chosen, loss, copied(breakdown))
        return QuantizeOutput(quantized, chosen, loss)

    # Stages of forward ---------------------------------------------------------------------------------------

    @property
    def _layout(self) -> Layout:
        return layout_by_options(
            self, self.heads, self.separate_codebook_per_head, "VectorQuantize"
        )

    # Codes -----------------------------------------------------------------------------------------------------

    @property
    def _codebook(self) -> Codebook:
        # Registered under this name; a lookup through the module takes four times as long.
        return self._modules["_codebook"]  # type: ignore[return-value]

    @property
    def codebook(self) -> Tensor:
        """The codes that decoding uses: (K, D), or (H, K, D) with one codebook per head. Assigning a tensor, buffer or
        parameter sets the codes and their moving averages, and marks the codebook as initialised."""
        codes = self._codebook.codes()
        return codes if self.separate_codebook_per_head else codes.squeeze(0)

    @codebook.setter
    def codebook(self, codes: Tensor) -> None:
        check_codes(codes, self._codebook.embed)
        self._codebook.set_codes(codes)

    # torch would register an assigned buffer or parameter, and refuses a name that is a property.

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        if name == "codebook" and tensor is not None:
            self.codebook = tensor.detach()
        else:
            super().register_buffer(name, tensor, persistent)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        if name == "codebook" and param is not None:
            self.codebook = param.detach()
        else:
            super().register_parameter(name, param)

    def get_codes_from_indices(self, indices: Tensor) -> Tensor:
        """Codes of indices, before ``project_out``.

        Args:
            indices: integer, in any shape that ``forward`` returns: (B, *), with several heads (B, *, heads). -1 gives
                zeros.

        Returns:
            (B, *, heads * codebook_dim), or with the features on axis 1 for channel-first layouts; float32, float64
            for a double module, or the half precision that the module was cast to. Gradient to a learnable codebook.

        Raises:
            IndexError: for an index outside [-1, codebook_size).
        """
        codes = self._decode(as_int64("VectorQuantize", indices))
        codes = in_half_dtype(self._codebook.half_dtype, codes)
        return self._layout.place_features(codes)

    def get_output_from_indices(self, indices: Tensor) -> Tensor:
        """The output of ``forward`` in evaluation for these indices: codes, then ``project_out``, in the same layout.
        Zeros where the index (of every head) is -1."""
        indices = as_int64("VectorQuantize", indices)
        layout = self._layout
        if is_replaced(self, self.decoding):
            tokens = self.get_codes_from_indices(indices)
            tokens = tokens.movedim(1, -1) if layout.channel_first and tokens.dim() > 1 else tokens
        else:
            tokens = self._decode(indices)
        output = project_codes(self.project_out, tokens, indices, self._codebook.half_dtype)
        return layout.place_features(output)

    def _decode(self, indices: Tensor) -> Tensor:
        """Codes (*, heads * codebook_dim) of int64 indices, features last in every layout."""
        return decode(self._codebook, indices, self.heads, self.separate_codebook_per_head)

    def stats(self, synced: bool = False) -> CodebookStats:
        """The use of the codes in the last training forward: usage, perplexity, dead and replaced codes, entropy.

        Args:
            synced: count the tokens of all ranks of the process group instead of this rank's: two messages, in which
                all ranks must take part. Has no effect without a group, or with ``sync_codebook=False``.

        Returns:
            Python numbers; on a GPU this waits for the step. A training forward counts the chosen codes, without masked
            tokens, in one pass over the indices; with ``topk`` it has no tokens. Evaluation leaves the counts.
            ``dead`` and ``replaced`` follow from state that ranks share. A codebook that learns only by gradient has
            dead codes only with a threshold for them. Checkpoints do not contain the counts.
        """
        return read_stats([self], synced)[0]

    # Learning outside of forward -------------------------------------------------------------------------------

    def update_ema_indices(self, x: Tensor, indices: Tensor, mask: Tensor | None = None) -> None:
        """One codebook update from tokens with known indices; in evaluation without replacement of dead codes.

        Args:
            x: as for ``forward``; projected here.
            indices: integer, as returned by ``forward``, or flat; -1 is left out.
            mask: as for ``forward``.

        Raises:
            ValueError: wrong shapes. TypeError: wrong dtypes. IndexError: an index outside [-1, K).
        """
        if self.ema_update:
            _forward.learn_from_indices(self, x, indices, mask)

    update_indices = update_ema_indices

    def expire_codes_(self, x: Tensor) -> None:
        """Replaces dead codes by tokens of x now; does nothing without a dead-code threshold, or in evaluation.

        Args:
            x: (B, N, heads * codebook_dim), already projected.
        """
        _forward.replace_codes_now(self, x)

    def update_in_place_optimizer(self) -> None:
        """Steps the in-place optimizer, then clears its gradients; does nothing without one."""
        _in_place.step_in_place_optimizer(self)

    def maybe_split_heads_from_input(self, x: Tensor) -> Tensor:
        """(B, N, heads * D) to (heads, B, N, D), with shared codes to (1, B * heads, N, D); unchanged with one head."""
        return self._layout.split_visible(x)


VectorQuantize.decoding = methods_of(VectorQuantize, "get_codes_from_indices")
