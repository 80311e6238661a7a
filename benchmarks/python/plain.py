"""Every class in plain torch: the lines that a careful user writes from the paper, forward and backward.

Each takes the parameters of our module from which it is made, so that both choose the same codes, and returns
(output, indices, loss). Gradients pass straight through; where ours rotates them, this is the cheaper one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from contenders import PlainVectorQuantize, plain_nearest
from fsq import PlainFSQ, PlainResidualFSQ
from torch import Tensor, nn
from torch.nn import functional as F

Result = tuple[Tensor, Tensor, Tensor]


def straight(x: Tensor, quantized: Tensor) -> Tensor:
    return x + (quantized - x).detach()


class Codebook(nn.Module):
    """VectorQuantize."""

    def __init__(self, ours: Any) -> None:
        super().__init__()
        size, dim = ours.codebook.shape
        self.inner = PlainVectorQuantize(dim, size, ours._codebook.decay)
        self.inner.embed.copy_(ours.codebook.detach())
        self.inner.embed_avg.copy_(ours.codebook.detach())

    def forward(self, x: Tensor) -> Result:
        return self.inner(x)


class Stack(nn.Module):
    """ResidualVQ, ResidualSimVQ, ResidualLFQ: a loop over levels, each on the residual of those before."""

    def __init__(self, levels: list[nn.Module], scales: list[float] | None = None) -> None:
        super().__init__()
        self.levels = nn.ModuleList(levels)
        self.scales = scales or [1.0] * len(levels)

    def forward(self, x: Tensor) -> Result:
        residual, total, chosen, losses = x, torch.zeros_like(x), [], []
        for level, scale in zip(self.levels, self.scales, strict=True):
            quantized, indices, loss = level(residual / scale)
            residual = residual - quantized.detach() * scale
            total = total + quantized * scale
            chosen.append(indices)
            losses.append(loss)
        return total, torch.stack(chosen, -1), torch.stack(losses).sum()


class Grouped(nn.Module):
    """Features split into groups, with a stack for each."""

    def __init__(self, stacks: list[nn.Module]) -> None:
        super().__init__()
        self.stacks = nn.ModuleList(stacks)

    def forward(self, x: Tensor) -> Result:
        parts = x.chunk(len(self.stacks), -1)
        results = [stack(part) for stack, part in zip(self.stacks, parts, strict=True)]
        outputs, indices, losses = zip(*results, strict=True)
        return torch.cat(outputs, -1), torch.stack(indices), torch.stack(losses).sum()


class Projected(nn.Module):
    """SimVQ: frozen codes under a learnt linear map."""

    def __init__(self, ours: Any) -> None:
        super().__init__()
        self.register_buffer("codes", ours.frozen_codebook.detach().clone())
        self.map = nn.Linear(self.codes.shape[1], self.codes.shape[1], bias=False)
        self.map.load_state_dict(ours.code_transform.state_dict())

    def forward(self, x: Tensor) -> Result:
        codes = self.map(self.codes)
        with torch.no_grad():
            indices = plain_nearest(x.flatten(0, -2), codes)
        quantized = F.embedding(indices, codes).view_as(x)
        loss = F.mse_loss(x.detach(), quantized) + 0.25 * F.mse_loss(x, quantized.detach())
        return straight(x, quantized), indices.view(x.shape[:-1]), loss


class Scalars(nn.Module):
    """FSQ and, with quantizers, ResidualFSQ: no losses."""

    def __init__(self, levels: tuple[int, ...], quantizers: int = 0) -> None:
        super().__init__()
        self.inner = PlainResidualFSQ(levels, quantizers) if quantizers else PlainFSQ(levels)

    def forward(self, x: Tensor) -> Result:
        codes, indices = self.inner(x)
        return codes, indices, x.new_zeros(())


class Signs(nn.Module):
    """LFQ: signs, and the entropies of a softmax over all codes."""

    def __init__(self, bits: int, entropy: float, commitment: float) -> None:
        super().__init__()
        self.entropy, self.commitment = entropy, commitment
        places = torch.arange(bits - 1, -1, -1)
        codes = ((torch.arange(2**bits)[:, None] >> places) & 1).float() * 2 - 1
        self.register_buffer("codes", codes)
        self.register_buffer("basis", 2**places)

    def forward(self, x: Tensor) -> Result:
        signs = torch.where(x > 0, 1.0, -1.0)
        log_p = (200 * x @ self.codes.T).log_softmax(-1)
        p = log_p.exp()
        mean = p.flatten(0, -2).mean(0)
        # A code that no token comes near would have the logarithm -inf, and its gradient NaN.
        entropies = -(p * log_p).sum(-1).mean() + (mean * mean.clamp_min(1e-20).log()).sum()
        loss = self.entropy * entropies + self.commitment * F.mse_loss(x, signs)
        return straight(x, signs), ((x > 0) * self.basis).sum(-1), loss


class Perturbed(nn.Module):
    """FSP: noise of a bin's width, and a loss that pulls moments to those of the distribution."""

    def __init__(self, levels: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("levels", torch.tensor(levels, dtype=torch.float32))
        self.register_buffer("basis", torch.tensor([1, *levels[:-1]]).cumprod(0))

    def forward(self, x: Tensor) -> Result:
        place = (x.tanh() + 1) / 2
        bins = (place * self.levels).floor().clamp(max=self.levels - 1)
        moved = place + (torch.rand_like(place) - 0.5) / self.levels
        place = torch.where((moved >= 0) & (moved <= 1), moved, place)
        variance, mean = torch.var_mean(x.flatten(0, -2), 0, correction=0)
        loss = 0.1 * mean.square().mean() + 0.07 * (variance - 0.8225).square().mean()
        return 2 * place - 1, (bins.long() * self.basis).sum(-1), loss


class Values(nn.Module):
    """LatentQuantize: each feature takes the nearest of its own learnt values."""

    def __init__(self, ours: Any, levels: tuple[int, ...]) -> None:
        super().__init__()
        values = [value.detach().clone() for value in ours.values_per_latent]
        self.values = nn.ParameterList([nn.Parameter(value) for value in values])
        self.register_buffer("basis", torch.tensor([1, *levels[:-1]]).cumprod(0))

    def forward(self, x: Tensor) -> Result:
        found, chosen = [], []
        for feature, values in zip(x.unbind(-1), self.values, strict=True):
            index = (feature[..., None] - values).abs().argmin(-1)
            chosen.append(index)
            found.append(values[index])
        quantized = torch.stack(found, -1)
        loss = 0.1 * F.mse_loss(quantized, x.detach()) + 0.1 * F.mse_loss(x, quantized.detach())
        return straight(x, quantized), (torch.stack(chosen, -1) * self.basis).sum(-1), loss


class Drawn(nn.Module):
    """BinaryMapper: one of 2^bits codes is drawn; the gradient is that of all their probabilities."""

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.bits = bits
        self.register_buffer("powers", 2 ** torch.arange(bits))
        self.register_buffer("codes", (torch.arange(2**bits)[:, None] // self.powers % 2).float())

    def forward(self, x: Tensor) -> Result:
        p = x.sigmoid()
        indices = ((torch.rand_like(p) <= p) * self.powers).sum(-1)
        one_hot = F.one_hot(indices, 2**self.bits).to(x.dtype)
        each = (F.logsigmoid(x) @ self.codes.T + F.logsigmoid(-x) @ (1 - self.codes.T)).exp()
        entropy = F.binary_cross_entropy_with_logits(x, p, reduction="none").sum(-1)
        nats = F.relu(self.bits * math.log(2) - entropy - math.log(2)).mean()
        return one_hot + each - each.detach(), indices, nats


class Targets(nn.Module):
    """RandomProjectionQuantizer: a frozen projection, and the nearest of frozen codes on the sphere."""

    def __init__(self, ours: Any) -> None:
        super().__init__()
        self.register_buffer("projections", ours.rand_projs.detach().clone())
        codes = ours.vq.codebook.detach().clone()
        self.register_buffer("codes", codes.flatten(0, -2))

    def forward(self, x: Tensor) -> Result:
        x = F.layer_norm(x, x.shape[-1:])
        tokens = F.normalize(x @ self.projections[0], dim=-1)
        indices = (tokens @ self.codes.T).argmax(-1)
        return tokens, indices, x.new_zeros(())


class Scales(nn.Module):
    """HierarchicalVQ on sequences: averages of the residual, from coarse to fine, one codebook for all."""

    def __init__(self, ours: Any, scales: tuple[int, ...]) -> None:
        super().__init__()
        self.scales = scales
        quantizer = ours.vq
        self.codebook = Codebook(quantizer)
        dim = quantizer.codebook.shape[1]
        self.smooth = nn.Conv1d(dim, dim, 3, padding=1)
        self.smooth.load_state_dict(ours.phi_shared.conv.state_dict())

    def forward(self, x: Tensor) -> Result:
        left, total, chosen, losses = x, torch.zeros_like(x), [], []
        for scale in self.scales:
            pooled = F.adaptive_avg_pool1d(left.transpose(1, 2), scale).transpose(1, 2)
            quantized, indices, loss = self.codebook(pooled)
            wide = F.interpolate(quantized.transpose(1, 2), x.shape[1], mode="linear")
            wide = (0.5 * wide + 0.5 * self.smooth(wide)).transpose(1, 2)
            left, total = left - wide.detach(), total + wide
            chosen.append(indices)
            losses.append(loss)
        return total, torch.cat(chosen, 1), torch.stack(losses).mean()


class Between(nn.Module):
    """Sequential and EvoLFQ: a quantizer between two modules."""

    def __init__(self, before: nn.Module, quantizer: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.before, self.quantizer, self.after = before, quantizer, after

    def forward(self, x: Tensor) -> Result:
        quantized, indices, loss = self.quantizer(self.before(x))
        return self.after(quantized), indices, loss


def stack_of(ours: Any, make: Callable[[Any], nn.Module]) -> Stack:
    return Stack([make(level) for level in ours.layers])
