"""VectorQuantize in a few lines of float64: tokens, distances, statistics, as oracles and tie checks use them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CHANNEL_FIRST = ("accept_image_fmap", "accept_3d_fmap")


def channel_last(row, x: Tensor) -> Tensor:
    """(B, N, D), for any layout of the input that the row's options select."""
    kwargs = row.constructor_kwargs()
    if x.ndim == 2:
        return x[:, None]
    if any(kwargs.get(name) for name in CHANNEL_FIRST):
        return x.flatten(2).transpose(1, 2)
    return x if kwargs.get("channel_last", True) else x.transpose(1, 2)


def compared_tokens(module: nn.Module, row, x: Tensor) -> Tensor:
    """(B, N, H, d) in float64: the vectors compared with codes, after projection, head split and normalisation."""
    tokens = channel_last(row, x).double()  # differentiable to x; the weights are constants
    state = {name: value.detach().double() for name, value in module.state_dict().items()}
    if "project_in.weight" in state:
        tokens = F.linear(tokens, state["project_in.weight"], state["project_in.bias"])
    elif "project_in.0.weight" in state:
        tokens = F.linear(tokens, state["project_in.0.weight"], state["project_in.0.bias"])
        tokens = F.layer_norm(
            tokens, tokens.shape[-1:], state["project_in.1.weight"], state["project_in.1.bias"]
        )
    heads = row.constructor_kwargs().get("heads", 1)
    tokens = tokens.unflatten(-1, (heads, -1))
    return F.normalize(tokens, dim=-1) if row.constructor_kwargs().get("use_cosine_sim") else tokens


def codes_per_head(module: nn.Module, row) -> Tensor:
    """(H, K, d) in float64; a shared codebook is repeated for every head."""
    codes = module.state_dict()["_codebook.embed"].detach().double()
    heads = row.constructor_kwargs().get("heads", 1)
    return codes.expand(heads, -1, -1) if codes.shape[0] == 1 else codes


def differentiable_distances(tokens: Tensor, codes: Tensor) -> Tensor:
    """(B, N, H, K), not squared."""
    return (tokens[..., None, :] - codes).norm(dim=-1)


def nearest(tokens: Tensor, codes: Tensor, cosine: bool = False) -> Tensor:
    if cosine:
        return torch.einsum("bnhd,hkd->bnhk", tokens, codes).argmax(-1)
    return differentiable_distances(tokens, codes).argmin(-1)


def look_up(codes: Tensor, indices: Tensor) -> Tensor:
    """codes (H, K, d), indices (B, N, H) -> (B, N, H, d)."""
    return torch.stack([codes[h][indices[..., h]] for h in range(codes.shape[0])], dim=2)


def distance_of_indices(module: nn.Module, row, x: Tensor, indices: Tensor) -> Tensor:
    """Squared distance of every token to its code; 0 for masked tokens.

    Codes that a module computes (affine, bridge, per token) are not considered, so no tie of theirs is excused.
    """
    tokens, codes = compared_tokens(module, row, x), codes_per_head(module, row)
    batch, positions, heads, _ = tokens.shape
    indices = indices.reshape(batch, positions, heads, -1)  # the last axis has topk candidates
    chosen = torch.stack(
        [look_up(codes, indices[..., k].clamp(min=0)) for k in range(indices.shape[-1])], -2
    )
    squared = (tokens[..., None, :] - chosen).pow(2).sum(-1)
    return squared.masked_fill(indices < 0, 0.0)


def lloyd_fixed_point_error(points: Tensor, codes: Tensor) -> float:
    """Distance of codes from the means of the points nearest to them, without codes that have no points."""
    owner = torch.cdist(points, codes).argmin(-1)
    errors = [(points[owner == k].mean(0) - codes[k]).norm() for k in owner.unique().tolist()]
    return float(torch.stack(errors).max())
