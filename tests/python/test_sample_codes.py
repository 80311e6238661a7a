"""sample_codes: stochastic choice of codes (include/torchvq/ops/sample_codes.h)."""

from __future__ import annotations

import itertools

import numpy
import pytest
import torch
from score_losses import METRICS, log_softmax, make_tokens, numpy_rows, scores

from support import any_path

op = torch.ops.torchvq.sample_codes
PATHS = {"cpu": op, "any": any_path("sample_codes")}
RNG = torch.tensor([7, 3])
# Heads that each have one token are scored together, otherwise the tokens of one head.
LAYOUTS = {"tokens": (2, 40), "heads": (80, 1)}
# Pearson's chi-square of the number of ordered draws exceeds these by chance once in 70000 runs.
CHI_SQUARE = {3: 22.4, 6: 30, 24: 63, 30: 72}


@pytest.fixture(params=PATHS.values(), ids=PATHS.keys())
def sample_codes(request):
    return request.param


@pytest.fixture(params=LAYOUTS.values(), ids=LAYOUTS.keys())
def layout(request):
    heads, tokens = request.param
    return dict(heads=heads, tokens=tokens)


def chi_square(counts, expected):
    return ((counts - expected) ** 2 / expected).sum()


def ordered_draws(p, count):
    """All results of `count` draws without replacement, and their probabilities (Plackett-Luce)."""
    results = list(itertools.permutations(range(len(p)), count))
    chances = numpy.ones(len(results))
    for row, codes in enumerate(results):
        left = 1.0
        for code in codes:
            chances[row] *= p[code] / left
            left -= p[code]
    return numpy.array(results), chances


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("temperature", [0.3, 1.0])
def test_sample_codes_frequencies_follow_the_softmax(sample_codes, temperature, metric, generator):
    x, codebook, _ = make_tokens(generator, heads=2, tokens=1)
    draws = 20000
    indices = sample_codes(
        x.expand(2, draws, 5), codebook, RNG, temperature=temperature, metric=metric
    )
    for h in range(2):
        p = numpy.exp(
            log_softmax(scores(numpy_rows(x[h]), numpy_rows(codebook[h]), metric) / temperature)
        )[0]
        counts = torch.bincount(indices[h], minlength=6).numpy()
        assert chi_square(counts, draws * p) < CHI_SQUARE[6]


@pytest.mark.parametrize("one_token_each", [False, True], ids=["tokens", "heads"])
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(("codes", "topk"), [(6, 1), (6, 2), (4, 3)])
def test_sample_codes_draws_without_replacement(
    sample_codes, codes, topk, metric, one_token_each, generator
):
    x, codebook, _ = make_tokens(generator, heads=1, tokens=1, codes=codes)
    logits = scores(numpy_rows(x[0]), numpy_rows(codebook[0]), metric)
    results, chances = ordered_draws(numpy.exp(log_softmax(logits))[0], topk)
    draws = 20000
    assert chances.min() * draws > 5
    if one_token_each:
        x, codebook = x.expand(draws, 1, 5), codebook.expand(draws, codes, 5)
    else:
        x = x.expand(1, draws, 5)
    found = sample_codes(x, codebook, RNG, temperature=1.0, metric=metric, topk=topk)
    places = codes ** numpy.arange(topk)
    drawn = found.reshape(draws, topk).numpy() @ places
    counts = numpy.bincount(drawn, minlength=codes**topk)[results @ places]
    assert counts.sum() == draws
    assert chi_square(counts, draws * chances) < CHI_SQUARE[len(results)]


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("temperature", [0.0, 1e-320, 0.3, 1e300])
def test_sample_codes_draws_more_codes_after_the_same_first_ones(
    sample_codes, temperature, metric, layout, generator
):
    x, codebook, _ = make_tokens(generator, **layout, codes=11)

    def draw(topk):
        return sample_codes(x, codebook, RNG, temperature=temperature, metric=metric, topk=topk)

    every = draw(11)
    assert torch.equal(every.sort(-1)[0], torch.arange(11).expand_as(every))
    for topk in (1, 2, 10):
        assert torch.equal(draw(topk), every[..., :topk])
    assert torch.equal(draw(None), every[..., 0])


