"""A training step by one operator equals its parts one after the other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import torchvq  # noqa: F401  (registers the operators)

ops = torch.ops.torchvq
HEADS, SIZE, DIM, TOKENS = 2, 13, 9, 40


def state(seed: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """embed, cluster_size, embed_avg, replaced of a codebook in use."""
    generator = torch.Generator().manual_seed(seed)
    embed = torch.randn(HEADS, SIZE, DIM, dtype=dtype, generator=generator)
    sizes = torch.rand(HEADS, SIZE, dtype=dtype, generator=generator) * 4
    averages = embed * sizes.unsqueeze(-1)
    return [embed, sizes, averages, torch.zeros(HEADS).long()]


def tokens(seed: int, count: int = TOKENS) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(HEADS, count, DIM, generator=generator)
    return x, torch.randint(SIZE, (HEADS, count), generator=generator)


def by_parts(own: list[Tensor], rng: Tensor, x: Tensor, indices: Tensor, **rules: float) -> Tensor:
    embed, sizes, averages, replaced = own
    statistics = ops.code_statistics(x, indices, ops.code_exponents(embed))
    ops.ema_update_(sizes, averages, embed, *statistics, decay=0.8, eps=1e-5)
    if rules:
        arguments = (embed, averages, sizes, x, statistics[0], rng)
        replaced += ops.replace_dead_codes_(
            *([part] for part in arguments), mask=[], most_per_token=0.25, **rules
        )
    return statistics[0]


@pytest.mark.parametrize("rules", [{}, dict(threshold=1.5, reset_cluster_size=1.5)], ids=str)
@pytest.mark.parametrize("count", [0, 1, TOKENS])
def test_it_is_its_parts(rules: dict[str, float], count: int) -> None:
    rng = torch.tensor([3, 4])
    x, indices = tokens(1, count)
    together, apart = state(0), state(0)
    (counts,) = ops.learn_codebooks_(
        together, [rng], [x], [indices], mask=[], statistics=[], **rules
    )
    assert torch.equal(counts, by_parts(apart, rng, x, indices, **rules))
    for a, b in zip(together, apart, strict=True):
        assert torch.equal(a, b)


def test_several_codebooks_are_one_after_the_other() -> None:
    rngs = [torch.tensor([3, 4]), torch.tensor([5, 4])]
    levels = [tokens(1), tokens(2)]
    together = [state(0), state(1)]
    ops.learn_codebooks_(
        [tensor for own in together for tensor in own],
        rngs,
        [x for x, _ in levels],
        [indices for _, indices in levels],
        mask=[],
        statistics=[],
        threshold=1.0,
        reset_cluster_size=1.0,
    )
    for seed, (x, indices) in enumerate(levels):
        apart = state(seed)
        by_parts(apart, rngs[seed], x, indices, threshold=1.0, reset_cluster_size=1.0)
        for a, b in zip(together[seed], apart, strict=True):
            assert torch.equal(a, b)


def test_dead_codes_without_tokens_of_their_own_codebook() -> None:
    """Levels whose tokens are masked, or chose no code, replace none, or as in the reference those that have tokens."""
    x, indices = tokens(1)
    levels = [indices, indices, torch.full_like(indices, -1)]
    masks = [torch.ones(TOKENS).bool(), torch.zeros(TOKENS).bool(), torch.ones(TOKENS).bool()]
    rng = torch.tensor([3, 4])
    for vqp_compat in (False, True):
        own, idle, dead = state(0), state(1), state(2)
        ops.learn_codebooks_(
            [*own, *idle, *dead], [rng] * 3, [x] * 3, levels, mask=masks, statistics=[],
            threshold=2.0, reset_cluster_size=2.0, vqp_compat=vqp_compat,
        )  # fmt: skip
        assert (own[3].sum() > 0) == vqp_compat and idle[3].sum() == 0
        assert (dead[3].min() > 0) == vqp_compat, "its tokens chose no code: it has none"


def test_codebooks_without_tokens_stay_as_they_are() -> None:
    x, indices = tokens(1)
    used, unused = state(0), state(1)
    rng = torch.tensor([3, 4])
    ops.learn_codebooks_([*used, *unused], [rng, rng], [x], [indices], mask=[], statistics=[])
    for a, b in zip(unused, state(1), strict=True):
        assert torch.equal(a, b)


def test_collected_statistics_are_learnt_later() -> None:
    x, indices = tokens(1)
    rng = torch.tensor([3, 4])
    at_once, later = state(0), state(0)
    ops.learn_codebooks_(at_once, [rng], [x], [indices], mask=[], statistics=[])
    found = ops.collect_statistics(later, [rng], [x], [indices], mask=[])
    ops.learn_codebooks_(
        later, [rng], [x], [indices], mask=[], statistics=[part[0] for part in found]
    )
    for a, b in zip(at_once, later, strict=True):
        assert torch.equal(a, b)


def test_nothing_to_learn_changes_nothing() -> None:
    x, indices = tokens(1)
    own = state(0)
    rules = dict(mask=[], statistics=[], ema_update=False)
    assert ops.learn_codebooks_(own, [torch.tensor([3, 4])], [x], [indices], **rules) == []
    for a, b in zip(own, state(0), strict=True):
        assert torch.equal(a, b)


def test_codes_in_half_precision_are_those_of_float32_rounded() -> None:
    x, indices = tokens(1)
    rng = torch.tensor([3, 4])
    wide, half = state(0), state(0)
    half[0] = half[0].bfloat16()
    wide[0] = ops.wide_codes(half[0], half[1], half[2])
    for own in (wide, half):
        ops.learn_codebooks_(own, [rng], [x], [indices], mask=[], statistics=[])
    assert torch.equal(half[0], wide[0].bfloat16())
    assert torch.equal(half[2], wide[2])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (dict(state=state(0)[:3]), "expected state to hold 4 or 9 tensors"),
        (dict(indices=[]), "expected indices"),
        (dict(statistics=[torch.zeros(1)]), "expected statistics to hold 3 tensors"),
    ],
    ids=["state", "indices", "statistics"],
)
def test_lists_that_do_not_fit_are_refused(change: dict[str, list[Tensor]], said: str) -> None:
    x, indices = tokens(1)
    given = dict(state=state(0), x=[x], indices=[indices], mask=[], statistics=[])
    with pytest.raises(ValueError, match=f"learn_codebooks_: {said}"):
        ops.learn_codebooks_(**(given | change), rng=[torch.tensor([3, 4])])


@pytest.mark.parametrize("dim", [1, 3, 8, 33])
@pytest.mark.parametrize("decay", [0.0, 0.8, 1.0])
@pytest.mark.parametrize("magnitude", [1e-42, 1e-30, 1.0, 1e30, 3e38])
def test_codes_without_tokens_have_the_bits_of_float64(
    dim: int, decay: float, magnitude: float
) -> None:
    """Vectorized quotients have the bits of a division, including zeros of either sign and the ends of the range."""
    generator = torch.Generator().manual_seed(dim)
    size = 64
    averages = torch.randn(1, size, dim, generator=generator) * magnitude
    averages[0, 1::3, 0] = 0.0
    averages[0, 2::3, 0] = -0.0
    averages = averages.clamp(*(torch.finfo(torch.float32).max * sign for sign in (-1, 1)))
    sizes = torch.rand(1, size, generator=generator) * 10 + 0.1
    embed = torch.randn(1, size, dim, generator=generator)
    x = torch.zeros(1, 1, dim)
    statistics = ops.code_statistics(x, torch.zeros(1, 1).long(), ops.code_exponents(embed))
    expected = averages.double() + (1 - decay) * (0 - averages.double())
    ops.ema_update_(sizes, averages, embed, *statistics, decay=decay, eps=1e-5)
    assert torch.equal(averages[0, 1:].signbit(), expected.float()[0, 1:].signbit())
    assert torch.equal(averages[0, 1:], expected.float()[0, 1:])
    total = sizes.double().sum()
    smoothed = (sizes.double() + 1e-5) / (total + size * 1e-5) * total
    codes = averages.double() / smoothed.unsqueeze(-1)
    most = torch.finfo(torch.float32).max
    followed = (sizes >= min(1e-2, (1 - decay) / 2))[0]
    followed[0] = False
    # The total of the sizes is exact to 2^-52 in both computations; everything else is rounded once.
    torch.testing.assert_close(
        embed[0, followed].double(),
        codes.clamp(-most, most)[0, followed].float().double(),
        rtol=2**-23,
        atol=1e-45,
    )
    assert torch.equal(embed[0, followed].signbit(), codes[0, followed].signbit())


@pytest.mark.parametrize("absent", ["masked", "none"])
def test_a_step_without_tokens_changes_nothing(absent: str) -> None:
    own, rng = state(0), torch.tensor([3, 4])
    before = [tensor.clone() for tensor in own]
    x, indices = tokens(1, TOKENS if absent == "masked" else 0)
    mask = [torch.zeros(HEADS, TOKENS, dtype=torch.bool)] if absent == "masked" else []
    rules = dict(threshold=1.5, reset_cluster_size=1.5)
    ops.learn_codebooks_(own, [rng], [x], [indices], mask=mask, statistics=[], **rules)
    for a, b in zip(own, before, strict=True):
        assert torch.equal(a, b)


def test_a_bad_index_of_a_later_codebook_changes_no_codebook() -> None:
    first, second = state(0), state(1)
    rng = torch.tensor([3, 4])
    x, indices = tokens(1)
    bad = indices.clone()
    bad[1, 7] = SIZE
    with pytest.raises(IndexError, match=r"expected indices to be in \[-1, 13\), but got 13"):
        ops.learn_codebooks_(
            [*first, *second], [rng, rng], [x, x], [indices, bad], mask=[], statistics=[]
        )
    for found, before in ((first, state(0)), (second, state(1))):
        assert all(torch.equal(a, b) for a, b in zip(found, before, strict=True))
    mask = torch.ones(HEADS, TOKENS, dtype=torch.bool)
    mask[1, 7] = False
    ops.learn_codebooks_(
        [*first, *second], [rng, rng], [x, x], [indices, bad], mask=[mask, mask], statistics=[]
    )
