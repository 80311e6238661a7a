"""random_uniform and the counter-based generator under it (include/torchvq/ops/random_uniform.h)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from support import any_path

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
PRECISION = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}
PATHS = {"dispatched": torch.ops.torchvq.random_uniform, "any": any_path("random_uniform")}
GAMMA, MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1


def rng(seed: int = 1, step: int = 0) -> torch.Tensor:
    return torch.tensor([seed, step])


@pytest.fixture(params=PATHS.values(), ids=PATHS.keys())
def random_uniform(request):
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
def test_random_uniform_equals_integer_arithmetic(random_uniform, dtype, seed, step, stream):
    u = random_uniform(rng(seed, step), 4, [3, 5], dtype=dtype, stream=stream)
    assert u.dtype == dtype and u.shape == (3, 5)
    expected = expected_uniform(seed & MASK, step, 4, 15, PRECISION[dtype], stream & MASK)
    assert u.flatten().tolist() == expected


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_random_uniform_paths_agree_and_stay_inside_the_interval(dtype):
    a, b = (path(rng(), 1, [50_001], dtype=dtype) for path in PATHS.values())
    assert torch.equal(a, b)
    assert a.min() > 0 and a.max() < 1


def test_random_uniform_is_uniform_by_chi_square():
    u = torch.ops.torchvq.random_uniform(rng(3), 1, [1_000_000]).double().numpy()
    counts, _ = np.histogram(u, bins=256, range=(0, 1))
    chi2 = ((counts - 1e6 / 256) ** 2 / (1e6 / 256)).sum()
    # 255 degrees of freedom: mean 255, standard deviation 22.6; five deviations either way.
    assert 142 < chi2 < 368
    pairs, _, _ = np.histogram2d(u[:-1], u[1:], bins=16)
    assert 142 < ((pairs - pairs.mean()) ** 2 / pairs.mean()).sum() < 368


def test_random_uniform_differs_by_seed_step_purpose_and_stream():
    def draw(s, t, p, r):
        return torch.ops.torchvq.random_uniform(rng(s, t), p, [20_000], stream=r).double()

    base = draw(1, 1, 1, 0)
    for other in (draw(2, 1, 1, 0), draw(1, 2, 1, 0), draw(1, 1, 2, 0), draw(1, 1, 1, 1)):
        correlation = np.corrcoef(base.numpy(), other.numpy())[0, 1]
        assert abs(correlation) < 5 / 20_000**0.5


def test_random_uniform_leaves_torch_alone_and_ignores_threads():
    before = torch.get_rng_state()
    one = torch.ops.torchvq.random_uniform(rng(), 1, [100_000])
    assert torch.equal(before, torch.get_rng_state())
    torch.set_num_threads(2)
    assert torch.equal(one, torch.ops.torchvq.random_uniform(rng(), 1, [100_000]))


@pytest.mark.parametrize("size", [[], [0], [2, 0, 3], [1]])
def test_random_uniform_small_sizes(random_uniform, size):
    assert list(random_uniform(rng(), 1, size).shape) == size


def test_random_uniform_reads_strided_state(random_uniform):
    strided = torch.tensor([7, 0, 9, 0])[::2]
    assert torch.equal(random_uniform(strided, 1, [9]), random_uniform(rng(7, 9), 1, [9]))


def test_random_uniform_opcheck_and_compile():
    torch.library.opcheck(torch.ops.torchvq.random_uniform.default, (rng(), 1, [4, 3]))
    compiled = torch.compile(torch.ops.torchvq.random_uniform, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(rng(), 1, [7]), torch.ops.torchvq.random_uniform(rng(), 1, [7]))


@pytest.mark.parametrize(
    ("arguments", "error", "fragment"),
    [
        ((torch.tensor([1.0, 2.0]), 1, [3]), TypeError, "expected rng to be Long"),
        ((torch.tensor([1, 2, 3]), 1, [3]), ValueError, r"expected rng to have shape \(2,\)"),
        ((torch.tensor([1, 2]), 1, [-3]), ValueError, "expected size to be non-negative"),
    ],
)
def test_random_uniform_names_bad_arguments(random_uniform, arguments, error, fragment):
    with pytest.raises(error, match=f"random_uniform: {fragment}"):
        random_uniform(*arguments)


def test_random_uniform_rejects_integer_dtypes(random_uniform):
    with pytest.raises(TypeError, match="random_uniform: expected dtype to be float16"):
        random_uniform(rng(), 1, [3], dtype=torch.int32)