@pytest.mark.parametrize("topk", [1, 3, 50])
@pytest.mark.parametrize("metric", METRICS)
def test_sample_codes_at_temperature_zero_takes_the_nearest_codes(
    sample_codes, metric, topk, layout, generator
):
    x, codebook, _ = make_tokens(generator, **layout, codes=50)
    found = sample_codes(x, codebook, RNG, temperature=0.0, metric=metric, topk=topk)
    nearest = torch.ops.torchvq.nearest_code(x, codebook, metric=metric, topk=topk)[0]
    assert torch.equal(found, nearest)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("temperature", [1e-9, 1e-6])
def test_sample_codes_at_low_temperatures_takes_the_nearest_codes(
    sample_codes, temperature, metric, layout, generator
):
    """Next scores differ by more than 50 temperatures, most by so much that exponentials underflow."""
    x, codebook, _ = make_tokens(generator, torch.float64, **layout)
    found = sample_codes(x, codebook, RNG, temperature=temperature, metric=metric, topk=6)
    for h, rows in enumerate(numpy_rows(x)):
        ranked = numpy.sort(scores(rows, numpy_rows(codebook[h]), metric))
        assert numpy.diff(ranked).min() > 50 * temperature
        order = numpy.argsort(-scores(rows, numpy_rows(codebook[h]), metric))
        assert found[h].tolist() == order.tolist()


def test_sample_codes_draws_far_codes_by_their_scores_too(sample_codes):
    """After the first draw, which is certain, three codes are left, all 1000 temperatures behind it."""
    x = torch.zeros(1, 20000, 1, dtype=torch.float64)
    codebook = torch.tensor([[[1.001], [0.0], [1.0], [1.0005]]], dtype=torch.float64)
    found = sample_codes(x, codebook, RNG, temperature=1e-3, metric="euclidean", topk=2)
    assert found[..., 0].eq(1).all()
    p = numpy.exp(log_softmax(numpy.array([-1.0, 0.0, -0.5])))
    counts = numpy.bincount(found[0, :, 1].numpy(), minlength=4)[[0, 2, 3]]
    assert chi_square(counts, 20000 * p) < CHI_SQUARE[3]


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("topk", [None, 4])
def test_sample_codes_of_a_head_and_of_a_token_are_the_same_draw(
    sample_codes, topk, metric, generator
):
    """The position of a draw is the same; the two scores differ by less than the draws depend on."""
    x, codebook, _ = make_tokens(generator, heads=1, tokens=300, codes=999)
    options = dict(temperature=0.5, metric=metric, stream=1, topk=topk)
    together = sample_codes(x, codebook, RNG, **options)
    apart = sample_codes(x[0].unsqueeze(1), codebook.expand(300, 999, 5), RNG, **options)
    assert torch.equal(apart[:, 0], together[0])


@pytest.mark.parametrize("metric", METRICS)
def test_sample_codes_at_temperature_zero_takes_the_best_score(sample_codes, metric, generator):
    x, codebook, _ = make_tokens(generator, torch.float64, tokens=50)
    indices = sample_codes(x, codebook, RNG, temperature=0.0, metric=metric)
    for h in range(2):
        best = scores(numpy_rows(x[h]), numpy_rows(codebook[h]), metric).argmax(-1)
        assert indices[h].tolist() == best.tolist()
    cold = sample_codes(x, codebook, RNG, temperature=1e-9, metric=metric)
    assert torch.equal(cold, indices)


def test_sample_codes_breaks_ties_by_the_lowest_index(sample_codes):
    codebook = torch.tensor([[[2.0], [1.0], [1.0], [-1.0]]])
    indices = sample_codes(
        torch.tensor([[[0.0], [1.0]]]), codebook, RNG, temperature=0.0, metric="euclidean"
    )
    assert indices.tolist() == [[1, 1]]


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("codes", [1, 6, 255, 256, 257, 999])
@pytest.mark.parametrize("temperature", [1e-320, 1e-3, 1.0, 1e300])
def test_sample_codes_any_path_agrees_with_cpu(temperature, codes, metric, generator):
    """The bound by which the CPU leaves codes out never leaves out the one that is drawn."""
    x, codebook, _ = make_tokens(generator, tokens=900, codes=codes)
    draws = [
        path(x, codebook, RNG, temperature=temperature, metric=metric, stream=2)
        for path in PATHS.values()
    ]
    assert torch.equal(*draws)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("codes", [1, 6, 255, 256, 257, 999])
