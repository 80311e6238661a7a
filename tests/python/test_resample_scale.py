"""resample_scale: averages over cells of a grid, and interpolation (include/torchvq/ops/resample_scale.h)."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from support import any_path

op = torch.ops.torchvq.resample_scale
PATHS = {"dispatched": op, "any": any_path("resample_scale")}
# Grid and positions: divided evenly or not, one cell, a cell per position, more cells than positions.
GRIDS = [
    ([3], [12]),
    ([5], [13]),
    ([1], [7]),
    ([6], [6]),
    ([7], [4]),
    # Cells that no position reads.
    ([5], [2]),
    ([12], [5]),
    ([6, 16], [1, 7]),
    ([2, 3], [5, 7]),
    ([1, 4], [3, 4]),
    ([2, 2, 3], [4, 3, 5]),
]
DIRECTIONS = ("average", "average_backward", "interpolate", "interpolate_backward")
# Grid, positions and kernel of a convolution.
CONVOLVED = [
    ([3], [12], [3]),
    ([5], [13], [5]),
    ([1], [4], [3]),
    ([6], [6], [3]),
    ([5], [2], [3]),
    # A kernel larger than the map.
    ([2], [3], [9]),
    ([2, 3], [5, 7], [3, 3]),
    ([4, 4], [4, 4], [3, 1]),
    ([3, 2], [2, 5], [1, 5]),
    ([2, 2, 3], [4, 3, 5], [3, 3, 3]),
]
MODES = {1: "linear", 2: "bilinear", 3: "trilinear"}
POOLS = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}


@pytest.fixture(params=PATHS.values(), ids=PATHS.keys())
def resample(request):
    return request.param


def tokens_of(grid):
    return grid.flatten(2).transpose(1, 2)


def map_of(generator, positions, dtype=torch.float64, batch=2, dim=37):
    return torch.randn(batch, dim, *positions, generator=generator).to(dtype)


def average(x, size):
    """Torch's own pooling."""
    return tokens_of(POOLS[len(size)](x, size))


def interpolated(tokens, size, positions):
    """Torch's own interpolation."""
    grid = tokens.transpose(1, 2).reshape(tokens.shape[0], -1, *size)
    return F.interpolate(grid, positions, mode=MODES[len(size)], align_corners=False)


