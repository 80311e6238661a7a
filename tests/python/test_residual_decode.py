"""residual_decode: the sum of the codes of all levels (include/torchvq/ops/residual_decode.h)."""

from __future__ import annotations

import pytest
import torch

from support import any_path

op = torch.ops.torchvq.residual_decode
PATHS = {"dispatched": op, "any": any_path("residual_decode")}
HEADS, TOKENS, DIM, SIZES = 2, 17, 5, (3, 6, 4)


@pytest.fixture(params=PATHS.values(), ids=PATHS.keys())
def decode(request):
    return request.param


def make(generator, dtype=torch.float32, tokens=TOKENS):
    codebooks = [torch.randn(HEADS, k, DIM, generator=generator).to(dtype) for k in SIZES]
    columns = [torch.randint(-1, k, (HEADS, tokens), generator=generator) for k in SIZES]
    return torch.stack(columns, -1), codebooks


def expected(indices, codebooks):
    """One token at a time, from level 0 on."""
    dtype = torch.float64 if codebooks[0].dtype == torch.float64 else torch.float32
    total = torch.zeros(*indices.shape[:2], DIM, dtype=dtype)
    for h in range(HEADS):
        for t in range(indices.shape[1]):
            for n, codebook in enumerate(codebooks):
                index = int(indices[h, t, n])
                if index >= 0:
                    total[h, t] += codebook[h, index].to(dtype)
    return total


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str
)
def test_codes_are_added_in_order_and_rounded_once(decode, dtype, generator):
    indices, codebooks = make(generator, dtype)
    found = decode(indices, codebooks)
    assert found.dtype == dtype
    assert torch.equal(found, expected(indices, codebooks).to(dtype))


def test_dtypes_promote(decode, generator):
    indices, codebooks = make(generator)
    mixed = [codebooks[0].half(), codebooks[1].bfloat16(), codebooks[2].half()]
    found = decode(indices, mixed)
    assert found.dtype == torch.float32
    assert torch.equal(found, expected(indices, [codebook.float() for codebook in mixed]))


def test_strides_and_no_tokens(decode, generator):
    indices, codebooks = make(generator)
    turned = [c.transpose(0, 2).contiguous().transpose(0, 2) for c in codebooks]
    flipped = indices.transpose(0, 2).contiguous().transpose(0, 2)
    assert torch.equal(decode(flipped, turned), decode(indices, codebooks))
    assert decode(indices[:, :0], codebooks).shape == (HEADS, 0, DIM)


def test_gradients_pass_finite_differences(generator):
    indices, codebooks = make(generator, torch.float64)
    codebooks = [codebook.requires_grad_() for codebook in codebooks]
    assert torch.autograd.gradcheck(lambda *c: op(indices, c), codebooks)
    assert torch.autograd.gradgradcheck(lambda *c: op(indices, c).square(), codebooks)


def test_gradients_sum_the_tokens_of_each_code(generator):
    indices, codebooks = make(generator)
    codebooks[0].requires_grad_(), codebooks[2].requires_grad_()
    weights = torch.randint(-3, 4, (HEADS, TOKENS, DIM), generator=generator).float()
    (op(indices, codebooks) * weights).sum().backward()
    assert codebooks[1].grad is None
    for level in (0, 2):
        wanted = torch.zeros_like(codebooks[level])
        for h in range(HEADS):
            real = indices[h, :, level] >= 0
            wanted[h].detach().index_add_(0, indices[h, real, level], weights[h, real])
        assert torch.equal(codebooks[level].grad, wanted.detach())


def test_a_codebook_of_several_levels_gets_the_sum_of_their_gradients(generator):
    codebook = torch.randn(1, 4, 3, generator=generator).requires_grad_()
    op(torch.tensor([[[1, 1, 2]]]), [codebook] * 3).sum().backward()
    assert codebook.grad[0].sum(-1).tolist() == [0, 6, 3, 0]


def test_writes_to_a_codebook_and_indices_before_backward_are_harmless(generator):
    indices, codebooks = make(generator)
    leaf = codebooks[0].clone().requires_grad_()
    output = op(indices, [leaf, *codebooks[1:]])
    indices.fill_(-1)
    with torch.no_grad():
        leaf.zero_()
    output.sum().backward()
    assert leaf.grad.abs().sum() > 0


def test_heads_may_share_codebooks(decode, generator):
    indices, own = make(generator)
    codebooks = [own[0][0], own[1], own[2][:1]]
    whole = [codebook.expand(HEADS, *codebook.shape[-2:]) for codebook in codebooks]
    assert torch.equal(decode(indices, codebooks), expected(indices, whole))
    no_heads = decode(indices[:0], [own[0][0], own[1][0], own[2][0]])
    assert no_heads.shape == (0, TOKENS, DIM)


def test_a_shared_codebook_gets_the_gradients_of_all_heads(generator):
    indices, own = make(generator)
    codebooks = [part.clone().requires_grad_() for part in (own[0][0], own[1], own[2][:1])]
    weights = torch.randint(-3, 4, (HEADS, TOKENS, DIM), generator=generator).float()
    (op(indices, codebooks) * weights).sum().backward()
    whole = [c.detach().expand(HEADS, *c.shape[-2:]).clone().requires_grad_() for c in codebooks]
    (expected(indices, whole) * weights).sum().backward()
    for codebook, copies in zip(codebooks, whole, strict=True):
        assert torch.equal(codebook.grad, copies.grad.sum_to_size(codebook.shape))


@pytest.mark.parametrize("bad", [-2, 6])
@pytest.mark.parametrize("tokens", [1, TOKENS])
def test_indices_out_of_range_are_refused(decode, bad, tokens, generator):
    indices, codebooks = make(generator, tokens=tokens)
    indices[1, -1, 1] = bad
    with pytest.raises(IndexError, match=rf"residual_decode: .* \[-1, 6\), but got {bad}"):
        decode(indices, codebooks)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (lambda i, c: (i.int(), c), TypeError, "indices to be Long"),
        (lambda i, c: (i[0], c), ValueError, "3 dimensions"),
        (lambda i, c: (i, []), ValueError, "at least 1 level"),
        (lambda i, c: (i, c[:2]), ValueError, "levels of codebooks"),
        (lambda i, c: (i, [c[0].repeat(2, 1, 1), *c[1:]]), ValueError, "heads of indices"),
        (lambda i, c: (i, [c[0][None], *c[1:]]), ValueError, "2 or 3 dimensions"),
        (lambda i, c: (i, [c[0], c[1][..., :2], c[2]]), ValueError, "features of level 0"),
        (lambda i, c: (i, [c[0].long(), *c[1:]]), TypeError, "floating point"),
        (lambda i, c: (i, [c[0][:, :0], *c[1:]]), ValueError, "at least 1 code"),
    ],
)
def test_bad_arguments_are_named(decode, change, kind, message, generator):
    with pytest.raises(kind, match=f"residual_decode: .*{message}"):
        decode(*change(*make(generator)))


def test_opcheck_and_compile(generator):
    indices, codebooks = make(generator)
    codebooks = [codebook.requires_grad_() for codebook in codebooks]
    torch.library.opcheck(op.default, (indices, codebooks))
    compiled = torch.compile(lambda *c: op(indices, c), fullgraph=True, backend="aot_eager")
    weights = torch.randn(HEADS, TOKENS, DIM, generator=generator)
    grads = [
        torch.autograd.grad((run(*codebooks) * weights).sum(), codebooks)
        for run in (compiled, lambda *c: op(indices, c))
    ]
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
