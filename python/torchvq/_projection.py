"""The linear maps between the features of the input and those of the codes."""

import torch
from torch import Tensor, nn


def make_projections(
    dim: int, inner_dim: int, layernorm: bool = False, bias: bool = True
) -> tuple[nn.Module, nn.Module]:
    """The projections towards the codes and back; identities where the features are as many."""
    if inner_dim == dim:
        return nn.Identity(), nn.Identity()
    project_in: nn.Module = nn.Linear(dim, inner_dim, bias=bias)
    if layernorm:
        project_in = nn.Sequential(project_in, nn.LayerNorm(inner_dim))
    return project_in, nn.Linear(inner_dim, dim, bias=bias)


def project(projection: nn.Module, tokens: Tensor) -> Tensor:
    """Applies a projection in its own dtype, whatever dtype the tokens have; autocast, when on, decides itself."""
    for layer in projection if isinstance(projection, nn.Sequential) else (projection,):
        parameter = next(layer.parameters(), None)
        if parameter is not None:
            # Autocast leaves float64 and the layer norm on CPU as they are, on either side.
            decides = _autocasts(tokens) and isinstance(layer, nn.Linear)
            if not decides or torch.float64 in (tokens.dtype, parameter.dtype):
                tokens = tokens.to(parameter.dtype)
        tokens = layer(tokens)
    return tokens


def _autocasts(tokens: Tensor) -> bool:
    # The meta device has no autocast, and asking for it is an error.
    return not tokens.is_meta and torch.is_autocast_enabled(tokens.device.type)
