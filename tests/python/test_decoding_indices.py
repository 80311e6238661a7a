"""Indices as users store them: any integer dtype, and groups as separate tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from vector_quantize_pytorch import GroupedResidualVQ as ReferenceGroupedResidualVQ

import torchvq

DIM, CODES, LEVELS = 8, 16, [5, 5, 3]
DTYPES = [torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint64]
STACK = dict(dim=DIM, num_quantizers=3, codebook_size=CODES, codebook_dim=4)
LFQ = dict(dim=DIM, codebook_size=CODES, commitment_loss_weight=0.25)
Decode = Callable[[nn.Module, Any], Tensor]


def _codes(module: Any, indices: Any) -> Tensor:
    return module.get_codes_from_indices(indices)


def _output(module: Any, indices: Any) -> Tensor:
    return module.get_output_from_indices(indices)


def _from_indices(module: Any, indices: Any) -> Tensor:
    return module.indices_to_codes(indices)


def _levels(module: Any, indices: Any) -> Tensor:
    return module.indices_to_level_indices(indices)


def _loss(module: Any, indices: Any) -> Tensor:
    return module(_x(module), indices=indices)[1]


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[Decode, ...]]] = {
    "vq": (
        lambda: torchvq.VectorQuantize(DIM, CODES, codebook_dim=4),
        (_codes, _output, _loss),
    ),
    "vq-heads": (
        lambda: torchvq.VectorQuantize(DIM, CODES, heads=2, separate_codebook_per_head=True),
        (_codes, _output, _loss),
    ),
    "rvq": (lambda: torchvq.ResidualVQ(**STACK), (_codes, _output, _loss)),
    "rvq-implicit": (
        lambda: torchvq.ResidualVQ(**STACK, implicit_neural_codebook=True),
        (_codes, _output, _loss),
    ),
    "grouped-rvq": (
        lambda: torchvq.GroupedResidualVQ(**STACK, groups=2),
        (_codes, _output, _loss),
    ),
    "fsq": (lambda: torchvq.FSQ(LEVELS, dim=DIM), (_from_indices,)),
    "fsq-plain": (lambda: torchvq.FSQ(LEVELS), (_from_indices, _levels)),
    "residual-fsq": (
        lambda: torchvq.ResidualFSQ(levels=LEVELS, num_quantizers=2, dim=DIM),
        (_codes, _output),
    ),
    "grouped-residual-fsq": (
        lambda: torchvq.GroupedResidualFSQ(levels=LEVELS, num_quantizers=2, dim=DIM, groups=2),
        (_codes, _output),
    ),
    "lfq": (lambda: torchvq.LFQ(**LFQ), (_from_indices,)),
    "residual-lfq": (lambda: torchvq.ResidualLFQ(**LFQ, num_quantizers=2), (_codes, _output)),
    "grouped-residual-lfq": (
        lambda: torchvq.GroupedResidualLFQ(**LFQ, num_quantizers=2, groups=2),
        (_codes, _output),
    ),
    "simvq": (lambda: torchvq.SimVQ(DIM, CODES), (_from_indices,)),
    "residual-simvq": (
        lambda: torchvq.ResidualSimVQ(dim=DIM, codebook_size=CODES, num_quantizers=2),
        (_codes, _output),
    ),
    "latent": (lambda: torchvq.LatentQuantize(LEVELS, dim=DIM), (_from_indices,)),
    "fsp": (lambda: torchvq.FSP(LEVELS, dim=DIM), (_from_indices, _levels)),
    "hierarchical": (
        lambda: torchvq.HierarchicalVQ(dim=DIM, codebook_size=CODES, scales=(1, 2, 4)),
        (_output, _loss),
    ),
}
CASES = [
    pytest.param(make, decode, id=f"{name}{decode.__name__}")
    for name, (make, decodes) in MODULES.items()
    for decode in decodes
]
GROUPED = [case for case in CASES if "grouped" in str(case.id)]


def _x(module: nn.Module) -> Tensor:
    features = len(LEVELS) if getattr(module, "dim", None) == len(LEVELS) else DIM
    last = not isinstance(module, (torchvq.LatentQuantize, torchvq.HierarchicalVQ))
    shape = (2, 4, features) if last else (2, features, 4)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def _each(indices: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The change of every tensor: HierarchicalVQ has a tuple of them, one for each scale."""
    return change(indices) if isinstance(indices, Tensor) else tuple(map(change, indices))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("make", "decode"), CASES)
def test_any_integer_dtype(
    make: Callable[[], nn.Module], decode: Decode, dtype: torch.dtype
) -> None:
    module = make().eval()
    indices = module(_x(module))[1]
    assert torch.equal(
        decode(module, _each(indices, lambda t: t.to(dtype))), decode(module, indices)
    )


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32], ids=str)
@pytest.mark.parametrize(("make", "decode"), CASES)
def test_other_dtypes_are_refused(
    make: Callable[[], nn.Module], decode: Decode, dtype: torch.dtype
) -> None:
    module = make().eval()
    indices = _each(module(_x(module))[1], lambda t: t.to(dtype))
    with pytest.raises(TypeError, match=f"expected indices to be integers, but got {dtype}"):
        decode(module, indices)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(("make", "decode"), CASES)
