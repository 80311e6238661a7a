"""random_normal (include/torchvq/ops/random_normal.h)."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
import torch

from support import any_path

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
PATHS = {"dispatched": torch.ops.torchvq.random_normal, "any": any_path("random_normal")}


def rng(seed: int = 1, step: int = 0) -> torch.Tensor:
    return torch.tensor([seed, step])


@pytest.fixture(params=PATHS.values(), ids=PATHS.keys())
def random_normal(request):
    return request.param


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_random_normal_paths_give_the_same_bits(dtype):
    a, b = (path(rng(5, 6), 2, [100_003], dtype=dtype) for path in PATHS.values())
    assert a.dtype == dtype and torch.equal(a, b)


def test_random_normal_is_box_muller_of_the_uniforms(random_normal):
    """Oracle: logarithm and cosine of libm, from which the series may differ by a few units in the last place."""
    u = torch.ops.torchvq.random_uniform(rng(), 2, [20_000, 2], dtype=torch.float64).tolist()
    z = random_normal(rng(), 2, [20_000], dtype=torch.float64).tolist()
    expected = [math.sqrt(-2 * math.log(a)) * math.cos(2 * math.pi * b) for a, b in u]
    assert np.allclose(z, expected, rtol=1e-14, atol=2e-15)


def test_random_normal_is_normal_by_chi_square():
    z = torch.ops.torchvq.random_normal(rng(3), 1, [1_000_000], dtype=torch.float64).numpy()
    edges = [NormalDist().inv_cdf(i / 200) for i in range(1, 200)]
    counts = np.bincount(np.searchsorted(edges, z), minlength=200)
    chi2 = ((counts - 5000) ** 2 / 5000).sum()
    # 199 degrees of freedom: mean 199, standard deviation 20; five deviations.
    assert 99 < chi2 < 299
    assert abs(z.mean()) < 5e-3 and abs(z.var() - 1) < 7e-3
    assert 4.2 < np.abs(z).max() < 7
    assert abs(np.corrcoef(z[:-1], z[1:])[0, 1]) < 5e-3


def test_random_normal_leaves_torch_alone_and_ignores_threads():
    before = torch.get_rng_state()
    one = torch.ops.torchvq.random_normal(rng(), 1, [50_000])
    assert torch.equal(before, torch.get_rng_state())
    torch.set_num_threads(2)
    assert torch.equal(one, torch.ops.torchvq.random_normal(rng(), 1, [50_000]))


@pytest.mark.parametrize("size", [[], [0], [2, 0, 3], [1]])
def test_random_normal_small_sizes(random_normal, size):
    assert list(random_normal(rng(), 1, size).shape) == size


def test_random_normal_opcheck_and_compile():
    torch.library.opcheck(torch.ops.torchvq.random_normal.default, (rng(), 1, [4, 3]))
    compiled = torch.compile(torch.ops.torchvq.random_normal, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(rng(), 1, [7]), torch.ops.torchvq.random_normal(rng(), 1, [7]))


@pytest.mark.parametrize(
    ("arguments", "error", "fragment"),
    [
        ((torch.tensor([1.0, 2.0]), 1, [3]), TypeError, "expected rng to be Long"),
        ((torch.tensor([1, 2, 3]), 1, [3]), ValueError, r"expected rng to have shape \(2,\)"),
        ((torch.tensor([1, 2]), 1, [-3]), ValueError, "expected size to be non-negative"),
    ],
)
def test_random_normal_names_bad_arguments(random_normal, arguments, error, fragment):
    with pytest.raises(error, match=f"random_normal: {fragment}"):
        random_normal(*arguments)
