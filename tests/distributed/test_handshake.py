"""Ranks whose options, tokens or calls decide on other messages get an error with a reason, with their state intact.

Without it, messages of unequal size would abort the process, or ranks would learn different codebooks.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks, outcome
from torch import Tensor, nn

from torchvq import (
    FSP,
    LFQ,
    GroupedResidualLFQ,
    GroupedResidualVQ,
    HierarchicalVQ,
    LatentQuantize,
    ResidualLFQ,
    ResidualSimVQ,
    ResidualVQ,
    SimVQ,
    VectorQuantize,
)

DIM = 6
TIMEOUT = timedelta(seconds=2)


def sgd(options: float | dict[str, float]) -> Callable[[Any], torch.optim.Optimizer]:
    """The maker of an optimizer, which ranks make from its rate or from all its options: a function of this test cannot
    be sent to them."""
    given = options if isinstance(options, dict) else dict(lr=options)
    return lambda parameters: torch.optim.SGD(parameters, **given)


KINDS: dict[str, tuple[Callable[..., nn.Module], dict[str, Any]]] = {
    "VectorQuantize": (VectorQuantize, dict(dim=DIM, codebook_size=16)),
    "ResidualVQ": (ResidualVQ, dict(dim=DIM, num_quantizers=3, codebook_size=16)),
    "GroupedResidualVQ": (
        GroupedResidualVQ,
        dict(dim=DIM, groups=2, num_quantizers=2, codebook_size=16),
    ),
    "HierarchicalVQ": (HierarchicalVQ, dict(dim=DIM, codebook_size=16, scales=(1, 2, 4))),
    "LFQ": (LFQ, dict(dim=DIM, codebook_size=16)),
    "ResidualLFQ": (ResidualLFQ, dict(dim=DIM, codebook_size=16, num_quantizers=3)),
    "GroupedResidualLFQ": (
        GroupedResidualLFQ,
        dict(dim=DIM, codebook_size=8, groups=2, num_quantizers=3),
    ),
    "SimVQ": (SimVQ, dict(dim=DIM, codebook_size=16)),
    "ResidualSimVQ": (ResidualSimVQ, dict(dim=DIM, codebook_size=16, num_quantizers=3)),
    "FSP": (FSP, dict(dim=DIM, levels=[5, 5, 5])),
    "LatentQuantize": (
        LatentQuantize,
        dict(dim=DIM, levels=[5, 5], in_place_codebook_optimizer=0.1),
    ),
}


def build(kind: str, options: dict[str, Any]) -> nn.Module:
    torch.manual_seed(0)
    make, own = KINDS[kind]
    given = {**own, **options}
    if (rate := given.get("in_place_codebook_optimizer")) is not None:
        given["in_place_codebook_optimizer"] = sgd(rate)
    return make(**given)


def tokens(kind: str, rank: int, step: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(10 * step + rank)
    if kind in ("HierarchicalVQ", "LatentQuantize"):
        return torch.randn(2, DIM, 4, generator=generator)
    return torch.randn(1, 20, DIM, generator=generator)


def state_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def attempt(module: nn.Module, x: Tensor, **call: Any) -> tuple[str, float, bool]:
    """The error of a step, the seconds it took, and whether the state is unchanged."""
    before, start = state_of(module), time.monotonic()
    message = outcome(lambda: module(x, **call))
    seconds = time.monotonic() - start
    after = module.state_dict()
    return message, seconds, all(torch.equal(after[n], value) for n, value in before.items())


def expect_a_sentence(
    answers: list[tuple[str, float, bool]], fragments: tuple[str, str] = ("", "")
) -> None:
    for message, seconds, intact in answers:
        assert message.startswith("ValueError: "), message
        assert "expected all ranks to have the same quantizer" in message
        assert all(fragment in message for fragment in fragments), message
        assert intact and seconds < 10


# Options ------------------------------------------------------------------------------------------------------


def first_step(
    rank: int, kind: str, options: dict[str, Any], other: dict[str, Any]
) -> tuple[str, float, bool]:
    module = build(kind, {**options, **(other if rank == 1 else {})})
    return attempt(module, tokens(kind, 0))


MEANS, RATE = "codebook_diversity_loss_weight", "in_place_codebook_optimizer"
BY_GRADIENT = dict(learnable_codebook=True, ema_update=False)
AFFINE = dict(affine_param=True)
OPTIONS: dict[str, list[tuple[dict[str, Any], dict[str, Any], tuple[str, str]]]] = {
    "VectorQuantize": [
        ({}, {MEANS: 0.5}, ("diversity 0.0", "diversity 0.5")),
        ({MEANS: 0.5}, {"codebook_diversity_temperature": 9.0}, ("at 100.0", "at 9.0")),
        ({}, {"sync_kmeans": False}, ("over ranks True", "over ranks False")),
        ({}, {"kmeans_iters": 3}, ("of 10 iterations", "of 3 iterations")),
        ({}, AFFINE, ("affine False", "affine True")),
        (AFFINE, {"sync_affine_param": True}, ("over ranks False", "over ranks True")),
        (AFFINE, {"affine_param_batch_decay": 0.5}, ("decays 0.99", "decays 0.5")),
        ({}, {"ema_update": False}, ("averages True", "averages False")),
        ({}, BY_GRADIENT, ("by gradient False", "by gradient True")),
        ({}, {"freeze_codebook": True}, ("frozen False", "frozen True")),
        (BY_GRADIENT, {RATE: 0.1}, ("optimizer none", "optimizer SGD of rate 0.1")),
        ({**BY_GRADIENT, RATE: 0.1}, {RATE: 0.5}, ("of rate 0.1", "of rate 0.5")),
        (
            {**BY_GRADIENT, RATE: 0.1},
            {RATE: dict(lr=0.1, momentum=0.9)},
            ("momentum 0", "momentum 0.9"),
        ),
        (
            {**BY_GRADIENT, RATE: 0.1},
            {RATE: dict(lr=0.1, weight_decay=0.5)},
            ("weight_decay 0", "weight_decay 0.5"),
        ),
        (
            {**BY_GRADIENT, RATE: 0.1},
            {"manual_in_place_optimizer_update": True},
            ("manual False", "manual True"),
        ),
        ({}, {"overlap_sync": True}, ("overlap False", "overlap True")),
        ({}, {"sync_every": 2}, ("", "every 2 steps")),
        ({}, {"threshold_ema_dead_code": 1}, ("below 0", "below 1")),
    ],
    "ResidualVQ": [
        ({}, {MEANS: 0.5}, ("diversity 0.0", "diversity 0.5")),
        ({}, {"shared_codebook": True}, ("shared False", "shared True")),
        ({}, {"implicit_neural_codebook": True}, ("implicit False", "implicit True")),
        ({}, {"quantize_dropout": True}, ("dropout False", "dropout True")),
        (
            {"quantize_dropout": True},
            {"quantize_dropout_cutoff_index": 1},
            ("dropout True from 0", "dropout True from 1"),
        ),
        (
            {"quantize_dropout": True},
            {"quantize_dropout_multiple_of": 2},
            ("multiples of 1", "multiples of 2"),
        ),
        ({"shared_codebook": True}, {"num_quantizers": 4}, ("of 3 levels", "of 4 levels")),
        # More levels than a note has room for, which differ in the last.
        (
            {"codebook_size": (8, 9) * 6, "num_quantizers": None},
            {"codebook_size": (*((8, 9) * 6)[:-1], 8)},
            ("... (hash ", ""),
        ),
    ],
    "GroupedResidualVQ": [({}, {"freeze_codebook": True}, ("frozen False", "frozen True"))],
    "HierarchicalVQ": [
        ({}, {"scales": (1, 4)}, ("((1,), (2,), (4,))", "((1,), (4,))")),
        ({}, {"nested_dropout": 0.5}, ("dropout 0.0", "dropout 0.5")),
        ({}, {"shared_codebook": False}, ("shared True", "shared False")),
        ({}, {"freeze_codebook": True}, ("frozen False", "frozen True")),
    ],
    "LFQ": [
        ({}, {"codebook_size": 256}, ("of 4 bits", "of 8 bits")),
        ({}, {"num_codebooks": 2}, ("of 1 codebooks", "of 2 codebooks")),
    ],
    "ResidualLFQ": [
        # The module's features and not those of its levels, which have 4.
        ({}, {"num_quantizers": 4}, ("ResidualLFQ(dim=6, codebook_size=16)", "")),
        ({}, {"quantize_dropout": True}, ("", "dropout from 0")),
    ],
    "SimVQ": [({}, {"frozen_codebook_dim": 4}, ("[16, 6]", "[16, 4]"))],
    "ResidualSimVQ": [
        ({}, {"quantize_dropout": True}, ("", "dropout from 0")),
        ({"heads": 2}, {"quantize_dropout": True}, ("ResidualSimVQ(dim=6, ", "dropout from 0")),
    ],
    "FSP": [
        ({}, {"levels": [5, 5]}, ("[5, 5, 5]", "[5, 5]")),
        ({"quantize_rate": 0.5}, {"vector_norm": "kurt"}, ("norm var_tanh", "norm kurt")),
    ],
    "LatentQuantize": [
        ({}, {"levels": [5, 7]}, ("[5, 5]", "[5, 7]")),
        ({}, {RATE: 0.5}, ("of rate 0.1", "of rate 0.5")),
    ],
}


@pytest.mark.parametrize(
    ("kind", "options", "other", "fragments"),
    [(kind, *row) for kind, rows in OPTIONS.items() for row in rows],
)
def test_one_option_differs(
    two: Ranks,
    kind: str,
    options: dict[str, Any],
    other: dict[str, Any],
    fragments: tuple[str, str],
) -> None:
    expect_a_sentence(two.run(first_step, kind, options, other), fragments)


def compiled_first_step(rank: int, kind: str, other: dict[str, Any], eager: int | None) -> str:
    torch.compiler.reset()
    module = build(kind, other if rank == 1 else {})
    call = module if rank == eager else torch.compile(module, backend="aot_eager")
    return outcome(call, tokens(kind, 0))


# Of these classes no state depends on the option.
@pytest.mark.parametrize("eager", [None, 0])
@pytest.mark.parametrize(
    ("kind", "other"),
    [
        ("LFQ", {"codebook_size": 256}),
        ("LFQ", {"spherical": True}),
        ("ResidualLFQ", {"num_quantizers": 4}),
        ("GroupedResidualLFQ", {"num_quantizers": 4}),
        ("FSP", {"levels": [5, 5, 7]}),
        ("SimVQ", {"codebook_size": 32}),
    ],
)
def test_one_option_of_compiled_ranks_differs(
    two: Ranks, kind: str, other: dict[str, Any], eager: int | None
) -> None:
    for message in two.run(compiled_first_step, kind, other, eager):
        assert message.startswith("ValueError: ") and "to have the same quantizer" in message


# Tokens -------------------------------------------------------------------------------------------------------


def mixed_dtypes(rank: int, kind: str, dtypes: tuple[torch.dtype, ...]) -> tuple[str, float, bool]:
    return attempt(build(kind, {}), tokens(kind, 0).to(dtypes[rank]))


# The messages of the others have the same size for every dtype.
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "Sim" not in kind and kind != "FSP"])
def test_one_rank_has_float64_tokens(two: Ranks, kind: str) -> None:
    if kind in ("LFQ", "ResidualLFQ", "LatentQuantize"):
        # Their projection maps to its own dtype, so that all ranks agree.
        assert two.run(mixed_dtypes, kind, (torch.float32, torch.float64))[0][0] == "nothing"
        return
    answers = two.run(mixed_dtypes, kind, (torch.float32, torch.float64))
    expect_a_sentence(answers, ("rank 0: float32 tokens", "rank 1: float64 tokens"))


def in_another_collective(rank: int) -> tuple[str, float, bool] | None:
    module = build("VectorQuantize", {})
    if rank == 0:
        return attempt(module, tokens("VectorQuantize", rank))
    bytes_ = torch.full((1024,), 255, dtype=torch.uint8)
    dist.all_gather([torch.empty_like(bytes_) for _ in range(dist.get_world_size())], bytes_)
    return None


def test_a_rank_in_another_collective_is_named(two: Ranks) -> None:
    said, _, kept = two.run(in_another_collective)[0]
    assert "rank 1: another collective than torchvq's" in said
    assert kept


def bare_lfq(rank: int) -> tuple[str, float, bool]:
    torch.manual_seed(0)
    x = torch.randn(1, 20, 4)
    return attempt(LFQ(dim=4), x.double() if rank == 1 else x)


def test_float64_tokens_of_a_quantizer_without_projection(two: Ranks) -> None:
    expect_a_sentence(two.run(bare_lfq), ("rank 0: float32 tokens", "rank 1: float64 tokens"))


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_on_one_rank_is_no_difference(two: Ranks, kind: str) -> None:
    for message, _, _ in two.run(mixed_dtypes, kind, (torch.float32, torch.bfloat16)):
        assert message == "nothing"


def in_place_in_bfloat16(rank: int) -> tuple[str, Tensor]:
    module = build("VectorQuantize", {**BY_GRADIENT, RATE: 0.1})
    # More tokens than bfloat16 can count.
    x = torch.randn(1, 3000 + 11 * rank, DIM, generator=torch.Generator().manual_seed(rank))
    message = outcome(module, x.bfloat16() if rank == 1 else x)
    return message, state_of(module)["_codebook.embed"]


def test_an_own_optimizer_steps_alike_whatever_the_dtype(two: Ranks) -> None:
    (message, codes), (other, same) = two.run(in_place_in_bfloat16)
    assert message == other == "nothing" and torch.equal(codes, same)


def switch_dtype(rank: int) -> list[tuple[str, float, bool]]:
    group = dist.new_group(timeout=TIMEOUT)
    module = build("VectorQuantize", {"process_group": group})
    torch.ops.torchvq.reset_traffic()
    for step, dtype in enumerate((torch.float32, torch.float64) * 3):
        module(tokens("VectorQuantize", rank, step).to(dtype))
    assert torch.ops.torchvq.traffic()[1] == 2, "a handshake for each dtype"
    other = build("VectorQuantize", {"process_group": group})
    other(tokens("VectorQuantize", rank))
    x = tokens("VectorQuantize", rank, 1)
    return [attempt(other, x.double() if rank == 1 else x)]


def test_one_rank_switches_to_float64(two: Ranks) -> None:
    for ((message, seconds, intact),) in two.run(switch_dtype):
        assert message.startswith("DistBackendError: VectorQuantize"), message
        assert "Likely reasons" in message and intact and seconds < 10


# Calls --------------------------------------------------------------------------------------------------------


def other_call(
    rank: int, kind: str, options: dict[str, Any], call: dict[str, Any]
) -> tuple[str, float, bool]:
    return attempt(build(kind, options), tokens(kind, 0), **(call if rank == 1 else {}))


def half_of(sums: Tensor, counts: Tensor) -> Tensor:
    return torch.full_like(counts, 0.5, dtype=torch.float32)


KMEANS = dict(kmeans_init=True)
CALLS: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("VectorQuantize", {MEANS: 0.5}, {"freeze_codebook": True}, "frozen, sharing probabilities"),
    ("VectorQuantize", KMEANS, {"freeze_codebook": True}, "sharing k-means"),
    ("VectorQuantize", KMEANS, {"topk": 2}, "sharing k-means"),
    # After k-means the header of the statistics tells.
    (
        "VectorQuantize",
        {**KMEANS, "threshold_ema_dead_code": 1},
        {"ema_update": False},
        "rank 1: moving averages False, weight False",
    ),
    ("VectorQuantize", KMEANS, {"ema_update_weight": 0.5}, "rank 1: weight True"),
    (
        "VectorQuantize",
        {**AFFINE, "sync_affine_param": True},
        {"ema_update_weight": 0.5},
        "rank 1: weight True",
    ),
    ("VectorQuantize", {MEANS: 0.5}, {"topk": 2}, "rank 1: sharing probabilities\n"),
    ("VectorQuantize", {}, {"accum_ema_update": True}, "sharing statistics alone"),
    ("VectorQuantize", {}, {"ema_update_weight": half_of}, "sharing statistics alone"),
    (
        "VectorQuantize",
        {**BY_GRADIENT, RATE: 0.1},
        {"accum_ema_update": True, "ema_update": True},
        "sharing gradients and statistics alone",
    ),
    (
        "VectorQuantize",
        {**AFFINE, **KMEANS, "sync_affine_param": True},
        {"freeze_codebook": True},
        "rank 1: frozen, sharing moments\n",
    ),
    ("ResidualVQ", {MEANS: 0.5}, {"freeze_codebook": True}, "frozen, sharing probabilities"),
    ("ResidualVQ", KMEANS, {"freeze_codebook": True}, "sharing k-means"),
    (
        "ResidualVQ",
        {"implicit_neural_codebook": True, MEANS: 0.5},
        {"freeze_codebook": True},
        "rank 1: frozen",
    ),
    (
        "ResidualVQ",
        {"quantize_dropout": True},
        {"rand_quantize_dropout_fixed_seed": 5},
        "levels by seed",
    ),
    ("HierarchicalVQ", {}, {"freeze_codebook": True}, "sharing k-means"),
]


@pytest.mark.parametrize(("kind", "options", "call", "fragment"), CALLS)
def test_one_rank_calls_otherwise(
    two: Ranks, kind: str, options: dict[str, Any], call: dict[str, Any], fragment: str
) -> None:
    expect_a_sentence(two.run(other_call, kind, options, call), (fragment, ""))


STEP = "expected all ranks to be in the same step of the same quantizer"


@pytest.mark.parametrize(
    ("kind", "options", "call", "fragments"),
    [
        (
            "VectorQuantize",
            {"threshold_ema_dead_code": 1},
            {"ema_update": False},
            ("statistics move the codes", "statistics leave the codes"),
        ),
        ("VectorQuantize", {}, {"ema_update_weight": 0.5}, ("move the codes", "by a weight")),
    ],
)
def test_statistics_have_one_use(
    two: Ranks,
    kind: str,
    options: dict[str, Any],
    call: dict[str, Any],
    fragments: tuple[str, str],
) -> None:
    for message, _, intact in two.run(other_call, kind, options, call):
        assert message.startswith("DistError: ") and STEP in message and intact
        assert all(fragment in message for fragment in fragments), message


def other_weight(rank: int) -> tuple[str, float, bool]:
    weight = torch.tensor(0.5 if rank == 0 else 0.25)
    return attempt(build("VectorQuantize", {}), tokens("", 0), ema_update_weight=weight)


def test_weights_are_compared(two: Ranks) -> None:
    for message, _, intact in two.run(other_weight):
        assert message.startswith("DistError: ") and STEP in message and intact


def other_seed(rank: int) -> tuple[str, float, bool]:
    module = build("ResidualVQ", {"quantize_dropout": True, "num_quantizers": 8})
    depths = {}
    # Two seeds that leave different numbers of levels, both of which all ranks have used.
    for seed in itertools.count():
        indices = module(tokens("", 0), rand_quantize_dropout_fixed_seed=seed)[1]
        depths.setdefault(int((indices[0, 0] >= 0).sum()), seed)
        if len(depths) == 2:
            break
    seeds = sorted(depths.values())
    return attempt(module, tokens("", 0), rand_quantize_dropout_fixed_seed=seeds[rank])


def test_levels_in_use_are_compared(two: Ranks) -> None:
    for message, _, intact in two.run(other_seed):
        assert message.startswith("DistError: ") and STEP in message and intact
        assert "codebooks in use" in message


def alternate(rank: int, kind: str, options: dict[str, Any], calls: list[dict[str, Any]]) -> int:
    """The handshakes that were made."""
    module = build(kind, options)
    torch.ops.torchvq.reset_traffic()
    for step, call in enumerate(calls * 3):
        module(tokens(kind, rank, step), **call)
    return int(torch.ops.torchvq.traffic()[1])


@pytest.mark.parametrize(
    ("kind", "options", "calls", "handshakes"),
    [
        ("VectorQuantize", {}, [{}, {"freeze_codebook": True}], 1),
        ("VectorQuantize", {MEANS: 0.1}, [{}, {"freeze_codebook": True}], 2),
        ("VectorQuantize", {}, [{}, {"ema_update_weight": 0.5}], 1),
        ("VectorQuantize", {}, [{"accum_ema_update": True}, {}, {}], 2),
        ("ResidualVQ", {}, [{}, {"freeze_codebook": True}], 1),
    ],
)
def test_calls_may_alternate(
    two: Ranks,
    kind: str,
    options: dict[str, Any],
    calls: list[dict[str, Any]],
    handshakes: int,
) -> None:
    assert two.run(alternate, kind, options, calls) == [handshakes] * 2


def freeze_alone(rank: int, kind: str) -> bool:
    module = build(kind, {})
    module(tokens(kind, rank))
    if rank == 0:
        module(tokens(kind, rank, 1), freeze_codebook=True)
    module(tokens(kind, rank, 2))
    return True


@pytest.mark.parametrize("kind", ["VectorQuantize", "ResidualVQ", "GroupedResidualVQ"])
def test_one_rank_may_call_a_frozen_codebook_alone(two: Ranks, kind: str) -> None:
    assert two.run(freeze_alone, kind) == [True, True]
