"""Oracles and cases shared by the tests of operators that score tokens against all codes."""

from __future__ import annotations

import numpy
import torch

METRICS = ["euclidean", "cosine"]


def make_tokens(generator, dtype=torch.float32, heads=2, tokens=9, codes=6, dim=5):
    x = torch.randn(heads, tokens, dim, generator=generator).to(dtype)
    codebook = torch.randn(heads, codes, dim, generator=generator).to(dtype)
    mask = torch.rand(heads, tokens, generator=generator) < 0.6
    mask[:, :1] = True
    return x, codebook, mask


def scores(x, codebook, metric):
    """Oracle: one head as numpy float64, all pairs explicitly."""
    if metric == "cosine":
        return (x / numpy.linalg.norm(x, axis=-1)[:, None]) @ (
            codebook / numpy.linalg.norm(codebook, axis=-1)[:, None]
        ).T
    return -numpy.linalg.norm(x[:, None] - codebook[None], axis=-1)


def log_softmax(values):
    values = values - values.max(-1, keepdims=True)
    return values - numpy.log(numpy.exp(values).sum(-1, keepdims=True))


def numpy_rows(tensor):
    return tensor.detach().double().numpy()


def gradients(loss, x, codebook):
    """Gradients of loss(x, codebook) to both."""
    x, codebook = x.clone().requires_grad_(), codebook.clone().requires_grad_()
    return torch.autograd.grad(loss(x, codebook), (x, codebook))


def compiled_token_gradient(loss, x, codebook, compiler):
    """Gradient to x alone, compiled, with a plain codebook buffer overwritten in place after the loss."""
    buffer = codebook.clone()

    def step(x, buffer):
        value = loss(x, buffer)
        buffer.mul_(-3).add_(1)
        return value

    x = x.clone().requires_grad_()
    torch.compile(step, fullgraph=True, backend=compiler)(x, buffer).backward()
    assert not torch.equal(buffer, codebook)
    return x.grad