@pytest.mark.parametrize("temperature", [1e-320, 1e-3, 1.0, 1e300])
def test_sample_codes_any_path_agrees_with_cpu_on_several_codes(
    temperature, codes, metric, layout, generator
):
    x, codebook, _ = make_tokens(generator, **layout, codes=codes)
    for topk in {None, 1, min(codes, 7), codes}:
        draws = [
            path(x, codebook, RNG, temperature=temperature, metric=metric, stream=2, topk=topk)
            for path in PATHS.values()
        ]
        assert torch.equal(*draws)


def test_sample_codes_depends_on_seed_step_and_stream_alone(sample_codes, generator):
    x, codebook, _ = make_tokens(generator, tokens=500)

    def draw(rng, stream=0):
        options = {"temperature": 1.0, "metric": "euclidean", "stream": stream}
        return sample_codes(x, codebook, rng, **options)

    torch.manual_seed(1)
    expected = draw(RNG)
    state = torch.random.get_rng_state()
    assert torch.equal(draw(RNG), expected)
    assert torch.equal(torch.random.get_rng_state(), state)
    for other in (draw(RNG + torch.tensor([1, 0])), draw(RNG + torch.tensor([0, 1])), draw(RNG, 1)):
        assert other.ne(expected).any()


def test_sample_codes_does_not_depend_on_threads_blocks_or_strides(generator):
    x, codebook, _ = make_tokens(generator, heads=1, tokens=1200, codes=1000)
    options = {"temperature": 1.0, "metric": "euclidean"}
    expected = op(x, codebook, RNG, **options)
    torch.set_num_threads(2)
    try:
        assert torch.equal(op(x, codebook, RNG, **options), expected)
    finally:
        torch.set_num_threads(1)
    assert torch.equal(
        op(x.mT.contiguous().mT, codebook.mT.contiguous().mT, RNG, **options), expected
    )
    assert torch.equal(op(x[:, :700], codebook, RNG, **options), expected[:, :700])


@pytest.mark.parametrize("metric", METRICS)
def test_sample_codes_of_many_heads_does_not_depend_on_threads_blocks_or_strides(metric, generator):
    """Scores of 104 heads are in one block."""
    x, codebook, _ = make_tokens(generator, heads=250, tokens=1, codes=1000)
    options = {"temperature": 1.0, "metric": metric, "topk": 3}
    expected = op(x, codebook, RNG, **options)
    torch.set_num_threads(2)
    try:
        assert torch.equal(op(x, codebook, RNG, **options), expected)
    finally:
        torch.set_num_threads(1)
    turned = codebook.transpose(0, 2).contiguous().transpose(0, 2)
    assert torch.equal(op(x.mT.contiguous().mT, turned, RNG, **options), expected)
    assert torch.equal(op(x[:130], codebook[:130], RNG, **options), expected[:130])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("metric", METRICS)
