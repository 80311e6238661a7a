"""The C++ module equals the Python module: the same outputs, losses, gradients and state, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cli_support import run_cpp_module
from torch import Tensor
from vector_quantize_cases import (
    CASES,
    CODES,
    DIM,
    LEARNABLE,
    PROJECTED,
    SEPARATE,
    build,
    data,
    positions_of,
    same,
    state,
)

from support import assert_cpp_state_loads
from torchvq import VectorQuantize

STEPS = 4
COMPAT = dict(vqp_compat=True)
# Configurations beyond those of the module's other tests.
MORE: dict[str, dict[str, Any]] = {
    "compat_cosine": dict(**COMPAT, use_cosine_sim=True),
    "compat_diversity": dict(**COMPAT, **SEPARATE, codebook_diversity_loss_weight=0.3),
    "compat_diversity_projections": dict(
        **COMPAT, **PROJECTED, codebook_diversity_loss_weight=0.3, commitment_weight=0.0
    ),
    "compat_projections": dict(**COMPAT, **PROJECTED),
    "compat_orthogonal": dict(**COMPAT, orthogonal_reg_weight=0.5),
    "compat_learnable": dict(**COMPAT, **LEARNABLE),
    "compat_manual": dict(**COMPAT, manual_ema_update=True),
    "compat_fraction": dict(**COMPAT, dead_code_threshold_fraction=0.5),
    "in_place": dict(**LEARNABLE, in_place_codebook_optimizer="sgd"),
    "in_place_cosine": dict(
        use_cosine_sim=True,
        orthogonal_reg_weight=1.0,
        ema_update=False,
        in_place_codebook_optimizer="sgd",
    ),
    "in_place_affine_compatible": dict(
        affine_param=True, vqp_compat=True, in_place_codebook_optimizer="sgd", **LEARNABLE
    ),
    "in_place_dead": dict(
        **LEARNABLE, threshold_ema_dead_code=1, in_place_codebook_optimizer="sgd"
    ),
    "in_place_averages": dict(
        orthogonal_reg_weight=1.0, threshold_ema_dead_code=1, in_place_codebook_optimizer="sgd"
    ),
    "input_as_padding": dict(return_zeros_for_masked_padding=False),
    "sync_every": dict(sync_every=3),
    "sync_every_dead": dict(sync_every=2, **SEPARATE, threshold_ema_dead_code=1),
}
# Arguments of each step besides x.
CALLS: dict[str, tuple[str, str]] = {
    "mask": ("default", "mask"),
    "mask_heads": ("separate_heads", "mask"),
    "mask_image": ("image_projections", "mask"),
    "mask_padding": ("input_as_padding", "mask"),
    "mask_compat": ("compat", "mask"),
    "mask_compat_diversity": ("compat_diversity", "mask"),
    "mask_compat_diversity_projections": ("compat_diversity_projections", "mask"),
    "mask_kmeans": ("affine_kmeans_dead_codes", "mask"),
    "targets": ("default", "indices"),
    "targets_heads": ("separate_heads_cosine", "indices"),
    "weight": ("default", "ema_update_weight"),
}
CASTS = {"bfloat16": torch.bfloat16, "half": torch.half, "double": torch.double}


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def options_for(case: str) -> dict[str, Any]:
    return {"dim": DIM, "codebook_size": CODES, **(MORE[case] if case in MORE else CASES[case])}


def make(case: str, cast: str | None = None) -> VectorQuantize:
    if case in CASES:
        module = build(case)
    else:
        options = dict(MORE[case])
        if "in_place_codebook_optimizer" in options:
            options["in_place_codebook_optimizer"] = sgd
        module = build(**options)
    return module if cast is None else module.to(CASTS[cast])


def arguments_of(module: VectorQuantize, step: int, kind: str | None) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(200 + step)
    positions = positions_of(module)
    if kind == "mask":
        return {"mask": torch.rand(positions, generator=generator) < 0.6}
    if kind == "indices":
        heads = () if module.heads == 1 else (module.heads,)
        return {"indices": torch.randint(-1, CODES, (*positions, *heads), generator=generator)}
    if kind == "ema_update_weight":
        return {"ema_update_weight": torch.rand(CODES, generator=generator).double()}
    return {}


def record(results: dict[str, Tensor], prefix: str, output: Any) -> None:
    *tensors, terms = output
    names = ("quantized", "loss") if len(tensors) == 2 else ("quantized", "indices", "loss")
    for name, value in zip(names, tensors, strict=True):
        results[prefix + name] = value.detach()
    for name, value in terms._asdict().items():
        results[prefix + name] = value.detach()


def run_python(
    module: VectorQuantize, steps: list[dict[str, Tensor]], x: Tensor
) -> dict[str, Tensor]:
    results: dict[str, Tensor] = {}
    for step, tensors in enumerate(steps):
        arguments = {name: value for name, value in tensors.items() if name not in ("x", "weight")}
        leaf = tensors["x"].clone().requires_grad_()
        output = module(leaf, **arguments, return_loss_breakdown=True)
        prefix = f"{step}."
        record(results, prefix, output)
        (output[-2].sum() + (output[0].float() * tensors["weight"]).sum()).backward()
        results[prefix + "gradient"] = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                results[prefix + "gradient." + name] = parameter.grad.clone()
                parameter.data.sub_(parameter.grad, alpha=0.1)
                parameter.grad = None
    module.eval()
    output = module(x, return_loss_breakdown=True)
    record(results, "eval.", output)
    results["eval.decoded"] = module.get_output_from_indices(output.indices).detach()
    return results | {f"state.{name}": value for name, value in module.state_dict().items()}


def assert_alike(
    case: str,
    folder: Path,
    kind: str | None = None,
    cast: str | None = None,
    dtype: torch.dtype = torch.float32,
) -> None:
    module = make(case, cast)
    steps = []
    for step in range(STEPS):
        x = data(module, step).to(dtype)
        weight = torch.randn(x.shape, generator=torch.Generator().manual_seed(300 + step))
        steps.append({"x": x, "weight": weight, **arguments_of(module, step, kind)})
    x = data(module, STEPS).to(dtype)
    given = {f"state.{name}": value for name, value in state(module).items()}
    given |= {f"{i}.{name}": value for i, step in enumerate(steps) for name, value in step.items()}
    options = options_for(case) | ({} if cast is None else {"cast": cast})
    words = [f"{name}={value}" for name, value in options.items()]
    actual = run_cpp_module("vector_quantize", {**given, "eval.x": x}, words, folder)
    expected = run_python(module, steps, x)

    own = {name for name in actual if kind == "indices" and name.endswith(".indices")}
    assert actual.keys() - own == expected.keys() - own
    different = [name for name in expected if not same(actual[name], expected[name])]
    assert not different, f"C++ differs: {different}"
    assert_cpp_state_loads(module, actual)
    changed = [
        name
        for name in given
        if name.startswith("state.") and not same(given[name], expected[name])
    ]
    # A frozen step changes nothing, not even the generator.
    moved = case != "frozen"
    assert bool(changed) == moved, "the steps changed nothing, so nothing was compared"


@pytest.mark.parametrize("case", [*CASES, *MORE])
def test_cpp_module_equals_python(case: str, tmp_path: Path) -> None:
    assert_alike(case, tmp_path)


@pytest.mark.parametrize("call", CALLS)
def test_cpp_call_equals_python(call: str, tmp_path: Path) -> None:
    case, kind = CALLS[call]
    assert_alike(case, tmp_path, kind)


@pytest.mark.parametrize(
    "case", ["default", "projections", "layer_norm", "learnable", "affine", "orthogonal"]
)
@pytest.mark.parametrize("cast", CASTS)
def test_cpp_cast_equals_python(cast: str, case: str, tmp_path: Path) -> None:
    assert_alike(case, tmp_path, cast=cast, dtype=CASTS[cast])
