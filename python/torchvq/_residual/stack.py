"""Residual stacks whose levels have no codebook to learn: forward and decoding.

A family defines one level (``quantize_level``, ``decode_level``) and the gradient of the stack; layouts, masks, dropout
of levels, decoding and groups (``_residual/grouped_stack.py``) are implemented here once for all families.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchvq._base import joined as _joined
from torchvq._base.contained import first_contained
from torchvq._base.integers import as_int64
from torchvq._base.layout import Layout
from torchvq._base.options import expect, keep_values, named
from torchvq._base.projection import make_projections, project_codes, projected_tokens
from torchvq._base.random_state import RandomState, StepRecord
from torchvq._base.ranks import distributed_training
from torchvq._base.replaced import Methods, is_replaced, methods_of
from torchvq._base.wide_buffers import WideBuffers, in_half_dtype
from torchvq._residual.calls import check_levels
from torchvq._residual.dropout import Levels, depth_of, drops_levels
from torchvq._residual.engine import (
    WalkedLevel,
    balanced,
    in_use,
    levels_to_walk,
    only_if,
    restore_codes,
    restored_output,
    stack_levels,
    walk,
    weighted,
)

_ops = torch.ops.torchvq


def sum_of_levels(codes: Sequence[Tensor]) -> Tensor:
    """The sum of the codes of all levels, in their order."""
    total = torch.zeros_like(codes[0])
    for level in codes:
        total = total + level
    return total


class LevelResult(NamedTuple):
    """The result of one level for the residual of the levels before."""

    codes: Tensor  # (B, N, D), on the scale of the stack's input
    indices: Tensor  # (B, N)
    detail: Any = None  # data that the family needs for its losses


class LevelsRequest(NamedTuple):
    """The arguments of a forward to all levels."""

    mask: Tensor | None  # (B, N), for losses only
    rng: Tensor | None  # (2,), for levels that draw
    depth: int | Tensor  # levels in use
    all_codes: bool  # whether the codes of each level are asked for


class LevelsResult(NamedTuple):
    """The results of all levels in use, together."""

    total: Tensor  # (B, N, D), the sum of the codes
    indices: Tensor  # (B, N, depth)
    codes: Sequence[Tensor] = ()  # (B, N, D) of each level; empty if they were not asked for
    details: Sequence[Any] = ()  # data of each level that the family needs for its losses
    losses: Tensor | None = None  # (depth,), if they are complete


class StackResult(NamedTuple):
    """The result of a stack."""

    quantized: Tensor  # the layout and dtype of the input
    indices: Tensor  # (B, *, Q), -1 where masked or dropped
    all_codes: Tensor | None  # (Q, B, *, D) if asked for
    details: Sequence[Any]  # data of each level in use
    losses: Tensor | None  # (depth,), weighted; None if they follow from details
    depth: int | Tensor  # their number; if only the device knows it, all levels are computed
    step: StepRecord | None  # the record of a checkpointed forward


class ResidualStack(RandomState, Levels):
    """Base of residual stacks: each level quantizes the residual of the levels before.

    Attributes:
        gradient: "attached": levels see the gradient of the residual; the gain from output to input is then
            ``1 - (1 - g_0) (1 - g_1) ...``, with ``g_n`` the gain of level n: that of the levels as a function, never
            above 1. "summed": they do not, and gains add up, as in the reference. "averaged": the same divided by
            the number of levels. "estimated": they do not, and ``estimate`` gives the sum of the codes its gradient.
    """

    gradient = "attached"
    vqp_compat = False
    communicates = False  # whether ranks exchange messages in a training forward
    # Methods whose override in a subclass makes `get_output_from_indices` sum the codes that they return.
    decoding: Methods
    # Methods whose override in a subclass is called for each level, in place of one operator for all.
    level_steps: Methods
    # Options in which ranks must agree, as text, besides those of the levels.
    signature = ""
    heads = 1  # codes per latent and level; levels see each head as a token

    dim: int
    inner_dim: int
    is_channel_first: bool
    has_projections: bool
    draws: bool

    def __init__(
        self,
        *,
        dim: int,
        inner_dim: int,
        num_quantizers: int,
        is_channel_first: bool,
        quantize_dropout: bool,
        quantize_dropout_cutoff_index: int,
        quantize_dropout_multiple_of: int,
        draws: bool = False,
    ) -> None:
        super().__init__()
        keep_values(
            self,
            **named(
                locals(),
                "dim inner_dim is_channel_first quantize_dropout_cutoff_index "
                "quantize_dropout_multiple_of draws",
            ),
            quantize_dropout=quantize_dropout and num_quantizers > 1,
            has_projections=inner_dim != dim,
        )
        if self.quantize_dropout:
            rule = quantize_dropout_cutoff_index, quantize_dropout_multiple_of
            self.signature = f"dropout from {rule[0]} in multiples of {rule[1]}; "
        self.project_in, self.project_out = make_projections(dim, inner_dim)
        if self.quantize_dropout or draws:
            self.keep_rng()

    # What a family says ------------------------------------------------------------------------------------

    def prepare_inputs(self, inputs: Tensor) -> Tensor:
        """The input of the first level from projected tokens (B, N, D), float32 or float64."""
        return inputs

    def quantize_level(
        self, index: int, residual: Tensor, mask: Tensor | None, rng: Tensor | None
    ) -> LevelResult:
        """Level ``index`` for (B, N, D). mask (B, N) is for losses only; ``rng`` is for levels that draw."""
        raise NotImplementedError

    def decode_level(self, index: int, indices: Tensor) -> Tensor:
        """Codes (*, D) of indices (*) of a level, on the scale of the stack's input; -1 gives zeros."""
        raise NotImplementedError

    def estimate(self, inputs: Tensor, total: Tensor) -> Tensor:
        """The sum of the codes with its gradient to the inputs, for "estimated"."""
        raise NotImplementedError

    def plain_indices(self, indices: Tensor) -> Tensor:
        """Indices in the shape that the family returns, reshaped to (B, *, q)."""
        return indices

    def handshake(self, inputs: Tensor) -> None:
        """Communication of ranks before a training forward from these inputs, for families that have it."""

    def choose_codes(self, inputs: Tensor, mask: Tensor | None) -> Tensor | None:
        """Indices (B, N, Q), if the codes of all levels are chosen before the loop (beam search); else None."""
        return None

    def quantize_chosen(
        self, index: int, residual: Tensor, mask: Tensor | None, indices: Tensor
    ) -> LevelResult:
        """``quantize_level`` with codes (B, N) that are already chosen."""
        raise NotImplementedError

    def process_at_once(self, inputs: Tensor, request: LevelsRequest) -> LevelsResult | None:
        """All levels in use by one operator, instead of one after the other; None if none can do it."""
        return None

    # Forward -----------------------------------------------------------------------------------------------

    def run(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        return_all_codes: bool = False,
        seed: int | None = None,
        depth: int | Tensor | None = None,
        layout: Layout | None = None,
    ) -> StackResult:
        """The forward of a family; groups that drop levels get the ``depth`` of the first of them.

        ``layout`` is that of x. Default: the stack's.
        """
        layout = self.layout if layout is None else layout
        layout.check_input(x)
        token_mask = layout.mask_of_items(x, mask)
        inputs = self.prepare_inputs(projected_tokens(x, token_mask, layout, self.project_in))
        if self.training and self.communicates and distributed_training():
            self.handshake(inputs)
        draws = self.draws or (self.quantize_dropout and seed is None)
        steps = self.training and (draws or self.communicates)
        with self.drawing(draws=draws) if steps else nullcontext() as rng:
            if depth is None or not drops_levels(self):
                depth = self._depth(seed, rng)
            rows, row_mask = self._split_heads(inputs, token_mask)
            drawing = rng if self.draws else None
            request = LevelsRequest(row_mask, drawing, depth, return_all_codes)
            found = self._process(rows, request)
            total, indices, codes = self._merge_heads(found)
            step = self.step_record
        quantized, indices, codes = self._restore(layout, x, token_mask, total, indices, codes)
        if codes is not None and self.vqp_compat:
            # The reference looks the codes up: they have the gradient of decoding, and no noise.
            codes = stack_levels(self._decode(indices), self.num_quantizers)
            codes = in_half_dtype(self._half_dtype, codes)
        return StackResult(quantized, indices, codes, found.details, found.losses, depth, step)

    def _split_heads(self, inputs: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Tokens (B, N, heads * D) as (B, N * heads, D), and their mask."""
        if self.heads == 1:
            return inputs, mask
        if mask is not None:
            mask = mask.repeat_interleave(self.heads, 1)
        batch, positions, features = inputs.shape
        rows = inputs.reshape(batch, positions * self.heads, features // self.heads)
        return rows, mask

    def _merge_heads(self, found: LevelsResult) -> tuple[Tensor, Tensor, Tensor | None]:
        """The inverse of ``_split_heads``, with codes (Q, B, N, heads * D); indices (B, N, heads, Q)."""
        total, indices = found.total, found.indices
        # Dropped levels have index -1 and codes of zeros.
        every = self.num_quantizers
        codes = stack_levels(found.codes, every) if found.codes else None
        if indices.shape[-1] < every:
            indices = pad(indices, (0, every - indices.shape[-1]), value=-1)
        if self.heads == 1:
            return total, indices, codes
        batch, rows, features = total.shape
        positions = rows // self.heads
        if codes is not None:
            codes = codes.reshape(codes.shape[0], batch, positions, self.heads * features)
        total = total.reshape(batch, positions, self.heads * features)
        return total, indices.reshape(batch, positions, self.heads, indices.shape[-1]), codes

    def _process(self, inputs: Tensor, request: LevelsRequest) -> LevelsResult:
        balances = self.training and self.gradient in ("averaged", "estimated")
        # Divided by the number of all levels, in a step that drops some as well: such a step weighs less, as in the
        # reference, whose gain is the number of levels in use.
        compared = balanced(inputs, self.num_quantizers) if balances else inputs
        replaced = is_replaced(self, self.level_steps)
        found = None if replaced else self.process_at_once(compared, request)
        if found is None:
            found = self._process_in_turn(compared, request)
        if self.gradient == "estimated":
            own = weighted(inputs, request.depth, self.num_quantizers)
            found = found._replace(total=self.estimate(own, found.total))
        if not request.all_codes:
            return found._replace(codes=())
        # Without a gradient of their own: that of averaged levels is defined for the sum of their codes alone.
        averaged = self.training and self.gradient == "averaged"
        codes = [own.detach() for own in found.codes] if averaged else found.codes
        return found._replace(codes=codes)

    def _process_in_turn(self, inputs: Tensor, request: LevelsRequest) -> LevelsResult:
        mask, rng, depth, _ = request
        chosen = self.choose_codes(inputs, mask)

        def choose(index: int, residual: Tensor, _: Tensor) -> tuple[LevelResult, WalkedLevel]:
            if chosen is None:
                level = self.quantize_level(index, residual, mask, rng)
            else:
                level = self.quantize_chosen(index, residual, mask, chosen[..., index])
            used = in_use(depth, index)
            if used is not None:
                level = level._replace(
                    codes=only_if(used, level.codes), indices=only_if(used, level.indices, -1)
                )
            output = level.codes if self.gradient == "attached" else level.codes.detach()
            return level, WalkedLevel(level.codes, output)

        total, levels = walk(inputs, levels_to_walk(depth, self.num_quantizers), choose)
        codes, indices, details = zip(*levels, strict=True)
        return LevelsResult(total, _joined.stack(indices, -1), list(codes), list(details))

    def _restore(
        self,
        layout: Layout,
        x: Tensor,
        mask: Tensor | None,
        total: Tensor,
        indices: Tensor,
        all_codes: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        quantized = restored_output(total, x, mask, layout, self.project_out)
        if mask is not None:
            absent = mask.logical_not().view(*mask.shape, *[1] * (indices.dim() - 2))
            indices = indices.masked_fill(absent, -1)
        if all_codes is not None:
            all_codes = _joined.stack(
                [restore_codes(codes, x, mask, layout) for codes in all_codes]
            )
        indices = layout.unpack_positions(indices, x)
        return quantized, indices, all_codes

    @property
    def layout(self) -> Layout:
        """The layout of inputs and outputs."""
        return Layout(self.dim, self.is_channel_first, type(self).__name__)

    def _depth(self, seed: int | None, rng: Tensor | None) -> int | Tensor:
        """The number of levels that this forward uses."""
        if not drops_levels(self):
            return self.num_quantizers
        if seed is not None:
            return depth_of(self, seed)
        expect(
            type(self).__name__,
            rng is not None,
            "quantize_dropout",
            "given to the constructor, which makes the generator of the depths (or pass "
            "rand_quantize_dropout_fixed_seed to forward)",
            "set on the module",
        )
        assert rng is not None
        # Drawn from the step without the seed: ranks with different seeds drop the same levels, without a message.
        step = torch.stack([torch.zeros_like(rng[1]), rng[1]])
        return depth_of(self, None, step)

    # Codes -------------------------------------------------------------------------------------------------

    def get_codes_from_indices(self, indices: Tensor) -> Tensor:
        """Codes (Q, B, *, D) of indices (B, *, q), before ``project_out``: features last in every layout.

        q is the number of levels, or with ``quantize_dropout`` fewer: then zeros for the missing ones. -1 gives zeros.
        ValueError for another number of levels, IndexError for an index outside.
        """
        codes = self._decode(self.plain_indices(as_int64(type(self).__name__, indices)))
        return in_half_dtype(self._half_dtype, stack_levels(codes, self.num_quantizers))

    def get_output_from_indices(self, indices: Tensor) -> Tensor:
        """The output of ``forward`` in evaluation for these indices; zeros where all are -1.

        Features are last, and on axis 1 with ``is_channel_first=True``: indices do not say that ``forward`` of
        ``ResidualLFQ`` found them there by itself.
        """
        replaced = is_replaced(self, self.decoding)
        codes = self.get_codes_from_indices(indices).unbind() if replaced else None
        indices = self.plain_indices(as_int64(type(self).__name__, indices))
        total = sum_of_levels(self._decode(indices) if codes is None else codes)
        output = project_codes(self.project_out, total, indices, self._half_dtype)
        return self.layout.place_features(output)

    @property
    def _half_dtype(self) -> torch.dtype | None:
        """That of the levels, which have the state."""
        first: WideBuffers = first_contained(self, "layers", WideBuffers)
        return first.half_dtype

    def _decode(self, indices: Tensor) -> list[Tensor]:
        owner = type(self).__name__
        check_levels(owner, indices, self.num_quantizers, self.quantize_dropout)
        levels = range(indices.shape[-1])
        codes = [self.decode_level(index, indices[..., index]) for index in levels]
        if self.heads == 1:
            return codes
        among = indices.dim() > 1 and indices.shape[-2] == self.heads
        condition = f"of {self.heads} heads on the axis before the last"
        expect(owner, among, "indices", condition, f"shape {list(indices.shape)}")
        return [level.flatten(-2) for level in codes]


ResidualStack.decoding = methods_of(ResidualStack, "get_codes_from_indices")