def test_sparse_and_nested_indices_are_refused(
    make: Callable[[], nn.Module], decode: Decode
) -> None:
    module = make().eval()
    indices = module(_x(module))[1]
    for convert in (Tensor.to_sparse, lambda t: torch.nested.nested_tensor(list(t.unbind()))):
        with pytest.raises(TypeError, match="expected indices to be a dense tensor, but got "):
            decode(module, _each(indices, convert))


def test_masked_int32_decodes_to_zeros() -> None:
    vq = torchvq.VectorQuantize(DIM, CODES, codebook_dim=4)
    absent = torch.full((2, 3), -1, dtype=torch.int32)
    assert not vq.get_output_from_indices(absent).any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_binary_mapper(dtype: torch.dtype) -> None:
    mapper = torchvq.BinaryMapper(bits=4)
    logits, indices = torch.randn(3, 5, 4), torch.randint(16, (3, 5))
    found = mapper.log_prob(logits, indices=indices.to(dtype))
    assert torch.equal(found, mapper.log_prob(logits, indices=indices))
    with pytest.raises(TypeError, match="BinaryMapper: expected indices to be integers"):
        mapper.log_prob(logits, indices=indices.bool())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_random_projection_targets(dtype: torch.dtype) -> None:
    quantizer = torchvq.RandomProjectionQuantizer(
        dim=DIM, codebook_size=CODES, codebook_dim=4, num_codebooks=2
    )
    x = torch.randn(2, 4, DIM)
    indices = quantizer(x)
    assert torch.equal(quantizer(x, indices.to(dtype)), quantizer(x, indices))


@pytest.mark.parametrize("container", [list, tuple])
@pytest.mark.parametrize(("make", "decode"), GROUPED)
def test_groups_as_separate_tensors(
    make: Callable[[], nn.Module], decode: Decode, container: type
) -> None:
    module = make().eval()
    indices = module(_x(module))[1]
    assert torch.equal(decode(module, container(indices.unbind(0))), decode(module, indices))
    with pytest.raises(ValueError, match="of 2 groups on the first axis, but got 1 tensors"):
        decode(module, container([indices[0]]))
    with pytest.raises(ValueError, match="of 2 groups on the first axis, but got shape"):
        decode(module, indices[:1])


def test_groups_as_in_the_reference() -> None:
    options = dict(dim=DIM, num_quantizers=3, codebook_size=CODES, groups=2)
    reference = ReferenceGroupedResidualVQ(**options).eval()
    module = torchvq.GroupedResidualVQ(**options).eval()
    module.load_state_dict(reference.state_dict())
    indices = list(torch.randint(CODES, (2, 2, 4, 3)).int().unbind(0))
    for decode in (_codes, _output):
        found = decode(module, indices)
        torch.testing.assert_close(found, decode(reference, [i.long() for i in indices]))


@pytest.mark.parametrize("number", [8, np.int64(8), torch.tensor([8])], ids=repr)
def test_full_shape_of_one_axis_may_be_a_number(number: Any) -> None:
    module = torchvq.HierarchicalVQ(dim=DIM, codebook_size=CODES, scales=(1, 2, 4)).eval()
    indices = module(_x(module))[1]
    found = module.get_output_from_indices(indices, full_shape=number)
    assert torch.equal(found, module.get_output_from_indices(indices, full_shape=(8,)))


@pytest.mark.parametrize("shape", [8.0, "8", [8.5]], ids=repr)
def test_full_shape_is_of_integers(shape: Any) -> None:
    module = torchvq.HierarchicalVQ(dim=DIM, codebook_size=CODES, scales=(1, 2)).eval()
    with pytest.raises(TypeError, match="HierarchicalVQ: expected full_shape to be integers"):
        module.get_output_from_indices(module(_x(module))[1], full_shape=shape)


@pytest.mark.parametrize("mask", [torch.full((2, 4), 0.5), [[True] * 4] * 2], ids=["float", "list"])
def test_a_mask_of_scales_is_bool(mask: Any) -> None:
    module = torchvq.HierarchicalVQ(dim=DIM, codebook_size=CODES, scales=(1, 2)).eval()
    with pytest.raises(TypeError, match="HierarchicalVQ: expected mask to be bool, but got"):
        module.get_output_from_indices(module(_x(module))[1], full_shape=4, mask=mask)


def test_full_shape_of_two_axes_may_be_a_number_as_well() -> None:
    options = dict(dim=DIM, codebook_size=CODES, scales=(1, 2), accept_image_fmap=True)
    module = torchvq.HierarchicalVQ(**options).eval()
    indices = module(torch.randn(2, DIM, 4, 4))[1]
    found = module.get_output_from_indices(indices, full_shape=8)
    assert torch.equal(found, module.get_output_from_indices(indices, full_shape=(8, 8)))
    with pytest.raises(ValueError, match=r"expected full_shape to be 2 numbers, but got \[8\]"):
        module.get_output_from_indices(indices, full_shape=[8])
