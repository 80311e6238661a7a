"""FSP: finite scalar perturbation; training adds noise to features, evaluation rounds them to bin centres."""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from torchvq._base.compat import as_returned, levels_as_returned, vqp_compat_of
from torchvq._base.constants import materialise_constants
from torchvq._base.integers import as_int64
from torchvq._base.layout import Layout
from torchvq._base.noise import NoisyModule
from torchvq._base.options import check_options, expect, keep_values, named
from torchvq._base.own_handle import OwnHandle
from torchvq._base.projection import (
    decoding_dtype,
    make_projections,
    project,
    project_codes,
    projects_nothing,
)
from torchvq._base.ranks import (
    ALONE,
    Ranks,
    default_group,
    distributed_training,
    group_name,
    on_device_of,
)
from torchvq._base.replaced import methods_of, warn_of_replaced
from torchvq._base.replay import StepRecords
from torchvq._base.torch_private import as_constants
from torchvq.outputs import FSPOutput

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_ops = torch.ops.torchvq

ACTIVATIONS = ("tanh", "sigmoid", "normal", "laplace", "cauchy")
_EPS = 1e-6
_STATISTICS = ("mean", "variance", "skewness", "kurtosis")


class MomentTargets(NamedTuple):
    """Targets and weights of a norm for mean, variance, skewness and excess kurtosis."""

    targets: list[float]
    weights: list[float]


VECTOR_NORMS = {
    "none": MomentTargets([0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]),
    "var": MomentTargets([0.0, 1.0, 0.0, 0.0], [0.1, 0.07, 0.0, 0.0]),
    "kurt": MomentTargets([0.0, 1.0, 0.0, 0.0], [0.1, 0.07, 0.06, 0.05]),
    "var_tanh": MomentTargets([0.0, 0.8225, 0.0, 0.0], [0.1, 0.07, 0.0, 0.0]),
    "var_sigmoid": MomentTargets([0.0, 3.29, 0.0, 0.0], [0.1, 0.07, 0.0, 0.0]),
    "var_laplace": MomentTargets([0.0, 2.0, 0.0, 0.0], [0.1, 0.07, 0.0, 0.0]),
}


def build_cdf_act(act_name: str) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """A distribution function and its inverse, as functions of tensors of any shape and floating dtype.

    Args:
        act_name: ``tanh``, ``sigmoid``, ``normal``, ``laplace`` or ``cauchy``, as for ``FSP``.

    Returns:
        ``F``, which maps any number to [0, 1], and its inverse, which is infinite at 0 and 1 and NaN outside. Both have
        a gradient, and give float64 for float64, otherwise float32.

    ValueError for another name.
    """
    if act_name not in ACTIVATIONS:
        raise ValueError(
            f"build_cdf_act: expected act_name to be one of {ACTIVATIONS}, but got {act_name}"
        )
    return (
        partial(_ops.distribution_cdf, cdf=act_name),
        partial(_ops.distribution_quantile, cdf=act_name),
    )


