"""LatentQuantize: a few learnt values for every feature."""

from collections.abc import Callable, Iterable, Iterator
from math import prod
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchvq._base import constants as _constants
from torchvq._base.compat import as_returned, vqp_compat_of
from torchvq._base.integers import as_int64
from torchvq._base.layout import Layout
from torchvq._base.options import check_options, expect
from torchvq._base.own_handle import OwnHandle
from torchvq._base.projection import make_projections, project, project_codes, projects_nothing
from torchvq._base.ranks import Ranks, everybody, tokens_text
from torchvq._base.replaced import methods_of, warn_of_replaced
from torchvq._base.replay import StepRecords
from torchvq._base.torch_private import inside_backward, outside_graphs, uncounted
from torchvq._base.wide_buffers import HALF, WideBuffers, in_half_dtype, wide_dtype
from torchvq._codebook import in_place as _in_place
from torchvq.outputs import QuantizeOutput

_ops = torch.ops.torchvq


class LatentQuantize(OwnHandle, _in_place.OptimizerInCheckpoint, WideBuffers):
    """Replaces every feature of a latent by the nearest of a few learnt values of that feature.

    Hsu et al. 2023, Disentanglement via Latent Quantization, arXiv:2305.18378. The gradient passes from output to input
    unchanged; the quantization loss pulls values to the latents, the commitment loss pulls latents to their values. The
    paper adds strong weight decay on encoder and decoder.

    Args:
        levels: number of values of each feature, each 2 to 65536, product at most 2**62; or one number for all
            features.
        dim: features of the input, at least 1.
        commitment_loss_weight: weight of the commitment loss, 0 or more; None is 0. Default: 0.1.
        quantization_loss_weight: weight of the quantization loss, 0 or more; None is 0. Default: 0.1.
        num_codebooks: codes per token, each of ``codebook_dim`` features; they share the values. Default: 1.
        codebook_dim: features of a code. Default (-1): the length of ``levels``; required if ``levels`` is one number.
            If ``num_codebooks * codebook_dim`` differs from ``dim``, ``project_in`` and
            ``project_out`` are linear layers, otherwise identities.
        keep_num_codebooks_dim: whether indices have a last axis for the codebooks; with several codebooks they always
            do. Default: with several codebooks.
        optimize_values: whether the values are parameters; otherwise they are constants, and not part of the state
            dict. Default: True.
        in_place_codebook_optimizer: called with the values, returns an optimizer that takes a step towards the latents
            inside each training forward, over the latents of all ranks. The returned loss then has no gradient to the
            values. ``torch.compile`` runs this step eagerly, between two graphs, so training with ``fullgraph=True`` is
            refused; evaluation, and everything without this optimizer, is one graph. Default: none.
        channel_first: features on axis 1 (B, dim, *); otherwise on the last. Default: True.
        vqp_compat: behave as ``vector_quantize_pytorch``: the loss compares input and output, each of its two terms
            pulls the side that the other should, values learn by an ``in_place_codebook_optimizer`` alone;
            int32 indices, if the codebook has less than 2^31 codes. Default: set by ``TORCHVQ_COMPAT``.

    Values start evenly spaced: from -1/2 to 1/2 for odd levels, from -1/2 to 1/2 - 1/L for even.

    Shapes: ``B`` batch, ``*`` positions, ``D`` = ``codebook_dim``, ``C`` = ``num_codebooks``.

    State: ``values_per_latent.N``, the values of feature N, if ``optimize_values``; ``project_in.*``,
    ``project_out.*``; with ``in_place_codebook_optimizer`` its state.

    Gradient: that of the output goes to the latents unchanged, in evaluation as well, and not to the values; the
    quantization loss has one to the values, the commitment loss one to the latents.

    Dtypes: any floating input but float8. The output has its dtype, indices are int64.

    Raises:
        ValueError: an option out of range. TypeError: an option of a wrong type.
        RuntimeError: one number of levels and no ``codebook_dim``.

    Differences from ``vector_quantize_pytorch`` are listed in ``docs/migrating.md``.

    Example:
        >>> quantizer = LatentQuantize(levels=[5, 5, 8], dim=16)
        >>> quantized, indices, loss = quantizer(torch.randn(1, 16, 32, 32))
        >>> quantized.shape, indices.shape, loss.shape
        (torch.Size([1, 16, 32, 32]), torch.Size([1, 32, 32]), torch.Size([]))
    """

    values_per_latent: "nn.ParameterList | FixedValues"

    def __init__(
        self,
        levels: list[int] | int,
        dim: int,
        commitment_loss_weight: float | None = 0.1,
        quantization_loss_weight: float | None = 0.1,
        num_codebooks: int = 1,
        codebook_dim: int = -1,
        keep_num_codebooks_dim: bool | None = None,
        optimize_values: bool | None = True,
        in_place_codebook_optimizer: Callable[..., Optimizer] | None = None,
        *,
        channel_first: bool = True,
        vqp_compat: bool | None = None,
    ) -> None:
        super().__init__()
        # Only Python has codebook_dim, one number as levels, and None for zero and False.
        options: dict[str, Any] = dict(
            levels=_resolve_levels(levels, codebook_dim),
            dim=dim,
            commitment_loss_weight=_or_zero(commitment_loss_weight),
            quantization_loss_weight=_or_zero(quantization_loss_weight),
            num_codebooks=num_codebooks,
            keep_num_codebooks_dim=keep_num_codebooks_dim,
            optimize_values=_or_zero(optimize_values),
            in_place_codebook_optimizer=in_place_codebook_optimizer,
            channel_first=channel_first,
            vqp_compat=vqp_compat,
        )
        check_options("LatentQuantize", options)
        warn_of_replaced(self, _NOT_CALLED)
        self.levels = [int(count) for count in options["levels"]]
        self.commitment_loss_weight = float(options["commitment_loss_weight"])
        self.quantization_loss_weight = float(options["quantization_loss_weight"])
        self.vqp_compat = vqp_compat_of(vqp_compat)
        initial = [own.to(wide_dtype()) for own in _ops.latent_values(self.levels)]
        self.dim = dim
        self.num_codebooks = num_codebooks
        self.codebook_dim = len(self.levels)
        self.effective_codebook_dim = self.codebook_dim * num_codebooks
        self.codebook_size = prod(self.levels)
        self.keep_num_codebooks_dim = bool(keep_num_codebooks_dim) or num_codebooks > 1
        self.optimize_values = bool(optimize_values)
        self.channel_first = channel_first
        self.has_projections = self.effective_codebook_dim != dim
        self.project_in, self.project_out = make_projections(dim, self.effective_codebook_dim)
        self.values_per_latent = (
            nn.ParameterList(nn.Parameter(_constants.to_default_device(own)) for own in initial)
            if self.optimize_values
            else FixedValues(initial)
        )
        if not self.optimize_values:
            self.register_load_state_dict_post_hook(_constants.materialise_constants)  # type: ignore[no-untyped-call]
        self._stepped: StepRecords[list[Tensor]] = StepRecords()
        self.in_place_codebook_optimizer: Optimizer | None = None
        if in_place_codebook_optimizer is not None:
            self.in_place_codebook_optimizer = in_place_codebook_optimizer(
                self.values_per_latent.parameters()
            )
            _in_place.keep_optimizer_in_checkpoint(self)
        self.handle = _ops.new_handle()

    def extra_repr(self) -> str:
        """The options, for ``print``."""
        return (
            f"levels={self.levels}, dim={self.dim}, num_codebooks={self.num_codebooks}, "
            f"optimize_values={self.optimize_values}"
        )

    def forward(self, z: Tensor, *, mask: Tensor | None = None) -> QuantizeOutput:
        """Quantizes z.

        Args:
            z: (B, dim, *), or with ``channel_first=False`` (B, *, dim); any floating dtype but float8.
            mask: bool (B, *), True for real tokens. Padding has no effect; its output is 0, its index -1.

        Returns:
            ``(quantized, indices, loss)``, named: the layout and dtype of z; int64 (B, *), with several codebooks
            (B, *, C); a scalar, 0 in evaluation. No tokens, or all masked: loss 0. A token with NaN or infinity gives
            NaN and index 0, and does not reach the values.

        Raises:
            ValueError: wrong shapes. TypeError: wrong dtypes.
        """
        layout = self._layout
        layout.check_input(z, "z")
        token_mask = layout.token_mask(z, mask, None)
        # The operators take any axes before the features; a call that only moves axes takes as long as they do.
        in_order = token_mask is None and (z.dim() == 2 or not self.channel_first)
        tokens = z if in_order else layout.pack(z, token_mask)
        # A lookup through the module takes six times as long.
        parts: dict[str, Any] = self._modules
        projects = not projects_nothing(parts["project_in"], parts["project_out"])
        latents = self._split(project(self.project_in, tokens) if projects else tokens)
        weights = dict(
            commitment=self.commitment_loss_weight, quantization=self.quantization_loss_weight
        )
        options: dict[str, Any] = dict(weights) if self.training and not self.vqp_compat else {}
        code_mask = token_mask
        if token_mask is not None:
            if self.num_codebooks > 1:
                code_mask = token_mask.unsqueeze(-1).expand(latents.shape[:-1])
            options["mask"] = code_mask
        values = self._values_of_step(latents, code_mask)
        codes, indices, loss = _ops.latent_quantize_features(latents, values, **options)
        output = codes if self.num_codebooks == 1 else codes.flatten(-2)
        if projects:
            output = project(self.project_out, output)
        if not self.training:
            loss = torch.zeros_like(loss)
        elif self.vqp_compat:
            loss = _ops.vqp_latent_loss(tokens, output, mask=token_mask, **weights)
        if output.dtype != z.dtype:
            output = output.to(z.dtype)
        if not in_order:
            output = layout.unpack(output, z, token_mask)
        return QuantizeOutput(output, self._restored(indices, None if in_order else z), loss)

    # Codes -----------------------------------------------------------------------------------------------------

    @property
    def implicit_codebook(self) -> Tensor:
        """All codes (K, D), computed at each call, without a gradient."""
        values = [own.detach() for own in self.values_per_latent]
        every = torch.arange(self.codebook_size, device=values[0].device)
        return _ops.latent_decode(every, values)

    @implicit_codebook.setter
    def implicit_codebook(self, codes: Tensor) -> None:
        _constants.expect_same_codes(
            "LatentQuantize", "implicit_codebook", codes, self.implicit_codebook
        )

    def quantize(self, z: Tensor) -> Tensor:
        """Codes (*, D) of latents (*, D), with a straight-through gradient."""
        return _ops.latent_quantize_features(z, list(self.values_per_latent))[0]

    def codes_to_indices(self, zhat: Tensor) -> Tensor:
        """Indices (*), int64, of codes (*, D); each number counts as the nearest value."""
        indices = _ops.latent_quantize_features(zhat.detach(), list(self.values_per_latent))[1]
        return as_returned(indices, self.vqp_compat, self.codebook_size)

    def indices_to_codes(self, indices: Tensor, project_out: bool = True) -> Tensor:
        """Codes of the indices that ``forward`` returns, in its layout; -1 gives zeros.

        Args:
            indices: integer, (B, *), or (B, *, C) with an axis for the codebooks.
            project_out: whether to return the output of ``forward``, or the codes before ``project_out``.

        Gradient to the values. IndexError for an index outside of [-1, K).
        """
        indices = as_int64("LatentQuantize", indices)
        if not self.keep_num_codebooks_dim:
            indices = indices.unsqueeze(-1)
        if indices.dim() < 2 or indices.shape[-1] != self.num_codebooks:
            raise ValueError(
                f"LatentQuantize: expected indices to have shape (B, *) and {self.num_codebooks} codebooks, "
                f"but got shape {list(indices.shape)}"
            )
        codes = _ops.latent_decode(indices, list(self.values_per_latent)).flatten(-2)
        if project_out:
            codes = project_codes(self.project_out, codes, indices, self._half_dtype)
        else:
            codes = in_half_dtype(self._half_dtype, codes)
        return self._layout.place_features(codes)

    def commitment_loss(self, z: Tensor, zhat: Tensor, reduce: str = "mean") -> Tensor:
        """Mean of (z - zhat)^2, which pulls z: zhat is a constant. ``reduce``: mean, sum or none."""
        loss = _ops.latent_quantization_loss if self.vqp_compat else _ops.latent_commitment_loss
        return loss(z, zhat, reduce)

    def quantization_loss(self, z: Tensor, zhat: Tensor, reduce: str = "mean") -> Tensor:
        """Mean of (z - zhat)^2, which pulls zhat: z is a constant. ``reduce``: mean, sum or none.

        ``indices_to_codes(indices, project_out=False)`` gives a zhat whose gradient reaches the values.
        """
        loss = _ops.latent_commitment_loss if self.vqp_compat else _ops.latent_quantization_loss
        return loss(z, zhat, reduce)

    @property
    def _half_dtype(self) -> torch.dtype | None:
        """The half precision of the module. Values that learn may have one that a checkpoint brought."""
        dtype = self.values_per_latent[0].dtype
        return dtype if dtype in HALF else self.half_dtype

    # Values ----------------------------------------------------------------------------------------------------

    def update_in_place_optimizer(self) -> None:
        """Steps the in-place optimizer of the values, then clears its gradients; does nothing without one."""
        _in_place.step_in_place_optimizer(self)

    def _values_of_step(self, latents: Tensor, mask: Tensor | None) -> list[Tensor]:
        """The values that this forward quantizes to; an in-place optimizer has updated them first."""
        # The list's own iterator takes five times as long; FullyShardedDataParallel leaves attributes in place of
        # parameters.
        holder: Any = self._modules["values_per_latent"]
        own: dict[str, Any] = holder._parameters
        values: list[Tensor] = [
            own[name] if name in own else getattr(holder, name)
            for name in map(str, range(len(self.levels)))
        ]
        if self.vqp_compat:
            values = [own.detach() for own in values]
        if not _in_place.learns_in_place(self, holder):
            return values
        return self._stepped_values(latents, mask)

    @outside_graphs("LatentQuantize: in_place_codebook_optimizer makes its step outside of graphs")
    @uncounted
    def _stepped_values(self, latents: Tensor, mask: Tensor | None) -> list[Tensor]:
        recorded = self._stepped.take()
        if recorded is not None:
            return recorded
        if not inside_backward():  # there it is a recomputation
            values = list(self.values_per_latent)
            self._step_in_place(latents, values, mask)
        stepped = [own.detach().clone() for own in self.values_per_latent]
        self._stepped.keep(stepped)
        return stepped

    def _step_in_place(self, latents: Tensor, values: list[Tensor], mask: Tensor | None) -> None:
        ranks = everybody(f"LatentQuantize(dim={self.dim}, codebook_size={self.codebook_size})")
        self._handshake(latents, ranks)
        with _in_place.gradients_before(self.values_per_latent) as before:
            with _in_place.own_backward():
                latents = _in_place.target_of(latents)
                _, _, loss = _ops.latent_quantize_features(
                    latents, values, quantization=1.0, mask=mask
                )
                _in_place.accumulate_gradients(loss, self.values_per_latent)
            rows = latents.to(loss.dtype).reshape(1, -1, self.codebook_dim)
            row_mask = None if mask is None else mask.reshape(1, -1)
            if _in_place.average_gradients(before, rows, row_mask, ranks):
                self.update_in_place_optimizer()

    def _handshake(self, latents: Tensor, ranks: Ranks) -> None:
        """Before the first step that ranks take together, compares options and gives all ranks the same values."""
        if ranks.alone:
            return
        values = [own.detach() for own in self.values_per_latent]
        optimizer = _in_place.optimizer_text(self)
        signature = f"{tokens_text(latents.dtype)}; LatentQuantize of levels {self.levels}, own optimizer {optimizer}"
        _ops.handshake_(values, handle=self.handle, signature=signature, **ranks.options())

    # Layout ----------------------------------------------------------------------------------------------------

    @property
    def _layout(self) -> Layout:
        return Layout(self.dim, self.channel_first, "LatentQuantize")

    def _split(self, tokens: Tensor) -> Tensor:
        """(B, N, C * D) to (B, N, C, D); of one codebook as they are."""
        if self.num_codebooks == 1:
            return tokens
        return tokens.reshape(*tokens.shape[:-1], self.num_codebooks, self.codebook_dim)

    def _restored(self, indices: Tensor, z: Tensor | None) -> Tensor:
        """(B, N, C), of one codebook (B, N), to the positions of z; without z they have these positions."""
        if self.keep_num_codebooks_dim and self.num_codebooks == 1:
            indices = indices.unsqueeze(-1)
        if z is not None:
            indices = self._layout.unpack_positions(indices, z)
        return as_returned(indices, self.vqp_compat, self.codebook_size)


