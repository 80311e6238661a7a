"""The linear maps between the features of the input and those of the codes."""

import torch
from torch import Tensor, nn

from torchvq._base.torch_private import is_observed_itself


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
    if projects_nothing(projection):
        return tokens
    for layer in projection if isinstance(projection, nn.Sequential) else (projection,):
        # Autocast on CPU leaves the layer norm as it is.
        tokens = layer(_for_weight(layer, tokens, isinstance(layer, nn.Linear)))
    return tokens


def projects_nothing(*projections: nn.Module) -> bool:
    """Whether projections can be left out: identities without hooks."""
    for projection in projections:
        if type(projection) is not nn.Identity or is_observed_itself(projection):
            return False
    return True


def in_dtype_of(network: nn.Module, x: Tensor) -> Tensor:
    """x in the dtype of a user's network, or in one from which autocast goes on. Integers stay."""
    return _for_weight(network, x, True) if x.is_floating_point() else x


def autocast_is_on(device: str) -> bool:
    """Whether autocast casts on a type of device; the meta device knows none, and asking raises."""
    return device != "meta" and torch.is_autocast_enabled(device)


def _for_weight(layer: nn.Module, x: Tensor, autocast_knows: bool) -> Tensor:
    weight = next((own for own in layer.parameters() if own.is_floating_point()), None)
    if weight is None:
        return x
    # Autocast leaves float64 as it is, on either side.
    autocast = autocast_knows and autocast_is_on(x.device.type)
    if not autocast or weight.dtype == torch.float64:
        return x.to(weight.dtype)
    return x.float() if x.dtype == torch.float64 else x