class FSP(OwnHandle, NoisyModule):
    """Finite scalar perturbation: rounds every feature to a few levels, and in training adds noise instead.

    An activation, which is a distribution function, makes features about uniform on [0, 1], divided into ``L`` bins.
    Training adds noise of up to half a bin; evaluation takes the centres of the bins, the best codes for a uniform
    distribution (Zhai et al. 2026, VP-VAE, arXiv:2602.17133). There is no codebook that could collapse.

    Args:
        levels: bins of each feature, each 2 to 65536, product at most 2**62.
        dim: features of the input. If it differs from the number of levels, ``project_in`` and ``project_out`` are
            linear layers, otherwise identities. Default: the number of levels.
        channel_first: features on axis 1; otherwise on the last. Default: False.
        projection_has_bias: whether the projections have a bias. Default: True.
        act_name: the distribution: tanh (logistic of scale 1/2), sigmoid (logistic), normal, laplace or cauchy.
            Default: "tanh".
        quantize_rate: the probability, for each feature of each token, of being quantized in training instead of
            perturbed, in [0, 1]. Default: 0.
        need_inv_act: whether the inverse of the activation maps codes back to the scale of the input; the gradient is
            then straight-through. Default: False: codes are sqrt(12) (u - 1/2), of variance 1.
        vector_norm: which moments of the latents the loss pulls to those of the distribution: none, var, kurt,
            var_tanh, var_sigmoid or var_laplace. Default: "var_tanh".
        sync_statistics: whether ranks that train together compute the moments over the tokens of all ranks. None or
            True: in training, if a process group has several ranks; None: never with ``vqp_compat``. False: never.
            Default: None.
        process_group: these ranks: a group, or its name. Default: all.
        vqp_compat: behave as ``vector_quantize_pytorch``: moments of each rank's own tokens, unless
            ``sync_statistics``; int32 indices, if the codebook has less than 2^31 codes. Default: set by
            ``TORCHVQ_COMPAT``.

    Raises:
        ValueError: an option out of range.

    Exactness: indices are found by comparing latents with the numbers at which levels change, so they depend only on
        the value of the latent, not on dtype, device or threads.

    State: ``rng`` (2,), int64, seed and step of the noise; a checkpoint without it loads with ``strict=True``.

    Differences from ``vector_quantize_pytorch`` are listed in ``docs/migrating.md``.

    Example:
        >>> quantizer = FSP(levels=[8, 5, 5, 5])
        >>> quantized, indices, loss, info = quantizer(torch.randn(1, 1024, 4))
        >>> quantized.shape, indices.shape, loss.shape
        (torch.Size([1, 1024, 4]), torch.Size([1, 1024]), torch.Size([]))
    """

    levels: list[int]
    dim: int
    codebook_dim: int
    codebook_size: int
    channel_first: bool
    act_name: str
    quantize_rate: float
    need_inv_act: bool
    vector_norm: str
    vqp_compat: bool
    sync_statistics: bool | None
    process_group: str | None
    has_projections: bool
    handshakes: Tensor
    _gathered: StepRecords[Tensor]

    def __init__(
        self,
        levels: list[int] | tuple[int, ...],
        dim: int | None = None,
        channel_first: bool = False,
        projection_has_bias: bool = True,
        act_name: str = "tanh",
        quantize_rate: float = 0.0,
        need_inv_act: bool = False,
        vector_norm: str = "var_tanh",
        *,
        sync_statistics: bool | None = None,
        process_group: "ProcessGroup | str | None" = None,
        vqp_compat: bool | None = None,
    ) -> None:
        super().__init__()
        check_options("FSP", locals())
        warn_of_replaced(self, _NOT_CALLED)
        counts = [int(count) for count in levels]
        compat = vqp_compat_of(vqp_compat)
        keep_values(
            self,
            levels=counts,
            dim=len(counts) if dim is None else dim,
            codebook_dim=len(counts),
            codebook_size=prod(counts),
            **named(locals(), "channel_first act_name quantize_rate need_inv_act vector_norm"),
            vqp_compat=compat,
            sync_statistics=False if sync_statistics is None and compat else sync_statistics,
            process_group=group_name("FSP", process_group),
            has_projections=dim is not None and dim != len(counts),
            _gathered=StepRecords[Tensor](),
            handle=_ops.new_handle(),
        )
        self.project_in, self.project_out = make_projections(
            self.dim, self.codebook_dim, bias=projection_has_bias
        )
        # Compilers keep the handshake, an operator without results, only if it writes to the module's state. There is
        # none to make equal, so it gets a buffer without elements.
        self.keep_constant("handshakes", torch.empty(0, dtype=torch.long, device="cpu"))
        self.register_load_state_dict_post_hook(materialise_constants)  # type: ignore[no-untyped-call]

    def extra_repr(self) -> str:
        """The options, for ``print``."""
        return (
            f"levels={self.levels}, dim={self.dim}, act_name={self.act_name!r}, "
            f"need_inv_act={self.need_inv_act}, quantize_rate={self.quantize_rate}, "
            f"vector_norm={self.vector_norm!r}"
        )

    @property
    def signature(self) -> str:
        """The options in which all ranks must agree, as text; they may change while the module trains."""
        (rate,) = as_constants((self.quantize_rate,))
        return (
            f"FSP of levels {self.levels}, {self.act_name}, inverse {self.need_inv_act}, "
            f"rate {rate}, norm {self.vector_norm}"
        )

    def forward(
        self, z: Tensor, eps: float | None = None, *, mask: Tensor | None = None
    ) -> FSPOutput:
        """Perturbs z in training, quantizes it in evaluation.

        Args:
            z: (B, *, dim), or with ``channel_first`` (B, dim, *), otherwise also a vector (dim,); any floating
                dtype but float8.
            eps: with ``need_inv_act``, activations are kept in [eps, 1 - eps] before the inverse. Default: 1e-6.
            mask: bool (B, *), True for real tokens. Padding has no effect; its output is 0, its index -1.

        Returns:
            ``(quantized, indices, norm_loss, other_info)``, named: the layout and dtype of z; int64 (B, *), the bins of
            z without noise; a scalar, with gradient only in training. ``other_info`` holds
            ``level_indices`` (B, *, D), int64; ``norm_info`` with ``mean``, ``variance``, ``skewness`` and
            ``kurtosis`` (D) of the latents; in training with ``quantize_rate`` below 1 ``p_accept_prob``, the fraction
            of perturbations that stayed inside [0, 1] and so were applied.

            No tokens: loss 0. One token: no variance, so only the mean counts. A token with NaN or infinity gives NaN
            and index 0.

        Raises:
            ValueError: wrong shapes. TypeError: wrong dtypes.
        """
        if isinstance(z, Tensor) and z.dim() == 1 and not self.channel_first:
            return _only(self.forward(z.unsqueeze(0), eps, mask=mask))
        layout = self._layout
        layout.check_input(z, "z")
        token_mask = layout.token_mask(z, mask, None)
        # Before the generator advances.
        if eps is not None and not torch.compiler.is_compiling():
            expect("FSP", 0 < eps < 0.5, "eps", "in (0, 1/2)", eps)
        tokens = layout.pack(z, token_mask)
        projects = not projects_nothing(self.project_in, self.project_out)
        latents = project(self.project_in, tokens) if projects else tokens
        ranks = self._ranks()
        self._handshake(latents, ranks)
        # Before the generator advances, because another rank may be lost.
        loss, norm_info = self._norm(latents, token_mask, ranks)
        draws = self.training and self.quantize_rate < 1
        codes, level_indices, indices, acceptance = _ops.scalar_perturb(
            latents,
            self.levels,
            self.take_rng(latents, token_mask, ranks) if draws else None,
            quantize_rate=self.quantize_rate,
            cdf=self.act_name,
            form=self._form,
            eps=_EPS if eps is None else eps,
            mask=token_mask,
        )
        output = (project(self.project_out, codes) if projects else codes).to(z.dtype)
        info: dict[str, Any] = {
            "level_indices": layout.unpack_positions(level_indices, z),
            "norm_info": norm_info,
        }
        if draws:
            info["p_accept_prob"] = acceptance
        indices = self._as_returned(layout.unpack_positions(indices, z))
        return FSPOutput(layout.unpack(output, z, token_mask), indices, loss, info)

    def _as_returned(self, indices: Tensor) -> Tensor:
        return as_returned(indices, self.vqp_compat, self.codebook_size)

    @property
    def act_func(self) -> Callable[[Tensor], Tensor]:
        """The activation: the distribution function ``act_name``."""
        return build_cdf_act(self.act_name)[0]

    @property
    def inv_act_func(self) -> Callable[[Tensor], Tensor]:
        """The inverse of the activation."""
        return build_cdf_act(self.act_name)[1]

    # Codes -----------------------------------------------------------------------------------------------------

    def quantize_act_value(self, act_z: Tensor, eps: float = _EPS) -> tuple[Tensor, Tensor]:
        """(centres, levels int64) of activations (*, D) in [0, 1]; ``eps`` is not used. No gradient."""
        level_indices = _ops.scalar_act_levels(act_z, self.levels)
        return self.indices_to_act_value(self.level_indices_to_indices(level_indices)).to(
            act_z.dtype
        ), level_indices

    def level_indices_to_indices(self, level_indices: Tensor) -> Tensor:
        """Levels (*, D), integers, to indices (*); the first feature varies fastest. -1 gives -1."""
        whole = as_int64("FSP", level_indices)
        return self._as_returned(_ops.scalar_indices(whole, self.levels))

    def indices_to_level_indices(self, indices: Tensor) -> Tensor:
        """Indices (*) to levels (*, D); -1 gives -1.

        int64, or with ``vqp_compat`` int32 for indices whose dtype fits into it.
        """
        levels = _ops.scalar_level_indices(as_int64("FSP", indices), self.levels)
        return levels_as_returned(levels, indices, self.vqp_compat)

    def indices_to_act_value(self, indices: Tensor) -> Tensor:
        """Indices (*) to activations (*, D), the centres of the bins."""
        return _ops.scalar_centroids(
            as_int64("FSP", indices), self.levels, cdf=self.act_name, form="act"
        )

    def indices_to_codes(self, indices: Tensor, eps: float = _EPS) -> Tensor:
        """The output of ``forward`` in evaluation for these indices; -1 gives zeros.

        Args:
            indices: integer (B, *), as returned by ``forward``.
            eps: as for ``forward``.

        IndexError for an index outside of [-1, K).
        """
        indices = as_int64("FSP", indices)
        codes = _ops.scalar_centroids(
            indices,
            self.levels,
            cdf=self.act_name,
            form=self._form,
            eps=eps,
            dtype=decoding_dtype(self.project_in, self.project_out),
        )
        output = project_codes(self.project_out, codes, indices, self.half_dtype)
        return self._layout.place_features(output)

    # Stages of forward -------------------------------------------------------------------------------------------

    def _norm(
        self, latents: Tensor, mask: Tensor | None, ranks: Ranks
    ) -> tuple[Tensor, dict[str, Tensor]]:
        norm = VECTOR_NORMS[self.vector_norm]
        seen = latents if self.training else latents.detach()
        if ranks.alone:
            loss, *statistics, _ = _ops.token_moment_loss(
                seen, norm.targets, norm.weights, mask=mask
            )
            return loss, dict(zip(_STATISTICS, statistics, strict=True))
        moments = _ops.token_moments(seen, mask=mask)
        rows = self._shared(latents, moments, ranks)
        loss, *statistics = _ops.moment_loss(rows, norm.targets, norm.weights)
        dtype = torch.float64 if latents.dtype == torch.float64 else torch.float32
        values = (statistic.to(dtype) for statistic in statistics)
        return loss.to(dtype), dict(zip(_STATISTICS, values, strict=True))

    def _handshake(self, latents: Tensor, ranks: Ranks) -> None:
        """Before the first forward whose moments ranks share, compares options over the ranks."""
        if ranks.alone:
            return
        state = [on_device_of(latents), self.handshakes]
        _ops.handshake_(state, handle=self.handle, signature=self.signature, **ranks.options())

    def _shared(self, latents: Tensor, moments: Tensor, ranks: Ranks) -> Tensor:
        """The moments of all ranks; the recomputation of a checkpointed step communicates nothing."""
        gathered = self._gathered.take()
        if gathered is None:
            gathered = _ops.gather_moments(moments.detach(), **ranks.options())
            self._gathered.keep(gathered)
        return _ops.attach_moments(gathered, moments, **ranks.options())

    def _ranks(self) -> Ranks:
        if not self.training or self.sync_statistics is False or not distributed_training():
            return ALONE
        group = default_group() if self.process_group is None else self.process_group
        return Ranks(group, f"FSP(dim={self.dim}, codebook_size={self.codebook_size})")

    @property
    def _form(self) -> str:
        return "inverse" if self.need_inv_act else "unit"

    @property
    def _layout(self) -> Layout:
        return Layout(self.dim, self.channel_first, "FSP")


def _only(output: FSPOutput) -> FSPOutput:
    """The output for one vector, without the batch axis that was added."""
    info = dict(output.other_info, level_indices=output.other_info["level_indices"].squeeze(0))
    return FSPOutput(output.quantized.squeeze(0), output.indices.squeeze(0), output.norm_loss, info)


_NOT_CALLED = methods_of(FSP, "quantize_act_value")
