"""residual_lookup: a stack whose indices are given, level by level (include/torchvq/ops/residual_lookup.h)."""

from __future__ import annotations

import math

import pytest
import torch

from support import any_path

op = torch.ops.torchvq.residual_lookup
PATHS = {"dispatched": op, "any": any_path("residual_lookup")}
HEADS, TOKENS, DIM, SIZES = 2, 17, 5, (3, 6, 4)


@pytest.fixture(params=PATHS.values(), ids=PATHS.keys())
def lookup(request):
    return request.param


def make(generator, dtype=torch.float32, tokens=TOKENS):
    x = torch.randn(HEADS, tokens, DIM, generator=generator).to(dtype)
    codebooks = [torch.randn(HEADS, k, DIM, generator=generator).to(dtype) for k in SIZES]
    columns = [torch.randint(k, (HEADS, tokens), generator=generator) for k in SIZES]
    return x, codebooks, torch.stack(columns, -1)


def expected(x, codebooks, indices):
    """One token at a time."""
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    inputs, codes = (torch.empty(len(codebooks), *x.shape, dtype=wide) for _ in range(2))
    total = torch.zeros(x.shape, dtype=wide)
    for h in range(x.shape[0]):
        for t in range(x.shape[1]):
            left = x[h, t].to(wide)
            for q, codebook in enumerate(codebooks):
                inputs[q, h, t] = left
                finite = all(math.isfinite(value) for value in left.tolist())
                code = codebook.expand(x.shape[0], -1, -1)[h, indices[h, t, q]].to(wide)
                codes[q, h, t] = code if finite else math.nan
                total[h, t] += codes[q, h, t]
                left = left - codes[q, h, t]
    return list(inputs), list(codes), total


def assert_same(found, wanted):
    for ours, theirs in zip(
        [*found[0], *found[1], found[2]], [*wanted[0], *wanted[1], wanted[2]], strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str
)
def test_each_level_gets_what_the_ones_before_have_left(lookup, dtype, generator):
    arguments = make(generator, dtype)
    assert_same(lookup(*arguments), expected(*arguments))


def test_a_token_that_is_not_finite_has_no_code(lookup, generator):
    x, codebooks, indices = make(generator)
    x[0, 3, 2], x[1, 5, 0], x[1, 6, 4] = math.nan, math.inf, -math.inf
    # Finite at the first level; the residual for the second overflows float32.
    x[0, 8, 1], codebooks[0][0, indices[0, 8, 0], 1] = 3e38, -3e38
    found = lookup(x, codebooks, indices)
    assert_same(found, expected(x, codebooks, indices))
    assert found[2].isnan().all(-1).sum() == 4
    assert found[1][0].isnan().all(-1).sum() == 3


def test_strides_and_no_tokens(lookup, generator):
    x, codebooks, indices = make(generator)
    turned = [c.transpose(0, 2).contiguous().transpose(0, 2) for c in codebooks]
    flipped = indices.transpose(0, 2).contiguous().transpose(0, 2)
    assert_same(lookup(x.mT.contiguous().mT, turned, flipped), expected(x, codebooks, indices))
    inputs, codes, total = lookup(x[:, :0], codebooks, indices[:, :0])
    assert {tensor.shape for tensor in (*inputs, *codes, total)} == {(HEADS, 0, DIM)}


def test_heads_may_share_codebooks(lookup, generator):
    x, own, indices = make(generator)
    found = lookup(x, [own[0][0], own[1], own[2][:1]], indices)
    assert_same(found, expected(x, [own[0][:1], own[1], own[2][:1]], indices))


def test_codebooks_of_another_dtype_are_read_in_that_of_the_tokens(lookup, generator):
    x, codebooks, indices = make(generator)
    found = lookup(x, [codebook.half() for codebook in codebooks], indices)
    assert_same(found, expected(x, [codebook.half().float() for codebook in codebooks], indices))


def test_results_share_no_memory(lookup, generator):
    x, codebooks, indices = make(generator)
    inputs, codes, total = lookup(x, codebooks, indices)
    tensors = [x, *codebooks, *inputs, *codes, total]
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == len(tensors)


def test_nothing_has_a_gradient(generator):
    x, codebooks, indices = make(generator)
    inputs, codes, total = op(x.requires_grad_(), [c.requires_grad_() for c in codebooks], indices)
    assert not any(tensor.requires_grad for tensor in (*inputs, *codes, total))


@pytest.mark.parametrize("bad", [-1, -2, 6])
def test_indices_out_of_range_are_refused(bad, generator):
    x, codebooks, indices = make(generator)
    indices[1, -1, 1] = bad
    with pytest.raises(IndexError, match=rf"residual_lookup: .* \[0, 6\), but got {bad}"):
        op(x, codebooks, indices)
    with pytest.raises((IndexError, RuntimeError)):
        PATHS["any"](x, codebooks, indices)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (lambda x, c, i: (x.long(), c, i), TypeError, "x to be floating point"),
        (lambda x, c, i: (x[0], c, i), ValueError, "3 dimensions"),
        (lambda x, c, i: (x, [], i), ValueError, "at least 1 level"),
        (lambda x, c, i: (x, c[:2], i), ValueError, "levels of codebooks"),
        (lambda x, c, i: (x, [c[0].repeat(2, 1, 1), *c[1:]], i), ValueError, "heads of x"),
        (lambda x, c, i: (x, [c[0], c[1][..., :2], c[2]], i), ValueError, "features of x"),
        (lambda x, c, i: (x, [c[0][:, :0], *c[1:]], i), ValueError, "at least 1 code"),
        (lambda x, c, i: (x, c, i.int()), TypeError, "indices to be Long"),
        (lambda x, c, i: (x, c, i[:, :-1]), ValueError, "tokens of x"),
        (lambda x, c, i: (x, c, i[:1]), ValueError, "heads of x"),
    ],
)
def test_bad_arguments_are_named(lookup, change, kind, message, generator):
    with pytest.raises(kind, match=f"residual_lookup: .*{message}"):
        lookup(*change(*make(generator)))


def test_opcheck_and_compile(generator):
    arguments = make(generator)
    torch.library.opcheck(op.default, arguments)
    compiled = torch.compile(op, fullgraph=True, backend="aot_eager")
    assert_same(compiled(*arguments), op(*arguments))
