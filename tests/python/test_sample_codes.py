"""sample_codes: stochastic choice of codes (include/torchvq/ops/sample_codes.h)."""

from __future__ import annotations

import numpy
import pytest
import torch
from score_losses import METRICS, log_softmax, make_tokens, numpy_rows, scores

from support import any_path

op = torch.ops.torchvq.sample_codes
PATHS = {"cpu": op, "any": any_path("sample_codes")}
RNG = torch.tensor([7, 3])


@pytest.fixture(params=PATHS.values(), ids=PATHS.keys())
def sample_codes(request):
    return request.param


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("temperature", [0.3, 1.0])
def test_sample_codes_frequencies_follow_the_softmax(sample_codes, temperature, metric, generator):
    """Pearson's chi-square with 5 degrees of freedom exceeds 30 by chance once in 70000 runs."""
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
        assert ((counts - draws * p) ** 2 / (draws * p)).sum() < 30


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


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e30])
def test_sample_codes_stays_in_range_for_hostile_norms(sample_codes, scale, generator):
    x, codebook, _ = make_tokens(generator)
    for metric in METRICS:
        indices = sample_codes(x * scale, codebook, RNG, temperature=1e-20, metric=metric)
        assert indices.ge(0).all() and indices.lt(6).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sample_codes_accepts_half_tokens(sample_codes, dtype, generator):
    x, codebook, _ = make_tokens(generator, dtype)
    expected = sample_codes(x.double(), codebook.double(), RNG, temperature=1.0, metric="euclidean")
    assert torch.equal(
        sample_codes(x, codebook, RNG, temperature=1.0, metric="euclidean"), expected
    )


def test_sample_codes_of_no_tokens(sample_codes, generator):
    x, codebook, _ = make_tokens(generator)
    assert sample_codes(x[:, :0], codebook, RNG, temperature=1.0, metric="cosine").shape == (2, 0)


def test_sample_codes_passes_opcheck_and_compiles(generator):
    x, codebook, _ = make_tokens(generator)
    options = {"temperature": 1.0, "metric": "euclidean"}
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
