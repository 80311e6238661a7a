"""Moving averages of cosine codes: unit vectors in groups have the bits of the any-device path."""

import pytest
import torch

import torchvq  # noqa: F401
from support import any_path

_ops = torch.ops.torchvq


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int32 if tensor.dtype == torch.float32 else torch.int64)


@pytest.mark.parametrize("size", [1, 7, 8, 9, 50])
@pytest.mark.parametrize("dim", [3, 16, 37])
@pytest.mark.parametrize("decay", [0.0, 0.8])
def test_averages_and_drawn_codes_are_those_of_the_any_device_path(size, dim, decay):
    generator = torch.Generator().manual_seed(size + dim)
    embed = _ops.unit_vectors(torch.randn(1, size, dim, generator=generator))
    average = embed.clone()
    average[0, 0] = 0.0
    average[0, -1, 0] = -0.0
    average[0, size // 2] *= 1e-38
    average[0, size // 3] *= 1e30
    x = torch.randn(1, 2 * size, dim, generator=generator)
    indices = torch.randint(0, (size + 1) // 2, (1, 2 * size), generator=generator)
    statistics = _ops.code_statistics(x, indices, _ops.code_exponents(embed))
    found = []
    for update in (_ops.ema_update_, any_path("ema_update_")):
        state = [torch.full((1, size), 0.5), average.clone(), embed.clone()]
        update(*state, *statistics, decay=decay, eps=1e-5, metric="cosine")
        found.append([bits(tensor) for tensor in state])
    for own, expected in zip(*found, strict=True):
        assert torch.equal(own, expected)
