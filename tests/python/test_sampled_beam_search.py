"""sampled_beam_search: a beam among drawn codes (include/torchvq/ops/sampled_beam_search.h)."""

from __future__ import annotations

import math

import pytest
import torch

op = torch.ops.torchvq.sampled_beam_search
METRICS = ["euclidean", "cosine"]
SIZES = (5, 9, 7)
EUCLIDEAN = dict(temperature=0.7, metric="euclidean")


def make(generator, heads=2, tokens=20, dim=6, sizes=SIZES, dtype=torch.float32):
    x = torch.randn(heads, tokens, dim, generator=generator, dtype=dtype)
    codebooks = [
        torch.randn(heads, size, dim, generator=generator, dtype=dtype) * 0.7**level
        for level, size in enumerate(sizes)
    ]
    return x, codebooks, [torch.tensor([7, 3 * level]) for level in range(len(sizes))]


def remaining(residual, code):
    """A path's squared residual: float64, added in the order of the features."""
    total = 0.0
    for left, value in zip(residual.tolist(), code.tolist(), strict=True):
        total += (left - value) * (left - value)
    return total


def draws_of(residuals, codebook, rng, beam, options):
    """Candidates [head][token][path], drawn for all paths of all tokens at once."""
    heads, tokens, width = residuals.shape[:3]
    topk = min(beam, codebook.shape[1])
    drawn = torch.ops.torchvq.sample_codes(
        residuals.reshape(heads, tokens * width, -1), codebook, rng, topk=topk, **options
    )
    return drawn.reshape(heads, tokens, width, topk).tolist()


def expected(x, codebooks, rngs, beam, weights=None, **options):
    """The search, one token at a time; only the candidates are drawn by `sample_codes`."""
    heads, tokens = x.shape[:2]
    paths = [[[((), x[h, t], 0.0)] for t in range(tokens)] for h in range(heads)]
    for level, codebook in enumerate(codebooks):
        residuals = torch.stack(
            [torch.stack([torch.stack([p[1] for p in token]) for token in head]) for head in paths]
        )
        candidates = draws_of(residuals, codebook, rngs[level], beam, options)
        kept = 1 if level == len(codebooks) - 1 else beam
        for h in range(heads):
            for t in range(tokens):
                longer = []
                for (path, residual, before), drawn in zip(
                    paths[h][t], candidates[h][t], strict=True
                ):
                    for code in drawn:
                        score = remaining(residual, codebook[h, code])
                        if weights is not None:
                            score = before + weights[level] * score
                        score = score if math.isfinite(score) else math.inf
                        longer.append((score, (*path, code), residual - codebook[h, code]))
                longer.sort(key=lambda entry: entry[:2])
                best = sorted(longer[:kept], key=lambda entry: entry[1])
                paths[h][t] = [(path, residual, score) for score, path, residual in best]
    return torch.tensor([[token[0][0] for token in head] for head in paths])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("temperature", [0.0, 0.3, 2.0, 1e300])
@pytest.mark.parametrize("beam", [1, 2, 4, 8])
def test_paths_are_the_best_of_the_drawn_ones(beam, temperature, metric, dtype, generator):
    x, codebooks, rngs = make(generator, dtype=dtype)
    options = dict(temperature=temperature, metric=metric)
    found = op(x, codebooks, rngs, beam, **options)
    assert found.dtype == torch.int64
    assert torch.equal(found, expected(x, codebooks, rngs, beam, **options))


