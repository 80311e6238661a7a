"""Under `vqp_compat`, a step that replaces codes equals the reference's in everything but the tokens drawn."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import vector_quantize_pytorch
from torch import Tensor, nn

import torchvq

# The threshold is no sum of counts weighted by powers of 0.8, so only codes just replaced have this size.
STEPS, THRESHOLD = 4, 1.7
OPTIONS: dict[str, Any] = dict(
    dim=8, codebook_size=48, kmeans_init=True, threshold_ema_dead_code=THRESHOLD
)
KINDS: dict[str, dict[str, Any]] = {"VectorQuantize": {}, "ResidualVQ": dict(num_quantizers=3)}


def books(module: nn.Module) -> list[Any]:
    return [part for part in module.modules() if hasattr(part, "cluster_size")]


def tokens(step: int) -> Tensor:
    """Tokens of few clusters, so that many codes die."""
    generator = torch.Generator().manual_seed(step)
    centres = torch.randn(6, 8, generator=torch.Generator().manual_seed(99))
    chosen = centres[torch.randint(6, (2, 64), generator=generator)]
    return chosen + 0.3 * torch.randn(2, 64, 8, generator=generator)


def stepped(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output, indices, losses, and the gradient of output and losses."""
    x = x.clone().requires_grad_()
    quantized, indices, loss = module.train()(x)[:3]
    (gradient,) = torch.autograd.grad(quantized.square().sum() + loss.sum(), x)
    return quantized.detach(), indices, loss.detach(), gradient


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_from_the_same_state(kind: str) -> None:
    torch.manual_seed(0)
    reference = getattr(vector_quantize_pytorch, kind)(**OPTIONS, **KINDS[kind])
    ours = getattr(torchvq, kind)(**OPTIONS, **KINDS[kind], vqp_compat=True)
    reference.train()(tokens(0))  # k-means draws differ between the packages
    replaced = 0
    for step in range(1, STEPS):
        ours.load_state_dict(reference.state_dict(), strict=False)
        found, wanted = stepped(ours, tokens(step)), stepped(reference, tokens(step))
        assert torch.equal(found[1], wanted[1])
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, check_dtype=False)
        left = tokens(step).flatten(0, 1)
        for own, theirs in zip(books(ours), books(reference), strict=True):
            dead = theirs.cluster_size == THRESHOLD
            assert torch.equal(own.cluster_size == THRESHOLD, dead)
            torch.testing.assert_close(own.embed[~dead], theirs.embed[~dead], rtol=1e-4, atol=1e-5)
            if kind == "VectorQuantize":
                for book in (own, theirs):
                    assert (book.embed[dead].unsqueeze(-2) == left).all(-1).any(-1).all()
            replaced += int(dead.sum())
    assert replaced > 20
