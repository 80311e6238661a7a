"""Modules that are built while torch's default dtype is half precision, as loaders of models do (``torch_dtype``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import support
import torchvq

DIM, CODES = 8, 16
LEVELS = [8, 5, 5]
HALVES = [torch.bfloat16, torch.float16]
_codes: Callable[..., dict[str, Any]] = partial(dict, dim=DIM, codebook_size=CODES)
_lfq: Callable[..., dict[str, Any]] = partial(_codes, commitment_loss_weight=0.25)
_levels: Callable[..., dict[str, Any]] = partial(dict, dim=DIM, levels=LEVELS)


def _in_place(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


MODULES: dict[str, tuple[str, dict[str, Any]]] = {
    "vq": ("VectorQuantize", _codes()),
    "vq-cosine": ("VectorQuantize", _codes(use_cosine_sim=True)),
    "vq-projected": (
        "VectorQuantize",
        _codes(codebook_dim=4, kmeans_init=True, threshold_ema_dead_code=1),
    ),
    "vq-affine": ("VectorQuantize", _codes(affine_param=True)),
    "vq-kept": ("VectorQuantize", _codes(sync_every=2, threshold_ema_dead_code=1)),
    "vq-parameter": ("VectorQuantize", _codes(learnable_codebook=True, ema_update=False)),
    "vq-orthogonal": ("VectorQuantize", _codes(orthogonal_reg_weight=1.0)),
    "rvq": ("ResidualVQ", _codes(num_quantizers=2)),
    "rvq-implicit": ("ResidualVQ", _codes(num_quantizers=2, implicit_neural_codebook=True)),
    "grouped-rvq": ("GroupedResidualVQ", _codes(num_quantizers=2, groups=2)),
    "fsq": ("FSQ", _levels()),
    "fsq-rotated": ("FSQ", dict(dim=DIM, levels=[5, 5, 5], orthogonal_rotation=True)),
    "residual-fsq": ("ResidualFSQ", _levels(num_quantizers=3)),
    "residual-fsq-soft": (
        "ResidualFSQ",
        _levels(num_quantizers=2, bound_hard_clamp=False, soft_clamp_input_value=3.3),
    ),
    "grouped-residual-fsq": ("GroupedResidualFSQ", _levels(num_quantizers=2, groups=2)),
    "lfq": ("LFQ", _lfq()),
    "lfq-rotated": ("LFQ", _lfq(orthogonal_rotation=True, spherical=True)),
    "lfq-cosine": ("LFQ", _lfq(cosine_sim_project_in=True)),
    "residual-lfq": ("ResidualLFQ", _lfq(num_quantizers=2)),
    "grouped-residual-lfq": ("GroupedResidualLFQ", _lfq(num_quantizers=2, groups=2)),
    "simvq": ("SimVQ", _codes()),
    "residual-simvq": ("ResidualSimVQ", _codes(num_quantizers=2)),
    "latent": ("LatentQuantize", _levels()),
    "latent-fixed": ("LatentQuantize", _levels(optimize_values=False)),
    "latent-in-place": ("LatentQuantize", _levels(in_place_codebook_optimizer=_in_place)),
    "fsp": ("FSP", _levels()),
    "random-projection": (
        "RandomProjectionQuantizer",
        _codes(codebook_dim=4, num_codebooks=2),
    ),
    "hierarchical": ("HierarchicalVQ", _codes(scales=(1, 2, 4))),
    "binary-mapper": ("BinaryMapper", dict(bits=DIM)),
}


@contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.fixture(params=HALVES, ids=str)
def half(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    """Half precision is the default dtype during the test."""
    with _default(request.param):
        yield request.param


def _build(name: str) -> nn.Module:
    support.seed_everything()
    owner, options = MODULES[name]
    return getattr(torchvq, owner)(**options)


def _input(name: str, dtype: torch.dtype) -> Tensor:
    owner = MODULES[name][0]
    shape = (2, DIM, 24) if owner in ("HierarchicalVQ", "LatentQuantize") else (2, 24, DIM)
    x = torch.randn(shape, dtype=torch.float32, generator=torch.Generator().manual_seed(1))
    return x.to(dtype)


def _train(module: nn.Module, x: Tensor) -> None:
    x = x.clone().requires_grad_()
    result = module.train()(x)
    outputs = result if isinstance(result, tuple) else (result,)
    ends = [part for part in outputs if isinstance(part, Tensor) and part.requires_grad]
    if ends:
        torch.stack([part.float().sum() for part in ends]).sum().backward()


def _tensors(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, (tuple, list)):
        return [tensor for part in result for tensor in _tensors(part)]
    return []


@pytest.mark.parametrize("name", MODULES)
def test_buffers_are_float32(name: str, half: torch.dtype) -> None:
    module = _build(name)
    floats = {key: b.dtype for key, b in module.named_buffers() if b.is_floating_point()}
    floats |= {key: v.dtype for key, v in module.state_dict().items() if "kept_candidates" in key}
    assert set(floats.values()) <= {torch.float32}, floats


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("name", MODULES)
def test_trains(name: str, dtype: torch.dtype, half: torch.dtype) -> None:
    module, x = _build(name), _input(name, dtype)
    for _ in range(3):
        _train(module, x)
    for key, tensor in module.state_dict().items():
        assert not tensor.is_floating_point() or tensor.isfinite().all(), key


@pytest.mark.parametrize("name", MODULES)
def test_a_float32_state_loads_exactly(name: str, half: torch.dtype) -> None:
    with _default(torch.float32):
        source = _build(name)
        _train(source, _input(name, torch.float32))
    state = source.state_dict()
    module = _build(name)
    module.load_state_dict(state)
    parameters = dict(module.named_parameters())
    for key, loaded in module.state_dict().items():
        # Parameters follow the dtype of the model, as those of torch's layers.
        expected = state[key].to(parameters[key].dtype) if key in parameters else state[key]
        assert loaded.dtype == expected.dtype, key
        assert torch.equal(loaded, expected), key


@pytest.mark.parametrize("name", MODULES)
def test_results_are_those_of_a_float32_module(name: str, half: torch.dtype) -> None:
    """Codes do not depend on the default dtype; projections are made equal, so that only these count."""
    with _default(torch.float32):
        source = _build(name).eval()
        x = _input(name, torch.float32)
        expected = _tensors(source(x))
    module = _build(name).float().eval()
    module.load_state_dict(source.state_dict())
    found = _tensors(module(x))
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", MODULES)
def test_float64_as_default_stays(name: str) -> None:
    with _default(torch.float64):
        module = _build(name)
        _train(module, _input(name, torch.float64))
    buffers = [b for b in module.buffers() if b.is_floating_point()]
    assert all(tensor.dtype == torch.float64 for tensor in [*buffers, *module.parameters()])