@pytest.mark.parametrize("weights", [[0.3, 2.0, 0.5], [0.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
@pytest.mark.parametrize("beam", [1, 3, 8])
def test_weights_rank_paths_by_all_levels(beam, weights, generator):
    x, codebooks, rngs = make(generator)
    found = op(x, codebooks, rngs, beam, weights=weights, **EUCLIDEAN)
    assert torch.equal(found, expected(x, codebooks, rngs, beam, weights, **EUCLIDEAN))


@pytest.mark.parametrize("heads", [1, 4])
def test_one_token(heads, generator):
    x, codebooks, rngs = make(generator, heads=heads, tokens=1)
    found = op(x, codebooks, rngs, 3, **EUCLIDEAN)
    assert torch.equal(found, expected(x, codebooks, rngs, 3, **EUCLIDEAN))


def test_weights_change_the_result(generator):
    x, codebooks, rngs = make(generator, tokens=100)
    plain = op(x, codebooks, rngs, 3, **EUCLIDEAN)
    found = [
        op(x, codebooks, rngs, 3, weights=weights, **EUCLIDEAN)
        for weights in ([1.0, 1.0, 1.0], [5.0, 0.1, 1.0])
    ]
    assert not torch.equal(found[0], plain) and not torch.equal(found[1], found[0])


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("temperature", [0.0, 0.5, 1e300])
@pytest.mark.parametrize("weights", [[], [0.3, 2.0, 0.5], [0.0, 1.0, 0.0]])
@pytest.mark.parametrize("beam", [9, 50])
def test_a_beam_of_all_codes_is_residual_beam_search(beam, weights, temperature, metric, generator):
    """Every path draws every code, so nothing is random, whatever the metric of the draws."""
    x, codebooks, rngs = make(generator)
    found = op(x, codebooks, rngs, beam, temperature=temperature, metric=metric, weights=weights)
    wanted = torch.ops.torchvq.residual_beam_search(x, codebooks, beam, weights=weights)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("weights", [[], [0.3, 2.0, 0.5]])
@pytest.mark.parametrize("beam", [1, 2, 3, 6])
def test_temperature_zero_is_residual_beam_search(beam, weights, dtype, generator):
    x, codebooks, rngs = make(generator, tokens=100, dtype=dtype)
    found = op(x, codebooks, rngs, beam, temperature=0.0, metric="euclidean", weights=weights)
    wanted = torch.ops.torchvq.residual_beam_search(x, codebooks, beam, weights=weights)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("beam", [1, 2, 4])
def test_temperature_zero_ties_go_to_the_lower_path(beam, generator):
    x, codebooks, rngs = make(generator, tokens=60, dim=3, sizes=(9, 9, 9))
    x, codebooks = x.round(), [codebook.sign() for codebook in codebooks]
    found = op(x, codebooks, rngs, beam, temperature=0.0, metric="euclidean")
    assert torch.equal(found, torch.ops.torchvq.residual_beam_search(x, codebooks, beam))


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12, 1e19, 3e37])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_temperature_zero_at_all_scales(offset, scale, generator):
    x, codebooks, rngs = make(generator)
    x, codebooks = (x + offset) * scale, [codebooks[0] + offset, *codebooks[1:]]
    codebooks = [codebook * scale for codebook in codebooks]
    found = op(x, codebooks, rngs, 4, temperature=0.0, metric="euclidean")
    assert torch.equal(found, torch.ops.torchvq.residual_beam_search(x, codebooks, 4))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("weights", [[], [0.0, 3.0, 0.0]])
def test_beam_of_one_draws_level_by_level(weights, metric, generator):
    x, codebooks, rngs = make(generator, tokens=300)
    options = dict(temperature=0.8, metric=metric)
    residual, indices = x, []
    for codebook, rng in zip(codebooks, rngs, strict=True):
        index = torch.ops.torchvq.sample_codes(residual, codebook, rng, **options)
        indices.append(index)
        residual = residual - torch.ops.torchvq.lookup_codes(codebook, index)
    found = op(x, codebooks, rngs, 1, weights=weights, **options)
    assert torch.equal(found, torch.stack(indices, -1))


@pytest.mark.parametrize("beam", [8, 40])
def test_chunks_of_tokens_are_searched_as_one(beam, generator):
    """The candidates of 1024 tokens are one chunk with a beam of 8, those of 40 with the other."""
    x, codebooks, rngs = make(generator, heads=1, tokens=1100, dim=64, sizes=(40, 40, 8))
    found = op(x, codebooks, rngs, beam, temperature=0.0, metric="euclidean")
    assert torch.equal(found, torch.ops.torchvq.residual_beam_search(x, codebooks, beam))


def test_masked_tokens_and_unused_levels_get_minus_one(generator):
    x, codebooks, rngs = make(generator)
    mask = torch.rand(2, 20, generator=generator) > 0.4
    whole = op(x, codebooks, rngs, 4, **EUCLIDEAN)
    found = op(x, codebooks, rngs, 4, mask=mask, **EUCLIDEAN)
    assert torch.equal(found, whole.masked_fill(~mask.unsqueeze(-1), -1))
    for depth in (1, 2, 3):
        found = op(x, codebooks, rngs, 4, mask=mask, depth=torch.tensor([depth]), **EUCLIDEAN)
        wanted = op(x, codebooks[:depth], rngs[:depth], 4, **EUCLIDEAN)
        assert torch.equal(found[..., :depth][mask], wanted[mask])
        assert found[~mask].eq(-1).all() and found[..., depth:].eq(-1).all()
    weights = [0.3, 2.0, 0.5]
    found = op(x, codebooks, rngs, 4, depth=torch.tensor([2]), weights=weights, **EUCLIDEAN)
    assert torch.equal(
        found[..., :2], op(x, codebooks[:2], rngs[:2], 4, weights=weights[:2], **EUCLIDEAN)
    )


@pytest.mark.parametrize("beam", [1, 3])
def test_heads_may_share_codebooks(beam, generator):
    x, own, rngs = make(generator)
    codebooks = [own[0][0], own[1], own[2][:1]]
    whole = [codebook.expand(2, *codebook.shape[-2:]) for codebook in codebooks]
    found = op(x, codebooks, rngs, beam, **EUCLIDEAN)
    assert torch.equal(found, op(x, whole, rngs, beam, **EUCLIDEAN))
    assert torch.equal(found, expected(x, whole, rngs, beam, **EUCLIDEAN))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_searched_in_float32(dtype, generator):
    x, codebooks, rngs = make(generator)
    x, codebooks = x.to(dtype), [codebook.to(dtype) for codebook in codebooks]
    wide = [codebook.float() for codebook in codebooks]
    found = op(x, codebooks, rngs, 3, **EUCLIDEAN)
    assert torch.equal(found, expected(x.float(), wide, rngs, 3, **EUCLIDEAN))
    mixed = [codebooks[0].double(), *codebooks[1:]]
    wide = [codebook.double() for codebook in codebooks]
    assert torch.equal(
        op(x, mixed, rngs, 3, **EUCLIDEAN), expected(x.double(), wide, rngs, 3, **EUCLIDEAN)
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("beam", [1, 3, 50])
def test_tokens_that_are_not_finite_get_index_zero(beam, metric, temperature, generator):
    x, codebooks, rngs = make(generator)
    options = dict(temperature=temperature, metric=metric)
    wanted = op(x, codebooks, rngs, beam, **options)
    assert wanted[..., 0].ne(0).any()
    places = ((0, 3, math.nan), (1, 4, math.inf), (1, 19, -math.inf))
    for head, token, value in places:
        x[head, token, 2], wanted[head, token] = value, 0
    assert torch.equal(op(x, codebooks, rngs, beam, **options), wanted)


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize(("heads", "tokens"), [(2, 0), (0, 4)])
def test_no_tokens(heads, tokens, beam, generator):
    x, codebooks, rngs = make(generator, heads=heads, tokens=tokens)
    for temperature in (0.0, 1.0):
        found = op(x, codebooks, rngs, beam, temperature=temperature, metric="euclidean")
        assert found.shape == (heads, tokens, 3) and found.dtype == torch.int64


def test_each_level_draws_from_its_own_generator(generator):
    x, codebooks, rngs = make(generator, tokens=300)
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    expected = op(x, codebooks, rngs, 3, **EUCLIDEAN)
    assert torch.equal(op(x, codebooks, rngs, 3, **EUCLIDEAN), expected)
    assert torch.equal(torch.random.get_rng_state(), state)
    found = [expected]
    for level in range(3):
        for other in (torch.tensor([1, 0]), torch.tensor([0, 1])):
            changed = [rng + other * (n == level) for n, rng in enumerate(rngs)]
            found.append(op(x, codebooks, changed, 3, **EUCLIDEAN))
    found.append(op(x, codebooks, rngs[::-1], 3, **EUCLIDEAN))
    assert len({tuple(indices.flatten().tolist()) for indices in found}) == len(found)
    # The last generator does not reach the first levels' draws: with one path these stay.
    changed = [*rngs[:2], rngs[2] + 1]
    one, other = (op(x, codebooks, given, 1, **EUCLIDEAN) for given in (rngs, changed))
    assert torch.equal(one[..., :2], other[..., :2]) and one[..., 2].ne(other[..., 2]).any()


def test_a_wider_beam_leaves_less(generator):
    x, codebooks, rngs = make(generator, tokens=400, sizes=(16,) * 4)
    errors = []
    for beam in (1, 2, 4, 16):
        indices = op(x, codebooks, rngs, beam, **EUCLIDEAN)
        decoded = torch.ops.torchvq.residual_decode(indices, codebooks)
        errors.append((x - decoded).square().sum().item())
    assert errors == sorted(errors, reverse=True) and errors[-1] < errors[0] / 2


def test_threads_and_strides_do_not_matter(generator):
    x, codebooks, rngs = make(generator, tokens=900, dim=24, sizes=(64, 64, 64))
    whole = op(x, codebooks, rngs, 4, **EUCLIDEAN)
    turned = [c.transpose(1, 2).contiguous().transpose(1, 2) for c in codebooks]
    flipped = x.transpose(0, 1).contiguous().transpose(0, 1)
    spread = [torch.stack([rng, rng], -1)[:, 0] for rng in rngs]
    assert torch.equal(op(flipped, turned, spread, 4, **EUCLIDEAN), whole)
    torch.set_num_threads(2)
    try:
        assert torch.equal(op(x, codebooks, rngs, 4, **EUCLIDEAN), whole)
    finally:
        torch.set_num_threads(1)


def test_arguments_stay_as_they_are(generator):
    x, codebooks, rngs = make(generator)
    before = [tensor.clone() for tensor in (x, *codebooks, *rngs)]
    op(x, codebooks, rngs, 3, **EUCLIDEAN)
    assert all(torch.equal(a, b) for a, b in zip((x, *codebooks, *rngs), before, strict=True))


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (dict(beam=0), ValueError, "beam to be at least 1"),
        (dict(codebooks=[], rngs=[]), ValueError, "at least 1 level"),
        (dict(codebooks=[torch.zeros(2, 0, 6)] * 3), ValueError, "at least 1 code"),
        (dict(codebooks=[torch.zeros(2, 4, 5)] * 3), ValueError, "features of x"),
        (dict(codebooks=[torch.zeros(3, 4, 6)] * 3), ValueError, "heads of x"),
        (dict(codebooks=[torch.zeros(2, 4, 6).long()] * 3), TypeError, "codebook to be floating"),
        (dict(x=torch.zeros(3, 6)), ValueError, "3 dimensions"),
        (dict(x=torch.zeros(2, 3, 6).long()), TypeError, "x to be floating point"),
        (dict(rngs=[torch.tensor([7, 3])] * 2), ValueError, "rngs to be one for each of 3 levels"),
        (dict(rngs=[]), ValueError, "rngs to be one for each of 3 levels, but got 0"),
        (dict(rngs=[torch.tensor([7, 3, 1])] * 3), ValueError, "rng to have shape"),
        (dict(rngs=[torch.tensor([7.0, 3.0])] * 3), TypeError, "rng to be Long"),
        (dict(temperature=-1.0), ValueError, "temperature to be finite and non-negative"),
        (dict(temperature=math.nan), ValueError, "temperature to be finite and non-negative"),
        (dict(temperature=math.inf), ValueError, "temperature to be finite and non-negative"),
        (dict(metric="l2"), ValueError, "metric to be 'euclidean' or 'cosine'"),
        (dict(mask=torch.ones(2, 20)), TypeError, "mask"),
        (dict(mask=torch.ones(2, 19).bool()), ValueError, "mask"),
        (dict(depth=torch.tensor([4])), ValueError, r"depth to be in \[1, 3\]"),
        (dict(depth=torch.tensor([0])), ValueError, r"depth to be in \[1, 3\]"),
        (dict(depth=torch.tensor([1.0])), TypeError, "depth"),
        (dict(depth=torch.tensor([1, 2])), ValueError, "depth to be one number"),
        (dict(weights=[1.0]), ValueError, "one for each of 3 levels"),
        (dict(weights=[1.0, -1.0, 1.0]), ValueError, "non-negative"),
        (dict(weights=[1.0, math.nan, 1.0]), ValueError, "finite"),
    ],
)
def test_bad_arguments_are_named(change, kind, message, generator):
    x, codebooks, rngs = make(generator)
    arguments = dict(x=x, codebooks=codebooks, rngs=rngs, beam=2) | EUCLIDEAN | change
    first = [arguments.pop(name) for name in ("x", "codebooks", "rngs", "beam")]
    with pytest.raises(kind, match=f"sampled_beam_search: expected .*{message}"):
        op(*first, **arguments)


def test_opcheck_gradient_and_compile(generator):
    x, codebooks, rngs = make(generator)
    options = EUCLIDEAN | dict(mask=torch.ones(2, 20).bool(), weights=[1.0, 0.5, 0.2])
    torch.library.opcheck(op.default, (x, codebooks, rngs, 3), options)
    leaves = [codebook.clone().requires_grad_() for codebook in codebooks]
    assert not op(x.clone().requires_grad_(), leaves, rngs, 3, **options).requires_grad
    compiled = torch.compile(
        lambda x: op(x, codebooks, rngs, 3, **EUCLIDEAN),
        fullgraph=True,
        backend="aot_eager",
        dynamic=True,
    )
    for part, again in ((x, False), (x[:, :7].contiguous(), True)):
        with torch._dynamo.config.patch(error_on_recompile=again):
            assert torch.equal(compiled(part), op(part, codebooks, rngs, 3, **EUCLIDEAN))
