"""The C++ FSQ and its stacks equal the Python ones: the same outputs, gradients and state, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cli_support import run_cpp_module
from torch import Tensor
from vector_quantize_cases import same

import torchvq
from support import assert_cpp_state_loads

STEPS = 4
LEVELS = [8, 5, 4]
NOISY: dict[str, Any] = dict(noise_dropout=0.5)
ROTATED: dict[str, Any] = dict(levels=[5] * 3, orthogonal_rotation=True)
DROPOUT: dict[str, Any] = dict(num_quantizers=5, quantize_dropout=True)
# Options, the shape of the input, and the further arguments of each step.
CASES: dict[str, tuple[dict[str, Any], tuple[int, ...], str]] = {
    "default": ({}, (2, 7, 3), ""),
    "masked": (dict(dim=6), (2, 7, 6), "mask"),
    "projected": (dict(dim=6, num_codebooks=2, projection_has_bias=False), (2, 7, 6), ""),
    "clamp": (dict(bound_hard_clamp=True, keep_num_codebooks_dim=True), (2, 7, 3), ""),
    "symmetric": (dict(preserve_symmetry=True, dim=7), (2, 7, 3, 4), ""),
    "channel_first": (dict(channel_first=True, dim=7), (2, 7, 9), "mask"),
    "noisy": (dict(preserve_symmetry=True, dim=6, **NOISY), (2, 7, 6), ""),
    "compatible": (dict(preserve_symmetry=True, vqp_compat=True, **NOISY), (2, 7, 3), "mask"),
    "compatible_map": (dict(channel_first=False, vqp_compat=True), (2, 3, 4, 5), ""),
    "channel_last": (dict(channel_first=False), (2, 4, 5, 3), ""),
    "rotated": (dict(dim=6, **ROTATED), (2, 7, 6), ""),
    "stack": (dict(num_quantizers=4), (2, 7, 3), ""),
    "stack_projected": (dict(num_quantizers=4, dim=6), (2, 3, 4, 6), "mask"),
    "stack_tanh": (
        dict(num_quantizers=3, bound_hard_clamp=False, soft_clamp_input_value=[2.0, 1.5, 1.2]),
        (2, 7, 3),
        "",
    ),
    "stack_compatible": (dict(num_quantizers=3, dim=6, vqp_compat=True), (2, 7, 6), ""),
    "stack_image": (dict(num_quantizers=3, dim=6, is_channel_first=True), (2, 6, 3, 4), ""),
    "stack_noisy": (dict(num_quantizers=3, dim=6, **NOISY), (2, 7, 6), ""),
    "stack_rotated": (dict(num_quantizers=3, **ROTATED, **NOISY), (2, 7, 3), ""),
    "stack_compatible_noisy": (dict(num_quantizers=3, vqp_compat=True, **NOISY), (2, 7, 3), ""),
    "dropout": (DROPOUT, (2, 7, 3), ""),
    "dropout_seed": (dict(quantize_dropout_multiple_of=2, dim=6, **DROPOUT), (2, 7, 6), "seed"),
    "dropout_noisy": (dict(quantize_dropout_cutoff_index=1, **DROPOUT, **NOISY), (2, 7, 3), ""),
    "groups": (dict(num_quantizers=3, dim=8, groups=2), (2, 7, 8), "mask"),
    "groups_image": (
        dict(dim=8, groups=2, accept_image_fmap=True, **DROPOUT),
        (2, 8, 3, 4),
        "seed",
    ),
}


def build(options: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    options = {"levels": LEVELS, **options}
    if "groups" in options:
        return torchvq.GroupedResidualFSQ(**options)
    return (torchvq.ResidualFSQ if "num_quantizers" in options else torchvq.FSQ)(**options)


def words_of(options: dict[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in {"levels": LEVELS, **options}.items()]


def inputs_of(case: str) -> list[dict[str, Any]]:
    options, shape, kind = CASES[case]
    steps: list[dict[str, Any]] = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        named: dict[str, Any] = {
            "x": torch.randn(shape, generator=generator),
            "weight": torch.randn(shape, generator=generator),
        }
        first = options.get("channel_first") or (len(shape) == 4 and "stack" not in case)
        if kind == "mask":
            positions = (shape[0], *shape[2:]) if first else shape[:-1]
            named["mask"] = torch.rand(positions, generator=generator) < 0.6
        if kind == "seed":
            named["seed"] = torch.tensor((step, 12345, -7, 2**40 + 3)[step])
        steps.append(named)
    return steps


def run_python(module: Any, steps: list[dict[str, Any]], x: Tensor) -> dict[str, Tensor]:
    results: dict[str, Tensor] = {}
    for step, given in enumerate(steps):
        named = {name: value for name, value in given.items() if name not in ("x", "weight")}
        if "seed" in named:
            named["rand_quantize_dropout_fixed_seed"] = int(named.pop("seed"))
        leaf = given["x"].clone().requires_grad_()
        quantized, indices = module(leaf, **named)[:2]
        (quantized * given["weight"]).sum().backward()
        prefix = f"{step}."
        results |= {prefix + "quantized": quantized.detach(), prefix + "indices": indices}
        results[prefix + "gradient"] = leaf.grad
        for name, parameter in module.named_parameters():
            results[prefix + "gradient." + name] = parameter.grad.clone()
            parameter.data.sub_(parameter.grad, alpha=0.1)
            parameter.grad = None
    quantized, indices = module.eval()(x)[:2]
    decode = getattr(module, "indices_to_codes", None) or module.get_output_from_indices
    results |= {"eval.quantized": quantized.detach(), "eval.indices": indices}
    results["eval.decoded"] = decode(indices).detach()
    return results | {f"state.{name}": value for name, value in module.state_dict().items()}


@pytest.mark.parametrize("case", CASES)
def test_cpp_equals_python(case: str, tmp_path: Path) -> None:
    options = CASES[case][0]
    module, steps = build(options), inputs_of(case)
    x = steps[0]["x"] * 0.9
    given = {f"state.{name}": value.clone() for name, value in module.state_dict().items()}
    for step, named in enumerate(steps):
        given |= {f"{step}.{name}": value for name, value in named.items()}
    actual = run_cpp_module("fsq", given | {"eval.x": x}, words_of(options), tmp_path)
    expected = run_python(module, steps, x)
    assert actual.keys() == expected.keys()
    different = [name for name in expected if not same(actual[name], expected[name])]
    assert not different, f"C++ differs: {different}"
    assert_cpp_state_loads(module, actual)
