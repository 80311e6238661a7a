"""ema_update_ and ema_finish_: moving averages of a codebook (include/torchvq/ops/ema_update_.h)."""

from __future__ import annotations

import math

import pytest
import torch
from vector_quantize_pytorch import VectorQuantize

import torchvq
from support import any_path

ops = torch.ops.torchvq
PATHS = {
    "dispatched": (ops.ema_update_, ops.ema_finish_),
    "any": (any_path("ema_update_"), any_path("ema_finish_")),
}
HEADS, CODES, DIM, TOKENS = 2, 9, 5, 40


@pytest.fixture(params=PATHS.values(), ids=PATHS.keys())
def ema(request):
    return request.param


def make_state(generator, dtype=torch.float32):
    size = torch.rand(HEADS, CODES, generator=generator, dtype=dtype) * 5 + 0.5
    embed = torch.randn(HEADS, CODES, DIM, generator=generator, dtype=dtype)
    return size, embed * size[..., None] * 0.9, embed


def make_statistics(generator, dtype=torch.float32, tokens=TOKENS, codes=CODES):
    x = torch.randn(HEADS, tokens, DIM, generator=generator, dtype=dtype)
    indices = torch.randint(0, codes, (HEADS, tokens), generator=generator)
    exponents = torch.zeros(HEADS, CODES, dtype=torch.int32)
    return ops.code_statistics(x, indices, exponents)


def expected_update(state, statistics, decay, eps, metric, weight=None, from_codebook=False):
    """Oracle: the documented formulas on Python floats (float64), code by code."""
    size, average, embed = (t.double().tolist() for t in state)
    counts = statistics[0].tolist()
    sums = ops.decode_sums(*statistics[1:], dtype=torch.float64).tolist()
    weight = torch.ones(()) if weight is None else weight
    weights = weight.double().expand(HEADS, CODES).tolist()

    def smooth(sizes):
        total = math.fsum(sizes)
        return [(s + eps) / (total + CODES * eps) * total for s in sizes]

    for h in range(HEADS):
        if sum(counts[h]) == 0:
            continue
        if from_codebook:
            average[h] = [
                [v * s for v in row] for row, s in zip(embed[h], smooth(size[h]), strict=True)
            ]
        for k in range(CODES):
            w = (1 - decay) * weights[h][k]
            size[h][k] += w * (counts[h][k] - size[h][k])
            average[h][k] = [
                a + w * (s - a) for a, s in zip(average[h][k], sums[h][k], strict=True)
            ]
        faint = [k for k in range(CODES) if counts[h][k] == 0 and size[h][k] < faint_below(decay)]
        limit = unused_below(decay, math.fsum(size[h]))
        unused = [k for k in faint if size[h][k] < limit]
        for k, s in enumerate(smooth(size[h])):
            if k not in faint:
                embed[h][k] = as_code([a / s for a in average[h][k]], metric)
        used = sorted(set(range(CODES)) - set(unused), key=lambda k: (-size[h][k], k))
        for rank, k in enumerate(unused):
            step = 0.8 * min(max(weights[h][k], 0), 1)
            target = embed[h][used[rank % len(used)]]
            embed[h][k] = as_code(
                [v + step * (t - v) for v, t in zip(embed[h][k], target, strict=True)], metric
            )
    return tuple(torch.tensor(t, dtype=torch.float64) for t in (size, average, embed))


def faint_below(decay):
    return min(3e-2, (1 - decay) / 2)


def unused_below(decay, tokens, codes=CODES):
    """At most 1e-5; else half way between what is left of one token after eight average waits and a step earlier."""
    wait = math.ceil(8 * codes / tokens)
    left = [(1 - decay) * decay**steps for steps in (wait - 1, wait)]
    return min(1e-5, faint_below(decay), sum(left) / 2)


def as_code(row, metric):
    norm = math.sqrt(math.fsum(v * v for v in row)) if metric == "cosine" else 1
    return [v / (norm or 1) for v in row]


def check(state, expected, dtype):
    tolerance = (
        {"rtol": 2e-6, "atol": 1e-7} if dtype == torch.float32 else {"rtol": 1e-11, "atol": 1e-13}
    )
    for a, b in zip(state, expected, strict=True):
        assert a.dtype == dtype
        torch.testing.assert_close(a.double(), b, **tolerance)


