"""Beam search through levels whose codes depend on the path: each path computes codes of its own."""

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from torchvq._base.ranks import noise_rng
from torchvq._codebook.search import sampling_temperature, stored_codes
from torchvq._residual.implicit_codebook import blocks_of

if TYPE_CHECKING:
    from torchvq._residual.calls import StackRequest
    from torchvq.residual_vq import ResidualVQ

_ops = torch.ops.torchvq


class Paths(NamedTuple):
    """Paths through the levels so far, w for each token; as the operator ``extend_paths`` takes and returns them."""

    residual: Tensor  # (H, T, w, D)
    decoded: Tensor  # (H, T, w, D), the sum of the codes
    score: Tensor  # (H, T, w), float64
    indices: Tensor  # (H, T, w, levels)


def first_paths(inputs: Tensor) -> Paths:
    """The path of no levels, for inputs (H, T, D)."""
    residual = inputs.detach().unsqueeze(2)
    score = residual.new_zeros(residual.shape[:3], dtype=torch.float64)
    indices = residual.new_zeros((*residual.shape[:3], 0), dtype=torch.int64)
    return Paths(residual, torch.zeros_like(residual), score, indices)


def extend_implicit(
    rvq: "ResidualVQ", index: int, paths: Paths, request: "StackRequest", beam: int
) -> Paths:
    """The ``beam`` best extensions by a level, whose codes are computed for a block of paths at a time.

    With sampling, among ``request.beam`` codes that each path draws, also at the last level, where one path remains.
    """
    codebook = rvq.levels[index]._codebook
    base = stored_codes(codebook, paths.residual.dtype).detach()[:, None, None]
    samples = bool(sampling_temperature(rvq.first_level, request.temperature))
    blocks = blocks_of(paths, base.numel() * paths.score.shape[2], samples)
    weights = rvq.beam_weights(rvq.num_quantizers)
    weight = weights[index] if weights else None
    found = []
    with torch.no_grad():
        for number, tensors in enumerate(blocks):
            block = Paths(*tensors)
            codes = base.expand(-1, block.score.shape[1], -1, -1, -1)
            if index > 0:
                codes = rvq.mlp(index).rows(base, block.decoded.unsqueeze(3))
            candidates = _candidates(rvq, index, block, codes, request, number)
            if candidates is not None:
                rows = candidates.unsqueeze(-1).expand(-1, -1, -1, -1, codes.shape[-1])
                codes = codes.gather(-2, rows)
            found.append(
                _ops.extend_paths(*block, codes, beam, candidates=candidates, weight=weight)
            )
    return Paths(*(torch.cat(parts, 1) for parts in zip(*found, strict=True)))


def _candidates(
    rvq: "ResidualVQ", index: int, paths: Paths, codes: Tensor, request: "StackRequest", block: int
) -> Tensor | None:
    """The codes (H, T, w, C) that each path draws, in training with sampling; None: all codes (H, T, w, K, D)."""
    temperature = sampling_temperature(rvq.first_level, request.temperature)
    if not temperature:
        return None
    count = min(request.beam, codes.shape[3])
    # Each path is passed as a head with one token, because it has its own codes.
    drawn = _ops.sample_codes(
        paths.residual.flatten(0, 2).unsqueeze(1),
        codes.flatten(0, 2),
        noise_rng(rvq._level_rng(index), request.ranks),
        temperature=temperature,
        metric="euclidean",
        stream=block,
        topk=count,
    )
    return drawn.view(*paths.score.shape, count).sort(-1).values


def best_implicit_paths(rvq: "ResidualVQ", inputs: Tensor, request: "StackRequest") -> Tensor:
    """The indices (H, T, levels) for inputs (H, T, D); those of levels that are not in use are arbitrary."""
    depth = request.depth
    paths = first_paths(inputs)
    if isinstance(depth, int):
        for index in range(depth):
            last = index + 1 == depth
            paths = extend_implicit(rvq, index, paths, request, 1 if last else request.beam)
        return paths.indices.squeeze(2)
    best = inputs.new_zeros((*inputs.shape[:2], rvq.num_quantizers), dtype=torch.int64)
    for index in range(rvq.num_quantizers):
        paths = extend_implicit(rvq, index, paths, request, request.beam)
        first = paths.score.argmin(-1, keepdim=True).unsqueeze(-1)
        own = paths.indices.gather(2, first.expand(-1, -1, -1, index + 1)).squeeze(2)
        own = torch.nn.functional.pad(own, (0, rvq.num_quantizers - index - 1))
        best = torch.where(depth == index + 1, own, best)
    return best