class FixedValues(_constants.ConstantBuffers):
    """Values that do not learn: they follow the module to its device and are not part of checkpoints."""

    def __init__(self, values: Iterable[Tensor]) -> None:
        super().__init__()
        for index, own in enumerate(values):
            self.keep_constant(str(index), own)

    def __getitem__(self, index: int) -> Tensor:
        return list(self)[index]

    def __iter__(self) -> Iterator[Tensor]:
        # By name: other code, such as a counter of operations, may add buffers of its own.
        return iter([getattr(self, name) for name in self._constants])

    def __len__(self) -> int:
        return len(self._constants)


def _resolve_levels(levels: Iterable[int] | int, codebook_dim: int) -> list[int]:
    """One number for each feature; only Python has the option ``codebook_dim``."""
    if not isinstance(levels, (Integral, Iterable)):
        raise TypeError(
            f"LatentQuantize: expected levels to be an integer or several, but got {levels!r}"
        )
    given = codebook_dim == -1 or codebook_dim >= 1
    expect("LatentQuantize", given, "codebook_dim", "-1 or at least 1", codebook_dim)
    if not isinstance(levels, Iterable):
        if codebook_dim == -1:
            # The exception type that users of the reference catch.
            raise RuntimeError(
                f"LatentQuantize: expected codebook_dim to be given with one number of levels, {levels}, but got none"
            )
        return [levels] * codebook_dim
    levels = list(levels)
    fits = codebook_dim in (-1, len(levels))
    condition = f"the number of levels, {len(levels)}"
    expect("LatentQuantize", fits, "codebook_dim", condition, codebook_dim)
    return levels


def _or_zero(value: float | None) -> float:
    return 0 if value is None else value


_NOT_CALLED = methods_of(LatentQuantize, "quantize", "quantization_loss", "commitment_loss")
