"""torch.library.opcheck of the operators that have no such test of their own; no operator is left out."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import torchvq  # noqa: F401  (registers the operators)
from support import any_path

ops = torch.ops.torchvq
TESTS = Path(__file__).resolve().parents[1]


def operators() -> set[str]:
    """Operators with a tensor argument; the others are plain functions."""
    return {
        schema.name.removeprefix("torchvq::")
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("torchvq::")
        and any("Tensor" in str(argument.type) for argument in schema.arguments)
    }


def checked_in(file: Path) -> set[str]:
    """Operators named in functions that call opcheck, directly or in parts of the file that these functions use."""
    module = ast.parse(file.read_text())
    parts: dict[str, str] = {}
    for node in module.body:
        if isinstance(node, ast.FunctionDef):
            parts[node.name] = ast.unparse(node)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            parts[node.targets[0].id] = ast.unparse(node)
    calling = [set(re.findall(r"\w+", part)) for part in parts.values() if "opcheck(" in part]
    used = [re.findall(r"\w+", parts[name]) for words in calling for name in words & parts.keys()]
    return set().union(*calling, *used) & operators()


def checked() -> set[str]:
    files = [file for file in TESTS.rglob("test_*.py") if "opcheck(" in file.read_text()]
    return set().union(*(checked_in(file) for file in files if file != Path(__file__).resolve()))


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def integers(high: int, *shape: int) -> Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(0))


def rng() -> Tensor:
    return torch.tensor([5, 2])


X, CODEBOOK, INDICES = normal(2, 9, 4), normal(2, 7, 4, seed=1), integers(7, 2, 9)
MASK = normal(2, 9, seed=2) > -0.5
BITS = (normal(6, 5, 8) > 0).float()
VALUES = [torch.linspace(-1, 1, count) for count in (5, 4)]
LATENTS, LATENT_CODES = normal(9, 2), normal(9, 2, seed=1)
MOMENTS = dict(group_name="", label="quantizer")


def statistics(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    x = normal(2, 9, 4, seed=seed)
    return tuple(ops.code_statistics(x, INDICES, ops.code_exponents(CODEBOOK)))


def state() -> list[Tensor]:
    """The state of a codebook, in the order that learning operators take."""
    sizes = torch.full((2, 7), 0.3)
    return [CODEBOOK.clone(), sizes, CODEBOOK * 0.3, integers(1, 2)]


def kept(steps: int) -> list[Tensor]:
    """The kept statistics of a codebook after `steps` steps without tokens."""
    exponents = torch.full((2, 2, 7), 32 * steps, dtype=torch.int32)
    return [
        torch.tensor([steps, steps, 0, 0]),
        torch.zeros(2, 7, dtype=torch.long),
        torch.zeros(2, 2, 7, 4, dtype=torch.long),
        exponents,
        torch.zeros(2, 7, 1 + 4),
    ]


def found() -> list[Tensor]:
    """Outputs that receive the kept statistics when they are due."""
    _, counts, sums, exponents, candidates = kept(steps=0)
    return [counts, sums, exponents[0].clone(), candidates[..., 1:].clone()]


def affine() -> tuple[Tensor, ...]:
    return normal(2, 1, 4), normal(2, 1, 4).abs(), normal(2, 1, 4), normal(2, 1, 4).abs()


# Operator (a suffix after the space tells cases apart): arguments, options.
TABLE: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    # Evolution over bits.
    "random_bits": ((rng(), [3, 8]), {}),
    "mutate_bits": ((BITS, rng(), 0.3), {}),
    "mutate_bits signs": ((BITS * 2 - 1, rng(), 0.3), dict(is_sign=True)),
    "grow_population": ((BITS, rng(), 11, 0.3), {}),
    "cross_bits": ((BITS, 1 - BITS, rng()), {}),
    "fittest_first": ((normal(6),), {}),
    "select_parents": ((BITS, normal(6), rng(), 2), {}),
    "bits_to_indices": ((BITS, 4), {}),
    "indices_to_bits": ((integers(16, 6, 5, 2), 4), {}),
    "indices_to_bits signs": ((integers(16, 6, 5, 2), 4), dict(is_sign=True)),
    # Layouts and masks.
    "pack_tokens": ((normal(2, 4, 3, 5), True), {}),
    "unpack_tokens": ((X, normal(2, 4, 3, 3), True), {}),
    "unpack_positions": ((INDICES, normal(2, 4, 3, 3), True), {}),
    "split_heads": ((X, 2, True), {}),
    "split_mask": ((MASK, 2, True), {}),
    "split_indices": ((integers(7, 2, 9, 2), 2, True), {}),
    "restore_positions": (
        (integers(7, 2, 9), normal(3, 8, 3)),
        dict(heads=2, separate=True, channel_first=True),
    ),
    "restore_tokens": (
        (X, normal(3, 8, 3)),
        dict(heads=2, separate=True, channel_first=True, mask=integers(2, 3, 3) > 0),
    ),
    "restore_tokens padding": (
        (X[:1], normal(1, 9, 4)),
        dict(zeros_for_masked=False, mask=MASK[:1]),
    ),
    "merge_heads": ((normal(2, 18, 2), 2, 9, 2, True), {}),
    "lens_to_mask": ((torch.tensor([3, 9]), 9), {}),
    "fill_masked": ((X, MASK), {}),
    "fill_padding": ((X, MASK), {}),
    "fill_padding input": ((X, MASK, X + 1), {}),
    "zero_absent": ((X, INDICES - 1), {}),
    "zero_absent heads": ((X, integers(7, 2, 9, 2) - 1), {}),
    "decode_indices": ((CODEBOOK, integers(7, 9, 2) - 1, [], 2, True), {}),
    "decode_indices affine": ((CODEBOOK, integers(7, 9, 2) - 1, [*affine()], 2, True), {}),
    "decode_residual": ((integers(7, 9, 3) - 1, [CODEBOOK[:1]] * 3, []), {}),
    "decode_residual affine": (
        (integers(7, 9, 2, 3) - 1, [CODEBOOK] * 3, [*affine()] * 3, 2, True),
        {},
    ),
    "advance_rng_": ((rng(), MASK), {}),
    "quantize_and_commit": ((X, CODEBOOK[:1]), {}),
    "quantize_and_commit straight": ((X, CODEBOOK[:1]), dict(estimator="straight_through")),
    "quantize_and_commit mask": ((X, CODEBOOK[:1]), dict(mask=MASK.reshape(1, -1))),
    "nearest_code mask": ((X, CODEBOOK), dict(mask=MASK, return_codes=True)),
    "commitment_loss_backward": ((torch.tensor(0.3), X, X * 2), dict(mask=MASK)),
    "quantize_and_commit_backward": (
        (X * 2, torch.tensor(0.5), X, X.reshape(1, -1, X.shape[-1]) + 1),
        dict(rotates=True),
    ),
    # Codebooks.
    "quantize": ((X, CODEBOOK, rng()), {}),
    "quantize gumbel": ((X, CODEBOOK, rng()), dict(estimator="gumbel", temperature=0.5)),
    "evaluate": ((X, CODEBOOK[:1], rng()), dict(mask=MASK)),
    "unit_vectors": ((X,), {}),
    "unit_vectors_backward": ((X * 2, X, ops.unit_vectors(X)), {}),
    "affine_codes": ((CODEBOOK, *affine()), {}),
    "affine_inputs": ((X, *affine()), {}),
    "update_affine_": (
        (
            *(torch.zeros(2, 1, 4), torch.ones(2, 1, 4)),
            *(torch.tensor([True]), torch.tensor([True]), X),
        ),
        dict(mask=MASK, decay=0.9),
    ),
    "initialise_codebook_": (
        (torch.tensor([False]), torch.ones(2, 7), CODEBOOK.clone(), CODEBOOK.clone(), X, rng()),
        {},
    ),
    "merge_statistics": ((*statistics(0), *statistics(1)), {}),
    "wide_codes": ((CODEBOOK, torch.ones(2, 7), CODEBOOK.clone()), {}),
    "collect_statistics": (([*state()], [rng()], [X], [INDICES]), dict(mask=[MASK])),
    "learn_codebooks_": (
        ([*state(), *state()], [rng(), rng()], [X], [INDICES]),
        dict(mask=[MASK], statistics=[], threshold=0.5, reset_cluster_size=0.5),
    ),
    "learn_codebooks_ statistics": (
        (state(), [rng()], [X], [INDICES]),
        dict(mask=[], statistics=[*statistics(0)], weight=normal(2, 7).abs()),
    ),
    "expire_codes_": ((state(), [rng()], [X]), dict(threshold=0.5, reset_cluster_size=0.5)),
    "finish_step_": (
        ([integers(1, 2, 7)], [INDICES], [rng()]),
        dict(counts=[], masks=[MASK]),
    ),
    "finish_step_ depth": (
        ([integers(1, 2, 7)] * 2, [INDICES] * 2, [rng(), rng()]),
        dict(counts=[], masks=[], alone=False, depth=torch.tensor(1)),
    ),
    "vector_quantize_": (
        (normal(2, 8, 9), CODEBOOK.clone(), state(), rng(), integers(1, 2, 7)),
        dict(
            **dict(mask=MASK, heads=2, separate=True, channel_first=True, zeros_for_masked=False),
            **dict(affine=[], totals=[], training=True, learns=True, finishes=True),
        ),
    ),
    "vector_quantize_ losses": (
        (normal(2, 9, 8), CODEBOOK.clone(), state(), rng(), integers(1, 2, 7)),
        dict(
            **dict(
                heads=2,
                separate=True,
                affine=[*affine()],
                totals=[],
                training=True,
                estimator="rotation_trick",
            ),
            **dict(diversity_weight=0.1, orthogonal_weight=0.1, pulls_codes=True, learns=True),
        ),
    ),
    "residual_quantize_": (
        (
            normal(2, 9, 8),
            [CODEBOOK.clone(), CODEBOOK + 1],
            [*state(), *state()],
            [rng(), rng()],
            [integers(1, 2, 7), integers(1, 2, 7)],
        ),
        dict(
            **dict(heads=2, separate=True, targets=[], totals=[], training=True),
            **dict(estimator="rotation_trick", threshold=0.5, learns=True, finishes=True),
        ),
    ),
    "residual_quantize_ levels": (
        (
            normal(2, 9, 8),
            [CODEBOOK.clone(), CODEBOOK + 1],
            state(),
            [rng()],
            [integers(1, 2, 7), integers(1, 2, 7)],
        ),
        dict(
            **dict(heads=2, separate=True, targets=[], totals=[], training=True),
            **dict(level_estimator="straight_through", handed_on=0.5, beam=2, learns=True),
        ),
    ),
    "residual_quantize_ padding": (
        (
            normal(2, 9, 8),
            [CODEBOOK.clone(), CODEBOOK + 1],
            [*state(), *state()],
            [rng(), rng()],
            [integers(1, 2, 7), integers(1, 2, 7)],
        ),
        dict(
            **dict(heads=2, separate=True, targets=[], totals=[], training=True, mask=MASK),
            **dict(zeros_for_masked=False, vqp_compat=True, diversity_weight=0.5, finishes=True),
        ),
    ),
    "residual_quantize_ sampled beam": (
        (
            normal(2, 9, 8),
            [CODEBOOK.clone(), CODEBOOK + 1],
            [*state(), *state()],
            [rng(), rng()],
            [integers(1, 2, 7), integers(1, 2, 7)],
        ),
        dict(
            **dict(heads=2, separate=True, targets=[], totals=[], training=True, draws=True),
            **dict(beam=2, beam_weights=[1.0, 0.5], temperature=0.5, learns=True),
        ),
    ),
    "synced_step_statistics": (
        ([X], [INDICES], [torch.zeros(2, 7, dtype=torch.int32)]),
        dict(
            mask=[MASK],
            state=[CODEBOOK],
            rng=[rng()],
            cluster_size=[torch.ones(2, 7)],
            threshold=0.5,
        ),
    ),
    "keep_statistics_": (
        (kept(steps=0), found(), [X], [INDICES], [torch.zeros(2, 7, dtype=torch.int32)]),
        dict(
            mask=[MASK],
            state=[CODEBOOK],
            step=rng(),
            rng=[rng()],
            cluster_size=[torch.ones(2, 7)],
            every=2,
            replaces=True,
        ),
    ),
    "keep_statistics_ due": (
        (kept(steps=1), found(), [X], [INDICES], [torch.zeros(2, 7, dtype=torch.int32)]),
        dict(
            mask=[],
            state=[CODEBOOK],
            step=rng(),
            rng=[rng()],
            cluster_size=[torch.ones(2, 7)],
            every=2,
            replaces=True,
        ),
    ),
    "average_gradients": (([CODEBOOK], X), dict(mask=MASK)),
    # Losses.
    "search_losses": (
        (X, CODEBOOK, normal(2, 9, 4), INDICES),
        dict(mask=MASK, training=True, pulls_codes=True, diversity_weight=0.1),
    ),
    "shared_diversity_totals": (
        ([CODEBOOK, CODEBOOK], [X], [CODEBOOK]),
        dict(masks=[MASK], temperatures=[100.0]),
    ),
    "weighted_loss": (([normal(), normal()], [0.5, 2.0], True), {}),
    "gather_moments": ((normal(3, 4),), MOMENTS),
    "attach_moments": ((normal(3, 4), normal(3, 4)), MOMENTS),
    "lookup_free_quantize": (
        (normal(2, 9, 6),),
        dict(
            mask=integers(2, 2, 9).bool(),
            rotation=torch.linalg.qr(normal(3, 3))[0],
            rng=rng(),
            totals=[],
            codebooks=2,
            radius=1.0,
            soft_clamp=2.0,
            fraction=0.5,
            estimates=True,
            scores=True,
            commitment_weight=0.25,
        ),
    ),
    "residual_lookup_free_quantize": (
        (normal(2, 9, 3),),
        dict(
            mask=integers(2, 2, 9).bool(),
            rotations=[torch.linalg.qr(normal(3, 3))[0]] * 2,
            rng=rng(),
            scales=[1.0, 0.5],
            radii=[2.0, 1.0],
            soft_clamps=[2.0, 1.0],
            fraction=0.5,
            estimates=True,
            scores=True,
            commitment_weight=0.25,
        ),
    ),
    "residual_lookup_free_quantize plain": (
        (normal(2, 9, 3),),
        dict(rotations=[], scales=[1.0, 0.5], radii=[], soft_clamps=[], scores=True),
    ),
    "residual_linear_quantize": (
        (X, [normal(7, 3)] * 2, [normal(4, 3)] * 2, [normal(4)] * 2),
        dict(mask=MASK, to_inputs=[0.25, 0.5], to_codes=[1.0, 2.0]),
    ),
    "lookup_free_losses": (
        (X, X.sign()),
        dict(mask=MASK, entropy_mask=MASK, commitment_weight=0.25, softplus_offset=5.0),
    ),
    "vqp_rotation_trick": ((X, X + 1), {}),
    "estimate": ((X, X + 1, rng()), dict(estimator="directional_reparam", sync_update_v=0.2)),
    "vqp_latent_loss": ((X, X + 1), dict(commitment=0.1, quantization=0.3, mask=MASK)),
    "vqp_indices": ((integers(20, 2, 9), 20), {}),
    # Scalars and signs.
    "quantize_scalars": ((normal(2, 9, 2), [5, 4]), {}),
    "quantize_scalars noise": (
        (normal(2, 9, 2), [5, 4]),
        dict(bound="symmetric_tanh", rng=rng(), noise=0.5, mask=MASK),
    ),
    "quantize_scalars vqp_noise": (
        (normal(2, 9, 2), [5, 4]),
        dict(bound="symmetric_tanh", rng=rng(), noise=0.5, vqp_noise=True),
    ),
    "finite_scalar_quantize": ((normal(2, 2, 3, 3), [5, 4]), dict(channel_first=True)),
    "finite_scalar_quantize mask": (
        (normal(2, 9, 4), [5, 4]),
        dict(codebooks=2, keep_codebooks=True, mask=MASK),
    ),
    "decode_scalars": ((integers(20, 2, 9, 1), [5, 4]), {}),
    "distribution_cdf": ((X, "laplace"), {}),
    "distribution_quantile": ((torch.sigmoid(X), "laplace"), {}),
    "rotate_features": ((X, torch.linalg.qr(normal(4, 4))[0]), {}),
    "random_projection": ((X, normal(2, 4, 3)), {}),
    "resample_scale": ((normal(2, 4, 5, 3), [2, 2], [5, 3], "average"), {}),
    "resample_scale kernel": ((normal(2, 4, 9), [2, 2], [5, 3], "interpolate", [3, 1]), {}),
    "pool_scale": ((normal(2, 4, 5, 3), [2, 2]), dict(mask=torch.ones(2, 5, 3).bool())),
    "pool_scale_mask": ((torch.ones(2, 5).bool(), [2]), {}),
    "spread_scale": ((normal(2, 4, 3), [2, 2], [5, 3], normal(3, 3, 3, 3), normal(3), 0.5), {}),
    "drawn_depth": ((torch.tensor([1, 2]), 8, 2, 4), {}),
    "drawn_scales": ((torch.tensor([1, 2]), 4, 0.5, 1), {}),
    "soft_clamp": ((X, torch.tensor(3.0)), {}),
    "cosine_linear": ((X, normal(4, 5)), dict(scale=2.0)),
    "ema_update_tokens_": (
        (
            [torch.rand(2, 7)],
            [CODEBOOK * 0.3],
            [CODEBOOK.clone()],
            [integers(1, 2, 7)],
            [X],
            [INDICES],
        ),
        dict(decay=0.8, eps=1e-5, mask=[MASK]),
    ),
    "latent_decode": ((integers(20, 9), VALUES), {}),
    "latent_quantize_features": ((LATENTS, VALUES), dict(commitment=0.1, quantization=0.1)),
    "latent_commitment_loss": ((LATENTS, LATENT_CODES), {}),
    "latent_quantization_loss": ((LATENTS, LATENT_CODES), {}),
    "latent_quantize_backward": (
        (LATENTS, normal(), LATENTS, LATENT_CODES, integers(20, 9), [5, 4], 0.1, 0.1),
        {},
    ),
    "binary_entropy": ((X,), {}),
    "binary_log_prob": ((X, integers(16, 2, 9)), {}),
    # Gradient operators, which only autograd calls.
    "linear_nearest_code_backward": (
        (X[:1], MASK[:1], INDICES[:1], CODEBOOK[0]),
        {},
    ),
    "linear_quantize": (
        (X[:1], normal(7, 3), normal(4, 3), normal(4)),
        dict(mask=MASK[:1], estimator="rotation_trick"),
    ),
    "paired_commitment_loss_backward": ((normal(), X, X * 2, MASK, 0.25, 1.0), {}),
    "paired_loss": ((X, X * 2), dict(mask=MASK, to_inputs=0.25, to_codes=1.0, training=True)),
    "token_moment_loss_backward": (
        (normal(), X, ops.token_moments(X), [0.0] * 4, [1.0] * 4, MASK),
        {},
    ),
    "binary_kl_loss_backward": ((normal(), X, 0.1, MASK, True), {}),
    "binary_kl_loss_backward tokens": ((normal(2, 9), X, 0.1, None, False), {}),
    "sign_step": ((X,), dict(sharpness=4.0, mask=MASK, entropy_mask=MASK, wanted=True)),
    "sign_step_backward": (
        (X, normal(), None, normal(), normal(), X, X * 2, X * 3, X * 4, MASK, 0.3, 1.5, 0.25),
        {},
    ),
    "binary_one_hot_backward": ((normal(2, 9, 16), X, integers(16, 2, 9), 0.5), {}),
    "scalar_quantize_backward": ((X, X, [5, 4, 3, 3], "tanh"), {}),
    "residual_scalar_quantize_backward": (
        (X, X, [5, 4, 3, 3], torch.tensor([[1.0] * 4, [0.2] * 4]), "symmetric_clamp"),
        {},
    ),
    "scalar_perturb_backward": ((X, X, integers(9, 2, 9), "tanh", "unit"), {}),
    "token_moments_backward": ((normal(17), X, ops.token_moments(X), MASK), {}),
    "moment_loss_backward": ((normal(), ops.token_moments(X)[None], [0.0] * 4, [1.0] * 4), {}),
    "no_second_derivative": ((X, [X], "sign_entropy"), {}),
    "sign_entropy_forward": ((X,), dict(sharpness=4.0, mask=MASK, wanted=True)),
}


@pytest.mark.parametrize("case", TABLE)
def test_opcheck(case: str) -> None:
    arguments, options = TABLE[case]
    torch.library.opcheck(getattr(ops, case.split(" ")[0]).default, arguments, options)


def test_every_operator_is_checked() -> None:
    table = {case.split(" ")[0] for case in TABLE}
    assert operators() - checked() - table == set()
    assert table <= operators()


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_evolution_compiles(dynamic: bool) -> None:
    """A generation is one graph, for any size of the population."""

    def generation(population: Tensor, fitnesses: Tensor, rng: Tensor) -> tuple[Tensor, ...]:
        parents = ops.select_parents(population, fitnesses, rng, 2)
        children = ops.mutate_bits(ops.cross_bits(parents, population, rng), rng, 0.3)
        grown = ops.grow_population(children, rng, 11, 0.5)
        indices = ops.bits_to_indices(grown, 4)
        return (
            *(parents, children, grown, indices, ops.fittest_first(fitnesses)),
            *(ops.indices_to_bits(indices, 4, is_sign=True), ops.random_bits(rng, [3, 8])),
        )

    torch._dynamo.reset()
    compiled = torch.compile(generation, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for size in (6, 7) if dynamic else (6,):
        bits, fitnesses = (normal(size, 5, 8) > 0).float(), normal(size)
        if dynamic:
            torch._dynamo.mark_dynamic(bits, 0)
            torch._dynamo.mark_dynamic(fitnesses, 0)
        for a, b in zip(
            compiled(bits, fitnesses, rng()), generation(bits, fitnesses, rng()), strict=True
        ):
            assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("case", "position"), [("token_moments_backward", 0), ("latent_quantize_backward", 4)]
)
def test_gradients_check_their_shapes(case: str, position: int) -> None:
    """Gradient operators read memory through pointers, so they must check sizes."""
    arguments = list(TABLE[case][0])
    arguments[position] = arguments[position][:-1]
    for path in (getattr(ops, case), any_path(case)):
        with pytest.raises(ValueError, match=f"{case}: expected"):
            path(*arguments)
