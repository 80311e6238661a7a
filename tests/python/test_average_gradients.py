"""average_gradients: gradients of a mean over all ranks' tokens; tests/distributed runs it on several ranks."""

from __future__ import annotations

import torch

ops = torch.ops.torchvq


def test_alone_it_gives_copies() -> None:
    gradients = [torch.randn(3, 4), torch.randn(5, dtype=torch.float64), torch.randn(())]
    averages = ops.average_gradients(gradients, torch.randn(1, 7, 4))
    for average, gradient in zip(averages, gradients, strict=True):
        assert torch.equal(average, gradient) and average.dtype == gradient.dtype
        assert average.data_ptr() != gradient.data_ptr()


def test_nothing_to_average() -> None:
    assert ops.average_gradients([], torch.randn(1, 7, 4)) == []
