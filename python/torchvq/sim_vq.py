"""SimVQ: frozen codes, and a learnt transform that moves them towards the latents."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from torchvq._base.arguments import expect_tensor
from torchvq._base.compat import vqp_compat_of
from torchvq._base.joined import without_autocast
from torchvq._base.layout import Layout
from torchvq._base.options import check_options, keep_values, named
from torchvq._base.own_handle import OwnHandle
from torchvq._base.projection import in_dtype_of
from torchvq._base.ranks import Ranks, group_name, ranks_of
from torchvq._base.replaced import is_replaced, methods_of
from torchvq._base.torch_private import is_jit_traced, is_observed_itself
from torchvq._base.wide_buffers import HALF, WideBuffers, in_half_dtype, wide_dtype, widened
from torchvq.outputs import QuantizeOutput

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_ops = torch.ops.torchvq


def _identity(codes: Tensor) -> Tensor:
    return codes


class PlainMap(NamedTuple):
    """The linear layer that makes the codes, for operators."""

    frozen: Tensor  # (K, D')
    weight: Tensor  # (D, D')
    bias: Tensor | None  # (D,)


class SimSearchResult(NamedTuple):
    """The result of a search."""

    quantized: Tensor  # (1, T, D), the codes' values with the estimator's gradient
    indices: Tensor  # (1, T), -1 where masked
    codes: Tensor  # (1, T, D), with gradient to the transform
    inputs: Tensor  # (1, T, D), float32 or float64


class SimVQ(OwnHandle, WideBuffers):
    """Vector quantization with frozen codes and a learnt transform, which moves all codes at every step.

    The codes are ``codebook_transform(frozen_codebook)``. Each latent is replaced by its nearest code. The transform
    learns from all latents, so codes that no latent chose move, too, and the codebook does not collapse (Zhu et al.
    2024, arXiv:2411.02038).

    Shapes: ``B`` batch, ``N`` positions, ``K`` = ``codebook_size``.

    Args:
        dim: features of the input and of a code, at least 1.
        codebook_size: number of codes ``K``, at least 1.
        codebook_transform: module from frozen codes (K, frozen_codebook_dim) to codes (K, dim). Default: a linear layer
            without bias.
        init_fn: function that is applied once to the drawn frozen codes, which are normal with variance ``1 /
            frozen_codebook_dim``; the module keeps a copy of what it returns. Default: the same codes.
        channel_first: features on axis 1, whatever the number of position axes. Default: False.
        rotation_trick: rotate and scale the gradient from code to latent (arXiv:2410.06424), with a bounded gain;
            otherwise it is copied. Default: True.
        input_to_quantize_commit_loss_weight: weight of the half of the loss that pulls latents to codes, relative to
            the half that pulls codes to latents; 0 or more. ``beta`` in the paper. Default: 0.25.
        commitment_weight: weight of both halves, 0 or more. Default: 1.
        frozen_codebook_dim: features of a frozen code, at least 1. Default: ``dim``.
        sync_codebook: whether ranks that train together take rank 0's frozen codes before their first step; a wrapper
            of the model averages the gradients of the transform. False: no communication. Default: if there is a
            process group.
        process_group: these ranks: a group, or its name. Default: all.
        vqp_compat: behave as ``vector_quantize_pytorch``: its rotation, whose gain near zero is not bounded. Default:
            set by ``TORCHVQ_COMPAT``.

    Raises:
        ValueError: an option out of range.

    Gradient: in training, of the output to the input by the estimator; in evaluation, of the output to the transform.
        Of the loss to both.

    Dtypes: the output has the dtype of the input, indices are int64; distances and losses are float32 (float64 for
        float64 input). The transform runs in its own dtype, outside autocast, so that decoding gives the same bits; a
        linear layer of half precision multiplies in float32. The frozen codes stay float32 under any cast.

    State: ``frozen_codebook`` (K, frozen_codebook_dim), a buffer, and that of ``code_transform``.

    Differences from ``vector_quantize_pytorch`` are listed in ``docs/migrating.md``.

    Example:
        >>> sim_vq = SimVQ(dim=512, codebook_size=1024)
        >>> quantized, indices, loss = sim_vq(torch.randn(1, 1024, 512))
        >>> quantized.shape, indices.shape, loss.shape
        (torch.Size([1, 1024, 512]), torch.Size([1, 1024]), torch.Size([]))
    """

    frozen_codebook: Tensor
    dim: int
    codebook_size: int
    channel_first: bool
    rotation_trick: bool
    input_to_quantize_commit_loss_weight: float
    commitment_weight: float
    sync_codebook: bool | None
    process_group: str | None
    vqp_compat: bool

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        codebook_transform: nn.Module | None = None,
        init_fn: Callable[[Tensor], Tensor] = _identity,
        channel_first: bool = False,
        rotation_trick: bool = True,
        input_to_quantize_commit_loss_weight: float = 0.25,
        commitment_weight: float = 1.0,
        frozen_codebook_dim: int | None = None,
        *,
        sync_codebook: bool | None = None,
        process_group: "ProcessGroup | str | None" = None,
        vqp_compat: bool | None = None,
    ) -> None:
        super().__init__()
        check_options("SimVQ", locals())
        width = dim if frozen_codebook_dim is None else frozen_codebook_dim
        keep_values(
            self,
            **named(
                locals(),
                "dim codebook_size channel_first rotation_trick "
                "input_to_quantize_commit_loss_weight commitment_weight sync_codebook",
            ),
            process_group=group_name("SimVQ", process_group),
            vqp_compat=vqp_compat_of(vqp_compat),
            handle=_ops.new_handle(),
        )
        frozen = init_fn(torch.randn(codebook_size, width, dtype=wide_dtype()) / math.sqrt(width))
        expect_tensor("SimVQ", "the result of init_fn", frozen)
        shape = [codebook_size, width]
        if list(frozen.shape) != shape:
            raise ValueError(
                f"SimVQ: expected init_fn to return codes of shape {shape}, but got {list(frozen.shape)}"
            )
        # A copy: init_fn may keep its tensor, or give several levels the same one.
        frozen = frozen.detach().clone(memory_format=torch.contiguous_format)
        self.register_buffer("frozen_codebook", frozen)
        self.code_transform = (
            nn.Linear(width, dim, bias=False) if codebook_transform is None else codebook_transform
        )

    def extra_repr(self) -> str:
        """The options, for ``print``."""
        return f"dim={self.dim}, codebook_size={self.codebook_size}"

    # Codes -------------------------------------------------------------------------------------------------

    @property
    def codebook(self) -> Tensor:
        """The codes (K, dim), computed from the frozen codes at each use, with gradient to the transform.

        A derived class may replace it.
        """
        if torch.compiler.is_compiling():
            return self._transformed()
        try:
            return self._transformed()
        except AttributeError as error:
            # torch reports an AttributeError inside a property as an attribute that the module lacks.
            raise RuntimeError(f"SimVQ: codebook_transform raised {error!r}") from error

    def _transformed(self) -> Tensor:
        transform, frozen = self.code_transform, self.frozen_codebook
        # Decoding computes the codes again, perhaps outside autocast.
        with without_autocast(frozen):
            if type(transform) is nn.Linear and transform.weight.dtype in HALF:
                bias = None if transform.bias is None else transform.bias.float()
                codes = nn.functional.linear(frozen.float(), transform.weight.float(), bias)
            else:
                codes = transform(in_dtype_of(transform, frozen))
        expect_tensor("SimVQ", "the result of codebook_transform", codes)
        shape = (self.codebook_size, self.dim)
        if codes.shape != shape:
            raise ValueError(
                f"SimVQ: expected codebook_transform to return codes of shape {list(shape)}, "
                f"but got {list(codes.shape)}"
            )
        return codes

    def codes_for(self, dtype: torch.dtype) -> Tensor:
        """The codes (1, K, D) for tokens of this dtype."""
        codes = self.codebook.unsqueeze(0)
        # The input decides the precision of the arithmetic, not a module that was cast to double.
        narrow = codes.dtype == torch.float64 != dtype
        return codes.float() if narrow else widened(codes)

    def indices_to_codes(self, indices: Tensor) -> Tensor:
        """The output of ``forward`` in evaluation for these indices, in the same layout.

        Args:
            indices: integer (B, *). -1 gives zeros.

        Returns:
            (B, *, dim), with ``channel_first`` (B, dim, *); float32, float64 for a double module, or the half
            precision that the module was cast to.

        Raises:
            IndexError: for an index outside [-1, K).
        """
        return self._layout.place_features(
            in_half_dtype(self.half_dtype, self.decode_tokens(indices))
        )

    def decode_tokens(self, indices: Tensor) -> Tensor:
        """Codes (*, dim) of indices (*), float32 or float64."""
        every = widened(self.codebook).unsqueeze(0)
        codes = _ops.lookup_codes(every, self._layout.split_indices(indices))
        return codes.reshape(*indices.shape, self.dim)

    # Forward -----------------------------------------------------------------------------------------------

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> QuantizeOutput:
        """Quantizes x.

        Args:
            x: (B, *, dim) with any number of position axes; with ``channel_first`` (B, dim, *). Any floating
                dtype but float8.
            mask: bool, one per position, True for real tokens. Padding has no effect; its output is zero,
                its index -1.

        Returns:
            ``(quantized, indices, loss)``, named: indices int64 (B, *), where the lowest index wins a tie; loss a
            scalar, with gradient only in training. No tokens, or all masked: loss 0. A token with NaN or infinity gives
            NaN and index 0.

        Raises:
            ValueError: wrong shapes. TypeError: wrong dtypes.
        """
        layout = self._layout
        layout.check_input(x)
        token_mask = layout.token_mask(x, mask, None)
        self.handshake()
        _, tokens, rows = layout.split_tokens(x, token_mask)
        found = self.choose(tokens, rows, self.estimator)
        return QuantizeOutput(
            layout.restore_tokens(found.quantized, x, token_mask, zeros_for_masked=True),
            layout.restore_positions(found.indices, x),
            self.loss_of(found, rows),
        )

    @property
    def estimator(self) -> str:
        """The name of the output's gradient for operators."""
        if not self.training:
            return "none"
        if not self.rotation_trick:
            return "straight_through"
        return "vqp_rotation_trick" if self.vqp_compat else "rotation_trick"

    def choose(
        self, tokens: Tensor, mask: Tensor | None, estimator: str, chosen: Tensor | None = None
    ) -> SimSearchResult:
        """The search, for ``forward`` and for stacks.

        Args:
            tokens: (1, T, D).
            mask: (1, T).
            estimator: the gradient of the output.
            chosen: (1, T), indices that are already chosen; there is no search then.
        """
        plain = None if chosen is not None else self.plain_map(tokens.dtype)
        if plain is not None:
            found = _ops.linear_quantize(tokens, *plain, mask=mask, estimator=estimator)
            return SimSearchResult(*found)
        # An argument that quantize wants; nothing is drawn from it.
        rng = torch.zeros(2, dtype=torch.long, device=tokens.device)
        codes = self.codes_for(tokens.dtype)
        found = SimSearchResult(
            *_ops.quantize(tokens, codes, rng, mask=mask, estimator=estimator, chosen=chosen)
        )
        if estimator == "none" and is_jit_traced():
            return found._replace(quantized=found.codes)  # see is_jit_traced()
        return found

    def loss_of(self, found: SimSearchResult, mask: Tensor | None) -> Tensor:
        """Both halves of the loss, weighted."""
        to_inputs, to_codes = self.loss_weights
        return _ops.paired_loss(
            found.inputs,
            found.codes,
            mask=mask,
            to_inputs=to_inputs,
            to_codes=to_codes,
            training=self.training,
        )

    @property
    def loss_weights(self) -> tuple[float, float]:
        """Those of the half that pulls latents to codes, and of the half that pulls codes to latents."""
        weight = self.commitment_weight
        return weight * self.input_to_quantize_commit_loss_weight, weight

    def plain_map(self, dtype: torch.dtype) -> PlainMap | None:
        """What makes the codes of a training step, if one operator can do so and choose among them.

        That takes a linear layer without hooks, in the dtype of the codes, which is that of the tokens' arithmetic.
        """
        transform = self.code_transform
        if not self.training or type(transform) is not nn.Linear or is_observed_itself(transform):
            return None
        if is_replaced(self, _CODES):
            return None
        weight, frozen = transform.weight, self.frozen_codebook
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        # A layer of other sizes is left to the path that reports the error.
        fits = weight.shape == (self.dim, frozen.shape[1]) and weight.dtype == frozen.dtype == wide
        return PlainMap(frozen, weight, transform.bias) if fits else None

    def handshake(self) -> None:
        """Before the first step that ranks take together: compares their options, and makes their state equal."""
        handshake([self], ranks_of(self, "SimVQ"), None, "SimVQ")

    @property
    def _layout(self) -> Layout:
        return Layout(self.dim, self.channel_first, "SimVQ")


_CODES = methods_of(SimVQ, "codebook")


def handshake(
    levels: list[SimVQ], ranks: Ranks, rng: Tensor | None, owner: str, stack: str = ""
) -> None:
    """The handshake of one quantizer, or of the levels of a stack, its generator and its options as text."""
    if ranks.alone:
        return
    first = levels[0]
    state = [level.frozen_codebook for level in levels]
    if rng is not None:
        state.append(rng)
    size = f"dim={first.dim}, codebook_size={first.codebook_size}"
    signature = f"{stack}{owner} of {len(levels)} levels, {size}"
    _ops.handshake_(state, handle=first.handle, signature=signature, **ranks.options())
