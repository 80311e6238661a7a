"""The C++ LFQ and its stacks equal the Python ones: the same outputs, losses, gradients and state, bit for bit."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_support import run_cpp_module
from torch import Tensor, nn
from vector_quantize_cases import same

import torchvq
from support import assert_cpp_state_loads

STEPS = 4
BITS: dict[str, Any] = dict(codebook_size=16)
STACK: dict[str, Any] = dict(BITS, dim=4, num_quantizers=4)
DROPOUT: dict[str, Any] = dict(STACK, quantize_dropout=True)
FRACTION: dict[str, Any] = dict(frac_per_sample_entropy=0.5)
# Options, the shape of the input, and the further arguments of each step. "dtype" casts module and input.
CASES: dict[str, tuple[dict[str, Any], tuple[int, ...], str]] = {
    "default": (dict(dim=5), (2, 7, 5), ""),
    "no_commitment": (dict(dim=5, commitment_loss_weight=0.0), (2, 7, 5), ""),
    "weights": (dict(dim=5, entropy_loss_weight=0.7, diversity_gamma=0.4), (2, 7, 5), ""),
    "masked": (dict(BITS, dim=6), (2, 7, 6), "mask"),
    "items_masked": (dict(dim=5), (4, 7, 5), "items"),
    "no_positions": (dict(dim=5), (9, 5), ""),
    "codebooks": (dict(BITS, dim=8, num_codebooks=2), (2, 7, 8), "mask"),
    "codebooks_projected": (
        dict(BITS, dim=6, num_codebooks=2, projection_has_bias=False),
        (2, 7, 6),
        "",
    ),
    "own_projection": (
        dict(dim=5, has_projections=True, keep_num_codebooks_dim=True),
        (2, 7, 5),
        "",
    ),
    "scaled": (dict(dim=5, codebook_scale=0.6), (2, 7, 5), ""),
    "clamp": (dict(dim=5, soft_clamp_input_value=1.3), (2, 7, 5), ""),
    "spherical": (dict(dim=5, spherical=True, codebook_scale=1.5), (2, 7, 5), "mask"),
    "rotated": (dict(dim=5, orthogonal_rotation=True), (2, 7, 5), ""),
    "fraction": (dict(dim=5, **FRACTION), (2, 17, 5), "mask"),
    "compatible": (dict(dim=5, vqp_compat=True), (2, 7, 5), ""),
    "compatible_mask": (dict(BITS, dim=6, vqp_compat=True), (2, 7, 6), "mask"),
    "softplus": (
        dict(dim=5, experimental_softplus_entropy_loss=True, entropy_loss_offset=2.0),
        (2, 7, 5),
        "",
    ),
    "activation": (dict(dim=5, straight_through_activation="tanh"), (2, 7, 5), ""),
    "cosine": (dict(BITS, dim=6, cosine_sim_project_in=True), (2, 7, 6), ""),
    "cosine_scaled": (
        dict(BITS, dim=6, cosine_sim_project_in=True, cosine_sim_project_in_scale=2.5),
        (2, 7, 6),
        "mask",
    ),
    "image": (dict(BITS, dim=6), (2, 6, 3, 4), "mask"),
    "channel_first": (dict(dim=5, channel_first=True), (2, 5, 9), "mask"),
    "channel_last": (dict(dim=5, channel_first=False), (2, 3, 4, 5), ""),
    "bfloat16": (dict(BITS, dim=6, dtype="bfloat16", spherical=True), (2, 7, 6), "mask"),
    "half": (dict(dim=5, dtype="half", orthogonal_rotation=True), (2, 7, 5), ""),
    "double": (dict(BITS, dim=6, dtype="double", **FRACTION), (2, 7, 6), ""),
    "stack": (STACK, (2, 7, 4), ""),
    "stack_projected": (dict(STACK, dim=6), (2, 3, 4, 6), "mask"),
    "stack_kept_axis": (dict(STACK, keep_num_codebooks_dim=True), (2, 7, 4), "mask"),
    "stack_spherical": (dict(STACK, spherical=True), (2, 7, 4), ""),
    "stack_rotated": (dict(STACK, orthogonal_rotation=True, **FRACTION), (2, 7, 4), "mask"),
    "stack_clamp": (dict(STACK, soft_clamp_input_value=1.5), (2, 7, 4), ""),
    "stack_compatible": (dict(STACK, dim=6, vqp_compat=True), (2, 7, 6), ""),
    "stack_activation": (dict(STACK, straight_through_activation="tanh"), (2, 7, 4), ""),
    "stack_image": (dict(STACK, dim=6, is_channel_first=True), (2, 6, 3, 4), "mask"),
    "stack_softplus": (dict(STACK, experimental_softplus_entropy_loss=True), (2, 7, 4), ""),
    "stack_bfloat16": (dict(STACK, dim=6, dtype="bfloat16"), (2, 7, 6), ""),
    "stack_double": (dict(STACK, dim=6, dtype="double"), (2, 7, 6), ""),
    "dropout": (DROPOUT, (2, 7, 4), ""),
    "dropout_seed": (dict(DROPOUT, dim=6, quantize_dropout_multiple_of=2), (2, 7, 6), "seed"),
    "dropout_fraction": (
        dict(DROPOUT, quantize_dropout_cutoff_index=1, **FRACTION),
        (2, 7, 4),
        "",
    ),
    "groups": (dict(STACK, dim=8, groups=2), (2, 7, 8), "mask"),
    "groups_projected": (dict(DROPOUT, dim=12, groups=2, **FRACTION), (2, 7, 12), ""),
    "groups_kept_axis": (dict(STACK, dim=8, groups=2, keep_num_codebooks_dim=True), (2, 7, 8), ""),
    "groups_image": (
        dict(DROPOUT, dim=8, groups=2, accept_image_fmap=True),
        (2, 8, 3, 4),
        "seed",
    ),
}
# Cases with features on axis 1: masks have the other axes.
FIRST = {"image", "channel_first", "stack_image", "groups_image"}
DTYPES = {"bfloat16": torch.bfloat16, "half": torch.float16, "double": torch.float64}


def with_defaults(options: dict[str, Any]) -> dict[str, Any]:
    return {"commitment_loss_weight": 0.25, **options}


def build(options: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    own = dict(options)
    dtype = DTYPES.get(own.pop("dtype", ""), torch.float32)
    if "straight_through_activation" in own:
        own["straight_through_activation"] = nn.Tanh()
    kind: Any = torchvq.LFQ
    if "num_quantizers" in own:
        kind = torchvq.GroupedResidualLFQ if "groups" in own else torchvq.ResidualLFQ
    return kind(**own).to(dtype)


def words_of(options: dict[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in options.items()]


def inputs_of(case: str) -> list[dict[str, Any]]:
    options, shape, kind = CASES[case]
    dtype = DTYPES.get(options.get("dtype", ""), torch.float32)
    steps: list[dict[str, Any]] = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        named: dict[str, Any] = {
            "x": torch.randn(shape, generator=generator).to(dtype),
            "weight": torch.randn(shape, generator=generator).to(dtype),
        }
        if kind == "mask":
            positions = (shape[0], *shape[2:]) if case in FIRST else shape[:-1]
            named["mask"] = torch.rand(positions, generator=generator) < 0.6
        if kind == "items":
            named["mask"] = torch.rand(shape[0], generator=generator) < 0.6
        if kind == "seed":
            named["seed"] = torch.tensor((step, 12345, -7, 2**40 + 3)[step])
        steps.append(named)
    return steps


def call(module: Any, x: Tensor, named: dict[str, Any]) -> tuple[dict[str, Tensor], Tensor]:
    """The results of a forward, by name, and its loss with a gradient."""
    if isinstance(module, torchvq.LFQ):
        (quantized, indices, loss), terms = module(
            x, inv_temperature=3.0, return_loss_breakdown=True, **named
        )
        more = terms._asdict()
    else:
        named = dict(named)
        if "seed" in named:
            named["rand_quantize_dropout_fixed_seed"] = int(named.pop("seed"))
        quantized, indices, loss, codes = module(x, return_all_codes=True, **named)
        more = {"all_codes": torch.stack(list(codes))}
    return {"quantized": quantized, "indices": indices, "loss": loss, **more}, quantized


def run_python(module: Any, steps: list[dict[str, Any]], x: Tensor) -> dict[str, Tensor]:
    results: dict[str, Tensor] = {}
    for step, given in enumerate(steps):
        named = {name: value for name, value in given.items() if name not in ("x", "weight")}
        leaf = given["x"].clone().requires_grad_()
        found, quantized = call(module, leaf, named)
        ((quantized * given["weight"]).sum() + found["loss"].sum()).backward()
        results |= {f"{step}.{name}": value.detach().clone() for name, value in found.items()}
        assert leaf.grad is not None
        results[f"{step}.gradient"] = leaf.grad
        for name, parameter in module.named_parameters():
            results[f"{step}.gradient.{name}"] = parameter.grad.clone()
            parameter.data.sub_(parameter.grad, alpha=0.1)
            parameter.grad = None
    found, _ = call(module.eval(), x, {})
    results |= {f"eval.{name}": value.detach() for name, value in found.items()}
    decode = getattr(module, "indices_to_codes", None) or module.get_output_from_indices
    results["eval.decoded"] = decode(found["indices"]).detach()
    return results | {f"state.{name}": value for name, value in module.state_dict().items()}


def given_to_cpp(module: Any, steps: list[dict[str, Any]], x: Tensor) -> dict[str, Tensor]:
    given = {f"state.{name}": value.clone() for name, value in module.state_dict().items()}
    for step, named in enumerate(steps):
        given |= {f"{step}.{name}": value for name, value in named.items()}
    return given | {"eval.x": x}


@pytest.mark.parametrize("case", CASES)
def test_cpp_equals_python(case: str, tmp_path: Path) -> None:
    options = with_defaults(CASES[case][0])
    module, steps = build(options), inputs_of(case)
    x = steps[0]["x"] * 0.9
    given = given_to_cpp(module, steps, x)
    actual = run_cpp_module("lfq", given, words_of(options), tmp_path)
    expected = run_python(module, steps, x)
    assert actual.keys() == expected.keys()
    different = [name for name in expected if not same(actual[name], expected[name])]
    assert not different, f"C++ differs: {different}"
    assert_cpp_state_loads(module, actual)


@pytest.mark.parametrize(
    ("options", "warnings"),
    [
        (dict(dim=4), 1),
        (dict(dim=4, commitment_loss_weight=0.25), 0),
        (STACK, 1),
        (dict(STACK, commitment_loss_weight=0.25), 0),
        (dict(STACK, entropy_loss_weight=0.0), 0),
        (dict(STACK, spherical=True), 0),
        (dict(STACK, soft_clamp_input_value=1.5), 0),
        (dict(dim=4, cosine_sim_project_in=True), 1),
        (dict(STACK, cosine_sim_project_in=True), 1),
        (dict(STACK, dim=8, groups=2), 2),
    ],
)
def test_both_warn_of_latents_that_run_away(
    options: dict[str, Any], warnings: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "torchvq"):
        module = build(options)
    assert caplog.text.count("growing without bound") == warnings
    given = given_to_cpp(module, [], torch.zeros(1, 2, options["dim"]))
    run_cpp_module("lfq", given, words_of(options), tmp_path)
    assert (tmp_path / "said").read_text().count("growing without bound") == warnings


# EvoLFQ ----------------------------------------------------------------------------------------------------------


def fitness_of(decoded: Tensor, bits: Tensor) -> Tensor:
    """The number of set bits minus the largest feature; NaN for every fifth number of bits."""
    count = bits.flatten(1).gt(0).sum(-1).float()
    return torch.where(
        count.remainder(5) == 0, torch.nan, count - decoded.flatten(1).abs().amax(-1)
    )


def evolve_in_python(evo: Any, x: Tensor, is_sign: bool) -> dict[str, Tensor]:
    reconstructed, indices, loss = evo(x, inv_temperature=3.0)
    results = {"reconstructed": reconstructed.detach(), "indices": indices, "loss": loss.detach()}
    (reconstructed.square().mean() + loss).backward()
    results |= {f"gradient.{name}": p.grad for name, p in evo.named_parameters()}
    results["bits"] = evo.encode(x, return_signs=is_sign)
    results["decoded"] = evo.decode_bits(results["bits"]).detach()
    results["grown"] = evo.init_population_from_data(x, 7, 0.3, is_sign=is_sign)
    search = evo.evolve(
        fitness_of,
        shape=(5, 8),
        generations=6,
        is_sign=is_sign,
        return_best_decoded=True,
        mutation_rate=0.1,
        batch_size=5,
    )
    for generation, found in enumerate(search):
        results |= {f"{generation}.{name}": value for name, value in found._asdict().items()}
        results[f"{generation}.best_fitness"] = torch.tensor(found.best_fitness).double()
    return results | {f"state.{name}": value for name, value in evo.state_dict().items()}


@pytest.mark.parametrize("is_sign", [False, True])
@pytest.mark.parametrize("codebooks", [1, 2])
def test_evolution_in_cpp_equals_python(codebooks: int, is_sign: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    options = dict(
        dim=8,
        codebook_size=2 ** (8 // codebooks),
        num_codebooks=codebooks,
        commitment_loss_weight=0.25,
        pop_size=12,
        elitism_count=2,
        tournament_size=3,
    )
    evo = torchvq.EvoLFQ(nn.Linear(6, 8), nn.Linear(8, 6), **options)
    x = torch.randn(3, 5, 6)
    given = {f"state.{name}": value.clone() for name, value in evo.state_dict().items()}
    words = words_of(options | {"is_sign": is_sign})
    actual = run_cpp_module("evo_lfq", given | {"x": x}, words, tmp_path)
    expected = evolve_in_python(evo, x, is_sign)
    assert actual.keys() == expected.keys()
    different = [name for name in expected if not same(actual[name], expected[name])]
    assert not different, f"C++ differs: {different}"
    assert_cpp_state_loads(evo, actual)
