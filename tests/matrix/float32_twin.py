"""The oracle of the precision matrix: the same module in float32, on the values that a cast module computes.

A projection in bfloat16 gives other values than one in float32, and hence other tokens. So the twin replays the output
of each projection of the cast module, with its own float32 gradient. Everything after that must be float32 arithmetic,
and is compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from classes import build
from torch import Tensor, nn

HALF = (torch.float16, torch.bfloat16)
# Modules that users, or a policy, run in half precision: their output is replayed.
BOUNDARIES = ("project_in", "encoder")
# Rows whose codes come from a network, which runs in the module's dtype or autocast's.
MADE_BY_NETWORK = ("residual_vq_implicit", "residual_vq_implicit_beam")


class _Value(torch.autograd.Function):
    """The value of one tensor with the gradient of another."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, value: Tensor) -> Tensor:
        ctx.dtype = own.dtype
        return value.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.to(ctx.dtype), None


class _Replayed(nn.Module):
    """A projection whose output values come from another run."""

    def __init__(self, projection: nn.Module, values: list[Tensor]) -> None:
        super().__init__()
        self.__dict__["projection"] = projection  # its parameters are the twin's, not this one's
        self.values = values

    def forward(self, x: Tensor) -> Tensor:
        weight = next(self.projection.parameters())
        return _Value.apply(self.projection(x.to(weight.dtype)), self.values.pop(0))


class Twins:
    """A cast module, and the float32 module that sees the same values."""

    def __init__(self, row: str, cast: Callable[[nn.Module], nn.Module]) -> None:
        self.module = cast(build(row))
        self.twin = build(row)
        if next(self.twin.parameters(), None) is not None:
            # The twin gets the weights after the cast.
            self._round()
        self.handles = []
        for name, boundary in self._boundaries(self.module):
            values: list[Tensor] = []
            parent, _, attribute = name.rpartition(".")
            owner = self.twin.get_submodule(parent)
            weights = getattr(owner, attribute)
            setattr(owner, attribute, _Replayed(weights, values))
            self.handles.append(boundary.register_forward_hook(_recorder(values)))

    def _round(self) -> None:
        wide = dict(self.twin.named_parameters())
        with torch.no_grad():
            for name, parameter in self.module.named_parameters():
                wide[name].copy_(parameter)
        self.parameters = wide

    @staticmethod
    def _boundaries(module: nn.Module) -> list[tuple[str, nn.Module]]:
        return [
            (name, part)
            for name, part in module.named_modules()
            if name.rpartition(".")[2] in BOUNDARIES and next(part.parameters(), None) is not None
        ]

    def gradients(self) -> list[tuple[str, Tensor | None, Tensor | None]]:
        """Each parameter's gradient, and that of the twin."""
        return [
            (name, parameter.grad, self.parameters[name].grad)
            for name, parameter in self.module.named_parameters()
        ]


def _recorder(values: list[Tensor]) -> Callable[..., None]:
    def record(module: nn.Module, args: Any, output: Tensor) -> None:
        value = output.detach()
        values.append(value.float() if value.dtype in HALF else value)

    return record


def difference(found: Tensor, expected: Tensor) -> float:
    """The norm of the difference, relative to that of the expected value; 0 for two zeros."""
    found, expected = found.detach().double(), expected.detach().double()
    length = expected.norm()
    gap = (found - expected).norm()
    return 0.0 if gap == 0 else (gap / length).item()
