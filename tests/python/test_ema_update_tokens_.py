"""ema_update_tokens_: statistics and averages of one process in one pass (include/torchvq/ops/ema_update_tokens_.h)."""

from __future__ import annotations

import pytest
import torch

from support import any_path

ops = torch.ops.torchvq
HEADS, CODES, DIM = 2, 9, 21
ARGUMENTS = dict(decay=0.8, eps=1e-5)


def make_state(generator, dtype):
    size = torch.rand(HEADS, CODES, generator=generator, dtype=dtype) * 5
    size[:, 3] = 1e-6  # unused
    embed = torch.randn(HEADS, CODES, DIM, generator=generator, dtype=dtype)
    return [size, embed * size[..., None] * 0.9, embed]


def make_tokens(generator, dtype, tokens):
    x = torch.randn(HEADS, tokens, DIM, generator=generator, dtype=dtype) * 100
    indices = torch.randint(-1, CODES, (HEADS, tokens), generator=generator)
    return x, indices.masked_fill(indices == 3, 4)


def by_two_operators(state, x, indices, mask=None, **arguments):
    """The same by the two operators that it fuses, each of which has its own oracle."""
    statistics = ops.code_statistics(x, indices, ops.code_exponents(state[2]), mask=mask)
    ops.ema_update_(*state, *statistics, **arguments)
    return statistics[0]


