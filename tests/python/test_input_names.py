"""Messages about an input name it as the signature of forward does."""

import inspect

import pytest
import torch

import torchvq

MODULES = {
    "FSQ": lambda: torchvq.FSQ([5, 5, 3], dim=8),
    "FSP": lambda: torchvq.FSP([5, 5, 3], dim=8),
    "LatentQuantize": lambda: torchvq.LatentQuantize([5, 5, 3], dim=8, channel_first=False),
    "LFQ": lambda: torchvq.LFQ(dim=8, codebook_size=16, commitment_loss_weight=0.25),
    "VectorQuantize": lambda: torchvq.VectorQuantize(dim=8, codebook_size=16),
    "BinaryMapper": lambda: torchvq.BinaryMapper(bits=8),
    "SimVQ": lambda: torchvq.SimVQ(dim=8, codebook_size=16),
    "HierarchicalVQ": lambda: torchvq.HierarchicalVQ(
        dim=8, codebook_size=16, scales=(1, 2), channel_first=False
    ),
    "ResidualVQ": lambda: torchvq.ResidualVQ(dim=8, codebook_size=16, num_quantizers=2),
    "ResidualSimVQ": lambda: torchvq.ResidualSimVQ(dim=8, codebook_size=16, num_quantizers=2),
    "ResidualFSQ": lambda: torchvq.ResidualFSQ(dim=8, levels=[5, 3], num_quantizers=2),
    "ResidualLFQ": lambda: torchvq.ResidualLFQ(dim=8, codebook_size=16, num_quantizers=2),
    "RandomProjectionQuantizer": lambda: torchvq.RandomProjectionQuantizer(
        dim=8, codebook_size=16, codebook_dim=4, num_codebooks=1
    ),
}


@pytest.mark.parametrize(
    ("x", "error", "condition"),
    [
        (torch.zeros(2, 7, 7), ValueError, "to have (8 features|shape)"),
        (torch.zeros(()), ValueError, "to have shape"),
        (torch.zeros(2, 7, 8, dtype=torch.long), TypeError, "to be a floating-point tensor"),
        (torch.zeros(2, 7, 8, dtype=torch.float8_e5m2), TypeError, "to be float16, bfloat16, "),
        ([1.0], TypeError, "to be a floating-point tensor"),
    ],
    ids=["features", "shape", "dtype", "float8", "list"],
)
@pytest.mark.parametrize("name", MODULES)
def test_refused_inputs_are_named(name: str, x: object, error: type, condition: str) -> None:
    module = MODULES[name]()
    parameter = next(iter(inspect.signature(module.forward).parameters))
    with pytest.raises(error, match=f"{name}: expected {parameter} {condition}"):
        module(x)
