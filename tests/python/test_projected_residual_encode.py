"""projected_residual_encode: levels between two projections (include/torchvq/ops/projected_residual_encode.h)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from support import any_path

op = torch.ops.torchvq.projected_residual_encode
any_device = any_path("projected_residual_encode")
PATHS = {"cpu": op, "any": any_device}
METRICS = ("euclidean", "cosine")
DTYPES = [torch.float32, torch.float64]


class Levels(NamedTuple):
    codebooks: list[torch.Tensor]
    in_weights: list[torch.Tensor]
    in_biases: list[torch.Tensor]
    out_weights: list[torch.Tensor]
    out_biases: list[torch.Tensor]

    def to(self, dtype: torch.dtype) -> Levels:
        return Levels(*([tensor.to(dtype) for tensor in part] for part in self))


@pytest.fixture(params=PATHS.values(), ids=PATHS.keys())
def encode(request):
    return request.param


def make(generator, shape=(2, 20), features=24, dim=8, sizes=(32, 17, 32), dtype=torch.float32):
    def normal(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64).to(dtype)

    count = range(len(sizes))
    levels = Levels(
        [normal(size, dim) for size in sizes],
        [normal(dim, features) / features**0.5 for _ in count],
        [normal(dim) * 0.1 for _ in count],
        [normal(features, dim) * 0.4 for _ in count],
        [normal(features) * 0.1 for _ in count],
    )
    return normal(*shape, features), levels


def product(rows, weight, bias):
    """A product with the order of additions that the header specifies, in numpy."""
    blocks = -(-weight.shape[1] // 16)
    pad = [(0, 0), (0, 16 * blocks - weight.shape[1])]
    rows, weight = np.pad(rows, pad), np.pad(weight, pad)
    sums = np.zeros((len(rows), len(weight), 16), rows.dtype)
    for block in range(blocks):
        part = slice(16 * block, 16 * block + 16)
        sums = sums + rows[:, None, part] * weight[None, :, part]
    while sums.shape[-1] > 1:
        half = sums.shape[-1] // 2
        sums = sums[..., :half] + sums[..., half:]
    return sums[..., 0] + bias


def unit_vectors(vectors):
    square = np.zeros(len(vectors), vectors.dtype)
    for feature in vectors.T:
        square = square + feature * feature
    return vectors / np.maximum(np.sqrt(square), vectors.dtype.type(1e-12))[:, None]


def distances(latents, codes, metric, zero_code=0.0):
    """Distances (N, K) in float64; infinity instead of NaN."""
    with np.errstate(over="ignore", invalid="ignore"):
        x, c = (latents, codes) if metric == "euclidean" else map(unit_vectors, (latents, codes))
        score = np.zeros((len(x), len(c)))
        for left, right in zip(x.T.astype(np.float64), c.T.astype(np.float64), strict=True):
            score = score + (right * right * 0.5 - left[:, None] * right)
    score = score + 0.5 * zero_code * (metric == "cosine") * (codes == 0).all(1)
    return np.nan_to_num(score, nan=np.inf, posinf=np.inf)


def expected(x, levels, metric, zero_code=0.0):
    """Level by level in the dtype of x, with the nearest code by brute force in float64."""
    left = x.flatten(0, 1).numpy().copy()
    total, found, latents, errors = np.zeros_like(left), [], [], []
    for codes, w, a, v, b in zip(*([t.numpy() for t in part] for part in levels), strict=True):
        latent = product(left, w, a)
        index = distances(latent, codes, metric, zero_code).argmin(1)
        step = codes[index] - latent
        part = product(latent + step, v, b)
        total, left = total + part, left - part
        error = np.zeros(len(step), step.dtype)
        for feature in step.T:
            error = error + feature * feature
        found.append(index), latents.append(latent), errors.append(error)
    parts = (total, np.stack(found, -1), np.concatenate(latents, -1), np.stack(errors, -1))
    return [torch.from_numpy(part).unflatten(0, x.shape[:2]) for part in parts]


def equal(found: Any, wanted: Any) -> None:
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def close(found: Any, wanted: Any) -> None:
    """Equal tokens, and values equal up to the rounding of sums of some dozen terms of about 1."""
    assert torch.equal(found[1], wanted[1])
    unit = 100 * torch.finfo(found[0].dtype).eps
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=unit, atol=unit)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [1, 3, 16, 48, 49, 333])
def test_every_bit_is_that_of_the_contract(tokens, dtype, metric, generator):
    x, levels = make(generator, (1, tokens), dtype=dtype)
    equal(op(x, *levels, metric=metric), expected(x, levels, metric))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("features", [1, 5, 16, 37, 100])
@pytest.mark.parametrize("dim", [1, 3, 8, 9, 16, 37])
def test_every_size(features, dim, dtype, metric, generator):
    for tokens in (2, 30):
        x, levels = make(generator, (2, tokens), features, dim, (1, 70, 5), dtype)
        equal(op(x, *levels, metric=metric), expected(x, levels, metric))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [1, 40])
def test_any_device_agrees_to_rounding(tokens, dtype, metric, generator):
    x, levels = make(generator, (2, tokens), dtype=dtype)
    close(any_device(x, *levels, metric=metric), expected(x, levels, metric))


def test_a_real_size(generator):
    """9 levels of 1024 codes of 8 features, as in DAC: every token is the nearest to its latent."""
    x, levels = make(generator, (2, 150), 256, 8, (1024,) * 9)
    for rows in (x, x[:1, :5]):
        quantized, indices, latents, _ = op(rows, *levels, metric="cosine")
        total = torch.zeros_like(rows, dtype=torch.float64)
        for n, (codes, w, a, v, b) in enumerate(zip(*levels, strict=True)):
            latent = latents[..., 8 * n : 8 * n + 8]
            inside = (rows.double() - total) @ w.double().T + a.double()
            torch.testing.assert_close(latent.double(), inside, rtol=0, atol=1e-5)
            nearest = distances(latent.flatten(0, 1).numpy(), codes.numpy(), "cosine").argmin(1)
            assert indices[..., n].flatten().tolist() == nearest.tolist()
            total += codes[indices[..., n]].double() @ v.double().T + b.double()
        torch.testing.assert_close(quantized.double(), total, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("split", [1, 2, 7, 16, 17, 100])
def test_frame_by_frame_is_the_clip(split, dtype, generator):
    x, levels = make(generator, (3, 101), 48, dtype=dtype)
    whole = op(x, *levels, metric="cosine")
    parts = [op(part, *levels, metric="cosine") for part in x.split(split, 1)]
    equal([torch.cat(part, 1) for part in zip(*parts, strict=True)], whole)


def test_threads_do_not_matter(generator):
    x, levels = make(generator, (3, 700), 48)
    whole, before = op(x, *levels, metric="cosine"), torch.get_num_threads()
    for count in (1, 3):
        torch.set_num_threads(count)
        try:
            equal(op(x, *levels, metric="cosine"), whole)
        finally:
            torch.set_num_threads(before)


def test_torch_makes_the_same_unit_vectors(generator):
    """Of 8 features in float32, whose squares torch adds in order."""
    vectors = torch.randn(500, 8, generator=generator)
    vectors[3], vectors[4] = 0, 1e-14
    equal(
        [torch.nn.functional.normalize(vectors)], [torch.from_numpy(unit_vectors(vectors.numpy()))]
    )


@pytest.mark.parametrize("tokens", [1, 5, 60])
def test_near_ties_are_decided_among_unit_vectors(encode, tokens, generator):
    """Codes that differ only in length have (nearly) equal unit vectors, so rounding decides, in the same way."""
    x, levels = make(generator, (1, tokens))
    codes = levels.codebooks[0][:8]
    scales = torch.tensor([1.0, 2.0, 3.0, 1.7])
    levels.codebooks[0] = torch.cat([codes * scale for scale in scales])
    found = encode(x, *levels, metric="cosine")
    latents = found[2][0, :, :8].numpy()
    nearest = distances(latents, levels.codebooks[0].numpy(), "cosine").argmin(1)
    assert found[1][0, :, 0].tolist() == nearest.tolist()
    assert tokens < 60 or len({index // 8 for index in nearest.tolist()}) > 1


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("tokens", [3, 60])
def test_ties_pick_the_lowest_index(encode, tokens, metric, generator):
    x, levels = make(generator, (1, tokens))
    levels.codebooks[0] = levels.codebooks[0][:4].repeat(6, 1)
    found = encode(x, *levels, metric=metric)
    assert found[1][..., 0].max() < 4
    close(found, expected(x, levels, metric))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("zero_code", [0.0, 2.0, -0.5])
@pytest.mark.parametrize("tokens", [4, 80])
def test_codes_of_zeros(encode, tokens, zero_code, dtype, generator):
    x, levels = make(generator, (1, tokens), dtype=dtype)
    levels.codebooks[0][1:] = 0
    levels.codebooks[1][3] = 0
    wanted = expected(x, levels, "cosine", zero_code)
    close(encode(x, *levels, metric="cosine", zero_code=zero_code), wanted)
    assert set(wanted[1][..., 0].flatten().tolist()) <= {0, 1}


def test_codes_of_zeros_are_last_if_zero_code_is_infinite_in_float32(encode, generator):
    x, levels = make(generator, (1, 20))
    levels.codebooks[0][3] = 0
    others = expected(x, levels, "cosine", 1e30)
    close(encode(x, *levels, metric="cosine", zero_code=1e39), others)
    assert len(set(others[1][..., 0].flatten().tolist()) - {3}) > 1


@pytest.mark.parametrize("scale", [1e-30, 1e-15, 1e15, 1e25])
@pytest.mark.parametrize("tokens", [2, 50])
def test_lengths_of_codes_do_not_matter_but_at_the_ends(encode, tokens, scale, generator):
    x, levels = make(generator, (1, tokens), sizes=(32,))
    levels.codebooks[0][::2] *= scale
    found = encode(x, *levels, metric="cosine")
    score = distances(found[2][0].numpy(), levels.codebooks[0].numpy(), "cosine")
    assert found[1].flatten().tolist() == score.argmin(1).tolist()


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("tokens", [5, 50])
def test_rows_and_codes_that_are_not_finite(encode, tokens, metric, generator):
    x, levels = make(generator, (1, tokens))
    x[0, 1, 0], x[0, 3, 5] = float("nan"), float("inf")
    levels.codebooks[0][2, 0], levels.codebooks[1][0] = float("nan"), float("inf")
    quantized, indices, latents, errors = encode(x, *levels, metric=metric)
    bad = torch.tensor([1, 3])
    assert quantized[0, bad].isnan().all() and indices[0, bad].eq(0).all()
    assert not errors[0, bad].isfinite().any() and not latents[0, bad].isfinite().any()
    good = [t for t in range(tokens) if t not in bad]
    assert indices[0, good, 0].ne(2).all() and indices[0, good, 1].ne(0).all()
    finite = [part[:, good] for part in (quantized, indices, latents, errors)]
    close(finite, expected(x[:, good], levels, metric))


def test_nothing_but_codes_that_are_not_finite(generator):
    x, levels = make(generator, (1, 30))
    levels.codebooks[0][:] = float("inf")
    for part in (x, x[:, :3]):
        quantized, indices, *_ = op(part, *levels, metric="cosine")
        assert indices[..., 0].eq(0).all() and not quantized.isfinite().any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 40), (3, 1), (1, 5)])
def test_results_lie_as_x_does(encode, shape, dtype, generator):
    x, levels = make(generator, shape, 37, dtype=dtype)
    # The rounding of a matrix product of torch depends on the layout.
    same = equal if encode is op else close
    plain = encode(x, *levels, metric="cosine")
    assert all(part.is_contiguous() for part in plain)
    turned = x.transpose(1, 2).contiguous().transpose(1, 2)
    found = encode(turned, *levels, metric="cosine")
    assert all(part.transpose(1, 2).is_contiguous() for part in found)
    same(found, plain)
    wide = torch.zeros(*shape, 2 * x.shape[2], dtype=dtype)[..., ::2].copy_(x)
    same(encode(wide, *levels, metric="cosine"), plain)
    many = torch.zeros(shape[1], *shape[:1], x.shape[2], dtype=dtype).transpose(0, 1).copy_(x)
    same(encode(many, *levels, metric="cosine"), plain)


def test_weights_may_lie_as_they_like(encode, generator):
    same = equal if encode is op else close
    x, levels = make(generator)
    plain = encode(x, *levels, metric="cosine")
    turned = Levels(
        *([t.mT.contiguous().mT if t.dim() > 1 else t for t in part] for part in levels)
    )
    same(encode(x, *turned, metric="cosine"), plain)
    convolutions = levels._replace(
        in_weights=[w[..., None] for w in levels.in_weights],
        out_weights=[w[..., None] for w in levels.out_weights],
    )
    same(encode(x, *convolutions, metric="cosine"), plain)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(encode, dtype, generator):
    x, levels = make(generator)
    x, levels = x.to(dtype), levels.to(dtype)
    found = encode(x, *levels, metric="cosine")
    equal(found, encode(x.float(), *levels.to(torch.float32), metric="cosine"))
    assert found[0].dtype == torch.float32


def test_float64_of_one_tensor_is_that_of_all(encode, generator):
    x, levels = make(generator)
    wide = levels._replace(in_biases=[bias.double() for bias in levels.in_biases])
    found = encode(x, *wide, metric="cosine")
    equal(found, encode(x.double(), *levels.to(torch.float64), metric="cosine"))


@pytest.mark.parametrize("shape", [(0, 5), (2, 0), (0, 0)])
def test_no_tokens(encode, shape, generator):
    x, levels = make(generator, shape)
    sizes = [part.shape for part in encode(x, *levels)]
    assert sizes == [(*shape, 24), (*shape, 3), (*shape, 24), (*shape, 3)]


Z = torch.zeros


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (dict(x=Z(3, 24)), ValueError, r"x to have 3 dimensions \(B, T, C\)"),
        (dict(x=Z(1, 3, 0)), ValueError, "x to have at least 1 feature"),
        (dict(x=Z(1, 3, 24).long()), TypeError, "x to be floating point"),
        (dict(codebooks=[]), ValueError, "codebooks to have at least 1 level, but got none"),
        (dict(codebooks=[Z(1, 4, 8)]), ValueError, r"codebook to have 2 dimensions \(K, D\)"),
        (dict(codebooks=[Z(0, 8)]), ValueError, "codebooks to have 1 to 2"),
        (dict(codebooks=[Z(4, 0)]), ValueError, "of at least 1 feature"),
        (dict(codebooks=[Z(4, 8).long()]), TypeError, "codebook to be floating point"),
        (
            dict(codebooks=[Z(4, 8)] * 2),
            ValueError,
            r"in_weights to have 2 tensors \(levels\), but got 1",
        ),
        (dict(in_weights=[Z(8, 23)]), ValueError, r"in_weights to have shape \[8, 24\]"),
        (dict(in_weights=[Z(8, 24, 2)]), ValueError, r"in_weights to have shape .* \[8, 24, 2\]"),
        (dict(in_biases=[Z(7)]), ValueError, r"in_biases to have shape \[8\], but got shape \[7\]"),
        (dict(in_biases=[Z(8).int()]), TypeError, "in_biases to be floating point"),
        (dict(out_weights=[Z(8, 24)]), ValueError, r"out_weights to have shape \[24, 8\]"),
        (dict(out_biases=[Z(24, 1)]), ValueError, r"out_biases to have shape \[24\]"),
        (dict(out_biases=[]), ValueError, "out_biases to have 1 tensors"),
        (dict(metric="dot"), ValueError, "metric to be 'euclidean' or 'cosine', but got 'dot'"),
        (dict(zero_code=float("nan")), ValueError, "zero_code to be finite, but got nan"),
    ],
)
def test_bad_arguments_are_named(encode, change, kind, message, generator):
    x, levels = make(generator, sizes=(4,))
    arguments = dict(x=x, **levels._asdict()) | change
    first = [arguments.pop(name) for name in ("x", *Levels._fields)]
    with pytest.raises(kind, match=f"projected_residual_encode: .*{message}"):
        encode(*first, **arguments)


def test_levels_have_codes_of_one_width(encode, generator):
    x, levels = make(generator)
    _, other = make(generator, dim=4)
    mixed = Levels(*([*a[:1], *b[1:]] for a, b in zip(levels, other, strict=True)))
    with pytest.raises(ValueError, match="features of the first codebook"):
        encode(x, *mixed)


def test_opcheck_gradient_and_compile(generator):
    x, levels = make(generator)
    turned = x.transpose(1, 2).contiguous().transpose(1, 2)
    for rows in (x, turned):
        torch.library.opcheck(op.default, (rows, *levels), dict(metric="cosine", zero_code=2.0))
    assert not any(part.requires_grad for part in op(x.clone().requires_grad_(), *levels))
    compiled = torch.compile(
        lambda x: op(x, *levels, metric="cosine"), fullgraph=True, backend="aot_eager"
    )
    equal(compiled(x), op(x, *levels, metric="cosine"))
    equal(compiled(x[:, :7]), op(x[:, :7], *levels, metric="cosine"))
