"""A step that an operator refuses changes nothing, whichever of its arguments is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchvq import (
    LFQ,
    GroupedResidualVQ,
    HierarchicalVQ,
    RandomProjectionQuantizer,
    ResidualVQ,
    VectorQuantize,
)
from torchvq._residual import calls

ops = torch.ops.torchvq
HEADS, SIZE, DIM, TOKENS = 1, 4, 3, 5


def state(size: int = SIZE) -> list[Tensor]:
    """embed, cluster_size, embed_avg, replaced of a codebook."""
    generator = torch.Generator().manual_seed(0)
    embed = torch.randn(HEADS, size, DIM, generator=generator)
    return [embed, torch.ones(HEADS, size), embed.clone(), torch.zeros(HEADS).long()]


def wrong(own: list[Tensor], place: int, value: Tensor) -> list[Tensor]:
    return [*own[:place], value, *own[place + 1 :]]


X = torch.randn(HEADS, TOKENS, DIM, generator=torch.Generator().manual_seed(1))
INDICES = torch.arange(TOKENS).remainder(SIZE).expand(HEADS, TOKENS)
RNG = torch.tensor([3, 4])
COUNTS = torch.zeros(HEADS, SIZE).long()
NARROW = torch.zeros(HEADS, SIZE, DIM - 1)
FLOATS = torch.zeros(HEADS, SIZE)
KEPT = torch.zeros(1)
DEAD: dict[str, Any] = dict(threshold=2.0, reset_cluster_size=1.0)
NO_LISTS: dict[str, Any] = dict(mask=[], statistics=[])


def step(own: list[Tensor], rng: Tensor = RNG, counts: Tensor = COUNTS, **options: Any) -> Any:
    given: dict[str, Any] = dict(affine=[], totals=[], training=True, learns=True, finishes=True)
    return ops.vector_quantize_(X, own[0], own, rng, counts.clone(), **(given | options))


def stack(own: list[Tensor], levels: int = 2, **options: Any) -> Any:
    given: dict[str, Any] = dict(targets=[], totals=[], training=True, learns=True, finishes=True)
    counts = options.pop("counts", [COUNTS.clone() for _ in range(2)])
    return ops.residual_quantize_(
        X, [own[0]] * levels, own, [RNG] * (len(own) // 4), counts, **(given | options)
    )


def learn(own: list[Tensor], levels: int = 1, codebooks: int = 1, **options: Any) -> Any:
    return ops.learn_codebooks_(
        own, [RNG] * codebooks, [X] * levels, [INDICES] * levels, **(NO_LISTS | options)
    )


def learn_statistics(own: list[Tensor], change: int | None = None, **options: Any) -> Any:
    """Learns two codebooks from collected statistics, of which one tensor lacks an axis."""
    rng, x, indices = [RNG] * 2, [X] * 2, [INDICES] * 2
    found = ops.collect_statistics(own, rng, x, indices, mask=[])
    statistics = [part[level] for level in range(2) for part in found]
    if change is not None:
        statistics[change] = statistics[change][0]
    return learn(own, 2, 2, statistics=statistics, **options)


Call = Callable[[list[Tensor]], Any]
STEPS: dict[str, tuple[list[Tensor], Call, str]] = {
    "generator": (state(), lambda s: step(s, rng=torch.zeros(3).long()), "rng to have shape"),
    "counts": (state(), lambda s: step(s, counts=COUNTS[:, 1:]), "step_counts to count 4 codes"),
    "heads of counts": (
        state(),
        lambda s: step(s, counts=torch.zeros(2, SIZE).long()),
        "step_counts to have size 1 .heads of the codebook",
    ),
    "strides of counts": (
        state() * 2,
        lambda s: stack(s, counts=[COUNTS.clone(), torch.zeros(1, 2 * SIZE).long()[:, ::2]]),
        "step_counts to be contiguous",
    ),
    "device of counts": (
        state(),
        lambda s: step(s, counts=COUNTS.to("meta")),
        "embed and step_counts to be on the same device",
    ),
    "threshold": (
        state(),
        lambda s: step(s, threshold=float("nan"), threshold_fraction=0.5, reset_cluster_size=1.0),
        "threshold to be",
    ),
    "fraction": (state(), lambda s: step(s, **DEAD, threshold_fraction=-1.0), "threshold_fraction"),
    "reset": (state(), lambda s: step(s, threshold=2.0, reset_cluster_size=float("inf")), "reset"),
    "heads of replaced": (
        wrong(state(), 3, torch.zeros(2).long()),
        lambda s: learn(s, **DEAD),
        "replaced to have size 1",
    ),
    "dtype of replaced": (
        wrong(state(), 3, torch.zeros(1)),
        lambda s: ops.expire_codes_(s, [RNG], [X], **DEAD),
        "replaced to be Long",
    ),
    "averages": (wrong(state(), 2, NARROW), step, "embed_avg to have the shape"),
    "affine": (state(), lambda s: step(s, affine=[X]), "affine to hold no tensor or 4"),
    "orthogonal": (
        state(),
        lambda s: step(s, orthogonal_weight=1.0, orthogonal_max_codes=0),
        "max_codes to be at least 1",
    ),
    "heads": (state(), lambda s: step(s, heads=0), "heads to be at least 1"),
    "levels": (state(), lambda s: stack(s, levels=3), "at most 2 tensors"),
    "no levels": (state(), lambda s: stack(s, levels=0), "at least 1 and"),
    "states": (state() * 3, stack, "state of 1 or of 2 codebooks"),
    "targets": (state() * 2, lambda s: stack(s, targets=[INDICES]), "targets to hold 2"),
    "totals": (
        state() * 2,
        lambda s: stack(s, totals=[FLOATS], diversity_weight=1.0),
        "totals to hold 2",
    ),
    "counts of levels": (state() * 2, lambda s: stack(s, counts=[]), "at most 0 tensors"),
    "more tokens": (state(), lambda s: learn(s, levels=3), "at least 1 and at most 1 levels"),
    "no tokens": (state(), lambda s: learn(s, levels=0), "at least 1 and at most 1 levels"),
    "no kept tokens": (
        [*state(), *[KEPT] * 5],
        lambda s: learn(s, levels=0, sync_every=2),
        "at least 1 and at most 1 levels",
    ),
    "second codebook": (
        [*state(), *wrong(state(), 2, NARROW)],
        lambda s: learn(s, levels=2, codebooks=2),
        "embed_avg to have the shape",
    ),
    "weight of a second codebook": (
        [*state(), *state(SIZE + 1)],
        lambda s: learn_statistics(s, weight=torch.ones(SIZE)),
        "weight to broadcast to .1, 5.",
    ),
    "weight": (
        state() * 2,
        lambda s: learn_statistics(s, weight=torch.tensor(float("nan"))),
        "weight to be finite",
    ),
    "counts of a second codebook": (
        [*state(), *state(SIZE + 1)],
        lambda s: learn_statistics(s, change=3),
        "counts to have 2 dimensions",
    ),
    "expired": (state(), lambda s: ops.expire_codes_(s, [RNG], [], **DEAD), "x to hold 1 tensors"),
    "collected": (
        state(),
        lambda s: ops.collect_statistics(s, [RNG], [X] * 3, [INDICES] * 3, mask=[]),
        "at least 1 and at most 1 levels",
    ),
    "generators": (
        state(),
        lambda s: ops.finish_step_([COUNTS], [], [RNG], counts=[], masks=[]),
        "rng to hold at most 0",
    ),
    "first codes": (
        wrong(state(), 2, NARROW),
        lambda s: ops.initialise_codebook_(torch.tensor(False), s[1], s[2], s[0], X, RNG),
        "embed_avg to have the shape",
    ),
    "features of first codes": (
        state(),
        lambda s: ops.initialise_codebook_(torch.tensor(False), s[1], s[2], s[0], X[..., :1], RNG),
        "x to have size 3 .dimensions of embed",
    ),
}


@pytest.mark.parametrize("case", STEPS)
def test_refused_operators_change_nothing(case: str) -> None:
    given, call, fragment = STEPS[case]
    own = [tensor.clone() for tensor in given]
    with pytest.raises((ValueError, TypeError, RuntimeError), match=fragment):
        call(own)
    for after, before in zip(own, given, strict=True):
        assert torch.equal(after, before)


def set_fraction(vq: Any) -> None:
    vq._codebook.dead_code_threshold_fraction = -1.0


def set_reset(vq: Any) -> None:
    vq._codebook.reset_cluster_size = float("inf")


def set_most_codes(vq: Any) -> None:
    vq.orthogonal_reg_max_codes = 0


def set_more_codes(vq: Any) -> None:
    vq._codebook.embed = torch.zeros(1, 20, vq.dim)


@pytest.mark.parametrize("change", [set_fraction, set_reset, set_most_codes])
@pytest.mark.parametrize("levels", [1, 2])
def test_options_that_are_set_wrong_later_change_nothing(
    change: Callable[[Any], None], levels: int
) -> None:
    options: dict[str, Any] = dict(dim=8, codebook_size=16, threshold_ema_dead_code=1)
    options["orthogonal_reg_weight"] = 0.1
    module: nn.Module
    if levels == 1:
        module = VectorQuantize(**options)
        change(module)
    else:
        module = ResidualVQ(num_quantizers=levels, **options)
        for level in module.layers:
            change(level)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(ValueError, match="expected"):
        module(torch.randn(1, 50, 8))
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), name


def setting(name: str, value: object) -> Callable[[Any], None]:
    """Sets an option of a level, or of its codebook."""

    def change(vq: Any) -> None:
        setattr(vq._codebook if hasattr(vq._codebook, name) else vq, name, value)

    return change


NAN = float("nan")
BY_GRADIENT: dict[str, Any] = dict(learnable_codebook=True, ema_update=False)
WRONG: dict[str, tuple[dict[str, Any], Callable[[Any], None]]] = {
    "fraction": (dict(threshold_ema_dead_code=1), set_fraction),
    "reset": (dict(threshold_ema_dead_code=1), set_reset),
    "codes of the orthogonal loss": (dict(orthogonal_reg_weight=0.1), set_most_codes),
    "decay": ({}, setting("decay", 2.0)),
    "decay and dead codes": (dict(threshold_ema_dead_code=1), setting("decay", NAN)),
    "eps": ({}, setting("eps", -1.0)),
    "k-means": (dict(kmeans_init=True), setting("kmeans_iters", -1)),
    "affine map": (dict(affine_param=True), setting("affine_param_batch_decay", 2.0)),
    "variance": (
        dict(directional_reparam=True, threshold_ema_dead_code=1),
        setting("directional_reparam_variance", -1.0),
    ),
    "temperature": (dict(stochastic_sample_codes=True), setting("sample_codebook_temp", NAN)),
    "sync_update_v": (BY_GRADIENT, setting("sync_update_v", 2.0)),
    "codes without averages": ({}, set_more_codes),
}
SCALES: dict[str, Any] = dict(scales=(2, 4), shared_codebook=False, channel_first=False)


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("kind", ["ResidualVQ", "GroupedResidualVQ", "HierarchicalVQ"])
def test_options_of_the_last_level_are_checked_before_the_first_learns(
    kind: str, case: str
) -> None:
    options, change = WRONG[case]
    given: dict[str, Any] = dict(dim=8, codebook_size=16, **options)
    module: Any
    if kind == "HierarchicalVQ":
        if case in ("affine map", "variance", "sync_update_v"):
            return  # scales have none of these
        module = HierarchicalVQ(**SCALES, **(dict(kmeans_init=False) | given))
        change(module.vqs[-1])
    elif kind == "GroupedResidualVQ":
        module = GroupedResidualVQ(groups=2, num_quantizers=2, **given)
        change(module.rvqs[-1].layers[-1])
    else:
        module = ResidualVQ(num_quantizers=3, **given)
        change(module.layers[-1])
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(ValueError, match="expected"):
        module(torch.randn(2, 50, 8))
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), name
    module.eval()
    if case != "temperature":
        module(torch.randn(2, 50, 8))


def test_groups_check_targets_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[Tensor] = []
    own = calls.check_targets
    monkeypatch.setattr(
        calls,
        "check_targets",
        lambda targets, *rest: checked.append(targets) or own(targets, *rest),
    )
    module = GroupedResidualVQ(dim=8, codebook_size=16, groups=2, num_quantizers=3)
    module(torch.randn(2, 5, 8), indices=torch.zeros(2, 2, 5, 3, dtype=torch.long))
    assert len(checked) == 2 * 3


@pytest.mark.parametrize("training", [True, False])
def test_no_heads_are_an_error(training: bool) -> None:
    modules: list[tuple[Any, str]] = [
        (VectorQuantize(dim=4, codebook_size=8), "heads"),
        (ResidualVQ(dim=4, codebook_size=8, num_quantizers=2), "heads"),
        (LFQ(dim=4, codebook_size=16), "num_codebooks"),
        (RandomProjectionQuantizer(dim=4, codebook_size=8, codebook_dim=4), "num_codebooks"),
    ]
    for module, name in modules:
        module.train(training)
        setattr(module, name, 0)
        with pytest.raises(ValueError, match="expected"):
            module(torch.randn(2, 5, 4))


HUGE = [3, 6148914691236517206]  # The product is 2 in 64 bits.


@pytest.mark.parametrize(
    "call",
    [
        lambda: ops.resample_scale(torch.randn(1, 2, 1), HUGE, [2, 2], "interpolate"),
        lambda: ops.pool_scale(torch.randn(1, 1, 2, 2), HUGE),
        lambda: ops.spread_scale(
            torch.randn(1, 2, 1), HUGE, [2, 2], torch.randn(1, 1, 3, 3), torch.zeros(1), 0.5
        ),
    ],
)
def test_grids_beyond_all_numbers_are_errors(call: Callable[[], Tensor]) -> None:
    with pytest.raises(ValueError, match="less than 2\\^63 positions"):
        call()


@pytest.mark.parametrize("shape", [(), (5,)])
def test_inputs_without_features_are_errors(shape: tuple[int, ...]) -> None:
    x, values = torch.zeros(shape), torch.randn(2, 3, 4)
    for call in (
        lambda: ops.unpack_positions(values, x, False),
        lambda: ops.unpack_positions(values, x, True),
        lambda: ops.restore_positions(values, x),
        lambda: VectorQuantize(dim=4, codebook_size=8).update_ema_indices(
            x, torch.zeros(1).long(), torch.ones(1).bool()
        ),
    ):
        with pytest.raises(ValueError, match="expected x"):
            call()
