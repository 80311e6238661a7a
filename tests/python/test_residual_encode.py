"""residual_encode: greedy search through residual levels (include/torchvq/ops/residual_encode.h)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from nearest_code_oracle import nearest
from nearest_code_rows import offset, scaled

from support import any_path

op = torch.ops.torchvq.residual_encode
PATHS = {"cpu": op, "any": any_path("residual_encode")}
METRICS = ("euclidean", "cosine")


@pytest.fixture(params=PATHS.values(), ids=PATHS.keys())
def encode(request):
    return request.param


def make(generator, tokens=40, dim=6, sizes=(5, 7, 4), dtype=torch.float32, heads=1):
    x = torch.randn(heads, tokens, dim, generator=generator, dtype=dtype)
    books = [torch.randn(heads, size, dim, generator=generator, dtype=dtype) for size in sizes]
    return x, [book * 0.6**n for n, book in enumerate(books)]


def expected(x, codebooks, metric="euclidean"):
    """Level by level in numpy; the nearest code by float64 sums over all codes."""
    rows, total, indices = x.numpy(), np.zeros_like(x.numpy()), []
    for codebook in codebooks:
        found = [
            np.reshape(nearest(torch.from_numpy(rows[h]), codebook[h], metric), -1)
            for h in range(len(rows))
        ]
        codes = np.stack([codebook[h].numpy()[index] for h, index in enumerate(found)])
        codes[~np.isfinite(rows).all(-1)] = np.nan
        total, rows = total + codes, rows - codes
        indices.append(np.stack(found))
    return torch.from_numpy(total), torch.from_numpy(np.stack(indices, -1))


def equal(found, wanted):
    assert torch.equal(found[1], wanted[1])
    assert torch.equal(found[0].isnan(), wanted[0].isnan())
    assert torch.equal(found[0].nan_to_num(), wanted[0].nan_to_num())


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tokens", [1, 8, 9, 40])
def test_levels_are_those_of_the_contract(encode, tokens, dtype, metric, generator):
    x, codebooks = make(generator, tokens=tokens, dtype=dtype, heads=2)
    equal(encode(x, codebooks, metric=metric), expected(x, codebooks, metric))


@pytest.mark.parametrize("metric", METRICS)
def test_many_rows_and_codes_in_large_dimensions(encode, metric, generator):
    x, codebooks = make(generator, tokens=450, dim=37, sizes=(70, 3, 130))
    equal(encode(x, codebooks, metric=metric), expected(x, codebooks, metric))


@pytest.mark.parametrize("rows", [offset(100.0), scaled(1e-30), scaled(1e12)])
def test_offsets_and_scales(encode, rows, generator):
    x, codes = rows(300, 40, 32, generator)
    codebooks = [codes[None], (codes - codes.mean(0))[None]]
    equal(encode(x[None], codebooks), expected(x[None], codebooks))


def test_ties_pick_the_lowest_index(encode, generator):
    x = torch.randint(-1, 2, (1, 300, 32), generator=generator).float()
    codebooks = [torch.randint(-1, 2, (1, 60, 32), generator=generator).float() for _ in range(3)]
    codebooks[1][0, 30:] = codebooks[1][0, :30]
    equal(encode(x, codebooks), expected(x, codebooks))


@pytest.mark.parametrize("tokens", [5, 250])
def test_rows_that_are_not_finite(encode, tokens, generator):
    x, codebooks = make(generator, tokens=tokens, dim=32, sizes=(40, 9))
    x[0, 1, 0], x[0, 3, 5] = float("nan"), float("inf")
    codebooks[0][0, 2, 0] = float("nan")
    found = encode(x, codebooks)
    equal(found, expected(x, codebooks))
    assert found[0][0, [1, 3]].isnan().all() and found[1][0, [1, 3]].eq(0).all()
    assert found[0][0, 0].isfinite().all()


@pytest.mark.parametrize("tokens", [6, 300])
def test_masked_tokens_and_unused_levels(encode, tokens, generator):
    x, codebooks = make(generator, tokens=tokens, heads=2)
    mask = torch.rand(2, tokens, generator=generator) > 0.4
    quantized, indices = encode(
        x.masked_fill(~mask[..., None], float("nan")),
        codebooks,
        mask=mask,
        depth=torch.tensor([2]),
    )
    plain = encode(x, codebooks[:2])
    assert torch.equal(quantized[mask], plain[0][mask])
    assert torch.equal(indices[..., :2][mask], plain[1][mask])
    assert quantized[~mask].eq(0).all() and indices[~mask].eq(-1).all()
    assert indices[..., 2].eq(-1).all()


@pytest.mark.parametrize("metric", METRICS)
def test_decoding_gives_the_sum_again(metric, generator):
    x, codebooks = make(generator, tokens=700, dim=24, sizes=(64, 32, 48), heads=2)
    quantized, indices = op(x, codebooks, metric=metric)
    assert torch.equal(torch.ops.torchvq.residual_decode(indices, codebooks), quantized)


def test_split_threads_strides_and_sharing_do_not_matter(generator):
    x, codebooks = make(generator, tokens=900, dim=40, sizes=(64, 64, 64))
    codebooks[2] = codebooks[0]
    whole = op(x, codebooks)
    equal(op(x, [codebook.clone() for codebook in codebooks]), whole)
    parts = [op(part, codebooks) for part in x.split([1, 7, 300, 592], 1)]
    equal([torch.cat(part, 1) for part in zip(*parts, strict=True)], whole)
    turned = [c.transpose(1, 2).contiguous().transpose(1, 2) for c in codebooks]
    equal(op(x.transpose(0, 1).contiguous().transpose(0, 1), turned), whole)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        equal(op(x, codebooks), whole)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tokens", [3, 40])
def test_a_part_of_a_codebook_begins_where_the_whole_does(encode, tokens, dtype, generator):
    x, codebooks = make(generator, tokens=tokens, sizes=(9, 5), dtype=dtype)
    codebooks[1] = codebooks[0][:, :4]
    equal(encode(x, codebooks), expected(x, codebooks))
    equal(encode(x, codebooks[::-1]), expected(x, codebooks[::-1]))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("tokens", [0, 3, 60])
@pytest.mark.parametrize("shared", ["all", "some"])
def test_heads_may_share_codebooks(encode, shared, tokens, masked, generator):
    x, own = make(generator, tokens=tokens, heads=3)
    codebooks = [own[0][0], own[1][:1] if shared == "all" else own[1], own[2][:1]]
    whole = [codebook.expand(3, *codebook.shape[-2:]) for codebook in codebooks]
    mask = torch.rand(3, tokens, generator=generator) > 0.4 if masked else None
    found = encode(x, codebooks, mask=mask)
    equal(found, encode(x, whole, mask=mask))
    assert found[0].shape == (3, tokens, 6) and found[1].shape == (3, tokens, 3)
    if tokens and not masked:
        equal(found, expected(x, whole))


def test_no_heads_share_codebooks(encode):
    quantized, indices = encode(torch.zeros(0, 5, 3), [torch.zeros(4, 3)] * 2)
    assert quantized.shape == (0, 5, 3) and indices.shape == (0, 5, 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(encode, dtype, generator):
    x, codebooks = make(generator)
    x, codebooks = x.to(dtype), [codebook.to(dtype) for codebook in codebooks]
    equal(encode(x, codebooks), expected(x.float(), [codebook.float() for codebook in codebooks]))


def test_no_tokens(encode):
    quantized, indices = encode(torch.zeros(2, 0, 3), [torch.zeros(2, 4, 3)] * 3)
    assert quantized.shape == (2, 0, 3) and indices.shape == (2, 0, 3)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (dict(codebooks=[]), ValueError, "at least 1 level"),
        (dict(codebooks=[torch.zeros(1, 0, 6)]), ValueError, "at least 1 code"),
        (dict(codebooks=[torch.zeros(1, 4, 5)]), ValueError, "features of x"),
        (dict(codebooks=[torch.zeros(2, 4, 6)]), ValueError, "heads of x"),
        (dict(codebooks=[torch.zeros(6)]), ValueError, r"2 or 3 dimensions \(K, D\)"),
        (dict(codebooks=[torch.zeros(4, 5)]), ValueError, "features of x"),
        (dict(codebooks=[torch.zeros(1, 4, 6).long()]), TypeError, "floating point"),
        (dict(x=torch.zeros(3, 6)), ValueError, "3 dimensions"),
        (dict(x=torch.zeros(1, 3, 6).long()), TypeError, "floating point"),
        (dict(metric="dot"), ValueError, "metric to be 'euclidean' or 'cosine', but got 'dot'"),
        (dict(mask=torch.ones(1, 40)), TypeError, "mask"),
        (dict(mask=torch.ones(1, 39, dtype=torch.bool)), ValueError, "mask"),
        (dict(depth=torch.tensor([4])), ValueError, r"depth to be in \[1, 3\], but got 4"),
        (dict(depth=torch.tensor([1.0])), TypeError, "depth"),
    ],
)
def test_bad_arguments_are_named(encode, change, kind, message, generator):
    x, codebooks = make(generator)
    arguments = dict(x=x, codebooks=codebooks) | change
    first = [arguments.pop(name) for name in ("x", "codebooks")]
    with pytest.raises(kind, match=f"residual_encode: .*{message}"):
        encode(*first, **arguments)


def test_opcheck_gradient_and_compile(generator):
    x, codebooks = make(generator)
    torch.library.opcheck(op.default, (x, codebooks), dict(metric="cosine"))
    torch.library.opcheck(op.default, (x.expand(2, -1, -1), [c[0] for c in codebooks]))
    assert not any(part.requires_grad for part in op(x.requires_grad_(), codebooks))
    compiled = torch.compile(lambda x: op(x, codebooks), fullgraph=True, backend="aot_eager")
    equal(compiled(x.detach()), op(x.detach(), codebooks))
