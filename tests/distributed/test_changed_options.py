"""Options that are set after construction: on all ranks a level then learns as if alone, on one they are an error."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ranks import Ranks, outcome
from torch import Tensor, nn

from torchvq import FSP, LFQ, GroupedResidualVQ, HierarchicalVQ, ResidualVQ, VectorQuantize

DIM, CODES, LEVELS = 6, 16, 3
SCALES = dict(scales=(1, 2, 4), shared_codebook=False, channel_first=False)
KINDS: dict[str, Callable[..., nn.Module]] = {
    "VectorQuantize": VectorQuantize,
    "ResidualVQ": lambda **options: ResidualVQ(num_quantizers=LEVELS, **options),
    "HierarchicalVQ": lambda **options: HierarchicalVQ(
        **SCALES, **(dict(kmeans_init=False) | options)
    ),
    "GroupedResidualVQ": lambda **options: GroupedResidualVQ(
        groups=2, num_quantizers=LEVELS, **options
    ),
    "LFQ": LFQ,
    "FSP": lambda dim, codebook_size: FSP([4] * dim),
}


def build(kind: str, options: dict[str, Any]) -> nn.Module:
    torch.manual_seed(0)
    return KINDS[kind](dim=DIM, codebook_size=CODES, **options)


def tokens(rank: int, step: int = 0) -> Tensor:
    return torch.randn(2, 20, DIM, generator=torch.Generator().manual_seed(10 * step + rank))


def change(module: nn.Module, path: str, value: object) -> None:
    owner, _, name = path.rpartition(".")
    if name == "training":
        module.get_submodule(owner).train(bool(value))
    else:
        setattr(module.get_submodule(owner), name, value)


def states(levels: list[nn.Module]) -> list[Tensor]:
    return [value.clone() for level in levels for value in level.state_dict().values()]


def changed_alone(
    rank: int, kind: str, options: dict[str, Any], path: str, value: object
) -> tuple[str, bool]:
    """The error of the first step, and whether the state is unchanged."""
    module = build(kind, options)
    if rank == 0:
        change(module, path, value)
    before = states([module])
    message = outcome(module, tokens(rank))
    return message, all(map(torch.equal, before, states([module])))


KINDS["own optimizers"] = lambda **options: ResidualVQ(
    num_quantizers=LEVELS,
    learnable_codebook=True,
    ema_update=False,
    in_place_codebook_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    **options,
)

SYNCED = dict(sync_every=2)
AFFINE = dict(affine_param=True)
KMEANS = dict(kmeans_init=True)
DEAD = dict(threshold_ema_dead_code=1)


@pytest.mark.parametrize(
    ("kind", "options", "path", "value", "fragments"),
    [
        ("VectorQuantize", {}, "_codebook.eps", 1e-3, ("eps 0.001", "eps 1e-05")),
        ("ResidualVQ", {}, "layers.1._codebook.decay", 0.1, ("decay 0.1", "")),
        (
            "ResidualVQ",
            {},
            "layers.0._codebook.threshold_ema_dead_code",
            2.0,
            ("below 2.0", ""),
        ),
        (
            "ResidualVQ",
            DEAD,
            "layers.2._codebook.reset_cluster_size",
            5.0,
            ("codes begin at 5.0", ""),
        ),
        (
            "ResidualVQ",
            {},
            "layers.1._codebook.ema_update",
            False,
            ("without averages [1]", "without averages []"),
        ),
        ("ResidualVQ", SYNCED, "layers.2.training", False, ("levels [2]", "levels []")),
        ("HierarchicalVQ", {}, "vqs.1.freeze_codebook", True, ("scales [1]", "scales []")),
        ("HierarchicalVQ", SYNCED, "vqs.0.training", False, ("scales [0]", "scales []")),
        (
            "HierarchicalVQ",
            {},
            "vqs.2._codebook.ema_update",
            False,
            ("without averages [2]", "without averages []"),
        ),
        ("ResidualVQ", KMEANS, "layers.1.sync_kmeans", False, ("level 1 with", "ranks False")),
        ("ResidualVQ", KMEANS, "layers.2._codebook.kmeans_iters", 3, ("level 2 with", "of 3 iter")),
        ("ResidualVQ", AFFINE, "layers.1.sync_affine_param", True, ("level 1", "over ranks True")),
        (
            "ResidualVQ",
            AFFINE,
            "layers.2._codebook.affine_param_batch_decay",
            0.5,
            ("level 2", "0.5"),
        ),
        ("own optimizers", {}, "layers.1.in_place_state_loaded", True, ("level 1", "loaded state")),
        (
            "own optimizers",
            {},
            "layers.2.manual_in_place_optimizer_update",
            True,
            ("level 2", "manual True"),
        ),
        ("GroupedResidualVQ", KMEANS, "rvqs.1.layers.2.sync_kmeans", False, ("level 2", "False")),
        ("HierarchicalVQ", KMEANS, "vqs.1.sync_kmeans", False, ("level 1 with", "ranks False")),
        ("ResidualVQ", {}, "layers.1.training", False, ("levels [1] in evaluation", "")),
        ("ResidualVQ", KMEANS, "layers.1.training", False, ("levels [1] in evaluation", "")),
        ("ResidualVQ", {}, "layers.1._codebook.training", False, ("levels [1] in eval", "")),
        ("HierarchicalVQ", {}, "vqs.1.training", False, ("levels [1] in evaluation", "")),
        ("GroupedResidualVQ", {}, "rvqs.1.training", False, ("groups [0] in training", "")),
        ("GroupedResidualVQ", {}, "rvqs.0.training", False, ("groups [1] in training", "")),
        ("FSP", {}, "vector_norm", "kurt", ("norm kurt", "norm var_tanh")),
        ("FSP", {}, "quantize_rate", 0.5, ("rate 0.5", "rate 0.0")),
        ("LFQ", {}, "spherical", True, ("spherical True", "spherical False")),
        ("LFQ", {}, "codebook_scale", 2.0, ("scale 2.0", "scale 1.0")),
    ],
)
def test_on_one_rank(
    two: Ranks,
    kind: str,
    options: dict[str, Any],
    path: str,
    value: object,
    fragments: tuple[str, str],
) -> None:
    for message, intact in two.run(changed_alone, kind, options, path, value):
        assert message.startswith("ValueError: "), message
        assert "expected all ranks to have the same quantizer" in message and intact
        assert all(fragment in message for fragment in fragments), message


def changed_together(
    rank: int, options: dict[str, Any], path: str, values: tuple[object, object]
) -> tuple[bool, list[Tensor]]:
    """Whether a stack learns what its levels learn by themselves, and what ranks have in common of its state."""
    stack = build("ResidualVQ", options)
    chain = copy.deepcopy(stack.layers)
    # Not as many steps as between two reductions, so that levels keep different numbers of them.
    for step, now in enumerate((0, 1, 1, 0, 0, 0, 0)):
        for layers in (stack.layers, chain):
            change(layers, path, values[now])
        residual = x = tokens(rank, step)
        for level in chain:
            quantized = level(residual).quantized
            residual = residual - quantized.detach()
        stack(x)
    same = all(map(torch.equal, states([stack.layers]), states([chain])))
    return same, [value for name, value in stack.state_dict().items() if ".kept_" not in name]


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("1.freeze_codebook", (False, True)),
        ("0.training", (True, False)),
        ("0._codebook.ema_update", (True, False)),
        ("2._codebook.ema_update", (True, False)),
        ("1._codebook.decay", (0.8, 0.1)),
        ("0._codebook.threshold_ema_dead_code", (0, 2.0)),
    ],
)
@pytest.mark.parametrize(
    "options",
    [{}, dict(overlap_sync=True), dict(sync_every=3), dict(stochastic_sample_codes=True)],
    ids=str,
)
def test_on_all_ranks(
    two: Ranks, options: dict[str, Any], path: str, values: tuple[object, object]
) -> None:
    if "threshold" in path and "sync_every" in options:
        # Room for candidates is made at construction.
        options = options | DEAD
        values = (1, 2.0)
    (same, first), (other, second) = two.run(changed_together, options, path, values)
    assert same and other and all(map(torch.equal, first, second))


def beside_one_in_evaluation(rank: int, evaluating: int) -> tuple[bool, list[Tensor]]:
    """Whether the codes of the other group move, and these codes on each rank."""
    groups = build("GroupedResidualVQ", dict(affine_param=True))
    groups.rvqs[evaluating].eval()
    levels = groups.rvqs[1 - evaluating].layers
    before = [level._codebook.embed.clone() for level in levels]
    for step in range(3):
        groups(tokens(rank, step), return_all_codes=True)
    codes = [level._codebook.embed.clone() for level in levels]
    return not any(map(torch.equal, before, codes)), codes


@pytest.mark.parametrize("evaluating", [0, 1])
def test_a_group_in_evaluation_does_not_part_the_ranks(two: Ranks, evaluating: int) -> None:
    (moved, first), (_, second) = two.run(beside_one_in_evaluation, evaluating)
    assert moved and all(map(torch.equal, first, second))
