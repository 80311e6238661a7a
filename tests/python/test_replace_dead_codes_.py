"""replace_dead_codes_, and its two halves for several ranks (include/torchvq/ops/replace_dead_codes_.h)."""

from __future__ import annotations

import math

import pytest
import torch

from support import any_path

ops = torch.ops.torchvq
PATHS = {"dispatched": ops.replace_dead_codes_, "any": any_path("replace_dead_codes_")}
HEADS, CODES, DIM, TOKENS = 2, 8, 3, 30
GOOD = {"threshold": 2.0, "reset_cluster_size": 3.0, "cooldown_steps": 2}


@pytest.fixture(params=PATHS.values(), ids=PATHS.keys())
def replace_dead_codes_(request):
    return request.param


def make_state(generator, dtype=torch.float32, dead=(1, 4, 6)):
    embed = torch.randn(HEADS, CODES, DIM, generator=generator, dtype=dtype)
    size = torch.full((HEADS, CODES), 5.0, dtype=dtype)
    size[:, list(dead)] = 0.5
    return embed, embed * 5, size, torch.zeros(HEADS, CODES, dtype=torch.int32)


def make_batch(generator, dtype=torch.float32, tokens=TOKENS):
    x = torch.randn(HEADS, tokens, DIM, generator=generator).to(dtype)
    return x, torch.zeros(HEADS, CODES, dtype=torch.int64), torch.tensor([7, 3])


def rows(tensor):
    return [tuple(row) for row in tensor.tolist()]


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str
)
def test_replaced_codes_are_distinct_tokens_and_the_rest_stays(
    replace_dead_codes_, dtype, generator
):
    state = make_state(generator, torch.float64 if dtype == torch.float64 else torch.float32)
    before = tuple(t.clone() for t in state)
    x, counts, rng = make_batch(generator, dtype)
    replaced = replace_dead_codes_(*state, x, counts, rng, **GOOD)
    assert replaced.tolist() == [3, 3]
    live = [0, 2, 3, 5, 7]
    for a, b in zip(state, before, strict=True):
        assert torch.equal(a[:, live], b[:, live])
    for h in range(HEADS):
        fresh = rows(state[0][h, [1, 4, 6]])
        assert len(set(fresh)) == 3 and set(fresh) <= set(rows(x[h]))
    dead = [1, 4, 6]
    assert torch.equal(state[1][:, dead], state[0][:, dead] * 3)
    assert (state[2][:, dead] == 3).all() and (state[3][:, dead] == 2).all()


def test_codes_in_use_cooling_down_or_above_threshold_are_never_replaced(
    replace_dead_codes_, generator
):
    state = make_state(generator)
    x, counts, rng = make_batch(generator)
    counts[:, 1], state[3][:, 4], state[2][:, 6] = 1, 1, 2.0
    before = state[0].clone()
    assert replace_dead_codes_(*state, x, counts, rng, **GOOD).tolist() == [0, 0]
    assert torch.equal(state[0], before)
    assert state[3].sum() == 0


def test_a_replaced_code_survives_its_cooldown(replace_dead_codes_, generator):
    state = make_state(generator, dead=(1,))
    history = []
    for step in range(5):
        x, counts, _ = make_batch(generator)
        history.append(
            replace_dead_codes_(*state, x, counts, torch.tensor([7, step]), **GOOD)[0].item()
        )
        state[2][:, 1] = 0.1
    assert history == [1, 0, 0, 1, 0]


