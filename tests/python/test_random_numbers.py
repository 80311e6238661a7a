"""random_numbers and the counter-based generator under it (include/torchvq/ops/random_numbers.h)."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
import torch

from support import any_path

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
PRECISION = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}
PATHS = {"dispatched": torch.ops.torchvq.random_numbers, "any": any_path("random_numbers")}
DISTRIBUTIONS = pytest.mark.parametrize("normal", [False, True], ids=["uniform", "normal"])
GAMMA, MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1


def rng(seed: int = 1, step: int = 0) -> torch.Tensor:
    return torch.tensor([seed, step])


@pytest.fixture(params=PATHS.values(), ids=PATHS.keys())
def random_numbers(request):
    return request.param


def mix(z: int) -> int:
    z &= MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def expected_uniform(seed, step, purpose, count, precision, stream=0):
    """Oracle: Python integers."""
    key = mix(seed ^ mix(step ^ mix(purpose))) ^ mix(stream)
    bits = [mix(key + i * GAMMA) for i in range(count)]
    return [((b >> (64 - precision)) | 1) / 2**precision for b in bits]


def test_mix_is_splitmix64():
    """The published first outputs of SplitMix64 for seed 1234567."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [mix(1234567 + (i + 1) * GAMMA) for i in range(3)] == published


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("seed", "step", "stream"), [(0, 0, 0), (1, 2, 3), (-5, 2**62, -1)])
def test_uniform_numbers_equal_integer_arithmetic(random_numbers, dtype, seed, step, stream):
    u = random_numbers(rng(seed, step), 4, [3, 5], dtype=dtype, stream=stream)
    assert u.dtype == dtype and u.shape == (3, 5)
    expected = expected_uniform(seed & MASK, step, 4, 15, PRECISION[dtype], stream & MASK)
    assert u.flatten().tolist() == expected


@DISTRIBUTIONS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_random_numbers_paths_give_the_same_bits(dtype, normal):
    a, b = (path(rng(5, 6), 2, [100_003], normal=normal, dtype=dtype) for path in PATHS.values())
    assert a.dtype == dtype and torch.equal(a, b)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_uniform_numbers_are_inside_the_interval(random_numbers, dtype):
    a = random_numbers(rng(), 1, [50_001], dtype=dtype)
    assert a.min() > 0 and a.max() < 1


def test_uniform_numbers_are_uniform_by_chi_square():
    u = torch.ops.torchvq.random_numbers(rng(3), 1, [1_000_000]).double().numpy()
    counts, _ = np.histogram(u, bins=256, range=(0, 1))
    chi2 = ((counts - 1e6 / 256) ** 2 / (1e6 / 256)).sum()
    # 255 degrees of freedom: mean 255, standard deviation 22.6; five deviations either way.
    assert 142 < chi2 < 368
    pairs, _, _ = np.histogram2d(u[:-1], u[1:], bins=16)
    assert 142 < ((pairs - pairs.mean()) ** 2 / pairs.mean()).sum() < 368


def test_random_numbers_differ_by_seed_step_purpose_and_stream():
    def draw(s, t, p, r):
        return torch.ops.torchvq.random_numbers(rng(s, t), p, [20_000], stream=r).double()

    base = draw(1, 1, 1, 0)
    for other in (draw(2, 1, 1, 0), draw(1, 2, 1, 0), draw(1, 1, 2, 0), draw(1, 1, 1, 1)):
        correlation = np.corrcoef(base.numpy(), other.numpy())[0, 1]
        assert abs(correlation) < 5 / 20_000**0.5


def test_normal_numbers_are_box_muller_of_uniform_ones(random_numbers):
    """Oracle: logarithm and cosine of libm, from which the series may differ by a few units in the last place."""
    u = random_numbers(rng(), 2, [20_000, 2], dtype=torch.float64).tolist()
    z = random_numbers(rng(), 2, [20_000], normal=True, dtype=torch.float64).tolist()
    expected = [math.sqrt(-2 * math.log(a)) * math.cos(2 * math.pi * b) for a, b in u]
    assert np.allclose(z, expected, rtol=1e-14, atol=2e-15)


def test_normal_numbers_are_normal_by_chi_square():
    size = [1_000_000]
    z = torch.ops.torchvq.random_numbers(rng(3), 1, size, normal=True, dtype=torch.float64).numpy()
    edges = [NormalDist().inv_cdf(i / 200) for i in range(1, 200)]
    counts = np.bincount(np.searchsorted(edges, z), minlength=200)
    chi2 = ((counts - 5000) ** 2 / 5000).sum()
    # 199 degrees of freedom: mean 199, standard deviation 20; five deviations.
    assert 99 < chi2 < 299
    assert abs(z.mean()) < 5e-3 and abs(z.var() - 1) < 7e-3
    assert 4.2 < np.abs(z).max() < 7
    assert abs(np.corrcoef(z[:-1], z[1:])[0, 1]) < 5e-3


@DISTRIBUTIONS
def test_random_numbers_leave_torch_alone_and_ignore_threads(normal):
    before = torch.get_rng_state()
    one = torch.ops.torchvq.random_numbers(rng(), 1, [100_000], normal=normal)
    assert torch.equal(before, torch.get_rng_state())
    torch.set_num_threads(2)
    assert torch.equal(one, torch.ops.torchvq.random_numbers(rng(), 1, [100_000], normal=normal))


@DISTRIBUTIONS
@pytest.mark.parametrize("size", [[], [0], [2, 0, 3], [1]])
def test_random_numbers_of_small_sizes(random_numbers, size, normal):
    assert list(random_numbers(rng(), 1, size, normal=normal).shape) == size


@DISTRIBUTIONS
def test_random_numbers_read_a_strided_state(random_numbers, normal):
    strided, packed = torch.tensor([7, 0, 9, 0])[::2], rng(7, 9)
    a, b = (random_numbers(state, 1, [9], normal=normal) for state in (strided, packed))
    assert torch.equal(a, b)


@DISTRIBUTIONS
def test_random_numbers_opcheck_and_compile(normal):
    op = torch.ops.torchvq.random_numbers
    torch.library.opcheck(op.default, (rng(), 1, [4, 3]), dict(normal=normal))
    compiled = torch.compile(op, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(rng(), 1, [7], normal=normal), op(rng(), 1, [7], normal=normal))


@DISTRIBUTIONS
@pytest.mark.parametrize(
    ("arguments", "error", "fragment"),
    [
        ((torch.tensor([1.0, 2.0]), 1, [3]), TypeError, "expected rng to be Long"),
        ((torch.tensor([1, 2, 3]), 1, [3]), ValueError, r"expected rng to have shape \(2,\)"),
        ((torch.tensor([1, 2]), 1, [-3]), ValueError, "expected size to be non-negative"),
    ],
)
def test_random_numbers_names_bad_arguments(random_numbers, arguments, error, fragment, normal):
    with pytest.raises(error, match=f"random_numbers: {fragment}"):
        random_numbers(*arguments, normal=normal)


def test_random_numbers_rejects_integer_dtypes(random_numbers):
    with pytest.raises(TypeError, match="random_numbers: expected dtype to be float16"):
        random_numbers(rng(), 1, [3], dtype=torch.int32)