def check(x, indices, state, update=ops.ema_update_tokens_, **arguments):
    expected = [tensor.clone() for tensor in state]
    weights = {key: value for key, value in arguments.items() if key != "mask"}
    hits = by_two_operators(expected, x, indices, arguments.get("mask"), **(ARGUMENTS | weights))
    masks = [arguments.pop("mask")] if "mask" in arguments else []
    counts = torch.full_like(hits, -7)
    lists = [[tensor] for tensor in (*state, counts, x, indices)]
    update(*lists, mask=masks, **(ARGUMENTS | arguments))
    assert torch.equal(counts, hits)
    for found, wanted in zip(state, expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.fixture(params=[ops.ema_update_tokens_, any_path("ema_update_tokens_")], ids=["cpu", "any"])
def update(request):
    return request.param


# Fewer tokens than codes, as many, and so many that grouping them by code pays off.
@pytest.mark.parametrize("tokens", [0, 1, 4, 9, 18, 19, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("wide", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_the_bits_are_those_of_statistics_and_update(
    metric, wide, dtype, tokens, update, generator
):
    state, (x, indices) = make_state(generator, dtype), make_tokens(generator, dtype, tokens)
    check(x.to(wide), indices, state, update, metric=metric)


@pytest.mark.parametrize("place", [1, 2], ids=["averages", "codes"])
def test_tokens_that_are_codes_are_read_before_any_is_written(place, update, generator):
    """As in `vq(vq.codebook[None])`, where a draw gives tokens other codes than themselves."""
    state = make_state(generator, torch.float32)
    check(state[place], torch.arange(CODES).roll(1).repeat(HEADS, 1), state, update)


@pytest.mark.parametrize(
    "arguments",
    [
        dict(from_codebook=True),
        dict(finish=False),
        dict(decay=0.0),
        dict(decay=1.0),
        dict(eps=0.0),
        dict(weight=torch.tensor(0.5)),
        dict(weight=torch.linspace(0, 1, CODES)),
        dict(weight=torch.tensor([[1.0], [0.0]])),
    ],
    ids=str,
)
def test_every_option_reaches_the_update(arguments, update, generator):
    state, tokens = make_state(generator, torch.float32), make_tokens(generator, torch.float32, 12)
    check(*tokens, state, update, **arguments)


@pytest.mark.parametrize("shared", [False, True])
def test_masked_tokens_and_those_that_are_not_finite_count_nowhere(shared, update, generator):
    state, (x, indices) = make_state(generator, torch.float32), make_tokens(generator, None, 12)
    mask = torch.rand(12 if shared else (HEADS, 12), generator=generator) > 0.4
    x[0, 2, 1], x[1, 5, 20] = torch.nan, -torch.inf
    check(x, indices, state, update, mask=mask)


def test_a_head_without_tokens_stays_as_it_is(update, generator):
    state, (x, indices) = make_state(generator, torch.float32), make_tokens(generator, None, 12)
    indices[1] = -1
    before = [tensor.clone() for tensor in state]
    check(x, indices, state, update)
    for found, old in zip(state, before, strict=True):
        assert torch.equal(found[1], old[1])
        assert not torch.equal(found[0], old[0])


def test_strided_state_and_tokens(update, generator):
    state, (x, indices) = make_state(generator, torch.float32), make_tokens(generator, None, 12)
    strided = [tensor.transpose(0, 1).contiguous().transpose(0, 1) for tensor in state]
    check(x.transpose(1, 2).contiguous().transpose(1, 2), indices.t().contiguous().t(), strided)


def test_magnitudes_that_the_codes_do_not_expect(update, generator):
    """Tokens far larger than their codes raise the exponents; sums beyond float32 saturate at its range."""
    state, (x, indices) = make_state(generator, torch.float32), make_tokens(generator, None, 12)
    x[:, :6] *= 1e30
    x[:, 6:9] *= 1e-38
    check(x, indices, state, update)


BAD = {
    "index": (dict(indices=torch.full((HEADS, 4), CODES)), IndexError, r"in \[-1, 9\), but got 9"),
    "features": (dict(x=torch.zeros(HEADS, 4, DIM + 1)), ValueError, "dimensions of embed"),
    "heads": (dict(x=torch.zeros(1, 4, DIM)), ValueError, "heads of embed"),
    "tokens": (dict(indices=torch.zeros(HEADS, 5, dtype=torch.long)), ValueError, "tokens of x"),
    "dtype": (dict(x=torch.zeros(HEADS, 4, DIM).int()), TypeError, "floating point"),
    "mask": (dict(mask=torch.ones(3, dtype=torch.bool)), ValueError, "mask"),
    "decay": (dict(decay=1.5), ValueError, "decay"),
    "eps": (dict(eps=-1.0), ValueError, "eps"),
    "metric": (dict(metric="dot"), ValueError, "metric"),
    "weight": (dict(weight=torch.tensor(torch.inf)), ValueError, "weight to be finite"),
    "shape of weight": (dict(weight=torch.ones(CODES + 1)), ValueError, "weight to broadcast"),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_bad_arguments_of_a_later_codebook_are_named_and_change_none(bad, generator):
    changed, error, message = bad
    states = [make_state(generator, torch.float32) for _ in range(2)]
    before = [[tensor.clone() for tensor in state] for state in states]
    good = dict(x=torch.ones(HEADS, 4, DIM), indices=torch.zeros(HEADS, 4, dtype=torch.long))
    later = good | {key: value for key, value in changed.items() if key in good}
    options = ARGUMENTS | {key: value for key, value in changed.items() if key not in later}
    lists = [[good[name], later[name]] for name in good]
    masks = [torch.ones(4, dtype=torch.bool), options.pop("mask")] if "mask" in options else []
    counts = [torch.zeros(HEADS, CODES, dtype=torch.long) for _ in states]
    with pytest.raises(error, match="ema_update_tokens_: expected .*" + message):
        ops.ema_update_tokens_(*zip(*states, strict=True), counts, *lists, mask=masks, **options)
    for state, old in zip(states, before, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(state, old, strict=True))


@pytest.mark.parametrize("name", ["cluster_size", "embed_avg", "counts", "x", "indices", "mask"])
def test_lists_are_as_long_as_that_of_the_codes(name, generator):
    size, average, embed = make_state(generator, torch.float32)
    x, indices = make_tokens(generator, torch.float32, 4)
    lists = dict(cluster_size=[size], embed_avg=[average], embed=[embed], x=[x], indices=[indices])
    lists["counts"] = [torch.zeros(HEADS, CODES, dtype=torch.long)]
    lists["mask"] = [torch.ones(4, dtype=torch.bool)]
    lists[name] = lists[name] * 2
    with pytest.raises(ValueError, match=f"ema_update_tokens_: expected {name} to hold 1 tensors"):
        ops.ema_update_tokens_(**lists, **ARGUMENTS)


def test_several_codebooks_of_any_size_are_one_after_the_other(update, generator):
    states = [make_state(generator, torch.float32) for _ in range(3)]
    tokens = [make_tokens(generator, torch.float32, count) for count in (12, 0, 300)]
    states.append([tensor[:, :5].clone() for tensor in states[0]])
    tokens.append((tokens[0][0], tokens[0][1].clamp(max=4)))
    expected = [[tensor.clone() for tensor in state] for state in states]
    hits = [
        by_two_operators(state, *own, **ARGUMENTS)
        for state, own in zip(expected, tokens, strict=True)
    ]
    counts = [torch.full_like(own, -7) for own in hits]
    update(*zip(*states, strict=True), counts, *zip(*tokens, strict=True), mask=[], **ARGUMENTS)
    for found, wanted in zip([counts, *states], [hits, *expected], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
