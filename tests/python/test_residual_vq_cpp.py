"""The C++ residual stacks equal the Python ones: the same outputs, losses, gradients and state, bit for bit."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_support import run_cpp_module
from residual_vq_cases import (
    CODES,
    DIM,
    LEVELS,
    QINCO,
    STACKS,
    build,
    data,
    layout_of,
    mask_of,
    state,
)
from torch import Tensor
from vector_quantize_cases import Bridge, same

from support import assert_cpp_state_loads

STEPS = 4
LEARNABLE = STACKS["learnable"]
DIVERSITY = STACKS["diversity"]
KEEPS = dict(return_zeros_for_masked_padding=False)
# Configurations beyond those of the stacks' other tests.
MORE: dict[str, dict[str, Any]] = {
    "in_place": dict(**LEARNABLE, in_place_codebook_optimizer="sgd"),
    "in_place_shared": dict(**LEARNABLE, shared_codebook=True, in_place_codebook_optimizer="sgd"),
    "bridge": dict(vq_bridge="linear"),
    "bridge_shared": dict(vq_bridge="linear", shared_codebook=True),
    "diveq_noise": dict(diveq=True, directional_reparam_variance=0.1, codebook_dim=5),
    "update_v": dict(**LEARNABLE, sync_update_v=0.3, quant_grad_frac=0.5),
    "frozen": dict(freeze_codebook=True, threshold_ema_dead_code=2),
    "input_as_padding": dict(return_zeros_for_masked_padding=False),
    "sync_every": dict(sync_every=2, threshold_ema_dead_code=1),
    "sync_every_dropout": dict(sync_every=3, quantize_dropout=True),
    "sync_every_shared": dict(sync_every=2, shared_codebook=True, kmeans_init=True),
    "compatible_dead_codes": dict(vqp_compat=True, threshold_ema_dead_code=2),
    "compatible_padding": dict(vqp_compat=True, **DIVERSITY),
    "compatible_padding_kept": dict(vqp_compat=True, **DIVERSITY, **KEEPS),
    "compatible_padding_in_turn": dict(vqp_compat=True, kmeans_init=True, **DIVERSITY, **KEEPS),
    "compatible_padding_implicit": dict(vqp_compat=True, **DIVERSITY, **KEEPS, **QINCO),
    "multiple": dict(
        num_quantizers=8,
        quantize_dropout=True,
        quantize_dropout_cutoff_index=1,
        quantize_dropout_multiple_of=3,
    ),
    "beam": dict(beam_size=4, eval_beam_size=2),
    "beam_weights": dict(beam_size=3, beam_score_quantizer_weights=[0.5, 0.0, 2.0]),
    "beam_kmeans": dict(beam_size=3, kmeans_init=True, threshold_ema_dead_code=1),
    "beam_affine": dict(beam_size=3, affine_param=True),
    "beam_shared": dict(beam_size=3, shared_codebook=True),
    "beam_dropout": dict(beam_size=3, quantize_dropout=True),
    "beam_compatible": dict(beam_size=3, vqp_compat=True),
    "compatible_diveq": dict(vqp_compat=True, diveq=True, directional_reparam_variance=0.1),
    "compatible_frozen": dict(vqp_compat=True, freeze_codebook=True),
    "compatible_manual": dict(vqp_compat=True, shared_codebook=True, manual_ema_update=True),
    "beam_groups": dict(beam_size=3, groups=2),
    "beam_sampling": dict(beam_size=3, stochastic_sample_codes=True, sample_codebook_temp=0.5),
    "beam_sampling_kmeans": dict(beam_size=3, stochastic_sample_codes=True, kmeans_init=True),
    "beam_sampling_shared": dict(beam_size=3, stochastic_sample_codes=True, shared_codebook=True),
    "beam_implicit": dict(beam_size=3, **QINCO),
    "beam_implicit_weights": dict(
        beam_size=3, beam_score_quantizer_weights=[0.5, 1.0, 2.0], **QINCO
    ),
    "beam_implicit_kmeans": dict(beam_size=3, kmeans_init=True, **QINCO),
    "beam_implicit_sampling": dict(beam_size=3, stochastic_sample_codes=True, **QINCO),
    "beam_implicit_dropout": dict(beam_size=3, quantize_dropout=True, **QINCO),
    "beam_implicit_heads": dict(
        beam_size=2, heads=2, codebook_dim=4, separate_codebook_per_head=True, **QINCO
    ),
    "implicit_wide": dict(
        implicit_neural_codebook=True, mlp_kwargs=dict(depth=1, dim_hidden=12), num_quantizers=4
    ),
}
# Arguments of each step besides x.
CALLS: dict[str, tuple[str, str]] = {
    "mask": ("default", "mask"),
    "mask_heads": ("separate_heads", "mask"),
    "mask_image": ("image", "mask"),
    "mask_shared": ("shared_dead_codes", "mask"),
    "mask_implicit": ("implicit_diversity", "mask"),
    "mask_padding": ("input_as_padding", "mask"),
    "mask_compatible": ("compatible_padding", "mask"),
    "mask_compatible_kept": ("compatible_padding_kept", "mask"),
    "mask_compatible_in_turn": ("compatible_padding_in_turn", "mask"),
    "mask_compatible_implicit": ("compatible_padding_implicit", "mask"),
    "mask_beam": ("beam", "mask"),
    "mask_groups": ("groups_image", "mask"),
    "mask_dropout": ("dropout_kmeans", "mask"),
    "targets": ("default", "indices"),
    "targets_heads": ("shared_heads", "indices"),
    "targets_implicit": ("implicit", "indices"),
    "targets_groups": ("groups", "indices"),
    "targets_dropout": ("dropout", "indices"),
    "targets_cosine": ("cosine", "indices"),
    "targets_rotation": ("rotation", "indices"),
    "targets_rotation_implicit": ("rotation_implicit", "indices"),
    "seed": ("dropout", "seed"),
    "seed_multiple": ("multiple", "seed"),
    "seed_groups": ("groups_dropout", "seed"),
}
CODES_CASES = ["default", "image", "sizes", "dropout", "groups", "implicit_heads", "beam"]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def options_of(case: str) -> dict[str, Any]:
    defaults = {"dim": DIM, "num_quantizers": LEVELS, "codebook_size": CODES}
    return {**defaults, **(MORE[case] if case in MORE else STACKS[case])}


def make(case: str) -> Any:
    if case not in MORE:
        return build(case)
    options = dict(MORE[case])
    if "in_place_codebook_optimizer" in options:
        options["in_place_codebook_optimizer"] = sgd
    if "vq_bridge" in options:
        options["vq_bridge"] = Bridge()
    return build(**options)


def words_of(options: dict[str, Any]) -> list[str]:
    """The options as the C++ program parses them."""
    flat = dict(options)
    for name, value in flat.pop("mlp_kwargs", {}).items():
        flat[f"mlp_kwargs.{name}"] = value
    return [f"{name}={value}" for name, value in flat.items()]


def arguments_of(stack: Any, step: int, kind: str | None) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(200 + step)
    if kind == "mask":
        return {"mask": mask_of(stack, step)}
    if kind == "indices":
        was_training = stack.training
        shape = stack.eval()(data(stack, step))[1].shape
        stack.train(was_training)
        return {"indices": torch.randint(-1, CODES, shape, generator=generator)}
    if kind == "seed":
        # Small, large and negative seeds: Python's random module initialises its Mersenne Twister with different words.
        return {"rand_quantize_dropout_fixed_seed": (step, 12345, -7, 2**40 + 3)[step % 4]}
    return {}


def record(results: dict[str, Tensor], prefix: str, output: Any) -> None:
    names = ("quantized", "loss") if len(output) == 2 else ("quantized", "indices", "loss")
    for name, value in zip(names, output[: len(names)], strict=True):
        results[prefix + name] = value.detach()
    if len(output) > 3:
        codes = output[3]
        joined = torch.stack(list(codes)) if isinstance(codes, tuple) else codes
        results[prefix + "all_codes"] = joined.detach()


def run_python(
    stack: Any, steps: list[dict[str, Any]], x: Tensor, call: dict[str, Any]
) -> dict[str, Tensor]:
    results: dict[str, Tensor] = {}
    for step, tensors in enumerate(steps):
        arguments = {name: value for name, value in tensors.items() if name not in ("x", "weight")}
        leaf = tensors["x"].clone().requires_grad_()
        output = stack(leaf, **arguments, **call)
        prefix = f"{step}."
        record(results, prefix, output)
        loss = output[1] if len(output) == 2 else output[2]
        (loss.sum() + (output[0] * tensors["weight"]).sum()).backward()
        results[prefix + "gradient"] = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        for name, parameter in stack.named_parameters():
            if parameter.grad is not None:
                results[prefix + "gradient." + name] = parameter.grad.clone()
                parameter.data.sub_(parameter.grad, alpha=0.1)
                parameter.grad = None
    stack.eval()
    output = stack(x, **call)
    record(results, "eval.", output)
    results["eval.decoded"] = stack.get_output_from_indices(output[1]).detach()
    results["eval.codes"] = stack.get_codes_from_indices(output[1]).detach()
    return results | {f"state.{name}": value for name, value in stack.state_dict().items()}


def tensors_of(step: dict[str, Any]) -> dict[str, Tensor]:
    named = dict(step)
    seed = named.pop("rand_quantize_dropout_fixed_seed", None)
    return named if seed is None else {**named, "seed": torch.tensor(seed)}


def assert_alike(
    case: str, folder: Path, kind: str | None = None, codes: bool = False, steps: int = STEPS
) -> None:
    stack = make(case)
    given = {f"state.{name}": value for name, value in state(stack).items()}
    inputs = []
    for step in range(steps):
        x = data(stack, step)
        weight = torch.randn(x.shape, generator=torch.Generator().manual_seed(300 + step))
        inputs.append({"x": x, "weight": weight, **arguments_of(stack, step, kind)})
    x = data(stack, steps)
    for i, step in enumerate(inputs):
        given |= {f"{i}.{name}": value for name, value in tensors_of(step).items()}
    words = words_of(options_of(case)) + (["codes=1"] if codes else [])
    actual = run_cpp_module("residual_vq", {**given, "eval.x": x}, words, folder)
    expected = run_python(stack, inputs, x, {"return_all_codes": True} if codes else {})

    own = {name for name in actual if kind == "indices" and name.endswith(".indices")}
    assert actual.keys() - own == expected.keys() - own
    different = [name for name in expected if not same(actual[name], expected[name])]
    assert not different, f"C++ differs: {different}"
    assert_cpp_state_loads(stack, actual)
    changed = [
        name
        for name in given
        if name.startswith("state.") and not same(given[name], expected[name])
    ]
    # A frozen step changes nothing, not even the generator.
    moved = case != "frozen"
    assert bool(changed) == moved, "the steps changed nothing, so nothing was compared"


@pytest.mark.parametrize("case", [*STACKS, *MORE])
def test_cpp_stack_equals_python(case: str, tmp_path: Path) -> None:
    assert_alike(case, tmp_path)


@pytest.mark.parametrize("call", CALLS)
def test_cpp_call_equals_python(call: str, tmp_path: Path) -> None:
    case, kind = CALLS[call]
    assert_alike(case, tmp_path, kind)


@pytest.mark.parametrize("case", CODES_CASES)
def test_cpp_codes_equal_python(case: str, tmp_path: Path) -> None:
    assert_alike(case, tmp_path, codes=True)


def test_seeds_mean_in_cpp_what_they_mean_in_python(tmp_path: Path) -> None:
    """The depth for many seeds, measured as the number of levels that have an index."""
    stack = make("multiple")
    draws = random.Random(5)
    seeds = [0, 1, 2**31, 2**32, 2**62, -1, -(2**40), *(draws.getrandbits(63) for _ in range(20))]
    x = data(stack)
    given = {f"state.{name}": value for name, value in state(stack).items()}
    for i, seed in enumerate(seeds):
        given |= {f"{i}.x": x, f"{i}.weight": x, f"{i}.seed": torch.tensor(seed)}
    words = words_of(options_of("multiple"))
    results = run_cpp_module("residual_vq", {**given, "eval.x": x}, words, tmp_path)
    for i, seed in enumerate(seeds):
        depth = random.Random(seed).randrange(1, 8) + 1
        expected = min(-(-depth // 3) * 3, 8)
        used = (results[f"{i}.indices"] >= 0).flatten(0, -2).any(0).sum()
        assert used == expected, seed


def test_layouts_are_covered() -> None:
    ranks = {layout_of(build(case)).map_rank for case in STACKS}
    assert ranks == {None, 4, 5}