def test_candidates_depend_on_the_set_of_tokens_alone(replace_dead_codes_, generator):
    state = make_state(generator)
    x, counts, rng = make_batch(generator)
    other = tuple(t.clone() for t in state)
    replace_dead_codes_(*state, x, counts, rng, **GOOD)
    order = torch.randperm(TOKENS, generator=generator)
    doubled = torch.cat([x[:, order], x[:, :10]], 1)
    replace_dead_codes_(*other, doubled, counts, rng, **GOOD)
    for a, b in zip(state, other, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_halves_on_parts_of_a_batch_equal_the_whole(metric, generator):
    state = make_state(generator)
    other = tuple(t.clone() for t in state)
    x, counts, rng = make_batch(generator)
    a = ops.replace_dead_codes_(*state, x, counts, rng, metric=metric, **GOOD)
    parts = [
        ops.dead_code_candidates(part, rng, CODES, metric=metric)
        for part in (x[:, 20:], x[:, :0], x[:, :1], x[:, 1:20], x[:, 3:5])
    ]
    keys, candidates = (torch.cat(p, 1) for p in zip(*parts, strict=True))
    b = ops.replace_with_candidates_(*other, keys, candidates, counts, rng, **GOOD)
    assert torch.equal(a, b)
    for one, two in zip(state, other, strict=True):
        assert torch.equal(one, two)


def test_paths_give_the_same_bits(generator):
    x, counts, rng = make_batch(generator, tokens=500)
    results = []
    state = make_state(generator, dead=range(CODES))
    for path in PATHS.values():
        own = tuple(t.clone() for t in state)
        path(*own, x, counts, rng, metric="cosine", **GOOD)
        results.append(own)
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


def test_duplicates_live_rows_masked_and_non_finite_tokens_are_no_candidates(
    replace_dead_codes_, generator
):
    state = make_state(generator)
    x, counts, rng = make_batch(generator)
    x[:] = state[0][:, :1]  # equal to a live code
    x[:, 3] = 1.0
    x[:, 4] = 1.0  # a duplicate
    x[:, 5] = math.nan
    x[:, 6, 0] = math.inf
    x[:, 7] = 2.0  # masked
    mask = torch.arange(TOKENS) != 7
    replaced = replace_dead_codes_(*state, x, counts, rng, mask=mask, **GOOD)
    assert replaced.tolist() == [1, 1]
    # There is one candidate, which replaces the first dead code; the others wait.
    assert rows(state[0][:, 1]) == [(1.0, 1.0, 1.0)] * 2
    assert state[3].tolist() == [[0, 2, 0, 0, 0, 0, 0, 0]] * 2


def test_minus_zero_is_zero(replace_dead_codes_, generator):
    state = make_state(generator)
    x = torch.tensor([[[0.0, -0.0, 1.0], [-0.0, 0.0, 1.0], [-0.0, -0.0, 1.0]]]).expand(
        HEADS, 3, DIM
    )
    _, counts, rng = make_batch(generator)
    assert replace_dead_codes_(*state, x, counts, rng, **GOOD).tolist() == [1, 1]
    assert not torch.signbit(state[0][:, 1]).any()


def test_cosine_codes_are_unit_and_never_zero(replace_dead_codes_, generator):
    state = make_state(generator)
    x, counts, rng = make_batch(generator)
    x[:, 2:] = 0
    replaced = replace_dead_codes_(*state, x, counts, rng, metric="cosine", **GOOD)
    assert replaced.tolist() == [2, 2]
    torch.testing.assert_close(state[0][:, [1, 4]].norm(dim=-1), torch.ones(HEADS, 2))


@pytest.mark.parametrize("tokens", [0, 1])
def test_few_tokens(replace_dead_codes_, tokens, generator):
    state = make_state(generator)
    state[3][:, 0] = 4
    x, counts, rng = make_batch(generator, tokens=tokens)
    assert replace_dead_codes_(*state, x, counts, rng, **GOOD).tolist() == [tokens, tokens]
    assert (state[3][:, 0] == 3).all()


def test_choice_is_uniform_over_tokens():
    """Chi-square over steps: every one of 10 tokens replaces the one dead code equally often."""
    x = torch.arange(10.0)[None, :, None] + 1
    hits = torch.zeros(10)
    for step in range(3000):
        keys, candidates = ops.dead_code_candidates(x, torch.tensor([1, step]), 1)
        hits[int(candidates[0, 0, 0]) - 1] += 1
    assert (
        (hits - 300) ** 2 / 300
    ).sum() < 33.7  # 9 degrees of freedom, one chance in ten thousand


def test_state_of_any_stride_is_written(generator):
    state = make_state(generator)
    strided = tuple(t.mT.contiguous().mT for t in state)
    x, counts, rng = make_batch(generator)
    ops.replace_dead_codes_(*state, x, counts, rng, **GOOD)
    ops.replace_dead_codes_(*strided, x, counts, rng, **GOOD)
    for a, b in zip(state, strided, strict=True):
        assert torch.equal(a, b)


def test_opcheck_and_compile(generator):
    state = make_state(generator)
    x, counts, rng = make_batch(generator)
    tests = (
        "test_schema",
        "test_autograd_registration",
        "test_faketensor",
        "test_aot_dispatch_dynamic",
    )
    torch.library.opcheck(
        ops.replace_dead_codes_.default, (*state, x, counts, rng), GOOD, test_utils=tests
    )
    torch.library.opcheck(ops.dead_code_candidates.default, (x, rng, 4), test_utils=tests)
    keys, candidates = ops.dead_code_candidates(x, rng, CODES)
    arguments = (*state, keys, candidates, counts, rng)
    torch.library.opcheck(ops.replace_with_candidates_.default, arguments, GOOD, test_utils=tests)

    def step(*state):
        return ops.replace_dead_codes_(*state, x, counts, rng, **GOOD) + 1

    eager, compiled = (tuple(t.clone() for t in state) for _ in range(2))
    assert torch.equal(
        torch.compile(step, fullgraph=True, backend="aot_eager")(*compiled), step(*eager)
    )
    for a, b in zip(eager, compiled, strict=True):
        assert torch.equal(a, b)


def test_bad_arguments_are_named_and_change_nothing(replace_dead_codes_, generator):
    state = make_state(generator)
    before = tuple(t.clone() for t in state)
    x, counts, rng = make_batch(generator)
    cases = [
        (
            (*state[:3], state[3].float(), x, counts, rng),
            {},
            TypeError,
            "expected cooldown to be int32 or int64",
        ),
        ((*state, x[:1], counts, rng), {}, ValueError, "expected x to have size 2"),
        ((*state, x[..., 1:], counts, rng), {}, ValueError, "expected x to have size 3"),
        ((*state, x, counts.int(), rng), {}, TypeError, "expected counts to be Long"),
        ((*state, x, counts, rng[:1]), {}, ValueError, r"expected rng to have shape \(2,\)"),
        (
            (*state, x, counts, rng),
            {"threshold": -1.0},
            ValueError,
            "expected threshold to be at least 0",
        ),
        (
            (*state, x, counts, rng),
            {"reset_cluster_size": -1.0},
            ValueError,
            "expected reset_cluster_size to be",
        ),
        (
            (*state, x, counts, rng),
            {"cooldown_steps": -1},
            ValueError,
            "expected cooldown_steps to be in",
        ),
        ((*state, x, counts, rng), {"metric": "dot"}, ValueError, "expected metric to be"),
        (
            (*state, x, counts, rng),
            {"mask": torch.ones(3).bool()},
            ValueError,
            "expected mask to have size 30",
        ),
    ]
    for arguments, keywords, error, fragment in cases:
        with pytest.raises(error, match=f"replace_dead_codes_: {fragment}"):
            replace_dead_codes_(*arguments, **{**GOOD, **keywords})
    assert all(torch.equal(a, b) for a, b in zip(state, before, strict=True))
