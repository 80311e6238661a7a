"""Arguments for every operator with an any-device kernel, and the agreement with the CPU that is expected."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

import torchvq  # noqa: F401  (registers the operators)

ops = torch.ops.torchvq
EUCLIDEAN, COSINE = dict(metric="euclidean"), dict(metric="cosine")


class Case(NamedTuple):
    """A call, and the expected agreement of its result with the CPU's."""

    arguments: tuple[Any, ...]
    options: dict[str, Any] = {}  # noqa: RUF012 (nobody writes to it)
    # Equal bits; otherwise sums of many numbers, products and exponentials are rounded as the device does.
    exact: bool = True
    # The same bits for any order of additions on the device, though the CPU's kernel adds in another order.
    orderless: bool = False


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return numbers.to(dtype)


def integers(high: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


def near_ties(rows: int, dim: int) -> tuple[Tensor, Tensor]:
    """Codes with many exact and near duplicates, tokens beside them and halfway between two."""
    codes = normal(24, dim, seed=1)
    codes = torch.cat([codes, codes[:8], codes[8:16] * (1 + 2**-22), codes[16:] * (1 + 2**-12)])
    beside = codes[integers(48, rows)] * 0.999 + 1e-3 * normal(rows, dim)
    between = (codes[integers(48, rows, seed=1)] + codes[integers(48, rows, seed=2)]) / 2
    return torch.cat([beside, between + 1e-5 * normal(rows, dim, seed=3)]), codes


X, CODES, INDICES = normal(2, 40, 12), normal(2, 7, 12, seed=1), integers(7, 2, 40)
WIDE_X, WIDE_CODES = (
    normal(2, 40, 12, dtype=torch.float64),
    normal(2, 7, 12, seed=1, dtype=torch.float64),
)
MASK = normal(2, 40, seed=2) > -0.5
SOME = INDICES.masked_fill(~MASK, -1)
RNG = torch.tensor([5, 2])
TIED_X, TIED_CODES = near_ties(60, 33)
LEVELS, SMALL = [5, 4, 3, 3], normal(40, 4)
SCALES = torch.tensor([[1.0] * 4, [0.2] * 4])
BITS = normal(2, 40, 6)
VALUES = torch.linspace(-1, 1, 9)
MOMENTS = ops.token_moments(X)
# Codebooks, and weights and biases of the input and output projections of two levels.
PROJECTED = (
    [CODES[0], CODES[1]],
    [normal(12, 12, seed=5) * 0.3] * 2,
    [normal(12, seed=6) * 0.1] * 2,
    [normal(12, 12, seed=7) * 0.3] * 2,
    [normal(12, seed=8) * 0.1] * 2,
)
BOTH = dict(grads=[True, True])
# Sums that are exact in any order, and quotients that differ from products with the reciprocal of 7.
PARTS = torch.tensor([0.5, 0.5, 0.25, 0.25, 0, 0, 0], dtype=torch.float64)
TWO_OF_FIVE_HEADS = torch.tensor([[0, 1]] * 5 + [[0, 0]] * 2)
# Paths of one level, and the codes of the next: of all tokens, and ties among small integers.
PATHS = (
    *(normal(2, 9, 3, 12), normal(2, 9, 3, 12, seed=1), normal(2, 9, 3, seed=2).double().abs()),
    *(integers(7, 2, 9, 3, 1), normal(2, 9, 3, 5, 12, seed=3)),
)
TIED_PATHS = tuple(
    part.clamp(-1, 1).round() if part.is_floating_point() else part for part in PATHS
)
RULES = dict(threshold=0.5, threshold_fraction=0.3, reset_cluster_size=0.5)


def statistics(dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    return tuple(ops.code_statistics(X.to(dtype), INDICES, ops.code_exponents(CODES)))


def sizes() -> Tensor:
    return normal(2, 7, seed=4).abs()


def state() -> tuple[Tensor, ...]:
    """embed, embed_avg, cluster_size."""
    return CODES.clone(), CODES * sizes().unsqueeze(-1), sizes()


def averages() -> tuple[Tensor, ...]:
    embed, embed_avg, cluster_size = state()
    return cluster_size, embed_avg, embed


def kept(steps: int) -> list[Tensor]:
    """The kept statistics of a codebook after `steps` steps."""
    if steps == 0:
        counts, sums, exponents = (torch.zeros_like(part) for part in statistics())
        sums = torch.cat([sums, sums])
    else:
        exponents = ops.code_exponents(CODES) + 32
        counts, sums, exponents = ops.code_statistics(X.double(), INDICES, exponents)
    place = torch.tensor([steps, steps, 3, 0])
    return [place, counts, sums, torch.stack([exponents, exponents]), torch.ones(2, 7, 13)]


def found() -> list[Tensor]:
    """Outputs that receive the kept statistics when they are due."""
    _, counts, sums, exponents, candidates = kept(0)
    return [counts, sums, exponents[0].clone(), candidates[..., 1:].clone()]


KEEP = dict(step=RNG, rng=[RNG], cluster_size=[sizes()], state=[CODES], every=2, replaces=True)
COUNTS = integers(3, 2, 7)
CANDIDATES = ops.dead_code_candidates(X, RNG, 7)

# A suffix after the space tells cases of an operator apart.
CASES: dict[str, Case] = {
    # Search.
    "linear_nearest_code": Case(
        (X[:1], CODES[0, :, :5], normal(12, 5, seed=3), normal(12, seed=4)), exact=False
    ),
    "linear_nearest_code_backward": Case(
        (X[:1], MASK[:1], INDICES[:1], CODES[0, :, :5]), exact=False
    ),
    "nearest_code": Case((X, CODES), dict(return_codes=True, return_distances=True)),
    "nearest_code cosine": Case(
        (X, CODES), COSINE | dict(return_codes=True, return_distances=True)
    ),
    "nearest_code float64": Case((WIDE_X, WIDE_CODES), dict(topk=3, return_distances=True)),
    "nearest_code cosine float64": Case(
        (WIDE_X, WIDE_CODES), COSINE | dict(topk=2, return_distances=True)
    ),
    # torch's square root is off by one unit in the last place for one number in a hundred.
    "nearest_code cosine roots": Case(
        (normal(2, 300, 12, seed=7, dtype=torch.float64), WIDE_CODES),
        COSINE | dict(return_distances=True),
    ),
    "nearest_code ties": Case((TIED_X, TIED_CODES), dict(return_distances=True)),
    "nearest_code ties float64": Case(
        (TIED_X.double() + 1e-9 * normal(120, 33, seed=5, dtype=torch.float64), TIED_CODES),
        dict(return_distances=True),
    ),
    "nearest_code ties topk": Case((TIED_X, TIED_CODES), dict(topk=4, return_distances=True)),
    "nearest_code ties cosine": Case((TIED_X, TIED_CODES), COSINE | dict(return_distances=True)),
    "nearest_code bias": Case((X, CODES), dict(bias=normal(2, 7), topk=2, return_distances=True)),
    "nearest_code half": Case((X.half(), CODES.half()), dict(return_distances=True)),
    "nearest_code mask": Case(
        (X, CODES), dict(mask=MASK, return_codes=True, return_distances=True)
    ),
    "nearest_code mask topk": Case((X, CODES), dict(mask=MASK, topk=3, return_codes=True)),
    "quantize_and_commit": Case((X, CODES[:1]), exact=False),
    "quantize_and_commit mask": Case((X, CODES[:1]), dict(mask=MASK.reshape(1, 80)), exact=False),
    "quantize_and_commit padding": Case(
        (X, CODES[:1]), dict(mask=MASK.reshape(1, 80), zeros_for_masked=False), exact=False
    ),
    "quantize_and_commit_backward mask": Case(
        (X * 2, torch.tensor(0.5), X, X.reshape(1, 80, 12) + 1),
        dict(rotates=False, mask=MASK.reshape(1, 80), zeros_for_masked=False),
    ),
    "quantize_and_commit_backward": Case(
        (X * 2, torch.tensor(0.5), X, X.reshape(1, 80, 12) + 1), dict(rotates=True), exact=False
    ),
    "quantize_and_commit_backward straight": Case(
        (X * 2, torch.tensor(0.5), X, X.reshape(1, 80, 12) + 1), dict(rotates=False)
    ),
    "advance_rng_": Case((RNG.clone(), MASK)),
    # Products between the searches are summed in the device's order.
    "projected_residual_encode": Case((X, *PROJECTED), COSINE, exact=False),
    "projected_residual_encode euclidean": Case((X, *PROJECTED), exact=False),
    "projected_residual_encode zeros": Case(
        (X, [CODES[0] * (INDICES[0, :7, None] > 2)] * 2, *PROJECTED[1:]),
        COSINE | dict(zero_code=2.0),
        exact=False,
    ),
    "residual_encode": Case((X, [CODES, CODES * 0.3]), dict(mask=MASK)),
    "residual_encode prepared": Case(
        (TIED_X[None, ::6], [TIED_CODES] * 2), dict(prepared=[ops.prepare_codes(TIED_CODES)] * 2)
    ),
    "prepare_codes": Case((TIED_CODES,)),
    "residual_beam_search": Case((X, [CODES, CODES * 0.3], 3)),
    "residual_beam_search ties": Case(
        (TIED_X[None], [TIED_CODES[None], TIED_CODES[None] * 0.1], 4)
    ),
    "extend_paths": Case((*PATHS, 4), dict(weight=0.3)),
    "extend_paths float64": Case(
        (*(part.double() if part.is_floating_point() else part for part in PATHS), 20)
    ),
    "extend_paths ties": Case((*TIED_PATHS, 6), dict(candidates=integers(90, 2, 9, 3, 5))),
    "sampled_beam_search": Case(
        (X, [CODES, CODES * 0.3], [RNG, RNG + 1], 3),
        EUCLIDEAN | dict(temperature=0.5, mask=MASK, weights=[0.5, 1.0]),
    ),
    "sampled_beam_search cosine": Case(
        (WIDE_X, [CODES, WIDE_CODES * 0.3], [RNG, RNG + 1], 3), COSINE | dict(temperature=0.1)
    ),
    "sampled_beam_search ties": Case(
        (TIED_X[None], [TIED_CODES[None], TIED_CODES[None] * 0.1], [RNG, RNG], 4),
        EUCLIDEAN | dict(temperature=0.0),
    ),
    "kmeans": Case((X, 5, RNG), dict(mask=MASK)),
    "kmeans cosine": Case((X, 5, RNG), COSINE),
    "synced_kmeans": Case((X, 5, RNG)),
    "sample_codes": Case((X, CODES, RNG), EUCLIDEAN | dict(temperature=0.5)),
    "sample_codes cosine": Case((X, CODES, RNG), COSINE | dict(temperature=0.1)),
    "sample_codes topk": Case((X, CODES, RNG), EUCLIDEAN | dict(temperature=0.5, topk=4)),
    "sample_codes heads": Case(
        (X.view(80, 1, 12), CODES.repeat_interleave(40, 0), RNG),
        EUCLIDEAN | dict(temperature=0.5, topk=3),
    ),
    "sample_codes heads cosine": Case(
        (X.view(80, 1, 12), CODES.repeat_interleave(40, 0), RNG), COSINE | dict(temperature=0.1)
    ),
    "sample_codes ties topk": Case(
        (TIED_X[None], TIED_CODES[None], RNG), EUCLIDEAN | dict(temperature=0.0, topk=5)
    ),
    "sample_codes ties": Case(
        (TIED_X[None], TIED_CODES[None], RNG), EUCLIDEAN | dict(temperature=0.0)
    ),
    # Learning.
    "code_exponents": Case((CODES,)),
    "code_statistics": Case((X, INDICES, ops.code_exponents(CODES)), dict(mask=MASK)),
    "code_statistics float64": Case((WIDE_X, SOME, ops.code_exponents(CODES))),
    "decode_sums": Case((*statistics()[1:],), dict(dtype=torch.float32)),
    "decode_sums float64": Case((*statistics(torch.float64)[1:],), dict(dtype=torch.float64)),
    "count_codes_": Case(([integers(1, 2, 7)], [SOME])),
    "ema_update_": Case((*averages(), *statistics()), dict(decay=0.9, eps=1e-5)),
    "ema_update_ cosine": Case((*averages(), *statistics()), COSINE | dict(decay=0.9, eps=1e-5)),
    "ema_update_tokens_": Case(
        (*([part] for part in averages()), [integers(1, 2, 7)], [X], [INDICES]),
        dict(decay=0.8, eps=1e-5, mask=[MASK]),
    ),
    "ema_finish_": Case((CODES.clone(), sizes(), CODES.clone()), dict(decay=0.9, eps=1e-5)),
    "dead_code_candidates": Case((X, RNG, 7), dict(mask=MASK)),
    "dead_code_candidates cosine": Case((X, RNG, 7), COSINE),
    "replace_dead_codes_": Case(
        tuple([part] for part in (*state(), X, COUNTS, RNG)), RULES | dict(mask=[])
    ),
    "replace_dead_codes_ cosine": Case(
        tuple([part] for part in (*state(), X, COUNTS, RNG)), RULES | COSINE | dict(mask=[])
    ),
    "replace_dead_codes_ float64": Case(
        (
            *([part.double() if part.is_floating_point() else part] for part in state()),
            [X],
            [COUNTS],
            [RNG],
        ),
        RULES | dict(mask=[]),
    ),
    "replace_dead_codes_ two codebooks": Case(
        tuple([part, part.clone()] for part in (*state(), X, COUNTS, RNG)),
        RULES | dict(mask=[MASK, MASK], replace_used=True, most_per_token=0.5),
    ),
    "replace_with_candidates_": Case(
        tuple([part] for part in (*state(), *CANDIDATES, COUNTS, RNG)),
        RULES | dict(most_per_token=0.5),
    ),
    "synced_code_statistics": Case(
        ([X], [INDICES], [ops.code_exponents(CODES)]), dict(mask=[MASK], state=[CODES])
    ),
    "synced_replace_dead_codes_": Case(
        (*([part] for part in state()), [X], [COUNTS], [RNG]), RULES | dict(mask=[])
    ),
    "keep_statistics_": Case(
        (kept(0), found(), [X], [INDICES], [ops.code_exponents(CODES)]), KEEP | dict(mask=[MASK])
    ),
    "keep_statistics_ due": Case(
        (kept(1), found(), [X], [INDICES], [ops.code_exponents(CODES)]), KEEP | dict(mask=[])
    ),
    "synced_usage": Case(
        ([COUNTS], [sizes()], [integers(2, 2)]), dict(threshold=[0.5], threshold_fraction=[0.0])
    ),
    "state_hash": Case(([CODES, COUNTS],)),
    "replica_hashes": Case(([CODES, COUNTS],)),
    "no_second_derivative": Case((CODES, [CODES], "op")),
    "snapshot": Case((CODES,)),
    # Decoding.
    "lookup_codes": Case((CODES, SOME)),
    "residual_decode": Case((torch.stack([SOME, INDICES], -1), [CODES, CODES * 0.3])),
    # Scales of a map.
    "resample_scale average": Case((normal(2, 4, 5, 3, seed=8), [2, 2], [5, 3], "average")),
    "resample_scale average_backward": Case(
        (normal(2, 4, 3, seed=8), [2, 2], [5, 3], "average_backward")
    ),
    "resample_scale": Case((normal(2, 4, 3, seed=8), [2, 2], [5, 3], "interpolate")),
    "resample_scale interpolate_backward": Case(
        (normal(2, 4, 5, 3, seed=8), [2, 2], [5, 3], "interpolate_backward")
    ),
    "resample_scale kernel": Case(
        (normal(2, 4, 9, seed=8), [2, 2], [5, 3], "interpolate"), dict(kernel=[3, 1])
    ),
    "row_products": Case(
        (normal(5, 4, seed=8), normal(4, 6, seed=9), normal(6, seed=10)), exact=False
    ),
    # Random numbers.
    "noise_rng": Case((RNG,), dict(group_name="", label="case")),
    "random_numbers uniform": Case((RNG, 3, [50])),
    "random_numbers normal": Case((RNG, 3, [50]), dict(normal=True)),
    "sample_token_mask": Case((RNG, 40, 0.3), dict(mask=MASK)),
    # Estimators. Their gradients sum products over the features.
    "straight_through": Case((X, X + 1)),
    "sync_update_v": Case((X,), dict(v=0.5)),
    "rotation_trick": Case((X, X + 1)),
    "rotation_trick_backward": Case((X * 2, X, X + 1), exact=False),
    "directional_reparam": Case((X, X + 1, X * 3), dict(variance=0.1), exact=False),
    "directional_reparam_backward": Case((X * 2, X, X + 1, X * 3), dict(variance=0.1), exact=False),
    "gumbel_straight_through": Case((X, CODES, INDICES), EUCLIDEAN | dict(temperature=0.5)),
    "gumbel_straight_through_backward": Case(
        (X * 2, X, CODES, SOME), EUCLIDEAN | BOTH | dict(temperature=0.5), exact=False
    ),
    "gumbel_straight_through_backward hard": Case(
        (X * 2, X, CODES, SOME), EUCLIDEAN | BOTH | dict(temperature=0.0)
    ),
    "gumbel_straight_through_backward float64": Case(
        (WIDE_X * 2, WIDE_X, WIDE_CODES, SOME), EUCLIDEAN | BOTH | dict(temperature=0.0)
    ),
    "unit_vectors float64": Case((normal(2, 300, 33, seed=7, dtype=torch.float64),)),
    "unit_vectors": Case((X,)),
    "unit_vectors_backward": Case((X * 2, X, ops.unit_vectors(X)), exact=False),
    # Losses: sums over the tokens.
    "commitment_loss": Case((X, X + 1), exact=False),
    "commitment_loss quotient": Case((PARTS.view(1, 7, 1), torch.zeros(1, 7, 1))),
    "commitment_loss mask": Case((X, X + 1), dict(mask=MASK), exact=False),
    "paired_commitment_loss": Case(
        (X, X + 1), dict(mask=MASK, to_x=0.25, to_codes=1.0), exact=False
    ),
    "paired_commitment_loss_backward": Case((normal(), X, X * 0.7, MASK, 0.25, 1.0), exact=False),
    "commitment_loss_backward": Case((torch.tensor(0.3), X, X + 1), dict(mask=MASK)),
    "residual_commit": Case(
        (X, [CODES, CODES * 0.3], torch.stack([INDICES, INDICES], -1)),
        dict(mask=MASK),
        exact=False,
    ),
    "residual_commit_backward": Case(
        (torch.tensor([0.3, -2.0]), torch.stack([X, X * 0.3])),
        dict(mask=MASK, gain=3.0, other=X + 1),
    ),
    "commitment_cross_entropy": Case((X, CODES, SOME), EUCLIDEAN, exact=False),
    "commitment_cross_entropy_forward": Case(
        (X, CODES, SOME), COSINE | BOTH | dict(mask=MASK), exact=False
    ),
    "codebook_diversity_loss": Case((X, CODES), EUCLIDEAN | dict(temperature=2.0), exact=False),
    "codebook_diversity_totals": Case(
        (X, CODES), EUCLIDEAN | dict(temperature=2.0, mask=MASK), exact=False
    ),
    "codebook_diversity_loss_forward": Case(
        (X, CODES), COSINE | BOTH | dict(temperature=2.0, mask=MASK), exact=False
    ),
    "orthogonal_loss": Case((CODES,), dict(indices=INDICES), exact=False),
    "orthogonal_loss_forward": Case(
        (CODES,), dict(indices=SOME, max_codes=5, rng=RNG, grad=True), exact=False
    ),
    "orthogonal_loss quotient": Case(
        (torch.ones(7, 2, 1, dtype=torch.float64),), dict(indices=TWO_OF_FIVE_HEADS)
    ),
    "token_moments": Case((X,), dict(mask=MASK), exact=False),
    "token_moments_backward": Case((normal(49), X, MOMENTS, MASK), exact=False),
    "token_moment_loss": Case((X, [0.0] * 4, [1.0] * 4), dict(mask=MASK), exact=False),
    "token_moment_loss_backward": Case(
        (normal(), X, MOMENTS, [0.0] * 4, [1.0] * 4, MASK), exact=False
    ),
    "moment_loss": Case((MOMENTS[None], [0.0] * 4, [1.0] * 4), exact=False),
    "moment_loss_backward": Case((normal(), MOMENTS[None], [0.0] * 4, [1.0] * 4), exact=False),
    "sign_step": Case(
        (BITS,), dict(sharpness=3.0, mask=MASK, commitment_weight=0.25, wanted=True), exact=False
    ),
    "sign_step_backward": Case(
        (BITS, normal(), None, normal(), None, BITS, BITS * 2, BITS, BITS, MASK, 0.1, 1.0, 0.25),
        exact=False,
    ),
    "sign_entropy": Case((BITS,), dict(sharpness=3.0), exact=False),
    "sign_entropy float64": Case((BITS.double(),), dict(sharpness=3.0, mask=MASK), exact=False),
    "sign_entropy_totals": Case((BITS,), dict(sharpness=3.0, mask=MASK), exact=False),
    "sign_entropy_forward": Case((BITS,), dict(sharpness=3.0, mask=MASK, wanted=True), exact=False),
    # Scalars and signs.
    "scalar_quantize": Case((SMALL, LEVELS)),
    "scalar_quantize symmetric": Case((SMALL, LEVELS), dict(bound="symmetric_clamp")),
    "scalar_quantize_backward": Case((SMALL, SMALL * 0.7, LEVELS, "tanh"), exact=False),
    "scalar_quantize_backward clamp": Case((SMALL, SMALL * 0.7, LEVELS, "clamp")),
    "scalar_perturb": Case(
        (SMALL, LEVELS, RNG), dict(quantize_rate=0.5, cdf="cauchy"), exact=False
    ),
    "scalar_perturb quantized": Case((SMALL, LEVELS, None)),
    "scalar_perturb_backward": Case(
        (SMALL, SMALL * 0.7, integers(9, 40), "normal", "unit"), exact=False
    ),
    "scalar_noise": Case((SMALL, LEVELS, RNG), dict(fraction=0.5)),
    "scalar_level_indices": Case((integers(180, 40), LEVELS)),
    "scalar_indices": Case((integers(3, 40, 4), LEVELS)),
    "scalar_decode": Case((integers(180, 40), LEVELS)),
    "scalar_code_indices": Case((SMALL, LEVELS)),
    "scalar_centroids": Case((integers(180, 40), LEVELS)),
    "scalar_act_levels": Case((SMALL.sigmoid(), LEVELS)),
    "residual_scalar_quantize": Case((SMALL, LEVELS, SCALES)),
    "residual_scalar_quantize_backward": Case((SMALL, SMALL, LEVELS, SCALES, "symmetric_clamp")),
    "sign_quantize": Case((BITS,), dict(scale=0.3)),
    "sign_decode": Case((integers(64, 40), 6), dict(scale=0.3)),
    "binary_sample": Case((BITS, RNG), dict(temperature=0.7, mask=MASK)),
    "binary_one_hot": Case((BITS, integers(64, 2, 40))),
    "binary_one_hot_backward": Case(
        (normal(2, 40, 64), BITS, integers(64, 2, 40), 0.7), exact=False
    ),
    "binary_kl_loss_backward": Case((normal(), BITS, 0.1, MASK, True), exact=False),
    "binary_kl_loss": Case((BITS,), dict(threshold=0.1), exact=False),
    "binary_kl_loss quotient": Case((torch.full((1, 21, 1), 1000.0, dtype=torch.float64),)),
    "latent_quantize": Case(
        (normal(40, 2), VALUES, [5, 4]), dict(commitment=0.1, quantization=0.2), exact=False
    ),
    "latent_quantize_backward": Case(
        (
            normal(40, 2),
            normal(),
            normal(40, 2),
            normal(40, 2, seed=1),
            integers(20, 40),
            [5, 4],
            0.1,
            0.2,
        ),
    ),
    "latent_quantize_backward float64": Case(
        (
            *(normal(40, 2).double(), normal().double(), normal(40, 2).double()),
            *(normal(40, 2, seed=1).double(), integers(20, 40), [5, 4], 0.1, 0.2),
        ),
        exact=False,
        orderless=True,
    ),
}
