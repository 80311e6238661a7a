"""torch.jit.trace of evaluation, which older deployments use: any number of tokens after a trace of some."""

from __future__ import annotations

import warnings

import pytest
import torch

import torchvq

IMAGE = (2, 8, 5, 6)
MODULES = {
    "VectorQuantize": (lambda: torchvq.VectorQuantize(dim=8, codebook_size=16), (2, 9, 8)),
    "projected": (
        lambda: torchvq.VectorQuantize(
            dim=8, codebook_size=16, codebook_dim=4, accept_image_fmap=True
        ),
        IMAGE,
    ),
    "cosine heads": (
        lambda: torchvq.VectorQuantize(
            dim=8,
            codebook_size=16,
            heads=2,
            codebook_dim=3,
            separate_codebook_per_head=True,
            use_cosine_sim=True,
        ),
        (2, 9, 8),
    ),
    "ResidualVQ": (
        lambda: torchvq.ResidualVQ(dim=8, codebook_size=16, num_quantizers=3),
        (2, 9, 8),
    ),
    "ResidualVQ projected": (
        lambda: torchvq.ResidualVQ(dim=8, codebook_size=16, num_quantizers=3, codebook_dim=4),
        (2, 9, 8),
    ),
    "ResidualVQ heads": (
        lambda: torchvq.ResidualVQ(
            dim=8,
            codebook_size=16,
            num_quantizers=2,
            heads=2,
            codebook_dim=3,
            separate_codebook_per_head=True,
        ),
        (2, 9, 8),
    ),
    "ResidualVQ implicit": (
        lambda: torchvq.ResidualVQ(
            dim=8, codebook_size=16, num_quantizers=2, implicit_neural_codebook=True
        ),
        (2, 9, 8),
    ),
    "GroupedResidualVQ": (
        lambda: torchvq.GroupedResidualVQ(dim=8, groups=2, codebook_size=16, num_quantizers=3),
        (2, 9, 8),
    ),
    "FSQ": (lambda: torchvq.FSQ(levels=[5, 4, 3], dim=8), IMAGE),
    "ResidualFSQ": (
        lambda: torchvq.ResidualFSQ(dim=8, levels=[5, 4, 3], num_quantizers=3),
        (2, 9, 8),
    ),
    "LFQ": (lambda: torchvq.LFQ(dim=8, codebook_size=16), IMAGE),
    "ResidualLFQ": (
        lambda: torchvq.ResidualLFQ(dim=8, codebook_size=16, num_quantizers=3),
        (2, 9, 8),
    ),
    "SimVQ": (lambda: torchvq.SimVQ(dim=8, codebook_size=16), (2, 9, 8)),
    "ResidualSimVQ": (
        lambda: torchvq.ResidualSimVQ(dim=8, codebook_size=16, num_quantizers=3),
        (2, 9, 8),
    ),
    "LatentQuantize": (lambda: torchvq.LatentQuantize(levels=[5, 4, 3], dim=8), IMAGE),
}
HIERARCHICAL = dict(dim=8, codebook_size=16, scales=(1, 2, 4), kmeans_init=False)


@pytest.mark.parametrize("name", MODULES)
def test_a_trace_passes_the_check_of_torch(name, generator):
    """By default torch.jit.trace compares its graph with that of a second run, which records no gradients."""
    make, shape = MODULES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(make().eval(), torch.randn(shape, generator=generator), strict=False)


@pytest.mark.parametrize("name", MODULES)
def test_traced_evaluation_is_the_evaluation(name, generator):
    make, shape = MODULES[name]
    module = make().eval()
    x = torch.randn(shape, generator=generator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(module, x, check_trace=False)
    axis = 2 if len(shape) == 4 else 1  # of positions
    for other in (x, x.narrow(axis, 0, 3), torch.cat([x, x + 1]), x[:1]):
        for found, expected in zip(traced(other), module(other), strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_traced_hierarchy_keeps_its_resolution(generator):
    """Any batch; the positions are those of the trace."""

    class Quantized(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.quantizer = torchvq.HierarchicalVQ(**HIERARCHICAL, accept_image_fmap=True)

        def forward(self, x):
            return self.quantizer(x)[0]

    module = Quantized().eval()
    x = torch.randn(2, 8, 4, 4, generator=generator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(module, x)
    for other in (x, torch.cat([x, x + 1]), x[:1]):
        torch.testing.assert_close(traced(other), module(other), rtol=0, atol=0)
