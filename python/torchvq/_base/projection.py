"""The linear maps between the features of the input and those of the codes."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from torchvq._base.layout import Layout
from torchvq._base.torch_private import is_observed_itself
from torchvq._base.wide_buffers import in_half_dtype, widened

_ops = torch.ops.torchvq


def make_projections(
    dim: int, inner_dim: int, layernorm: bool = False, bias: bool = True
) -> tuple[nn.Module, nn.Module]:
    """``project_in`` and ``project_out``; identities if input and codes have equally many features."""
    if inner_dim == dim:
        return nn.Identity(), nn.Identity()
    project_in: nn.Module = nn.Linear(dim, inner_dim, bias=bias)
    if layernorm:
        project_in = nn.Sequential(project_in, nn.LayerNorm(inner_dim))
    return project_in, nn.Linear(inner_dim, dim, bias=bias)


def project(projection: nn.Module, tokens: Tensor) -> Tensor:
    """Applies a projection in its own dtype, whatever the dtype of the tokens; under autocast, autocast chooses."""
    if type(projection) is nn.Linear:
        return projection(_for_weight(projection, tokens, True))
    if projects_nothing(projection):
        return tokens
    for layer in projection if isinstance(projection, nn.Sequential) else (projection,):
        # Only the linear layer is left to autocast: on CPU autocast does not cast inputs of a layer norm.
        tokens = layer(_for_weight(layer, tokens, isinstance(layer, nn.Linear)))
    return tokens


def projected_tokens(
    x: Tensor, mask: Tensor | None, layout: Layout, project_in: nn.Module
) -> Tensor:
    """The input of a quantizer as projected tokens (B, N, D), float32 or float64."""
    # Residual and sum of a stack stay in float32 between levels, even for half-precision inputs.
    return widened(project(project_in, layout.pack(x, mask)))


def projects_nothing(*projections: nn.Module) -> bool:
    """Whether projections can be skipped: identities without hooks."""
    for projection in projections:
        if type(projection) is not nn.Identity or is_observed_itself(projection):
            return False
    return True


def project_codes(
    projection: nn.Module, codes: Tensor, indices: Tensor, half: torch.dtype | None
) -> Tensor:
    """Decoded codes behind ``project_out``; zeros where all indices are -1, which a bias would change. Without a
    weight, which has a dtype of its own, in the half precision of the module, if it has one."""
    if projects_nothing(projection):
        return in_half_dtype(half, codes)
    output = _ops.zero_absent(project(projection, codes), indices)
    # An identity with hooks, which torch.export adds where modules are shared, or an activation.
    return in_half_dtype(half, output) if _weight_of(projection) is None else output


def in_dtype_of(network: nn.Module, x: Tensor) -> Tensor:
    """x in the dtype of a user's network, or under autocast in one that it casts from. Integers are unchanged."""
    return _for_weight(network, x, True) if x.is_floating_point() else x


def autocast_is_on(device: str) -> bool:
    """Whether autocast is on for a device type. Asking torch raises for the meta device, which has no autocast."""
    return device != "meta" and torch.is_autocast_enabled(device)


def _weight_of(layer: nn.Module) -> Tensor | None:
    """The first floating-point parameter of a layer."""
    # A linear layer has it at hand. A walk over modules takes as long as applying the layer to a token.
    weight = layer._parameters.get("weight")
    if weight is not None and weight.is_floating_point():
        return weight
    return next((own for own in _parameters_of(layer) if own.is_floating_point()), None)


def _parameters_of(layer: nn.Module) -> list[Tensor]:
    """The parameters of a layer, or what stands in their places: FSDP1 puts views of its flat parameter there."""
    own: list[Tensor] = list(layer.parameters())
    if own:
        return own
    return [
        value
        for part in layer.modules()
        for value in vars(part).values()
        if isinstance(value, Tensor)
    ]


def decoding_dtype(*projections: nn.Module, state: Iterable[Tensor | None] = ()) -> torch.dtype:
    """float64 if a projection has a float64 parameter, or the decoder float64 state, else float32."""
    # The state comes first: stacks ask once a level, and a walk over the modules of a projection takes longer than
    # decoding a few tokens.
    if any(own is not None and own.dtype == torch.float64 for own in state):
        return torch.float64
    for layer in projections:
        own = layer._parameters.values() if layer._parameters else _parameters_of(layer)
        if any(tensor is not None and tensor.dtype == torch.float64 for tensor in own):
            return torch.float64
    return torch.float32


def _for_weight(layer: nn.Module, x: Tensor, autocast_knows: bool) -> Tensor:
    weight = _weight_of(layer)
    if weight is None or weight.dtype == x.dtype:
        return x
    # Autocast casts neither float64 inputs nor float64 weights.
    autocast = autocast_knows and autocast_is_on(x.device.type)
    if not autocast or weight.dtype == torch.float64:
        return x.to(weight.dtype)
    return x.float() if x.dtype == torch.float64 else x
