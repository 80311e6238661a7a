"""Sequential (python/torchvq/sequential.py): a quantizer among other modules."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchvq
from torchvq import Sequential

# A quantizer of 8 features, keyword arguments of its forward, and the name of its output.
QUANTIZERS = {
    "vq": (lambda: torchvq.VectorQuantize(8, 16), dict(return_loss_breakdown=True), "quantized"),
    "vq_scored": (
        lambda: torchvq.VectorQuantize(8, 16),
        dict(indices=torch.zeros(2, 5, dtype=torch.long)),
        None,
    ),
    "residual_vq": (
        lambda: torchvq.ResidualVQ(dim=8, codebook_size=16, num_quantizers=2),
        dict(return_all_codes=True),
        "quantized",
    ),
    "sim_vq": (lambda: torchvq.SimVQ(8, 16), {}, "quantized"),
    "residual_sim_vq": (
        lambda: torchvq.ResidualSimVQ(dim=8, codebook_size=16, num_quantizers=2),
        {},
        "quantized",
    ),
    "hierarchical_vq": (
        lambda: torchvq.HierarchicalVQ(
            dim=8, codebook_size=16, scales=(1, 5), channel_first=False, kmeans_init=False
        ),
        dict(return_cutoff=True),
        "quantized",
    ),
    "fsq": (lambda: torchvq.FSQ([5, 5], dim=8), {}, "quantized"),
    "lfq": (lambda: torchvq.LFQ(dim=8, spherical=True), {}, "quantized"),
    "fsp": (lambda: torchvq.FSP([5, 5], dim=8), {}, "quantized"),
    "latent": (
        lambda: torchvq.LatentQuantize([5, 5], 8, channel_first=False),
        {},
        "quantized",
    ),
    "binary": (lambda: torchvq.BinaryMapper(8), dict(return_indices=True), "one_hot"),
}


def tensors(result):
    return [part for part in torch.utils._pytree.tree_leaves(result) if torch.is_tensor(part)]


@pytest.mark.parametrize("name", QUANTIZERS)
def test_it_is_its_modules_in_turn(name):
    make, keywords, output = QUANTIZERS[name]
    torch.manual_seed(0)
    first, quantizer, last = nn.Linear(6, 8), make(), nn.Linear(256 if name == "binary" else 8, 5)
    model = Sequential(first, nn.Tanh(), quantizer, nn.Identity(), last).eval()
    x = torch.randn(2, 5, 6)
    found, inner = model(x, **keywords), quantizer(first(x).tanh(), **keywords)
    assert type(found) is type(inner)
    if output is not None:
        assert torch.equal(getattr(found, output), last(getattr(inner, output)))
    assert torch.equal(found[0], last(inner[0]))
    for a, b in zip(tensors(found[1:]), tensors(inner[1:]), strict=True):
        assert torch.equal(a, b)


def test_an_output_with_a_breakdown_beside_it():
    lfq = torchvq.LFQ(dim=8, spherical=True)
    model = Sequential(lfq, nn.Tanh())
    x = torch.randn(2, 5, 8)
    (quantized, indices, _), breakdown = model(x, return_loss_breakdown=True)
    assert torch.equal(quantized, lfq(x).quantized.tanh())
    assert indices.shape == (2, 5) and breakdown.commitment.dim() == 0


def test_indices_alone_come_back_as_they_are():
    quantizer = torchvq.RandomProjectionQuantizer(dim=8, codebook_size=16, codebook_dim=4)
    model = Sequential(nn.Tanh(), quantizer)
    x = torch.randn(2, 5, 8)
    mask = torch.tensor([[True] * 5, [False] * 5])
    assert torch.equal(model(x, mask=mask), quantizer(x.tanh(), mask=mask))
    with pytest.raises(ValueError, match="to be the last module, but got 1 behind it"):
        Sequential(quantizer, nn.Tanh())


def test_gradients_reach_both_sides_and_the_quantizer_learns():
    model = Sequential(nn.Linear(6, 8), torchvq.VectorQuantize(8, 16), nn.Linear(8, 6))
    before = model.quantizer.codebook.clone()
    quantized, _, loss = model(torch.randn(2, 50, 6))
    (quantized.square().mean() + loss).backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())
    assert not torch.equal(model.quantizer.codebook, before)
    assert {name.split(".")[1] for name in model.state_dict()} == {"0", "1", "2"}


@pytest.mark.parametrize("count", [0, 2])
def test_one_quantizer_exactly(count):
    fns = [nn.Identity()] + [torchvq.FSQ([5, 5]) for _ in range(count)]
    with pytest.raises(ValueError, match="Sequential: expected fns to be modules with exactly one"):
        Sequential(*fns)


def test_the_module_path_of_the_reference():
    from torchvq.utils import Sequential as same

    assert same is Sequential
