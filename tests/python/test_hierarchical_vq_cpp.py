"""The C++ HierarchicalVQ equals the Python one, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from cli_support import run_cpp_module
from torch import Tensor
from vector_quantize_cases import same

import torchvq
from support import assert_cpp_state_loads

STEPS = 3
DTYPES = {"bfloat16": torch.bfloat16, "half": torch.float16, "double": torch.float64}


class Case(NamedTuple):
    options: dict[str, Any]
    shape: tuple[int, ...]
    more: str = ""  # "mask", "lens", "target"
    dtype: str = ""  # of the input
    cast: str = ""  # of the module


def case(shape: tuple[int, ...] = (3, 6, 5), more: str = "", **options: Any) -> Case:
    dtypes = {name: options.pop(name, "") for name in ("dtype", "cast")}
    own = dict(dim=6, codebook_size=11, scales=[1, 2, 4]) | options
    return Case(own, shape, more, **dtypes)


CASES: dict[str, Case] = {
    "default": case(),
    "masked": case(more="mask"),
    "lens": case(more="lens"),
    "targets": case(more="target"),
    "targets_masked": case(more="target mask"),
    "no_kmeans": case(kmeans_init=False),
    "channel_last": case((3, 5, 6), "mask", channel_first=False),
    "image": case((2, 6, 5, 4), "mask", accept_image_fmap=True, share_quant_resi=2),
    "image_grids": case((2, 6, 5, 4), accept_image_fmap=True, scales=[1, [2, 3], [5, 4]]),
    "volume": case((2, 6, 3, 4, 2), "mask", accept_3d_fmap=True),
    "own_codebooks": case(shared_codebook=False, share_quant_resi=0),
    "own_sizes": case(shared_codebook=False, codebook_size=[5, 7, 11], quant_resi=0.8),
    "dropout": case(nested_dropout=0.7),
    "dropout_own": case(nested_dropout=1.0, shared_codebook=False, share_quant_resi=0),
    "dropout_two": case(nested_dropout=1.0, nested_dropout_min_levels=2, more="mask"),
    "sync_every": case(sync_every=2, nested_dropout=0.7, more="mask"),
    "rotation": case(rotation_trick=True),
    "cosine": case(use_cosine_sim=True),
    "sampling": case(stochastic_sample_codes=True),
    "orthogonal": case(orthogonal_reg_weight=0.5, orthogonal_reg_max_codes=5),
    "orthogonal_active": case(orthogonal_reg_weight=0.5, orthogonal_reg_active_codes_only=True),
    "frozen": case(freeze_codebook=True),
    "no_commitment": case(commitment_weight=0.0),
    "dead_codes": case(dead_code_threshold_fraction=0.3, threshold_ema_dead_code=0.0),
    "compatible": case(vqp_compat=True, rotation_trick=True),
    "compatible_masked": case(more="mask", vqp_compat=True, nested_dropout=0.7),
    "compatible_own": case(vqp_compat=True, shared_codebook=False, nested_dropout=0.7),
    "empty": case((0, 6, 5)),
    "no_positions": case((2, 6, 0)),
} | {
    f"{dtype}{suffix}": case(dtype=dtype, cast=dtype if suffix else "", more="mask")
    for dtype in DTYPES
    for suffix in ("", "_cast")
}  # fmt: skip


def build(given: Case) -> torchvq.HierarchicalVQ:
    torch.manual_seed(0)
    module = torchvq.HierarchicalVQ(**given.options)
    return module.to(DTYPES[given.cast]) if given.cast else module


def positions_of(given: Case) -> tuple[int, ...]:
    return given.shape[2:] if given.options.get("channel_first", True) else given.shape[1:-1]


def inputs_of(given: Case, module: torchvq.HierarchicalVQ) -> list[dict[str, Tensor]]:
    steps = []
    batch, positions = given.shape[0], positions_of(given)
    dtype = DTYPES.get(given.dtype, torch.float32)
    for step in range(STEPS):
        draw = torch.Generator().manual_seed(step)
        named = {
            "x": torch.randn(given.shape, generator=draw).to(dtype),
            "weight": torch.randn(given.shape, generator=draw),
        }
        if "mask" in given.more:
            named["mask"] = torch.rand((batch, *positions), generator=draw) < 0.6
        if "lens" in given.more:
            named["lens"] = torch.tensor([5, 2, 0])
        if "target" in given.more:
            for n, shape in enumerate(module.level_shapes):
                named[f"target.{n}"] = torch.randint(-1, 5, (batch, *shape), generator=draw)
        steps.append(named)
    return steps


def call(module: torchvq.HierarchicalVQ, x: Tensor, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """The results of a forward, under the names that the C++ program uses."""
    mask = given.get("mask")
    named = {"mask": mask, "lens": given.get("lens")}
    full = x.shape[2:] if module.channel_first else x.shape[1:-1]
    targets = [given[name] for name in sorted(given) if name.startswith("target")]
    if targets:
        quantized, loss = module(x, indices=targets, **named)
        return {"quantized": quantized, "loss": loss}
    found = module(x, **named)
    output = {"quantized": found.quantized, "loss": found.loss}
    output |= {f"indices.{n}": indices for n, indices in enumerate(found.indices)}
    return output | {"decoded": module.get_output_from_indices(found.indices, full, mask=mask)}


def run_python(
    module: torchvq.HierarchicalVQ, steps: list[dict[str, Tensor]], x: Tensor
) -> dict[str, Tensor]:
    results: dict[str, Tensor] = {}
    for step, given in enumerate(steps):
        leaf = given["x"].clone().requires_grad_()
        found = call(module, leaf, given)
        results |= {f"{step}.{name}": value.detach().clone() for name, value in found.items()}
        (found["loss"] + (found["quantized"].float() * given["weight"]).sum()).backward()
        results[f"{step}.gradient"] = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                results[f"{step}.gradient.{name}"] = parameter.grad.clone()
                parameter.data.sub_(parameter.grad, alpha=0.1)
                parameter.grad = None
    for n, stats in enumerate(module.stats()):
        results[f"stats.{n}"] = torch.tensor(stats, dtype=torch.float64)
    found = call(module.eval(), x, {})
    results |= {f"eval.{name}": value.detach() for name, value in found.items()}
    return results | {f"state.{name}": value for name, value in module.state_dict().items()}


@pytest.mark.parametrize("name", CASES)
def test_cpp_equals_python(name: str, tmp_path: Path) -> None:
    given = CASES[name]
    module = build(given)
    steps = inputs_of(given, module)
    tensors = {f"state.{name}": value.clone() for name, value in module.state_dict().items()}
    for step, named in enumerate(steps):
        tensors |= {f"{step}.{name}": value for name, value in named.items()}
    x = steps[0]["x"] * 0.9
    words = given.options | ({"cast": given.cast} if given.cast else {})
    arguments = [f"{name}={value}" for name, value in words.items()]
    actual = run_cpp_module("hierarchical_vq", {**tensors, "eval.x": x}, arguments, tmp_path)
    expected = run_python(module, steps, x)
    # With targets, Python returns no indices and nothing to decode; C++ always writes both.
    actual = {
        name: value
        for name, value in actual.items()
        if name in expected or not (name[0].isdigit() and "target" in given.more)
    }
    assert actual.keys() == expected.keys()
    different = [name for name in expected if not same(actual[name], expected[name])]
    assert not different, f"C++ differs: {different}"
    assert_cpp_state_loads(module, actual)
