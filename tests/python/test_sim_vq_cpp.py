"""The C++ SimVQ, ResidualSimVQ and RandomProjectionQuantizer equal the Python ones, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from cli_support import run_cpp_module
from torch import Tensor, nn
from vector_quantize_cases import same

import torchvq
from support import assert_cpp_state_loads

STEPS = 3
DTYPES = {"bfloat16": torch.bfloat16, "half": torch.float16, "double": torch.float64}


class Case(NamedTuple):
    name: str
    options: dict[str, Any]
    shape: tuple[int, ...]
    more: str = ""  # "mask", "seed"
    dtype: str = ""  # of the input
    cast: str = ""  # of the module


def sim(shape: tuple[int, ...] = (2, 7, 6), more: str = "", **options: Any) -> Case:
    dtypes = {name: options.pop(name, "") for name in ("dtype", "cast")}
    return Case("SimVQ", dict(dim=6, codebook_size=11) | options, shape, more, **dtypes)


def stack(shape: tuple[int, ...] = (2, 7, 6), more: str = "", **options: Any) -> Case:
    own = dict(dim=6, codebook_size=11, num_quantizers=4)
    dtypes = {name: options.pop(name, "") for name in ("dtype", "cast")}
    return Case("ResidualSimVQ", own | options, shape, more, **dtypes)


def random(shape: tuple[int, ...] = (2, 7, 6), more: str = "", **options: Any) -> Case:
    own = dict(dim=6, codebook_size=11, codebook_dim=4)
    dtypes = {name: options.pop(name, "") for name in ("dtype", "cast")}
    return Case("RandomProjectionQuantizer", own | options, shape, more, **dtypes)


CASES: dict[str, Case] = {
    "default": sim(),
    "masked": sim(more="mask"),
    "straight_through": sim(rotation_trick=False),
    "compatible": sim(vqp_compat=True),
    "frozen_dim": sim(frozen_codebook_dim=3),
    "weights": sim(input_to_quantize_commit_loss_weight=0.6, commitment_weight=0.4),
    "no_weight": sim(commitment_weight=0.0),
    "channel_first": sim((2, 6, 3, 4), "mask", channel_first=True),
    "no_positions": sim((9, 6)),
    "network": sim(codebook_transform="network", frozen_codebook_dim=4),
    "network_cast": sim(codebook_transform="network", cast="bfloat16"),
    "stack": stack(),
    "stack_masked": stack(more="mask"),
    "stack_heads": stack(heads=2),
    "stack_heads_masked": stack((2, 6, 3, 4), "mask", heads=3, channel_first=True),
    "stack_compatible": stack(vqp_compat=True),
    "stack_straight_through": stack(rotation_trick=False, frozen_codebook_dim=3),
    "stack_dropout": stack(quantize_dropout=True),
    "stack_dropout_rule": stack(
        more="seed", quantize_dropout=True, quantize_dropout_multiple_of=2
    ),
    "stack_beam": stack(eval_beam_size=3, heads=2),
    "stack_network": stack(codebook_transform="network"),
    "stack_network_cast": stack(codebook_transform="network", cast="bfloat16"),
    "stack_no_positions": stack((9, 6)),
    "random": random(),
    "random_codebooks": random(more="mask", num_codebooks=3),
    "random_no_norm": random(norm=False),
    "random_compatible": random(num_codebooks=3, vqp_compat=True),
    "random_channel_first": random((2, 6, 9), "mask", channel_last=False, num_codebooks=2),
    "random_image": random((2, 6, 3, 4), accept_image_fmap=True),
} | {
    f"{kind}_{dtype}{suffix}": make(dtype=dtype, cast=dtype if suffix else "")
    for kind, make in (("sim", sim), ("stack", stack), ("random", random))
    for dtype in DTYPES
    for suffix in ("", "_cast")
}  # fmt: skip


def build(case: Case) -> Any:
    torch.manual_seed(0)
    own = dict(case.options)
    if own.pop("codebook_transform", None):
        width = own.get("frozen_codebook_dim", own["dim"])
        own["codebook_transform"] = nn.Sequential(
            nn.Linear(width, 9), nn.Tanh(), nn.Linear(9, own["dim"])
        )
    module = getattr(torchvq, case.name)(**own)
    return module.to(DTYPES[case.cast]) if case.cast else module


def positions_of(case: Case) -> tuple[int, ...]:
    options = case.options
    first = options.get("channel_first") or not options.get("channel_last", True)
    first = first or options.get("accept_image_fmap")
    return (case.shape[0], *case.shape[2:]) if first else case.shape[:-1]


def inputs_of(case: Case) -> list[dict[str, Tensor]]:
    steps = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        named = {
            "x": torch.randn(case.shape, generator=generator).to(
                DTYPES.get(case.dtype, torch.float32)
            ),
            "weight": torch.randn(case.shape, generator=generator),
        }
        if case.more == "mask":
            named["mask"] = torch.rand(positions_of(case), generator=generator) < 0.6
        if case.more == "seed":
            named["seed"] = torch.tensor((step, 12345, -7)[step])
        steps.append(named)
    return steps


def call(module: Any, x: Tensor, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """The results of a forward, under the names that the C++ program uses."""
    named: dict[str, Any] = {"mask": given.get("mask")}
    if isinstance(module, torchvq.RandomProjectionQuantizer):
        indices = module(x, **named)
        loss = module(x, indices=indices.clamp_min(0).flip(0), **named)
        return {"quantized": x, "indices": indices, "loss": loss}
    if isinstance(module, torchvq.SimVQ):
        found = dict(module(x, **named)._asdict())
        return found | {"decoded": module.indices_to_codes(found["indices"])}
    if "seed" in given:
        named["rand_quantize_dropout_fixed_seed"] = int(given["seed"])
    found = dict(module(x, return_all_codes=True, **named)._asdict())
    return found | {"decoded": module.get_output_from_indices(found["indices"])}


def run_python(module: Any, steps: list[dict[str, Tensor]], x: Tensor) -> dict[str, Tensor]:
    results: dict[str, Tensor] = {}
    for step, given in enumerate(steps):
        leaf = given["x"].clone().requires_grad_()
        found = call(module, leaf, given)
        results |= {f"{step}.{name}": value.detach().clone() for name, value in found.items()}
        (found["loss"].sum() + (found["quantized"].float() * given["weight"]).sum()).backward()
        results[f"{step}.gradient"] = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                results[f"{step}.gradient.{name}"] = parameter.grad.clone()
                parameter.data.sub_(parameter.grad, alpha=0.1)
                parameter.grad = None
    found = call(module.eval(), x, {})
    results |= {f"eval.{name}": value.detach() for name, value in found.items()}
    return results | {f"state.{name}": value for name, value in module.state_dict().items()}


@pytest.mark.parametrize("name", CASES)
def test_cpp_equals_python(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    module, steps = build(case), inputs_of(case)
    given = {f"state.{name}": value.clone() for name, value in module.state_dict().items()}
    for step, named in enumerate(steps):
        given |= {f"{step}.{name}": value for name, value in named.items()}
    x = steps[0]["x"] * 0.9
    words = {"class": case.name, **case.options} | ({"cast": case.cast} if case.cast else {})
    arguments = [f"{name}={value}" for name, value in words.items()]
    actual = run_cpp_module("sim_vq", {**given, "eval.x": x}, arguments, tmp_path)
    expected = run_python(module, steps, x)
    assert actual.keys() == expected.keys()
    different = [name for name in expected if not same(actual[name], expected[name])]
    assert not different, f"C++ differs: {different}"
    assert_cpp_state_loads(module, actual)
