"""ResidualFSQ: a stack of finite scalar quantizers, each of which quantizes the residual of the ones before."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchvq._base.compat import as_returned, vqp_compat_of
from torchvq._base.constants import materialise_constants
from torchvq._base.contained import contained
from torchvq._base.not_here import found_in
from torchvq._base.options import check_options, expect, take_out
from torchvq._base.replaced import is_replaced, methods_of
from torchvq._base.wide_buffers import wide_dtype
from torchvq._residual.calls import without_codebook_axis
from torchvq._residual.stack import LevelResult, LevelsRequest, LevelsResult, ResidualStack
from torchvq.finite_scalar_quantization import FSQ, STEPS
from torchvq.outputs import ScalarOutput, ScalarOutputWithCodes

_ops = torch.ops.torchvq
# Options of FSQ that the stack sets, and what to do instead.
_OWN = {
    "num_codebooks": "use more quantizers, or groups",
    "channel_first": "use is_channel_first",
    "return_indices": "use the output without its indices",
}
# The bounds that residual_scalar_quantize takes, one for all levels.
_BOUNDS = ("symmetric_tanh", "symmetric_clamp")


class ResidualFSQ(ResidualStack):
    """Residual finite scalar quantization: each level quantizes the residual of the levels before.

    SoundStream (Zeghidour et al. 2021, arXiv:2107.03312) with the levels of FSQ (Mentzer et al. 2023,
    arXiv:2309.15505), evenly spaced in [-1, 1] (Parker et al. 2024, arXiv:2411.19842). Level n works at a scale of
    ``levels ** -n``. With the hard clamp, a soft clamp first keeps the input within ``L / (L - 1)``; of what that
    returns, level n leaves at most ``L ** -n / (L - 1)``.

    Shapes: ``B`` batch, ``N`` positions, ``Q`` = ``num_quantizers``, ``D`` = number of levels.

    Args:
        levels: numbers of levels ``L`` of the ``D`` features of a code, each in [2, 65536]; their product, the size
            of one codebook, is at most 2^62.
        num_quantizers: ``Q``, at least 1.
        dim: features of the input. Default: ``D``. If it differs, ``project_in`` and ``project_out`` are linear layers
            around the stack.
        is_channel_first: features on axis 1, whatever the number of position axes. Default: False.
        quantize_dropout: in training, use only a random number of the quantizers. Default: False.
        quantize_dropout_cutoff_index: the last quantizer that is never dropped, counted from 0. Default: 0.
        quantize_dropout_multiple_of: the number kept is a multiple of this, or all. Default: 1.
        soft_clamp_input_value: bound ``c`` of the soft clamp ``c tanh(x / c)`` before the first level; a number, or one
            for each of the ``D`` features. Only without ``bound_hard_clamp``. Default: none, but ``1 + 1 / (L - 1)``
            with ``bound_hard_clamp``.
        bound_hard_clamp: levels bound their input by a clamp to [-1, 1] instead of tanh. Default: True.
        **kwargs: options of every level, see ``FSQ``: ``noise_dropout``, ``orthogonal_rotation``,
            ``keep_num_codebooks_dim``, and those without effect, here also ``projection_has_bias``, as in the
            reference: the stack's linear layers have a bias. ``vqp_compat=True`` gives the gradient of
            ``vector_quantize_pytorch``, whose gain is the sum of the gains of the levels, its noise and int32 indices.

    Raises:
        ValueError: an option out of range, or options that exclude each other. TypeError: unknown options.

    Gradient: that of the stack as a function, without rounding: the gain is ``1 - (1 - g_0) (1 - g_1) ...``, with
    ``g_n`` the slope of the bound of level n, times the slope of the soft clamp. With the hard clamp the levels have a
    gain of 1 inside, however many they are, so the slope of the soft clamp is left.

    Differences from ``vector_quantize_pytorch`` are listed in ``docs/migrating.md``.

    Example:
        >>> rfsq = ResidualFSQ(dim=256, levels=[8, 5, 5, 3], num_quantizers=6)
        >>> quantized, indices = rfsq(torch.randn(1, 1024, 256))
        >>> quantized.shape, indices.shape
        (torch.Size([1, 1024, 256]), torch.Size([1, 1024, 6]))
    """

    scales: Tensor
    soft_clamp_input_value: Tensor | None

    def __init__(
        self,
        *,
        levels: Sequence[int],
        num_quantizers: int,
        dim: int | None = None,
        is_channel_first: bool = False,
        quantize_dropout: bool = False,
        quantize_dropout_cutoff_index: int = 0,
        quantize_dropout_multiple_of: int = 1,
        soft_clamp_input_value: float | list[float] | Tensor | None = None,
        bound_hard_clamp: bool = True,
        **kwargs: Any,
    ) -> None:
        options = {name: value for name, value in locals().items() if name != "kwargs"}
        take_out("ResidualFSQ", kwargs, _OWN, num_codebooks=1, return_indices=True)
        check_options("ResidualFSQ", options | kwargs)
        vqp_compat = vqp_compat_of(kwargs.pop("vqp_compat", None))
        counts = tuple(int(count) for count in levels)
        super().__init__(
            dim=len(counts) if dim is None else dim,
            inner_dim=len(counts),
            num_quantizers=num_quantizers,
            is_channel_first=is_channel_first,
            quantize_dropout=quantize_dropout,
            quantize_dropout_cutoff_index=quantize_dropout_cutoff_index,
            quantize_dropout_multiple_of=quantize_dropout_multiple_of,
            draws=kwargs.get("noise_dropout", 0.0) > 0,
        )
        self.vqp_compat = vqp_compat
        self.gradient = "summed" if vqp_compat else "attached"
        self.levels = counts
        self.codebook_size = math.prod(counts)
        self.layers = nn.ModuleList(
            FSQ(
                counts,
                preserve_symmetry=True,
                bound_hard_clamp=bound_hard_clamp,
                vqp_compat=vqp_compat,
                **kwargs,
            )
            for _ in range(num_quantizers)
        )
        for level in self.quantizers:
            level.forget_rng()
            level.in_stack = True
        self.keep_constant("scales", _scales(counts, num_quantizers))
        limit = _soft_clamp(counts, soft_clamp_input_value, bound_hard_clamp)
        self.keep_constant("soft_clamp_input_value", limit)
        self.register_load_state_dict_post_hook(materialise_constants)  # type: ignore[no-untyped-call]

    def forward(
        self,
        x: Tensor,
        return_all_codes: bool = False,
        rand_quantize_dropout_fixed_seed: int | None = None,
        *,
        mask: Tensor | None = None,
    ) -> ScalarOutput | ScalarOutputWithCodes:
        """Quantizes x.

        Args:
            x: (B, *, dim) with any number of position axes; with ``is_channel_first`` (B, dim, *). Any floating
                dtype but float8.
            return_all_codes: append the codes of all levels, (Q, B, *, D); their sum over levels, projected, is the
                output.
            rand_quantize_dropout_fixed_seed: seed that decides which levels are dropped, as in the reference. Default:
                the step number, so that all ranks drop the same levels.
            mask: bool, one per position (B, *), or per item (B,), True for real tokens. Padding has output 0, index -1
                and no gradient.

        Returns:
            ``(quantized, indices)``, named: indices int64 (B, *, Q), -1 where masked or dropped.

        Raises:
            ValueError: wrong shapes. TypeError: wrong dtypes.
        """
        result = self.run(
            x, mask=mask, return_all_codes=return_all_codes, seed=rand_quantize_dropout_fixed_seed
        )
        indices = self.shaped_indices(result.indices)
        if result.all_codes is not None:
            return ScalarOutputWithCodes(result.quantized, indices, result.all_codes)
        return ScalarOutput(result.quantized, indices)

    @property
    def quantizers(self) -> list[FSQ]:
        """``layers``, with their type."""
        return contained(self, "layers", FSQ)

    @property
    def codebooks(self) -> Tensor:
        """All codes of each level before its scale, (Q, codebook_size, D), computed at each use."""
        return torch.stack([level.implicit_codebook for level in self.quantizers])

    # Methods that ResidualStack calls --------------------------------------------------------------------

    def prepare_inputs(self, inputs: Tensor) -> Tensor:
        levels, scales = self.num_quantizers, self.scales.shape[0]
        expect(
            "ResidualFSQ", levels <= scales, "layers", f"at most {scales}, as scales are", levels
        )
        limit = self.soft_clamp_input_value
        return inputs if limit is None else _ops.soft_clamp(inputs, limit)

    def quantize_level(
        self, index: int, residual: Tensor, mask: Tensor | None, rng: Tensor | None
    ) -> LevelResult:
        level = self.quantizers[index]
        noisy = self._is_noisy(level)
        condition = "given to the constructor, which makes the generator of the noise"
        expect("ResidualFSQ", rng is not None or not noisy, "noise_dropout", condition, "set later")
        codes, indices = level.quantize_tokens(
            residual, scale=self.scales[index], rng=rng if noisy else None, stream=index
        )
        return LevelResult(codes, indices.squeeze(-1))

    def _is_noisy(self, level: FSQ) -> bool:
        return self.training and level.training and level.noise_dropout > 0

    def process_at_once(self, inputs: Tensor, request: LevelsRequest) -> LevelsResult | None:
        depth = request.depth
        if request.all_codes or request.rng is not None or not isinstance(depth, int):
            return None
        if self.gradient != "attached":
            return None
        levels = self.quantizers
        bound = levels[0].bound_name
        if bound not in _BOUNDS or any(self._is_apart(level, bound) for level in levels):
            return None
        # Not sliced if all are in use: a slice takes as long as the operator does for a few tokens.
        scales = self.scales if depth == self.scales.shape[0] else self.scales[:depth]
        total, indices = _ops.residual_scalar_quantize(inputs, self.levels, scales, bound=bound)
        return LevelsResult(total, indices)

    def _is_apart(self, level: FSQ, bound: str) -> bool:
        """Whether the operator of all levels cannot compute this one, whose options may be set apart."""
        if level.orthogonal_rotation or self._is_noisy(level):
            return True
        return level.bound_name != bound or is_replaced(level, STEPS)

    def decode_level(self, index: int, indices: Tensor) -> Tensor:
        return self.quantizers[index].decode_tokens(indices.unsqueeze(-1), scale=self.scales[index])

    def plain_indices(self, indices: Tensor) -> Tensor:
        kept = self.quantizers[0].keep_num_codebooks_dim
        return without_codebook_axis("ResidualFSQ", indices) if kept else indices

    def shaped_indices(self, indices: Tensor) -> Tensor:
        """The inverse of ``plain_indices``, in the dtype of the returned indices."""
        shaped = indices.unsqueeze(-2) if self.quantizers[0].keep_num_codebooks_dim else indices
        return as_returned(shaped, self.vqp_compat, self.codebook_size)


ResidualFSQ.level_steps = methods_of(ResidualFSQ, "quantize_level")


def _scales(levels: Sequence[int], quantizers: int) -> Tensor:
    """(Q, D): the residual after a level is at most one L-th of the residual before.

    Deep levels stay at the smallest normal float32: a scale of zero would make NaN of every token.
    """
    least = torch.finfo(torch.float32).tiny
    return torch.tensor(
        [[max(float(count) ** -index, least) for count in levels] for index in range(quantizers)],
        dtype=wide_dtype(),
        device="cpu",
    )


def _soft_clamp(
    levels: Sequence[int], value: float | list[float] | Tensor | None, hard: bool
) -> Tensor | None:
    if hard:
        limits = [1 + 1 / (count - 1) for count in levels]
        return torch.tensor(limits, dtype=wide_dtype(), device="cpu")
    if value is None:
        return None
    limit = torch.as_tensor(value, dtype=wide_dtype(), device="cpu")
    return limit.reshape(()) if limit.numel() == 1 else limit


__all__ = ["GroupedResidualFSQ", "ResidualFSQ"]  # noqa: F822
__getattr__ = found_in("torchvq.grouped_residual_fsq", "GroupedResidualFSQ", __name__)
