"""FSQ: finite scalar quantization."""

import math
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from torchvq._base.compat import as_returned, levels_as_returned, vqp_compat_of
from torchvq._base.constants import expect_same_codes, materialise_constants, to_default_device
from torchvq._base.integers import as_int64
from torchvq._base.layout import Layout
from torchvq._base.not_here import explain_absent
from torchvq._base.options import check_options, expect, keep_values, named
from torchvq._base.projection import (
    decoding_dtype,
    make_projections,
    project,
    project_codes,
    projects_nothing,
)
from torchvq._base.random_state import RandomState
from torchvq._base.ranks import everybody, noise_rng
from torchvq._base.replaced import is_replaced, methods_of
from torchvq._base.wide_buffers import wide_default, widened
from torchvq.outputs import ScalarOutput

_ops = torch.ops.torchvq


class FSQ(RandomState):
    """Finite scalar quantization: rounds every feature of a latent to one of a few levels.

    Mentzer et al. 2023, arXiv:2309.15505. The codebook is the product of the levels: it does not learn, cannot
    collapse, and needs no communication. The formulas are those of ``include/torchvq/ops/scalar_quantize.h``.

    Shapes: ``B`` batch, ``N`` positions, ``D`` = number of levels, ``C`` = ``num_codebooks``.

    Args:
        levels: numbers of levels ``L`` of the ``D`` features of a code, each in [3, 65536], or in [2, 65536] with
            ``preserve_symmetry``; their product, the codebook size, is at most 2^62.
        dim: features of the input. Default: ``D * C``. If it differs, ``project_in`` and ``project_out`` are linear
            layers.
        num_codebooks: codes per latent ``C``; the features are split over them. Default: 1.
        keep_num_codebooks_dim: indices have a last axis of ``C`` even if that is 1. Default: whether ``C`` is above 1.
        scale: has no effect, as in the reference; stored as an attribute.
        allowed_dtypes: has no effect: quantization is exact in float32 for every dtype but float64.
        channel_first: features on axis 1; otherwise on the last. Default: on axis 1 for inputs of 4 axes or more
            (images, videos), which have them there in any case with ``vqp_compat``.
        projection_has_bias: whether the projections add a bias. Default: True.
        return_indices: False returns None instead of indices. Default: True.
        force_quantization_f32: has no effect: quantization never runs in half precision.
        preserve_symmetry: levels are evenly spaced in [-1, 1] (Parker et al. 2024, arXiv:2411.19842, eq. 1); otherwise
            as in the FSQ paper. Default: False.
        noise_dropout: fraction of the elements of the codes, in [0, 1], that get noise in training, uniform within half
            a step, +- ``1 / (L - 1)``. Indices are those of the codes without noise. Needs
            ``preserve_symmetry``. Default: 0.
        bound_hard_clamp: bound by a clamp to [-1, 1] instead of tanh. Default: False.
        orthogonal_rotation: quantize along rotated axes: a random orthogonal matrix, the buffer ``orthogonal_rot``
            (D, D), is applied before and undone after. It stays float32. Default: False.
        vqp_compat: behave as ``vector_quantize_pytorch``: noise of up to 1/2 on half of the elements for any levels and
            any ``noise_dropout`` above 0; int32 indices, if the codebook has less than 2^31 codes. Default: set by
            ``TORCHVQ_COMPAT``.

    Raises:
        ValueError: an option out of range, or options that exclude each other. TypeError: levels that are not integers.

    Gradient: that of the bound, as without rounding; the identity for noise.

    ``quantize``, ``bound``, ``symmetry_preserving_bound`` and ``codes_to_indices`` may be replaced, in a derived class
    or on the module; ``forward`` then calls them, as in the reference.

    Differences from ``vector_quantize_pytorch`` are listed in ``docs/migrating.md``.

    Example:
        >>> fsq = FSQ([8, 5, 5, 5], dim=256)
        >>> quantized, indices = fsq(torch.randn(1, 1024, 256))
        >>> quantized.shape, indices.shape, fsq.codebook_size
        (torch.Size([1, 1024, 256]), torch.Size([1, 1024]), 1000)
    """

    vqp_compat: bool
    levels: tuple[int, ...]
    scale: float | None
    preserve_symmetry: bool
    noise_dropout: float
    codebook_dim: int
    num_codebooks: int
    effective_codebook_dim: int
    keep_num_codebooks_dim: bool
    dim: int
    channel_first: bool
    _layout_is_said: bool
    return_indices: bool
    codebook_size: int
    allowed_dtypes: tuple[torch.dtype, ...]
    force_quantization_f32: bool
    bound_hard_clamp: bool
    orthogonal_rotation: bool
    orthogonal_rot: Tensor  # with orthogonal_rotation
    has_projections: bool
    #: Whether a stack restores the tables after a load, on a device that its levels do not know.
    in_stack: bool = False

    def __init__(
        self,
        levels: Sequence[int],
        dim: int | None = None,
        num_codebooks: int = 1,
        keep_num_codebooks_dim: bool | None = None,
        scale: float | None = None,
        allowed_dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float64),
        channel_first: bool | None = None,
        projection_has_bias: bool = True,
        return_indices: bool = True,
        force_quantization_f32: bool = True,
        preserve_symmetry: bool = False,
        noise_dropout: float = 0.0,
        bound_hard_clamp: bool = False,
        orthogonal_rotation: bool = False,
        *,
        vqp_compat: bool | None = None,
    ) -> None:
        super().__init__()
        check_options("FSQ", locals())
        counts = tuple(int(count) for count in levels)
        compat, several = vqp_compat_of(vqp_compat), num_codebooks > 1
        inner_dim = len(counts) * num_codebooks
        kept = named(
            locals(),
            "scale preserve_symmetry noise_dropout num_codebooks return_indices allowed_dtypes "
            "force_quantization_f32 bound_hard_clamp orthogonal_rotation",
        )
        keep_values(
            self,
            **kept,
            vqp_compat=compat,
            levels=counts,
            codebook_dim=len(counts),
            effective_codebook_dim=inner_dim,
            keep_num_codebooks_dim=(
                several if keep_num_codebooks_dim is None else keep_num_codebooks_dim
            ),
            dim=inner_dim if dim is None else dim,
            channel_first=bool(channel_first),
            _layout_is_said=channel_first is not None and not compat,
            codebook_size=math.prod(counts),
            has_projections=dim is not None and dim != inner_dim,
        )
        self.project_in, self.project_out = make_projections(
            self.dim, self.effective_codebook_dim, bias=projection_has_bias
        )
        if orthogonal_rotation:
            _warn_of_rotation(self.levels)
            with wide_default():
                rotation = _ops.random_rotation(self.codebook_dim)
            self.register_buffer("orthogonal_rot", to_default_device(rotation))
        if noise_dropout > 0:
            self.keep_rng()
        self._keep_tables()

    def _keep_tables(self) -> None:
        """The reference's buffers, which its users read and which tell them the device. Nothing here reads them."""
        steps = [math.prod(self.levels[:feature]) for feature in range(self.codebook_dim)]
        dtype = torch.int32 if steps[-1] < 2**31 else torch.int64
        self.keep_constant("_levels", torch.tensor(self.levels, dtype=torch.int32, device="cpu"))
        self.keep_constant("_basis", torch.tensor(steps, dtype=dtype, device="cpu"))
        self.register_load_state_dict_post_hook(_restore_tables)  # type: ignore[no-untyped-call]

    # Forward -----------------------------------------------------------------------------------------------

    def forward(self, z: Tensor, *, mask: Tensor | None = None) -> ScalarOutput:
        """Quantizes z.

        Args:
            z: (B, N, dim); (B, dim); images (B, dim, H, W) and videos (B, dim, T, H, W); with ``channel_first``
                (B, dim, *), with ``channel_first=False`` (B, *, dim). Any floating dtype but float8.
            mask: bool, one per position, True for real tokens. Padding has output 0, index -1 and no gradient.

        Returns:
            ``(quantized, indices)``, named: quantized in layout and dtype of z; indices int64 (B, *), with several
            codebooks or ``keep_num_codebooks_dim`` (B, *, C). A token with NaN or infinity gives NaN and index 0.

        Raises:
            ValueError: wrong shapes. TypeError: wrong dtypes.
        """
        layout = self._layout_of(z.dim() if isinstance(z, Tensor) else 0)
        layout.check_input(z, "z")
        token_mask = layout.token_mask(z, mask, None)
        plain = projects_nothing(self.project_in, self.project_out)
        if plain and not is_replaced(self, STEPS):
            with self._noise_of() as rng:
                options = self._options(rng, token_mask)
                if layout.channel_first:
                    options["channel_first"] = True
                if self.keep_num_codebooks_dim:
                    options["keep_codebooks"] = True
                quantized, indices = _ops.finite_scalar_quantize(z, self.levels, **options)
        else:
            quantized, indices = self._between_projections(z, token_mask, layout)
        if not self.return_indices:
            return ScalarOutput(quantized, None)
        return ScalarOutput(quantized, self._as_returned(indices))

    def _between_projections(
        self, z: Tensor, mask: Tensor | None, layout: Layout
    ) -> tuple[Tensor, Tensor]:
        """The output and the indices where something is called before or after the levels."""
        projected = project(self.project_in, layout.pack(z, mask))
        with self._noise_of() as rng:
            codes, indices = self.quantize_tokens(projected, mask=mask, rng=rng)
        quantized = project(self.project_out, codes).to(z.dtype)
        filled_mask = None if projects_nothing(self.project_out) else mask
        if not self.keep_num_codebooks_dim:
            indices = indices.squeeze(-1)
        return layout.unpack(quantized, z, filled_mask), layout.unpack_positions(indices, z)

    def _noise_of(self) -> AbstractContextManager[Tensor | None]:
        """The generator of a training forward, where it draws noise."""
        if not (self.training and self.noise_dropout > 0):
            return nullcontext()
        condition = "given to the constructor, which makes the generator of the noise"
        expect("FSQ", "rng" in self._buffers, "noise_dropout", condition, "set on the module")
        return self.drawing()

    def quantize_tokens(
        self,
        tokens: Tensor,
        *,
        scale: Tensor | None = None,
        mask: Tensor | None = None,
        rng: Tensor | None = None,
        stream: int = 0,
    ) -> tuple[Tensor, Tensor]:
        """Codes (B, N, C * D) and indices (B, N, C) of projected tokens (B, N, C * D), for forward and for stacks.

        With ``scale`` (D,), quantizes ``tokens / scale`` and multiplies the codes by it. ``rng`` is for the noise, if
        there is any; ``stream`` separates levels.
        """
        if is_replaced(self, STEPS):
            return self._quantize_by_steps(tokens, scale, mask, rng)
        return _ops.quantize_scalars(
            tokens, self.levels, scale=scale, stream=stream, **self._options(rng, mask)
        )

    def _quantize_by_steps(
        self, tokens: Tensor, scale: Tensor | None, mask: Tensor | None, rng: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """``quantize_tokens`` by methods of which some are replaced."""
        noisy = rng is not None and not is_replaced(self, {"quantize": STEPS["quantize"]})
        condition = "0 where the bound is replaced (replace quantize, which adds the noise)"
        expect("FSQ", not noisy, "noise_dropout", condition, self.noise_dropout)
        rows = widened(tokens).reshape(*tokens.shape[:-1], self.num_codebooks, self.codebook_dim)
        rows = rows if scale is None else rows / scale
        rotation = None if self._rotation is None else self._rotation.to(rows.dtype)
        codes = self.quantize(rows if rotation is None else rows @ rotation)
        indices = self.codes_to_indices(codes).to(torch.int64)
        codes = codes if rotation is None else codes @ rotation.T
        codes = codes if scale is None else codes * scale
        quantized = codes.flatten(-2)
        if mask is not None:
            quantized = _ops.fill_masked(quantized, mask)
            indices = indices.masked_fill(mask.logical_not().unsqueeze(-1), -1)
        return quantized, indices

    def _options(self, rng: Tensor | None, mask: Tensor | None) -> dict[str, Any]:
        """The options that both operators share, without those that equal their defaults, as ``_base/lean_call.py``."""
        options: dict[str, Any] = {}
        if self.num_codebooks > 1:
            options["codebooks"] = self.num_codebooks
        if (bound := self.bound_name) != "tanh":
            options["bound"] = bound
        if self.orthogonal_rotation:
            options["rotation"] = self.orthogonal_rot
        if mask is not None:
            options["mask"] = mask
        if rng is not None:
            options["rng"] = noise_rng(rng, everybody("FSQ"))
            options["noise"] = self.noise_dropout
            options["vqp_noise"] = self.vqp_compat
        return options

    def _as_returned(self, indices: Tensor) -> Tensor:
        return as_returned(indices, self.vqp_compat, self.codebook_size)

    def _layout_of(self, axes: int) -> Layout:
        """The layout of inputs with this number of axes."""
        first = self.channel_first or (axes >= 4 and not self._layout_is_said)
        return Layout(self.dim, first, "FSQ")

    @property
    def bound_name(self) -> str:
        """The name of the bound for operators."""
        name = "clamp" if self.bound_hard_clamp else "tanh"
        return f"symmetric_{name}" if self.preserve_symmetry else name

    @property
    def _rotation(self) -> Tensor | None:
        return self.orthogonal_rot if self.orthogonal_rotation else None

    # Parts of it, as in the reference ----------------------------------------------------------------------

    def bound(self, z: Tensor, eps: float = 1e-3, hard_clamp: bool = False) -> Tensor:
        """The codes (*, D) of z (*, D), by the formula of the FSQ paper, for any options but levels of 2.

        ``eps`` stretches the bound so that the outermost levels are reached; it must be 1e-3. Of two levels the formula
        hardly reaches the lower one: a ValueError; ``symmetry_preserving_bound`` takes them.
        """
        expect("FSQ.bound", eps == 1e-3, "eps", "1e-3", eps)
        return self._codes_of(z, "clamp" if hard_clamp else "tanh")

    def symmetry_preserving_bound(self, z: Tensor, hard_clamp: bool = False) -> Tensor:
        """The codes (*, D) of z (*, D), evenly spaced in [-1, 1], for any options."""
        return self._codes_of(z, "symmetric_clamp" if hard_clamp else "symmetric_tanh")

    def quantize(self, z: Tensor) -> Tensor:
        """The codes (*, D) of z (*, D) with the options, but without noise and rotation."""
        name = "symmetry_preserving_bound" if self.preserve_symmetry else "bound"
        if is_replaced(self, {name: STEPS[name]}):
            hard = {"hard_clamp": True} if self.bound_hard_clamp else {}
            return getattr(self, name)(z, **hard)
        return self._codes_of(z, self.bound_name)

    def _codes_of(self, z: Tensor, bound: str) -> Tensor:
        return _ops.scalar_quantize(z, self.levels, bound=bound)[0]

    # Codes -------------------------------------------------------------------------------------------------

    def codes_to_indices(self, zhat: Tensor) -> Tensor:
        """Indices (*) of codes (*, D) before the rotation, if any; they lie in [-1, 1], others count as the nearest."""
        return self._as_returned(
            _ops.scalar_code_indices(zhat, self.levels, symmetric=self.preserve_symmetry)
        )

    def indices_to_level_indices(self, indices: Tensor) -> Tensor:
        """The level of each feature (*, D), from 0, for indices (*). IndexError for an index outside.

        int64, or with ``vqp_compat`` int32 for indices whose dtype fits into it.
        """
        levels = _ops.scalar_level_indices(as_int64("FSQ", indices), self.levels)
        return levels_as_returned(levels, indices, self.vqp_compat)

    def indices_to_codes(self, indices: Tensor) -> Tensor:
        """The output of ``forward`` in evaluation for these indices, in its layout; -1 gives zeros.

        Args:
            indices: integer, in the shape that ``forward`` returns. Three or more axes, not counting that of codebooks,
                give features on axis 1 unless ``channel_first=False``; so does ``channel_first=True``.

        Raises:
            IndexError: an index outside [-1, codebook_size). TypeError: no integers. ValueError: another number of
                codebooks.
        """
        indices = as_int64("FSQ", indices)
        stacked = indices if self.keep_num_codebooks_dim else indices.unsqueeze(-1)
        fits = stacked.dim() >= 1 and stacked.shape[-1] == self.num_codebooks
        condition = f"of shape (*, {self.num_codebooks})"
        expect("FSQ.indices_to_codes", fits, "indices", condition, list(indices.shape))
        codes = self.decode_tokens(stacked)
        output = project_codes(self.project_out, codes, stacked, self.half_dtype)
        return self._layout_of(output.dim()).place_features(output)

    def decode_tokens(self, indices: Tensor, *, scale: Tensor | None = None) -> Tensor:
        """Codes (*, C * D) of indices (*, C), before ``project_out``; ``scale`` as in ``quantize_tokens``."""
        state = [scale, *self._buffers.values()]
        dtype = decoding_dtype(self.project_in, self.project_out, state=state)
        return _ops.decode_scalars(
            indices, self.levels, self.preserve_symmetry, self._rotation, scale, dtype
        )

    @property
    def implicit_codebook(self) -> Tensor:
        """All codes (codebook_size, D), before ``project_out``, computed at each use."""
        device = next((t.device for t in [*self.parameters(), *self.buffers()]), None)
        every = torch.arange(self.codebook_size, device=device).unsqueeze(-1)
        return _ops.decode_scalars(every, self.levels, self.preserve_symmetry)

    @implicit_codebook.setter
    def implicit_codebook(self, codes: Tensor) -> None:
        expect_same_codes("FSQ", "implicit_codebook", codes, self.implicit_codebook)

    def extra_repr(self) -> str:
        """Levels and number of codebooks."""
        return f"levels={list(self.levels)}, num_codebooks={self.num_codebooks}"


def _restore_tables(fsq: FSQ, _: object = None) -> None:
    if not fsq.in_stack:
        materialise_constants(fsq)


def _warn_of_rotation(levels: Sequence[int]) -> None:
    """Warns that different numbers of levels do not suit rotated features, which are all alike."""
    if len(set(levels)) > 1:
        warnings.warn(
            f"FSQ: orthogonal_rotation mixes features that have different numbers of levels, {list(levels)}",
            stacklevel=3,
        )


# The methods that forward calls where a derived class, or the module, replaces one of them, as in the reference.
STEPS = methods_of(FSQ, "quantize", "bound", "symmetry_preserving_bound", "codes_to_indices")


explain_absent(__name__, "default exists floor_ste identity maybe pack_one round_ste unpack_one")