def test_sample_codes_gives_non_finite_tokens_index_zero(
    sample_codes, metric, value, temperature, generator
):
    x, codebook, _ = make_tokens(generator)
    expected = sample_codes(x, codebook, RNG, temperature=temperature, metric=metric)
    x[1, 4, 2] = value
    expected[1, 4] = 0
    assert torch.equal(
        sample_codes(x, codebook, RNG, temperature=temperature, metric=metric), expected
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("metric", METRICS)
def test_sample_codes_gives_non_finite_tokens_the_first_indices(
    sample_codes, metric, value, temperature, layout, generator
):
    x, codebook, _ = make_tokens(generator, **layout, codes=9)

    def draw(topk):
        return sample_codes(x, codebook, RNG, temperature=temperature, metric=metric, topk=topk)

    first, several = draw(None), draw(4)
    x[1, 0, 2] = value
    first[1, 0], several[1, 0] = 0, torch.arange(4)
    assert torch.equal(draw(None), first)
    assert torch.equal(draw(4), several)


@pytest.mark.parametrize("tokens_first", [True, False], ids=["one head", "heads of one token"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("metric", METRICS)
def test_sample_codes_draws_codes_that_are_not_finite_last(
    sample_codes, metric, value, tokens_first, generator
):
    x = torch.randn(1, 400, 4, generator=generator)
    codebook = torch.randn(1, 6, 4, generator=generator)
    codebook[0, 2, 1] = codebook[0, 4, 0] = value
    if not tokens_first:
        x, codebook = x.transpose(0, 1), codebook.expand(400, 6, 4)
    found = sample_codes(x, codebook, RNG, temperature=1.0, metric=metric, topk=6).view(400, 6)
    assert found[:, 4:].eq(torch.tensor([2, 4])).all()
    assert found[:, :4].sort(-1).values.eq(torch.tensor([0, 1, 3, 5])).all()
    assert len(found[:, 0].unique()) == 4


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e30])
def test_sample_codes_stays_in_range_for_hostile_norms(sample_codes, scale, layout, generator):
    x, codebook, _ = make_tokens(generator, **layout)
    for metric in METRICS:
        indices = sample_codes(x * scale, codebook, RNG, temperature=1e-20, metric=metric)
        assert indices.ge(0).all() and indices.lt(6).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sample_codes_accepts_half_tokens(sample_codes, dtype, layout, generator):
    x, codebook, _ = make_tokens(generator, dtype, **layout)
    options = {"temperature": 1.0, "metric": "euclidean", "topk": 2}
    expected = sample_codes(x.double(), codebook.double(), RNG, **options)
    assert torch.equal(sample_codes(x, codebook, RNG, **options), expected)


def test_sample_codes_of_no_tokens(sample_codes, generator):
    x, codebook, _ = make_tokens(generator)
    for temperature in (0.0, 1.0):
        options = {"temperature": temperature, "metric": "cosine"}
        assert sample_codes(x[:, :0], codebook, RNG, **options).shape == (2, 0)
        assert sample_codes(x[:, :0], codebook, RNG, **options, topk=3).shape == (2, 0, 3)


@pytest.mark.parametrize("topk", [None, 1, 3])
def test_sample_codes_passes_opcheck_and_compiles(topk, layout, generator):
    x, codebook, _ = make_tokens(generator, **layout)
    options = {"temperature": 1.0, "metric": "euclidean", "topk": topk}
    torch.library.opcheck(op.default, (x, codebook, RNG), options)
    compiled = torch.compile(
        lambda x: op(x, codebook, RNG, **options), fullgraph=True, backend="aot_eager"
    )
    assert torch.equal(compiled(x), op(x, codebook, RNG, **options))


@pytest.mark.parametrize(
    ("change", "error", "fragment"),
    [
        (lambda x, c: (x[0], c, RNG, 1.0, "cosine"), ValueError, "expected x to have 3 dimensions"),
        (
            lambda x, c: (x, c[..., :2], RNG, 1.0, "cosine"),
            ValueError,
            "expected codebook to have size 5",
        ),
        (
            lambda x, c: (x[..., :0], c[..., :0], RNG, 1.0, "cosine"),
            ValueError,
            "expected x to have at least 1 dim",
        ),
        (lambda x, c: (x, c, RNG[:1], 1.0, "cosine"), ValueError, "expected rng to have shape"),
        (lambda x, c: (x, c, RNG.float(), 1.0, "cosine"), TypeError, "expected rng to be Long"),
        (
            lambda x, c: (x, c, RNG, float("inf"), "cosine"),
            ValueError,
            "expected temperature to be finite",
        ),
        (
            lambda x, c: (x, c, RNG, 1.0, "l2"),
            ValueError,
            "expected metric to be 'euclidean' or 'cosine'",
        ),
    ],
)
def test_sample_codes_names_bad_arguments(sample_codes, change, error, fragment, generator):
    x, codebook, _ = make_tokens(generator)
    x, codebook, rng, temperature, metric = change(x, codebook)
    with pytest.raises(error, match=f"sample_codes: {fragment}"):
        sample_codes(x, codebook, rng, temperature=temperature, metric=metric)
    on_meta = [tensor.to("meta") for tensor in (x, codebook, rng)]
    with pytest.raises(error, match=f"sample_codes: {fragment}"):
        torch.ops.torchvq.sample_codes(*on_meta, temperature=temperature, metric=metric)


@pytest.mark.parametrize("topk", [-1, 0, 7])
def test_sample_codes_refuses_more_codes_than_there_are(sample_codes, topk, layout, generator):
    x, codebook, _ = make_tokens(generator, **layout)
    for temperature in (0.0, 1.0):
        with pytest.raises(
            ValueError, match=rf"sample_codes: expected topk to be in \[1, 6\], but got {topk}"
        ):
            sample_codes(x, codebook, RNG, temperature=temperature, metric="cosine", topk=topk)
