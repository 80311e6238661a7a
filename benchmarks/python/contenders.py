"""The contenders of torchvq: the reference, plain torch and faiss, on the same tokens and codes."""

from __future__ import annotations

from collections.abc import Callable

import faiss
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from vector_quantize_pytorch import VectorQuantize as Reference

import torchvq


def tokens_and_codes(n: int, k: int, d: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n + k + d)
    return torch.randn(n, d, generator=generator), torch.randn(k, d, generator=generator)


def ours_nearest(x: Tensor, codes: Tensor) -> Tensor:
    """Indices (N,), exact."""
    return torch.ops.torchvq.nearest_code(x, codes)[0]


def plain_nearest(x: Tensor, codes: Tensor) -> Tensor:
    """The usual way in torch: a GEMM, then argmin; in float32, near ties may go either way."""
    half_norms = codes.square().sum(-1) / 2
    return torch.addmm(half_norms, x, codes.T, alpha=-1).argmin(-1)


def faiss_nearest(x: Tensor, codes: Tensor) -> Callable[[], Tensor]:
    """A search in a flat index, which is built beforehand."""
    index = faiss.IndexFlatL2(codes.shape[1])
    index.add(codes.numpy())
    rows = x.numpy()
    return lambda: torch.from_numpy(index.search(rows, 1)[1][:, 0])


class PlainVectorQuantize(nn.Module):
    """A codebook with moving averages, in the dozen lines that a careful torch user writes."""

    def __init__(self, dim: int, codebook_size: int, decay: float) -> None:
        super().__init__()
        self.decay = decay
        self.register_buffer("embed", torch.randn(codebook_size, dim))
        self.register_buffer("cluster_size", torch.ones(codebook_size))
        self.register_buffer("embed_avg", self.embed.clone())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        tokens = x.flatten(0, -2)
        with torch.no_grad():
            indices = plain_nearest(tokens, self.embed)
        quantized = F.embedding(indices, self.embed).view_as(x)
        if not self.training:
            return quantized, indices.view(x.shape[:-1]), x.new_zeros(())
        loss = F.mse_loss(x, quantized)
        with torch.no_grad():
            self._update(tokens, indices)
        return x + (quantized - x).detach(), indices.view(x.shape[:-1]), loss

    def _update(self, tokens: Tensor, indices: Tensor) -> None:
        size, rate = self.cluster_size.numel(), 1 - self.decay
        counts = self._counts(indices, size)
        sums = torch.zeros_like(self.embed_avg).index_add_(0, indices, tokens)
        self.cluster_size.lerp_(counts, rate)
        self.embed_avg.lerp_(sums, rate)
        total = self.cluster_size.sum()
        smoothed = (self.cluster_size + 1e-5) / (total + size * 1e-5) * total
        self.embed.copy_(self.embed_avg / smoothed[:, None])

    def _counts(self, indices: Tensor, size: int) -> Tensor:
        if torch.compiler.is_compiling():
            # bincount would break the graph.
            ones = torch.ones_like(indices, dtype=self.embed.dtype)
            return self.embed.new_zeros(size).index_add_(0, indices, ones)
        return torch.bincount(indices, minlength=size).to(self.embed.dtype)


def quantizers(k: int, d: int, codes: Tensor, decay: float = 0.99) -> dict[str, nn.Module]:
    """Ours, the reference and plain torch, from the same state."""
    modules: dict[str, nn.Module] = {
        "torchvq": torchvq.VectorQuantize(d, k, decay=decay),
        "reference": Reference(dim=d, codebook_size=k, decay=decay),
        "plain torch": PlainVectorQuantize(d, k, decay),
    }
    with torch.no_grad():
        for module in modules.values():
            state = getattr(module, "_codebook", module)
            state.embed.copy_(codes)
            state.embed_avg.copy_(codes)
    return modules


def training_step(
    module: nn.Module, x: Tensor, **call: Tensor
) -> Callable[[], tuple[Tensor, Tensor, Tensor]]:
    """Forward and backward, with a gradient of the output and of the loss. Returns indices, loss, gradient of x."""
    behind = torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).div_(x.numel())

    def step() -> tuple[Tensor, Tensor, Tensor]:
        leaf = x.detach().requires_grad_()
        quantized, indices, loss = module(leaf, **call)
        torch.autograd.backward([quantized, loss], [behind, torch.ones_like(loss)])
        assert leaf.grad is not None
        return indices, loss.detach(), leaf.grad

    return step
