"""replace_dead_codes_, and its two halves for several ranks (include/torchvq/ops/replace_dead_codes_.h)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_random_numbers import MASK, expected_uniform
from torch import Tensor

from support import any_path

ops = torch.ops.torchvq


def of_one_codebook(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(*lists: Tensor, mask: Tensor | None = None, **rules: Any) -> Tensor:
        return op(*([own] for own in lists), mask=[] if mask is None else [mask], **rules)

    return call


LIST_PATHS = {"dispatched": ops.replace_dead_codes_, "any": any_path("replace_dead_codes_")}
PATHS = {name: of_one_codebook(path) for name, path in LIST_PATHS.items()}
one_codebook = PATHS["dispatched"]
HEADS, CODES, DIM, TOKENS = 2, 8, 3, 30
GOOD = {"threshold": 2.0, "reset_cluster_size": 3.0}


@pytest.fixture(params=PATHS.values(), ids=PATHS.keys())
def replace_dead_codes_(request):
    return request.param


def make_state(generator, dtype=torch.float32, dead=(1, 4, 6)):
    embed = torch.randn(HEADS, CODES, DIM, generator=generator, dtype=dtype)
    size = torch.full((HEADS, CODES), 5.0, dtype=dtype)
    size[:, list(dead)] = 0.5
    return embed, embed * 5, size


def make_batch(generator, dtype=torch.float32, tokens=TOKENS):
    """x, counts and rng; the only code with a token is the first, and not dead."""
    x = torch.randn(HEADS, tokens, DIM, generator=generator).to(dtype)
    counts = torch.zeros(HEADS, CODES, dtype=torch.int64)
    counts[0, 0] = 1
    return x, counts, torch.tensor([7, 3])


def is_replaced(state):
    return state[2] == GOOD["reset_cluster_size"]


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
    assert (state[2][:, dead] == 3).all()


def test_codes_in_use_or_above_threshold_are_never_replaced(replace_dead_codes_, generator):
    state = make_state(generator)
    x, counts, rng = make_batch(generator)
    counts[:, [1, 4]], state[2][:, 6] = 1, 2.0
    before = state[0].clone()
    assert replace_dead_codes_(*state, x, counts, rng, **GOOD).tolist() == [0, 0]
    assert torch.equal(state[0], before)


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
    a = one_codebook(*state, x, counts, rng, metric=metric, **GOOD)
    parts = [
        ops.dead_code_candidates(part, rng, CODES, metric=metric)
        for part in (x[:, 20:], x[:, :0], x[:, :1], x[:, 1:20], x[:, 3:5])
    ]
    keys, candidates = (torch.cat(p, 1) for p in zip(*parts, strict=True))
    lists = ([own] for own in (*other, keys, candidates, counts, rng))
    b = ops.replace_with_candidates_(*lists, **GOOD)
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
    # There is one candidate, which replaces one dead code; the others wait.
    fresh = is_replaced(state).nonzero()
    assert fresh[:, 0].tolist() == [0, 1] and set(fresh[:, 1].tolist()) <= {1, 4, 6}
    assert rows(state[0][tuple(fresh.T)]) == [(1.0, 1.0, 1.0)] * 2


DISTINCT = {
    "signs": lambda x: torch.cat([x, -x]),
    "bfloat16": lambda x: x.bfloat16(),
    "integers": lambda x: x.mul(4).round(),
}


@pytest.mark.parametrize("kind", DISTINCT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("path", ["cpu", "any"])
def test_different_tokens_are_different_candidates(path, dtype, kind, generator):
    x = DISTINCT[kind](torch.randn(2048, 4, generator=generator)).to(dtype)
    distinct = len(torch.unique(x, dim=0))
    operator = torch.ops.torchvq.dead_code_candidates
    if path == "any":
        operator = any_path("dead_code_candidates")
    keys, rows = operator(x[None], torch.tensor([3, 1]), len(x))
    found = rows[keys != torch.iinfo(torch.int64).max]
    assert len(found) == len(torch.unique(found, dim=0)) == distinct


def test_minus_zero_is_zero(replace_dead_codes_, generator):
    state = make_state(generator)
    x = torch.tensor([[[0.0, -0.0, 1.0], [-0.0, 0.0, 1.0], [-0.0, -0.0, 1.0]]]).expand(
        HEADS, 3, DIM
    )
    _, counts, rng = make_batch(generator)
    assert replace_dead_codes_(*state, x, counts, rng, **GOOD).tolist() == [1, 1]
    assert not torch.signbit(state[0][is_replaced(state)]).any()


def test_cosine_codes_are_unit_and_never_zero(replace_dead_codes_, generator):
    state = make_state(generator)
    x, counts, rng = make_batch(generator)
    x[:, 2:] = 0
    replaced = replace_dead_codes_(*state, x, counts, rng, metric="cosine", **GOOD)
    assert replaced.tolist() == [2, 2]
    torch.testing.assert_close(state[0][is_replaced(state)].norm(dim=-1), torch.ones(2 * HEADS))


@pytest.mark.parametrize(("seed", "step"), [(7, 3), (-5, 2**62)])
def test_of_more_dead_codes_than_tokens_a_random_part_is_replaced(
    replace_dead_codes_, seed, step, generator
):
    """By the order of the random numbers in Python integers, whatever the cluster sizes."""
    state = make_state(generator, dead=range(1, CODES))
    state[2][:, 1:] = torch.rand(HEADS, CODES - 1, generator=generator)
    x, counts, _ = make_batch(generator, tokens=3)
    numbers = expected_uniform(seed & MASK, step, 3, HEADS * CODES, 53, stream=1)
    replaced = replace_dead_codes_(*state, x, counts, torch.tensor([seed, step]), **GOOD)
    assert replaced.tolist() == [3, 3]
    for head in range(HEADS):
        first = sorted(range(1, CODES), key=lambda k: numbers[head * CODES + k])[:3]
        assert is_replaced(state)[head].nonzero().flatten().tolist() == sorted(first)


@pytest.mark.parametrize(
    ("most_per_token", "counted", "wanted"),
    [
        (0.5, (5, 6), (3, 3)),
        (0.5, (1, 40), (1, 7)),
        (0.5, (0, 13), (0, 7)),
        (0.25, (4, 5), (1, 2)),
        (2.0, (1, 3), (2, 6)),
        (0.0, (30, 30), (0, 0)),
        (2.0**63, (1, 0), (7, 0)),
        (None, (0, 1), (7, 7)),
    ],
)
def test_a_step_replaces_at_most_so_many_codes_for_each_token(
    replace_dead_codes_, most_per_token, counted, wanted, generator
):
    """A random part of the 7 dead codes by the tokens with the smallest keys, each head by its own counts."""
    state = make_state(generator, dead=range(1, CODES))
    x, counts, rng = make_batch(generator)
    counts[:, 0] = torch.tensor(counted)
    keys, candidates = ops.dead_code_candidates(x, rng, CODES)
    replaced = replace_dead_codes_(*state, x, counts, rng, most_per_token=most_per_token, **GOOD)
    assert replaced.tolist() == list(wanted)
    numbers = expected_uniform(7, 3, 3, HEADS * CODES, 53, stream=1)
    for head, number in enumerate(wanted):
        first = sorted(range(1, CODES), key=lambda k: numbers[head * CODES + k])[:number]
        assert is_replaced(state)[head].nonzero().flatten().tolist() == sorted(first)
        assert torch.equal(state[0][head, sorted(first)], candidates[head, :number])


@pytest.mark.parametrize("tokens", [0, 1])
def test_few_tokens(replace_dead_codes_, tokens, generator):
    state = make_state(generator)
    x, counts, rng = make_batch(generator, tokens=tokens)
    assert replace_dead_codes_(*state, x, counts, rng, **GOOD).tolist() == [tokens, tokens]


def test_codes_in_use_are_replaced_on_request(replace_dead_codes_, generator):
    state = make_state(generator)
    x, counts, rng = make_batch(generator)
    counts.fill_(5)
    before = state[0].clone()
    replaced = replace_dead_codes_(*state, x, counts, rng, replace_used=True, **GOOD)
    assert replaced.tolist() == [3, 3]
    assert state[0].ne(before).any(-1).nonzero()[:, 1].tolist() == [1, 4, 6] * HEADS


def codebooks_of_all_kinds(generator):
    """Lists of arguments: codebooks without dead codes, without tokens, of one head, other sizes and dtypes."""
    kinds = [make_state(generator, dead=()), make_state(generator), make_state(generator)]
    kinds.append(make_state(generator, torch.float64, dead=range(CODES)))
    kinds.append(tuple(own[:1, :5].clone() for own in make_state(generator)))
    kinds.append(make_state(generator, dead=(0,)))
    tokens = [30, 0, 2, 30, 9, 12]
    dtypes = [torch.float32, torch.float16, torch.float32, torch.float32, torch.float64] * 2
    batches = [make_batch(generator, *own) for own in zip(dtypes, tokens, strict=False)]
    calls = [(*own, *batch) for own, batch in zip(kinds, batches, strict=True)]
    calls[4] = (*calls[4][:3], calls[4][3][:1], calls[4][4][:1, :5], torch.tensor([8, 1]))
    return [list(column) for column in zip(*calls, strict=True)]


@pytest.mark.parametrize("path", LIST_PATHS.values(), ids=LIST_PATHS.keys())
@pytest.mark.parametrize("masked", [False, True])
def test_several_codebooks_are_one_after_the_other(path, masked, generator):
    lists = codebooks_of_all_kinds(generator)
    apart = [[own.clone() for own in column] for column in lists]
    mask = [torch.rand(x.shape[:2], generator=generator) < 0.5 for x in lists[3]] if masked else []
    wanted = [
        one_codebook(*own, mask=mask[i] if masked else None, **GOOD)
        for i, own in enumerate(zip(*apart, strict=True))
    ]
    replaced = path(*lists, mask=mask, **GOOD)
    assert torch.equal(replaced, torch.cat(wanted))
    assert 0 < replaced.count_nonzero() < len(replaced)
    for found, expected in zip(lists, apart, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    "path", [ops.replace_with_candidates_, any_path("replace_with_candidates_")], ids=["cpu", "any"]
)
def test_candidates_of_several_codebooks_are_those_of_each(path, generator):
    lists = codebooks_of_all_kinds(generator)
    apart = [[own.clone() for own in column] for column in lists]
    found = [
        ops.dead_code_candidates(x, rng, count + 1)
        for count, (x, rng) in enumerate(zip(lists[3], lists[5], strict=True))
    ]
    keys, rows = zip(*found, strict=True)
    wanted = [
        ops.replace_with_candidates_(
            *([own[i]] for own in (*apart[:3], keys, rows, apart[4], apart[5])), **GOOD
        )
        for i in range(len(keys))
    ]
    replaced = path(*lists[:3], keys, rows, lists[4], lists[5], **GOOD)
    assert torch.equal(replaced, torch.cat(wanted))
    assert 0 < replaced.count_nonzero() < len(replaced)
    for own, expected in zip(lists, apart, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(own, expected, strict=True))


@pytest.mark.parametrize("name", ["keys", "rows", "counts"])
def test_lists_of_candidates_are_as_long_as_that_of_the_codes(name, generator):
    names = ["embed", "embed_avg", "cluster_size", "keys", "rows", "counts", "rng"]
    x, counts, rng = make_batch(generator)
    arguments = (*make_state(generator), *ops.dead_code_candidates(x, rng, 4), counts, rng)
    lists = {own: [tensor] for own, tensor in zip(names, arguments, strict=True)}
    lists[name] *= 2
    with pytest.raises(
        ValueError, match=f"replace_with_candidates_: expected {name} to hold 1 tensors"
    ):
        ops.replace_with_candidates_(**lists, **GOOD)


@pytest.mark.parametrize("name", ["embed_avg", "cluster_size", "x", "counts", "rng", "mask"])
def test_lists_are_as_long_as_that_of_the_codes(name, generator):
    names = ["embed", "embed_avg", "cluster_size", "x", "counts", "rng"]
    arguments = (*make_state(generator), *make_batch(generator))
    lists = {own: [tensor] for own, tensor in zip(names, arguments, strict=True)}
    lists["mask"] = [torch.ones(TOKENS, dtype=torch.bool)]
    lists[name] *= 2
    with pytest.raises(ValueError, match=f"replace_dead_codes_: expected {name} to hold 1 tensors"):
        ops.replace_dead_codes_(**lists, **GOOD)


def test_no_codebook_is_an_error():
    with pytest.raises(ValueError, match="expected embed to hold at least 1 tensor"):
        ops.replace_dead_codes_(*([] for _ in range(6)), mask=[], **GOOD)


@pytest.mark.parametrize("path", LIST_PATHS.values(), ids=LIST_PATHS.keys())
def test_a_bad_later_codebook_changes_none(path, generator):
    lists = codebooks_of_all_kinds(generator)
    before = [[own.clone() for own in column] for column in lists]
    lists[3][5] = lists[3][5][..., 1:]
    with pytest.raises(ValueError, match="replace_dead_codes_: expected x to have size 3"):
        path(*lists, mask=[], **GOOD)
    for found, expected in zip(lists[:3], before, strict=False):
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_state_of_any_stride_is_written(generator):
    state = make_state(generator)
    strided = tuple(t.mT.contiguous().mT for t in state)
    x, counts, rng = make_batch(generator)
    one_codebook(*state, x, counts, rng, **GOOD)
    one_codebook(*strided, x, counts, rng, **GOOD)
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
    codebooks = [[own, own.clone()] for own in (*state, x, counts, rng)]
    rules = GOOD | {"mask": []}
    torch.library.opcheck(ops.replace_dead_codes_.default, codebooks, rules, test_utils=tests)
    torch.library.opcheck(ops.dead_code_candidates.default, (x, rng, 4), test_utils=tests)
    keys, candidates = ops.dead_code_candidates(x, rng, CODES)
    lists = [[own, own.clone()] for own in (*state, keys, candidates, counts, rng)]
    torch.library.opcheck(ops.replace_with_candidates_.default, lists, GOOD, test_utils=tests)

    def step(*state):
        return one_codebook(*state, x, counts, rng, **GOOD) + 1

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
        ((*state, x[:1], counts, rng), {}, ValueError, "expected x to have size 2"),
        ((*state, x[..., 1:], counts, rng), {}, ValueError, "expected x to have size 3"),
        ((*state, x, counts.int(), rng), {}, TypeError, "expected counts to be Long"),
        ((*state, x, counts, rng[:1]), {}, ValueError, r"expected rng to have shape \(2,\)"),
        (
            (*state, x, counts, rng),
            {"threshold": -1.0},
            ValueError,
            "expected threshold to be in",
        ),
        (
            (*state, x, counts, rng),
            {"threshold": math.inf},
            ValueError,
            r"expected threshold to be in \[0, 2\^63\], but got inf",
        ),
        (
            (*state, x, counts, rng),
            {"threshold_fraction": 1e300},
            ValueError,
            "expected threshold_fraction to be in",
        ),
        (
            (state[0], state[1][:, :1].expand_as(state[1]), *state[2:], x, counts, rng),
            {},
            ValueError,
            "expected embed_avg to have memory of its own for each element",
        ),
        (
            (*state, x, counts, rng),
            {"reset_cluster_size": -1.0},
            ValueError,
            "expected reset_cluster_size to be",
        ),
        (
            (*state, x, counts, rng),
            {"most_per_token": -0.5},
            ValueError,
            r"expected most_per_token to be in \[0, 2\^63\], but got -0.5",
        ),
        (
            (*state, x, counts, rng),
            {"most_per_token": math.nan},
            ValueError,
            "expected most_per_token to be in",
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