WEIGHTS = {
    "plain": None,
    "scalar": torch.tensor(0.5),
    "codes": torch.linspace(0, 1, CODES),
    "heads": torch.tensor([[1.0], [0.25]]),
    "full": torch.linspace(0, 2, HEADS * CODES).reshape(HEADS, CODES),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("weight", WEIGHTS.values(), ids=WEIGHTS.keys())
@pytest.mark.parametrize("from_codebook", [False, True], ids=["", "from_codebook"])
def test_ema_update_follows_its_formula(ema, dtype, metric, weight, from_codebook, generator):
    state, statistics = make_state(generator, dtype), make_statistics(generator, dtype)
    expected = expected_update(state, statistics, 0.8, 1e-3, metric, weight, from_codebook)
    arguments = {
        "decay": 0.8,
        "eps": 1e-3,
        "metric": metric,
        "weight": weight,
        "from_codebook": from_codebook,
    }
    ema[0](*state, *statistics, **arguments)
    check(state, expected, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_ema_update_paths_give_the_same_bits(dtype, metric, generator):
    state, statistics = make_state(generator, dtype), make_statistics(generator, dtype)
    results = []
    for update, finish in PATHS.values():
        own = tuple(t.clone() for t in state)
        update(*own, *statistics, decay=0.9, eps=1e-5, metric=metric)
        update(
            *own, *statistics, decay=0.9, eps=1e-5, metric=metric, from_codebook=True, finish=False
        )
        finish(own[2], own[0], own[1], decay=0.9, eps=1e-5, metric=metric)
        results.append(own)
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize(
    "weight", [None, torch.tensor(0.5), torch.linspace(0.1, 1, 6)[None]], ids=["1", "0.5", "vec"]
)
def test_ema_update_matches_the_reference(ema, metric, weight, generator):
    """Oracle: vector-quantize-pytorch as a black box, five steps, every code in use."""
    reference = VectorQuantize(dim=4, codebook_size=6, decay=0.8, use_cosine_sim=metric == "cosine")
    book = reference.train()._codebook
    state = tuple(
        getattr(book, name).detach().clone() for name in ("cluster_size", "embed_avg", "embed")
    )
    for _ in range(5):
        x = torch.randn(2, 100, 4, generator=generator)
        # The reference takes a single weight as a number only.
        given = weight.item() if weight is not None and weight.dim() == 0 else weight
        _, indices, _ = reference(x, **({} if given is None else {"ema_update_weight": given}))
        tokens = x.reshape(1, -1, 4)
        if metric == "cosine":
            tokens = torch.nn.functional.normalize(tokens, dim=-1)
        statistics = ops.code_statistics(
            tokens, indices.reshape(1, -1), ops.code_exponents(state[2])
        )
        ema[0](*state, *statistics, decay=0.8, eps=1e-5, metric=metric, weight=weight)
        for name, ours in zip(("cluster_size", "embed_avg", "embed"), state, strict=True):
            torch.testing.assert_close(ours, getattr(book, name).detach(), rtol=2e-6, atol=1e-6)


UNUSED = {"few": [2, 7], "most": [0, 1, 2, 4, 5, 7], "none": []}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("weight", WEIGHTS.values(), ids=WEIGHTS.keys())
@pytest.mark.parametrize("unused", UNUSED.values(), ids=UNUSED.keys())
def test_ema_update_draws_unused_codes_to_heavy_ones(ema, dtype, metric, weight, unused, generator):
    state, statistics = make_state(generator, dtype), make_statistics(generator, dtype)
    # Equal sizes among the heavy ones: the lower index comes first.
    state[0][:, [3, 6]] = 50
    statistics[0][:, [*unused, 3, 6]] = 0
    statistics[1][:, :, [*unused, 3, 6]] = 0
    state[0][:, unused] = 5e-6
    expected = expected_update(state, statistics, 0.8, 1e-5, metric, weight)
    before = state[2].clone()
    ema[0](*state, *statistics, decay=0.8, eps=1e-5, metric=metric, weight=weight)
    check(state, expected, dtype)
    if unused and weight is None:
        assert not torch.equal(state[2][:, unused], before[:, unused])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_ema_update_draws_no_code_before_its_turn(ema, dtype, metric, generator):
    """With few tokens a code in use waits long for one: what waits no longer than eight turns stays where it is."""
    turns, decay = 8 * CODES, 0.8
    for wait, moves in ((turns - 1, False), (turns, True)):
        state, statistics = make_state(generator, dtype), make_statistics(generator, dtype, 1, 1)
        state[0].zero_()[:, :1] = 1
        state[0][:, 3] = (1 - decay) * decay ** (wait - 1)  # one step before
        before = state[2].clone()
        expected = expected_update(state, statistics, decay, 1e-5, metric)
        ema[0](*state, *statistics, decay=decay, eps=1e-5, metric=metric)
        check(state, expected, dtype)
        assert torch.equal(state[2][:, 3], before[:, 3]) != moves
        again = state[2].clone()
        ema[1](state[2], state[0], state[1], decay=decay, eps=1e-5, metric=metric)
        assert torch.equal(state[2][:, 3], again[:, 3]) != moves


def test_ema_update_keeps_codes_that_take_turns(ema, generator):
    """One token a step, which comes back to each code after as many steps as there are codes."""
    codes = torch.randn(1, 32, DIM, generator=generator)
    state = [torch.ones(1, 32), codes.clone(), codes.clone()]
    for step in range(200):
        x = codes[:, step % 32, None]
        indices = torch.full((1, 1), step % 32)
        ema[0](
            *state,
            *ops.code_statistics(x, indices, ops.code_exponents(state[2])),
            decay=0.8,
            eps=0.0,
        )
    torch.testing.assert_close(state[2], codes)


@pytest.mark.parametrize(("tokens", "codes"), [(8, 128), (24, 64)])
def test_a_few_tokens_a_step_learn_as_well_as_with_the_reference(tokens, codes):
    """Oracle: the reference as a black box, from the same codes, on the same stream."""
    generator = torch.Generator().manual_seed(0)
    centres = 2 * torch.randn(200, 16, generator=generator)

    def draw(count):
        picks = torch.randint(0, 200, (count,), generator=generator)
        return centres[picks] + 0.4 * torch.randn(count, 16, generator=generator)

    modules = [cls(dim=16, codebook_size=codes) for cls in (torchvq.VectorQuantize, VectorQuantize)]
    modules[1].load_state_dict(modules[0].state_dict(), strict=False)
    for _ in range(300):
        x = draw(tokens)[None]
        for module in modules:
            module(x)
    x = draw(4096)
    ours, theirs = (torch.cdist(x, m.codebook).min(-1).values.square().mean() for m in modules)
    assert ours < theirs


def test_ema_update_unused_codes_share_the_tokens_of_heavy_ones(ema, generator):
    """Eight of nine codes have no tokens near them: the reference leaves them unused, here all end up in use."""
    centres = torch.randn(4, DIM, generator=generator)
    state = make_state(generator)
    state[2][:, 1:] += 100
    state[1].copy_(state[2] * state[0][..., None])
    for _ in range(100):
        picks = torch.randint(0, 4, (TOKENS,), generator=generator)
        noise = 0.3 * torch.randn(HEADS, TOKENS, DIM, generator=generator)
        x = centres[picks] + noise
        indices = ops.nearest_code(x, state[2])[0]
        statistics = ops.code_statistics(x, indices, ops.code_exponents(state[2]))
        ema[0](*state, *statistics, decay=0.8, eps=1e-5)
    assert (state[0] > 0.01).all()


def test_ema_update_an_unused_code_has_tokens_in_the_next_step(ema, generator):
    """Where the tokens of one code spread as far as the unused one was from them."""
    state = [torch.tensor([[50.0, 0.0]]), torch.zeros(1, 2, DIM), torch.zeros(1, 2, DIM)]
    state[2][0, 1, 0] = 5
    x = 4 * torch.rand(1, 50, DIM, generator=generator) - 2
    used = []
    for _ in range(2):
        indices = ops.nearest_code(x, state[2])[0]
        statistics = ops.code_statistics(x, indices, ops.code_exponents(state[2]))
        ema[0](*state, *statistics, decay=0.8, eps=1e-5)
        used.append(indices.unique().numel())
    assert used == [1, 2]


@pytest.mark.parametrize("decay", [0.5, 0.99])
def test_ema_update_a_code_at_the_limit_is_faint_on_every_device(decay, generator):
    """A size that float32 rounds to just below the limit."""
    state, statistics = make_state(generator), make_statistics(generator, codes=4)
    state[0][:, 4] = min(0.03, (1 - decay) / 2)
    weight = torch.ones(HEADS, CODES)
    weight[:, 4] = 0  # so that the size stays
    results = []
    for update, finish in PATHS.values():
        own = [tensor.clone() for tensor in state]
        update(*own, *statistics, decay=decay, eps=1e-5, weight=weight)
        results.append(own[2].clone())
        finish(own[2], own[0], own[1], decay=decay, eps=1e-5)
        results.append(own[2])
    assert torch.equal(results[0], results[2]) and torch.equal(results[1], results[3])


def test_ema_update_without_a_step_draws_nothing(ema, generator):
    state = make_state(generator)
    state[0][:, 4] = 0
    before = state[2].clone()
    statistics = make_statistics(generator, codes=4)
    ema[0](*state, *statistics, decay=0.8, eps=1e-5, weight=torch.tensor(0.0))
    assert torch.equal(state[2][:, 4], before[:, 4])


def test_ema_finish_recomputes_what_one_token_used(ema, generator):
    """With a decay above 0.99, one token adds less than 0.01 to the average."""
    state = make_state(generator)
    state[0].fill_(1.0), state[0][:, 4].zero_(), state[1][:, 4].zero_()
    token = torch.ones(HEADS, 1, DIM)
    indices = torch.full((HEADS, 1), 4)
    statistics = ops.code_statistics(token, indices, ops.code_exponents(state[2]))
    ema[0](*state, *statistics, decay=0.999, eps=0.0, finish=False)
    ema[1](state[2], state[0], state[1], decay=0.999, eps=0.0)
    torch.testing.assert_close(state[2][:, 4], token[:, 0])


def test_ema_finish_without_decay_recomputes_every_code(ema, generator):
    """The reference's behaviour, in which unused codes drift to the origin."""
    state = make_state(generator)
    state[0][:, 4] = 1e-6
    state[1][:, 4] = state[2][:, 4] * 1e-6
    before = state[2][:, 4].clone()
    ema[1](state[2], state[0], state[1], decay=1.0, eps=1e-5)
    assert (state[2][:, 4].norm(dim=-1) < before.norm(dim=-1) / 5).all()


def test_ema_update_without_tokens_leaves_a_head_alone(ema, generator):
    state, (counts, sums, exponents) = make_state(generator), make_statistics(generator)
    before = tuple(t.clone() for t in state)
    counts[1], sums[:, 1] = 0, 0
    ema[0](*state, counts, sums, exponents, decay=0.8, eps=1e-5, from_codebook=True)
    for a, b in zip(state, before, strict=True):
        assert torch.equal(a[1], b[1]) and not torch.equal(a[0], b[0])


def test_ema_update_keeps_what_an_optimiser_did(ema, generator):
    """A step on embed alone must survive; only the batch's share of embed may change."""
    state, (counts, sums, exponents) = make_state(generator), make_statistics(generator)
    state[2].add_(10.0)
    target = state[2].clone()
    ema[0](
        *state, counts, torch.zeros_like(sums), exponents, decay=1.0, eps=1e-5, from_codebook=True
    )
    torch.testing.assert_close(state[2], target, rtol=1e-6, atol=0)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_ema_finish_completes_an_update_of_the_averages(ema, metric, generator):
    state, statistics = make_state(generator), make_statistics(generator)
    one, two = tuple(t.clone() for t in state), tuple(t.clone() for t in state)
    ema[0](*one, *statistics, decay=0.8, eps=1e-5, metric=metric)
    ema[0](*two, *statistics, decay=0.8, eps=1e-5, metric=metric, finish=False)
    assert torch.equal(two[2], state[2]) and torch.equal(two[1], one[1])
    ema[1](two[2], two[0], two[1], decay=0.8, eps=1e-5, metric=metric)
    assert torch.equal(two[2], one[2])


def test_ema_update_of_zero_averages_stays_finite(ema, generator):
    state, (counts, sums, exponents) = make_state(generator), make_statistics(generator)
    state[1].zero_()
    ema[0](*state, counts, torch.zeros_like(sums), exponents, decay=0.8, eps=0.0, metric="cosine")
    assert state[2].abs().max() == 0 or torch.isfinite(state[2]).all()
    state[0].zero_()
    before = state[2].clone()
    ema[1](state[2], state[0], state[1], decay=0.8, eps=0.0)
    assert torch.equal(state[2], before)


def test_ema_update_writes_strided_state(ema, generator):
    state, statistics = make_state(generator), make_statistics(generator)
    strided = tuple(t.mT.contiguous().mT for t in state)
    ema[0](*state, *statistics, decay=0.8, eps=1e-5)
    ema[0](*strided, *statistics, decay=0.8, eps=1e-5)
    for a, b in zip(strided, state, strict=True):
        assert torch.equal(a, b)


def test_ema_update_tells_autograd(generator):
    state, statistics = make_state(generator), make_statistics(generator)
    parameter = torch.nn.Parameter(state[2].clone())
    loss = (parameter * parameter).sum()
    ops.ema_update_(state[0], state[1], parameter, *statistics, decay=0.8, eps=1e-5)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    assert parameter.is_leaf and parameter.requires_grad


def test_ema_update_opcheck_and_compile(generator):
    state, statistics = make_state(generator), make_statistics(generator)
    keywords = {"decay": 0.8, "eps": 1e-5}
    tests = (
        "test_schema",
        "test_autograd_registration",
        "test_faketensor",
        "test_aot_dispatch_dynamic",
    )
    torch.library.opcheck(
        ops.ema_update_.default, (*state, *statistics), keywords, test_utils=tests
    )
    torch.library.opcheck(
        ops.ema_finish_.default, (state[2], state[0], state[1]), keywords, test_utils=tests
    )

    def step(size, average, embed):
        ops.ema_update_(size, average, embed, *statistics, **keywords)
        return embed * 2

    eager, compiled = (tuple(t.clone() for t in state) for _ in range(2))
    out = step(*eager)
    assert torch.equal(torch.compile(step, fullgraph=True, backend="aot_eager")(*compiled), out)
    for a, b in zip(eager, compiled, strict=True):
        assert torch.equal(a, b)


def replaced(arguments, position, value):
    return [*arguments[:position], value, *arguments[position + 1 :]]


def test_ema_update_names_bad_arguments_and_changes_nothing(ema, generator):
    arguments = [*make_state(generator), *make_statistics(generator)]
    before = [t.clone() for t in arguments]
    good = {"decay": 0.8, "eps": 1e-5}
    cases = [
        (
            [t.half() if t.dtype == torch.float32 else t for t in arguments],
            {},
            TypeError,
            "expected embed to be float32",
        ),
        (
            replaced(arguments, 1, arguments[1].double()),
            {},
            TypeError,
            "expected embed_avg to be Float",
        ),
        (
            replaced(arguments, 0, arguments[0][:, 1:]),
            {},
            ValueError,
            "expected cluster_size to have size 9",
        ),
        (
            replaced(arguments, 3, arguments[3][:, 1:]),
            {},
            ValueError,
            "expected counts to have size 9",
        ),
        (replaced(arguments, 3, arguments[3].int()), {}, TypeError, "expected counts to be Long"),
        (
            replaced(arguments, 4, arguments[4][..., 1:]),
            {},
            ValueError,
            "expected sums to have size 5",
        ),
        (
            replaced(arguments, 5, arguments[5].long()),
            {},
            TypeError,
            "expected exponents to be Int",
        ),
        (arguments, {"decay": 1.5}, ValueError, r"expected decay to be in \[0, 1\], but got 1.5"),
        (arguments, {"decay": math.nan}, ValueError, r"expected decay to be in \[0, 1\]"),
        (arguments, {"eps": -1.0}, ValueError, "expected eps to be finite and non-negative"),
        (
            arguments,
            {"metric": "dot"},
            ValueError,
            "expected metric to be 'euclidean' or 'cosine', but got 'dot'",
        ),
        (arguments, {"weight": torch.ones(3)}, ValueError, "expected weight to broadcast"),
    ]
    for changed, keywords, error, fragment in cases:
        with pytest.raises(error, match=f"ema_update_: {fragment}"):
            ema[0](*changed, **{**good, **keywords})
    assert all(torch.equal(a, b) for a, b in zip(arguments, before, strict=True))


@pytest.mark.parametrize("shared", range(3))
def test_ema_update_rejects_state_that_shares_memory(shared, generator):
    state, statistics = list(make_state(generator)), make_statistics(generator)
    state[shared] = state[shared][:1].expand_as(state[shared])
    before = [t.clone() for t in state]
    with pytest.raises(ValueError, match="to have memory of its own for each element"):
        ops.ema_update_(*state, *statistics, decay=0.8, eps=1e-5)
    assert all(torch.equal(a, b) for a, b in zip(state, before, strict=True))


def test_ema_update_rejects_weights_that_are_not_finite(generator):
    arguments = [*make_state(generator), *make_statistics(generator)]
    before = [t.clone() for t in arguments]
    with pytest.raises(ValueError, match="ema_update_: expected weight to be finite"):
        ops.ema_update_(*arguments, decay=0.8, eps=1e-5, weight=torch.tensor(math.nan))
    assert all(torch.equal(a, b) for a, b in zip(arguments, before, strict=True))
