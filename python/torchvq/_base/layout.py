"""The order of batch, positions, features and heads in the inputs and outputs of a quantizer."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchvq._base.arguments import expect_dense, expect_floating, expect_tensor
from torchvq._base.integers import as_int64
from torchvq._base.torch_private import is_jit_traced

_ops = torch.ops.torchvq


def check_mask(owner: str, mask: Tensor, shape: tuple[int, ...] | None = None) -> None:
    """Raises TypeError unless a mask is a tensor of bool, ValueError unless it has the shape, if one is given."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"{owner}: expected mask to be bool, but got {got}")
    expect_dense(owner, "mask", mask)
    if shape is not None and mask.shape != shape:
        raise ValueError(
            f"{owner}: expected mask to have shape {list(shape)}, but got {list(mask.shape)}"
        )


class SplitTokens(NamedTuple):
    """The tokens of a forward, and the same as a search takes them."""

    tokens: Tensor  # (B, N, dim)
    rows: Tensor  # (H, T, D)
    mask: Tensor | None  # (H, T)


class Layout(NamedTuple):
    """The layout of one module: the inputs that it accepts, and how heads map to codebooks.

    Internally, tokens are (H, T, D): one row of heads per codebook. Operators do the reshaping.
    """

    dim: int
    channel_first: bool
    owner: str  # the class that error messages name
    heads: int = 1
    separate: bool = False  # one codebook per head
    map_rank: int | None = None  # of the input, for options that need an image or a volume

    def check_input(self, x: Tensor, name: str = "x") -> None:
        """Raises TypeError or ValueError for an input of another dtype or shape; ``name`` is that of the parameter."""
        expect_floating(self.owner, name, x)
        if x.dim() < 2 or (self.map_rank is not None and x.dim() not in (2, self.map_rank)):
            layout = {None: "(B, *, dim)", 4: "(B, dim, H, W)", 5: "(B, dim, T, H, W)"}[
                self.map_rank
            ]
            raise ValueError(
                f"{self.owner}: expected {name} to have shape {layout}, but got shape {list(x.shape)}"
            )
        features = x.shape[1 if self.channel_first else -1]
        if features != self.dim:
            axis = "axis 1" if self.channel_first else "the last axis"
            raise ValueError(
                f"{self.owner}: expected {name} to have {self.dim} features (dim) on {axis}, but got shape "
                f"{list(x.shape)}"
            )

    def positions(self, x: Tensor) -> torch.Size:
        """The axes of x that are neither batch nor features."""
        return x.shape[2:] if self.channel_first else x.shape[1:-1]

    def token_mask(self, x: Tensor, mask: Tensor | None, lens: Tensor | None) -> Tensor | None:
        """(B, N) bool, True for real tokens."""
        if mask is not None and lens is not None:
            raise ValueError(f"{self.owner}: expected mask or lens to be given, but got both")
        positions = self.positions(x)
        if lens is not None:
            expect_tensor(self.owner, "lens", lens)
            if len(positions) != 1 or lens.shape != x.shape[:1]:
                raise ValueError(
                    f"{self.owner}: expected lens to have one length per sequence of x, but got "
                    f"shape {list(lens.shape)} for x of shape {list(x.shape)}"
                )
            return _ops.lens_to_mask(lens, positions[0])
        if mask is None:
            return None
        check_mask(self.owner, mask, (x.shape[0], *positions))
        return mask.unsqueeze(1) if not positions else mask.flatten(1)

    def mask_of_items(self, x: Tensor, mask: Tensor | None) -> Tensor | None:
        """``token_mask`` for modules that also take a mask of items, (B,), or of flat positions, (B, N)."""
        positions = self.positions(x)
        if mask is None:
            return None
        check_mask(self.owner, mask)
        if positions and mask.shape == x.shape[:1]:
            mask = mask.reshape(-1, *[1] * len(positions)).expand(-1, *positions)
        # math.prod and not `positions.numel()`, for which compilers fix all sizes. Axes are counted before sizes are
        # compared: a compiler would make the outcome, unequal, a condition of its graph, and refuse equal sizes.
        flat = len(positions) > 1 and mask.dim() == 2
        if flat and mask.shape == (x.shape[0], math.prod(positions)):
            mask = mask.reshape(x.shape[0], *positions)
        return self.token_mask(x, mask, None)

    def pack(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x to (B, N, dim). Padding becomes zeros: it may hold anything, NaN included, and must reach no gradient."""
        # What is in order already is spared the call of an operator, 4 us.
        plain = x.dim() == 3 and not self.channel_first
        tokens = x if plain else _ops.pack_tokens(x, self.channel_first)
        return tokens if mask is None else _ops.fill_masked(tokens, mask)

    def unpack(
        self, tokens: Tensor, x: Tensor, mask: Tensor | None = None, padding: Tensor | None = None
    ) -> Tensor:
        """(B, N, dim), or (B, N, k, dim), to the layout of x; where masked ``padding`` (B, N, dim), or zeros."""
        if mask is not None:
            tokens = _ops.fill_padding(tokens, mask, padding)
        if x.dim() == 3 and not self.channel_first:
            return tokens
        return _ops.unpack_tokens(tokens, x, self.channel_first)

    def split_heads(self, tokens: Tensor) -> Tensor:
        """(B, N, heads * D) to (H, T, D)."""
        if self.heads == 1:
            return tokens.reshape(1, -1, tokens.shape[-1])
        return _ops.split_heads(tokens, self.heads, self.separate)

    def split_mask(self, mask: Tensor) -> Tensor:
        """(B, N) to (H, T)."""
        return _ops.split_mask(mask, self.heads, self.separate)

    def split_indices(self, indices: Tensor) -> Tensor:
        """Integer indices in the shape that forward returns, as int64 (H, T)."""
        return _ops.split_indices(as_int64(self.owner, indices), self.heads, self.separate)

    def merge_heads(self, values: Tensor, batch: int, tokens: int) -> Tensor:
        """(H, T, ...) to (B, N, heads, ...)."""
        if is_jit_traced():  # which takes sizes that an operator is given as constants
            rows = values.transpose(0, 1) if self.separate else values
            return rows.reshape(batch, tokens, self.heads, *values.shape[2:])
        return _ops.merge_heads(values, batch, tokens, self.heads, self.separate)

    def restore_positions(self, values: Tensor, x: Tensor) -> Tensor:
        """Values per token, (H, T) or (H, T, k), in the layout of x; several heads become the last axis."""
        return _ops.restore_positions(values, x, **self._options())

    def restore_tokens(
        self, codes: Tensor, x: Tensor, mask: Tensor | None, zeros_for_masked: bool
    ) -> Tensor:
        """Codes (H, T, D) or (H, T, k, D) in layout and dtype of x; padding becomes zeros or keeps x."""
        options = self._options()
        if mask is not None:
            options |= dict(mask=mask, zeros_for_masked=zeros_for_masked)
        return _ops.restore_tokens(codes, x, **options)

    def _options(self) -> dict[str, Any]:
        """The options of operators that differ from their defaults, as in ``lean_call.py``."""
        options: dict[str, Any] = {}
        if self.heads > 1:
            options |= dict(heads=self.heads, separate=self.separate)
        if self.channel_first:
            options["channel_first"] = True
        return options

    def split_tokens(self, x: Tensor, mask: Tensor | None) -> SplitTokens:
        """The tokens of x, with mask (B, N)."""
        tokens = self.pack(x, mask)
        row_mask = None if mask is None else self.split_mask(mask)
        return SplitTokens(tokens, self.split_heads(tokens), row_mask)

    def unpack_positions(self, values: Tensor, x: Tensor) -> Tensor:
        """Values per token (B, N, ...) in the layout of x: (B, *, ...)."""
        if x.dim() == 3:
            return values
        return _ops.unpack_positions(values, x, self.channel_first)

    def place_features(self, values: Tensor) -> Tensor:
        """Moves the features from the last axis to their axis in this layout; a single vector stays as it is."""
        return values.movedim(-1, 1) if self.channel_first and values.dim() > 1 else values

    def split_visible(self, x: Tensor) -> Tensor:
        """(B, N, heads * D) to (heads, B, N, D) for separate codebooks, (1, B * heads, N, D) for a shared one."""
        if self.heads == 1:
            return x
        split = x.reshape(*x.shape[:-1], self.heads, x.shape[-1] // self.heads)
        if self.separate:
            return split.movedim(2, 0)
        return split.transpose(1, 2).flatten(0, 1).unsqueeze(0)


def layout_by_options(module: Any, heads: int, separate: bool, owner: str) -> Layout:
    """The layout that ``channel_last``, ``accept_image_fmap`` and ``accept_3d_fmap`` of a module ask for."""
    image, volume = module.accept_image_fmap, module.accept_3d_fmap
    first = image or volume or not module.channel_last
    return Layout(module.dim, first, owner, heads, separate, 5 if volume else 4 if image else None)
