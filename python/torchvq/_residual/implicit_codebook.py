"""Codebooks that depend on what was decoded so far: QINCo (Huijben et al. 2024, arXiv:2401.14732)."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchvq._base import joined as _joined
from torchvq._base.layout import SplitTokens
from torchvq._base.options import expect
from torchvq._base.projection import project
from torchvq._base.ranks import noise_rng
from torchvq._base.torch_private import records_results
from torchvq._codebook.losses import SearchedTokens, SearchResult
from torchvq._codebook.request import Request
from torchvq._codebook.search import codes_to_search, estimator_of, sampling_temperature
from torchvq.vector_quantize import VectorQuantize

_ops = torch.ops.torchvq

# Numbers in memory at once while the codes of a block of tokens are computed: 32 MiB in float32.
_BLOCK = 1 << 23


class MLP(nn.Module):
    """Computes a level's codes for one token from its base codes and the sum decoded by the levels before.

    ``h = proj_in(cat[condition, code])``, then ``h = h + W2 silu(W1 h)`` for each of ``depth`` layers; with
    ``l2norm_output`` divided by its length.
    """

    def __init__(
        self, dim: int, dim_hidden: int | None = None, depth: int = 4, l2norm_output: bool = False
    ) -> None:
        super().__init__()
        self.l2norm_output = l2norm_output
        hidden = dim if dim_hidden is None else dim_hidden
        self.proj_in = nn.Linear(2 * dim, dim)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, hidden), nn.SiLU(), nn.Linear(hidden, dim))
            for _ in range(depth)
        )

    def forward(self, codes: Tensor, *, condition: Tensor) -> Tensor:
        """The codes of each token (H, B, N, K, D), of base codes (K, D) without H.

        Args:
            codes: (H, K, D), or (K, D).
            condition: (B, *, D), of which N is the number of positions; without any, (B, D), it is 1.

        ValueError for other shapes.
        """
        size = self.proj_in.out_features
        fits = codes.dim() in (2, 3) and codes.shape[-1] == size
        expect("MLP", fits, "codes", f"(K, {size}) or (H, K, {size})", list(codes.shape))
        fits = condition.dim() >= 2 and condition.shape[-1] == size
        expect("MLP", fits, "condition", f"(B, *, {size})", list(condition.shape))
        given = condition.flatten(1, -2) if condition.dim() > 2 else condition.unsqueeze(1)
        base = codes if codes.dim() == 3 else codes.unsqueeze(0)
        found = self.rows(base[:, None, None], given[None, :, :, None])
        return found if codes.dim() == 3 else found.squeeze(0)

    def rows(self, codes: Tensor, condition: Tensor) -> Tensor:
        """Codes (..., D), each for its own condition (..., D)."""
        both = torch.broadcast_tensors(condition, codes)  # type: ignore[no-untyped-call]
        h = project(self.proj_in, _joined.cat(both, -1))
        for layer in self.layers:
            # Without a graph the sum takes the memory of the layer's output; with one, that may be needed.
            keeps = torch.is_grad_enabled() or records_results()
            h = h + layer(h) if keeps else layer(h).add_(h)
        if self.l2norm_output:
            h = nn.functional.normalize(h, dim=-1)
        return h.to(codes.dtype)


class Implicit(NamedTuple):
    """The network that computes the codes of a level for each token, and its condition."""

    mlp: MLP
    condition: Tensor  # (H, T, D), the sum decoded by the levels before


def choose_implicit(
    vq: VectorQuantize,
    implicit: Implicit,
    split: SplitTokens,
    request: Request,
    *,
    estimator: str | None,
    rng: Tensor,
    chosen: Tensor | None = None,
) -> SearchResult:
    """The search of a level whose codes are computed for each token; like ``search.choose``.

    The search runs without a graph, one block of tokens at a time. The chosen codes are then computed again, as in
    decoding: so decoding equals the output bit for bit, and backward costs one code per token.
    """
    tokens, residual, mask = split
    rng = noise_rng(rng, request.ranks)
    # A copy, because this step may replace dead codes before backward has used them.
    base = _ops.snapshot(codes_to_search(vq, request, tokens, residual.dtype))
    if chosen is None:
        with torch.no_grad():
            chosen = _search(vq, implicit, residual, base, request.temperature, rng)
    codes = implicit.mlp.rows(_ops.lookup_codes(base, chosen), implicit.condition)
    indices = chosen if mask is None else chosen.masked_fill(~mask, -1)
    quantized = _ops.estimate(
        residual,
        codes,
        rng,
        estimator=estimator_of(vq, residual, codes) if estimator is None else estimator,
        variance=vq.directional_reparam_variance,
        sync_update_v=vq.sync_update_v if vq.training else 0.0,
    )
    return SearchResult(quantized, SearchedTokens(tokens, residual, base, mask, codes, indices))


def _search(
    vq: VectorQuantize,
    implicit: Implicit,
    residual: Tensor,
    base: Tensor,
    temperature: float,
    rng: Tensor,
) -> Tensor:
    drawn_at = sampling_temperature(vq, temperature)
    blocks = blocks_of((residual, implicit.condition), base.numel(), drawn_at is not None)
    found = []
    for block, (x, given) in enumerate(blocks):
        codes = own_codes(implicit._replace(condition=given), base)
        if drawn_at is not None:
            # Each token is passed as a head with one token, because it has its own codes.
            heads = x.flatten(0, 1).unsqueeze(1), codes.flatten(0, 1)
            sampled = _ops.sample_codes(
                *heads, rng, temperature=drawn_at, metric="euclidean", stream=block
            )
            found.append(sampled.view(x.shape[:2]))
        else:
            found.append(_ops.quantize(x, codes, rng, estimator="none")[1])
    indices = torch.cat(found, 1)
    if torch.compiler.is_compiling():
        # All distances of a token that is not finite are NaN, among which runtimes of exported graphs choose any.
        indices = indices.masked_fill(~residual.isfinite().all(-1), 0)
    return indices


def blocks_of(
    tensors: Sequence[Tensor], numbers: int, samples: bool
) -> Iterator[tuple[Tensor, ...]]:
    """Blocks of tokens (H, T, ...), of which each takes that many numbers in memory.

    A graph for any number of tokens cannot count blocks: it takes all tokens as one, unless they draw, which they do by
    block.
    """
    if not samples and torch.compiler.is_compiling():
        # Imports sympy, which takes a second.
        from torch.fx.experimental.symbolic_shapes import has_static_value

        if not has_static_value(tensors[0].shape[1]):
            return iter([tuple(tensors)])
    rows = max(1, _BLOCK // numbers)
    return zip(*(torch.split(tensor, rows, 1) for tensor in tensors), strict=True)


def own_codes(implicit: Implicit, base: Tensor) -> Tensor:
    """The codes of each token (H, T, K, D) from the base codes (H, K, D) of a level, with their graph."""
    return implicit.mlp.rows(base.unsqueeze(1), implicit.condition.unsqueeze(2))