@pytest.mark.parametrize(("size", "positions"), GRIDS, ids=str)
def test_float64_is_what_torch_computes(resample, size, positions, generator):
    x = map_of(generator, positions)
    tokens = tokens_of(map_of(generator, size))
    close = dict(rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(resample(x, size, positions, "average"), average(x, size), **close)
    found = resample(tokens, size, positions, "interpolate")
    torch.testing.assert_close(found, interpolated(tokens, size, positions), **close)
    assert found.is_contiguous()


@pytest.mark.parametrize(("size", "positions"), GRIDS, ids=str)
def test_backward_is_the_transpose(resample, size, positions, generator):
    """Of the matrix that unit vectors give: <A x, y> = <x, A^T y>."""
    x, tokens = map_of(generator, positions), tokens_of(map_of(generator, size))
    for forward, backward in (DIRECTIONS[:2], DIRECTIONS[2:]):
        a, b = (x, tokens) if forward == "average" else (tokens, x)
        one = (resample(a, size, positions, forward) * b).sum()
        other = (a * resample(b, size, positions, backward)).sum()
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def convolved(tokens, weight, size, positions, kernel):
    """The convolution of the interpolated tokens, by torch."""
    convolve = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[len(size)]
    grid = interpolated(tokens, size, positions)
    return convolve(grid, weight, padding=[side // 2 for side in kernel])


def taps_of(tokens, weight):
    """What each tap makes of the tokens: (B, L, taps * D)."""
    return torch.einsum("bli,oik->blko", tokens, weight.flatten(2)).flatten(2)


@pytest.mark.parametrize(("size", "positions", "kernel"), CONVOLVED, ids=str)
def test_with_a_kernel_it_is_the_convolution(resample, size, positions, kernel, generator):
    tokens = tokens_of(map_of(generator, size, dim=6))
    weight = torch.randn(6, 6, *kernel, generator=generator, dtype=torch.float64)
    found = resample(taps_of(tokens, weight), size, positions, "interpolate", kernel)
    expected = convolved(tokens, weight, size, positions, kernel)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert found.is_contiguous()
    # The transpose: <A x, y> = <x, A^T y>.
    taps, other = taps_of(tokens, weight), torch.randn_like(found)
    back = resample(other, size, positions, "interpolate_backward", kernel)
    assert back.shape == taps.shape
    torch.testing.assert_close((found * other).sum(), (taps * back).sum(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("size", "positions", "kernel"), CONVOLVED, ids=str)
def test_with_a_kernel_both_paths_have_the_same_bits(size, positions, kernel, generator):
    taps = tokens_of(map_of(generator, size, torch.float32, dim=37 * math.prod(kernel)))
    found = [path(taps, size, positions, "interpolate", kernel) for path in PATHS.values()]
    torch.testing.assert_close(*found, rtol=0, atol=0)
    wide = op(taps.double(), size, positions, "interpolate", kernel)
    torch.testing.assert_close(found[0], wide.float(), rtol=0, atol=0)
    # The transpose adds up in another order on other devices, and halves between two floats are common.
    x = map_of(generator, positions, torch.float32)
    back = [path(x, size, positions, "interpolate_backward", kernel) for path in PATHS.values()]
    torch.testing.assert_close(*back, rtol=2e-7, atol=2e-8)


def test_with_a_kernel_there_are_gradients_vmap_and_compiled_code(generator):
    taps = tokens_of(map_of(generator, [2, 3], batch=1, dim=2 * 9)).requires_grad_()
    call = lambda x: op(x, [2, 3], [4, 5], "interpolate", [3, 3])  # noqa: E731
    assert torch.autograd.gradcheck(call, (taps,))
    assert torch.autograd.gradgradcheck(call, (taps,))
    torch.library.opcheck(op.default, (taps, [2, 3], [4, 5], "interpolate", [3, 3]))
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=True)
    torch.testing.assert_close(compiled(taps), call(taps), rtol=0, atol=0)
    stacked = torch.stack([taps, 2 * taps]).detach()
    torch.testing.assert_close(torch.vmap(call)(stacked)[1], call(2 * taps), rtol=0, atol=0)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_float32_is_float64_rounded_once(resample, direction, generator):
    for size, positions in GRIDS:
        to_tokens = direction in ("average", "interpolate_backward")
        x = map_of(generator, positions if to_tokens else size, torch.float32)
        x = x if to_tokens else tokens_of(x)
        wide = resample(x.double(), size, positions, direction)
        torch.testing.assert_close(
            resample(x, size, positions, direction), wide.float(), rtol=0, atol=0
        )


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("size", "positions"), GRIDS, ids=str)
def test_both_paths_have_the_same_bits(direction, size, positions, generator):
    to_tokens = direction in ("average", "interpolate_backward")
    x = map_of(generator, positions if to_tokens else size, torch.float32)
    x = x if to_tokens else tokens_of(x)
    found = [path(x, size, positions, direction) for path in PATHS.values()]
    # This one is a product of torch on other devices: halves between two floats are rounded by its order of additions.
    product = direction == "interpolate_backward"
    torch.testing.assert_close(*found, rtol=2e-7 * product, atol=2e-8 * product)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("size", "positions"), [([3], [5]), ([2, 2], [3, 5])], ids=str)
def test_gradients_are_finite_differences(direction, size, positions, generator):
    to_tokens = direction in ("average", "interpolate_backward")
    x = map_of(generator, positions if to_tokens else size, batch=1, dim=2)
    x = (x if to_tokens else tokens_of(x)).requires_grad_()
    call = lambda x: op(x, size, positions, direction)  # noqa: E731
    assert torch.autograd.gradcheck(call, (x,))
    assert torch.autograd.gradgradcheck(call, (x,))


def test_rows_do_not_depend_on_the_batch_or_on_strides(resample, generator):
    x = map_of(generator, (5, 7), torch.float32, batch=40, dim=70)
    whole = resample(x, [2, 3], [5, 7], "average")
    alone = resample(x[3:4], [2, 3], [5, 7], "average")
    torch.testing.assert_close(whole[3:4], alone, rtol=0, atol=0)
    turned = x.to(memory_format=torch.channels_last)
    torch.testing.assert_close(resample(turned, [2, 3], [5, 7], "average"), whole, rtol=0, atol=0)
    spread = resample(whole.mT.contiguous().mT, [2, 3], [5, 7], "interpolate")
    torch.testing.assert_close(
        spread, resample(whole, [2, 3], [5, 7], "interpolate"), rtol=0, atol=0
    )


@pytest.mark.parametrize(("batch", "dim"), [(0, 4), (2, 0)])
def test_no_batch_and_no_features(resample, batch, dim):
    assert resample(torch.ones(batch, dim, 5), [2], [5], "average").shape == (batch, 2, dim)
    assert resample(torch.ones(batch, 2, dim), [2], [5], "interpolate").shape == (batch, dim, 5)


def test_a_map_without_positions_has_zeros_for_tokens(resample):
    for direction in ("average", "interpolate_backward"):
        tokens = resample(torch.ones(2, 3, 0, 4), [2, 2], [0, 4], direction)
        torch.testing.assert_close(tokens, torch.zeros(2, 4, 3), rtol=0, atol=0)
    for direction in ("average_backward", "interpolate"):
        assert resample(torch.ones(2, 4, 3), [2, 2], [0, 4], direction).shape == (2, 3, 0, 4)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_in_its_cells(value, generator):
    x = map_of(generator, [12], torch.float32)
    x[0, 1, 5] = value
    tokens = op(x, [3], [12], "average")
    assert (~tokens.isfinite()).nonzero().tolist() == [[0, 1, 1]]
    found = op(tokens, [3], [12], "interpolate")
    reached = (~found.isfinite()).nonzero().tolist()
    assert reached and all(row[:2] == [0, 1] and 2 <= row[2] <= 9 for row in reached)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ((torch.ones(2, 3, 5).half(), [2], [5], "average"), TypeError, "float32 or float64"),
        ((torch.ones(2, 3, 5).long(), [2], [5], "average"), TypeError, "float32 or float64"),
        ((torch.ones(2, 3, 5), [2], [5], "nearest"), ValueError, "direction to be average"),
        ((torch.ones(2, 3, 5), [], [], "average"), ValueError, "one to three numbers"),
        ((torch.ones(2, 3, 5), [0], [5], "average"), ValueError, "each at least 1"),
        ((torch.ones(2, 3, 5), [2], [5, 5], "average"), ValueError, "full to have 1"),
        ((torch.ones(2, 3, 5), [2], [4], "average"), ValueError, "positions of full"),
        ((torch.ones(2, 3, 5), [2, 2], [5, 5], "average"), ValueError, "2 axes of positions"),
        ((torch.ones(2, 3, 5), [2], [5], "interpolate"), ValueError, "shape .B, 2, D."),
        ((torch.ones(2, 2), [2], [5], "interpolate"), ValueError, "shape .B, 2, D."),
        ((torch.ones(2, 3, 5), [2], [5], "average", [3]), ValueError, "empty for averages"),
        ((torch.ones(2, 2, 6), [2], [5], "interpolate", [2]), ValueError, "1 odd numbers"),
        ((torch.ones(2, 2, 6), [2], [5], "interpolate", [-3]), ValueError, "1 odd numbers"),
        ((torch.ones(2, 2, 6), [2], [5], "interpolate", [3, 3]), ValueError, "1 odd numbers"),
        ((torch.ones(2, 2, 5), [2], [5], "interpolate", [3]), ValueError, "3 .the kernel. times"),
    ],
)
def test_bad_arguments_are_named(resample, arguments, kind, message):
    with pytest.raises(kind, match=f"resample_scale: .*{message}"):
        resample(*arguments)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_opcheck_compile_and_vmap(direction, generator):
    to_tokens = direction in ("average", "interpolate_backward")
    x = map_of(generator, (4, 5) if to_tokens else (2, 3), torch.float32)
    x = (x if to_tokens else tokens_of(x)).requires_grad_()
    torch.library.opcheck(op.default, (x, [2, 3], [4, 5], direction))
    compiled = torch.compile(op, fullgraph=True, backend="aot_eager", dynamic=True)
    expected = op(x, [2, 3], [4, 5], direction)
    torch.testing.assert_close(compiled(x, [2, 3], [4, 5], direction), expected, rtol=0, atol=0)
    stacked = torch.stack([x, 2 * x]).detach()
    mapped = torch.vmap(lambda x: op(x, [2, 3], [4, 5], direction))(stacked)
    torch.testing.assert_close(mapped[0], expected.detach(), rtol=0, atol=0)
