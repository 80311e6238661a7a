"""residual_beam_search: paths through residual levels (include/torchvq/ops/residual_beam_search.h)."""

from __future__ import annotations

import faiss
import numpy as np
import pytest
import torch
from beam_oracle import beam_search, error, exhaustive

from support import any_path

op = torch.ops.torchvq.residual_beam_search
PATHS = {"cpu": op, "any": any_path("residual_beam_search")}


@pytest.fixture(params=PATHS.values(), ids=PATHS.keys())
def search(request):
    return request.param


def make(generator, tokens=30, dim=6, sizes=(5, 7, 4), dtype=torch.float32, heads=1, draw=None):
    draw = draw or (lambda *shape: torch.randn(*shape, generator=generator, dtype=dtype))
    x = draw(heads, tokens, dim)
    return x, [draw(heads, size, dim) * 0.6**n for n, size in enumerate(sizes)]


def expected(x, codebooks, beam, weights=None):
    heads = [
        beam_search(x[h].numpy(), [c[h].numpy() for c in codebooks], beam, weights)
        for h in range(x.shape[0])
    ]
    return torch.from_numpy(np.stack(heads))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weights", [None, [0.3, 2.0, 0.5], [0.0, 1.0, 1.0]])
@pytest.mark.parametrize("beam", [1, 2, 5, 1000])
def test_indices_are_those_of_the_contract(search, beam, weights, dtype, generator):
    x, codebooks = make(generator, dtype=dtype, heads=2)
    found = search(x, codebooks, beam, weights=weights or [])
    assert torch.equal(found, expected(x, codebooks, beam, weights))


@pytest.mark.parametrize("beam", [1, 3])
def test_heads_may_share_codebooks(search, beam, generator):
    x, own = make(generator, heads=2)
    codebooks = [own[0][0], own[1], own[2][:1]]
    whole = [codebook.expand(2, *codebook.shape[-2:]) for codebook in codebooks]
    assert torch.equal(search(x, codebooks, beam), expected(x, whole, beam))


@pytest.mark.parametrize("sizes", [(1, 1), (70, 3, 130), (3, 200)])
@pytest.mark.parametrize("beam", [3, 17, 80])
def test_sizes_around_the_vector_width(search, beam, sizes, generator):
    x, codebooks = make(generator, tokens=12, dim=33, sizes=sizes)
    assert torch.equal(search(x, codebooks, beam), expected(x, codebooks, beam))


@pytest.mark.parametrize("beam", [1, 2, 4, 9])
def test_ties_go_to_the_lower_path(search, beam, generator):
    """Small integers and repeated codes, so most scores are equal."""

    def draw(*shape):
        return torch.randint(-1, 2, shape, generator=generator).float()

    x, codebooks = make(generator, tokens=60, dim=3, sizes=(9, 9, 9), draw=draw)
    codebooks = [codebook.sign() for codebook in codebooks]
    assert torch.equal(search(x, codebooks, beam), expected(x, codebooks, beam))


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12, 1e19, 3e37])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_scales_and_offsets(search, offset, scale, generator):
    x, codebooks = make(generator)
    x, codebooks = (x + offset) * scale, [codebooks[0] + offset, *codebooks[1:]]
    codebooks = [codebook * scale for codebook in codebooks]
    assert torch.equal(search(x, codebooks, 4), expected(x, codebooks, 4))


@pytest.mark.parametrize("tokens", [12, 700])
@pytest.mark.parametrize("beam", [3, 20])
@pytest.mark.parametrize("scales", [(1, 1e-6, 1e3, 1), (1, 1e-13, 1, 1e-7), (1, 1e13, 1, 1e6)])
def test_rows_codes_and_levels_of_unlike_sizes(scales, beam, tokens, generator):
    """Few tokens multiply the residual of each path, many the codebooks with each other, in 16 bits."""
    x, codebooks = make(generator, tokens=tokens, dim=25, sizes=(9, 70, 16, 33))
    codebooks = [codebook * scale for codebook, scale in zip(codebooks, scales, strict=True)]
    codebooks[1][:, 1::2] = codebooks[1][:, ::2] * (1 + 1e-6)  # pairs that 16 bits cannot separate
    codebooks[2][:, 3] *= 1e-14
    x[:, ::5] *= 1e14
    x[:, 1::5] *= 1e-14
    x[:, 2] = 0
    found = op(x, codebooks, beam)
    assert torch.equal(found, PATHS["any"](x, codebooks, beam))
    assert torch.equal(found[:, :12], expected(x[:, :12], codebooks, beam))


def test_beam_of_one_is_the_greedy_walk(search, generator):
    x, codebooks = make(generator, tokens=500, dim=16, sizes=(32, 32, 32))
    residual, indices = x, []
    for codebook in codebooks:
        index, codes, _ = torch.ops.torchvq.nearest_code(residual, codebook, return_codes=True)
        indices.append(index)
        residual = residual - codes
    assert torch.equal(search(x, codebooks, 1), torch.stack(indices, -1))


def test_a_beam_of_all_paths_finds_the_least_error(search, generator):
    x, codebooks = make(generator, tokens=40, dim=5, sizes=(4, 4, 4), dtype=torch.float64)
    indices = search(x, codebooks, 16)[0].numpy()
    rows, books = x[0].numpy(), [c[0].numpy() for c in codebooks]
    np.testing.assert_allclose(error(rows, books, indices), exhaustive(rows, books), rtol=1e-12)
    assert (
        error(rows, books, search(x, codebooks, 1)[0].numpy()).sum() > exhaustive(rows, books).sum()
    )


@pytest.mark.parametrize("beam", [2, 4, 16])
def test_error_is_no_worse_than_faiss(search, beam, generator):
    x, codebooks = make(generator, tokens=300, dim=16, sizes=(16,) * 5)
    rows, books = x[0].numpy(), [c[0].numpy() for c in codebooks]
    quantizer = faiss.ResidualQuantizer(16, 5, 4)
    quantizer.max_beam_size, quantizer.is_trained = beam, True
    faiss.copy_array_to_vector(np.concatenate(books).ravel(), quantizer.codebooks)
    theirs = ((quantizer.decode(quantizer.compute_codes(rows)) - rows) ** 2).sum()
    ours = error(rows, books, search(x, codebooks, beam)[0].numpy()).sum()
    assert ours <= theirs * (1 + 1e-5)


@pytest.mark.parametrize("beam", [4, 16])
def test_split_threads_and_strides_do_not_matter(beam, generator):
    x, codebooks = make(generator, tokens=900, dim=24, sizes=(64, 64, 64, 64))
    whole = op(x, codebooks, beam)
    parts = [op(part, codebooks, beam) for part in x.split([1, 7, 300, 592], 1)]
    assert torch.equal(torch.cat(parts, 1), whole)
    assert torch.equal(PATHS["any"](x[:, :50], codebooks, beam), whole[:, :50])
    turned = [c.transpose(1, 2).contiguous().transpose(1, 2) for c in codebooks]
    assert torch.equal(op(x.transpose(0, 1).contiguous().transpose(0, 1), turned, beam), whole)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert torch.equal(op(x, codebooks, beam), whole)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("beam", [1, 3, 100])
def test_non_finite_rows_and_codes(search, beam, generator):
    x, codebooks = make(generator)
    x[0, 1, 0], x[0, 2, 3] = float("nan"), float("inf")
    codebooks[0][0, 0, 0], codebooks[2][0, 3, 1] = float("nan"), float("-inf")
    found = search(x, codebooks, beam)
    assert torch.equal(found, expected(x, codebooks, beam))
    assert found[0, 1:3].eq(0).all()
    assert found[0, 3:, 0].ne(0).all()


def test_masked_tokens_and_unused_levels_get_minus_one(search, generator):
    x, codebooks = make(generator)
    mask = torch.rand(1, 30, generator=generator) > 0.4
    found = search(x, codebooks, 4, mask=mask, depth=torch.tensor([2]))
    assert torch.equal(found[..., :2][mask], search(x, codebooks[:2], 4)[mask])
    assert found[~mask].eq(-1).all() and found[..., 2].eq(-1).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_searched_in_float32(search, dtype, generator):
    x, codebooks = make(generator)
    x, codebooks = x.to(dtype), [codebook.to(dtype) for codebook in codebooks]
    wide = expected(x.float(), [codebook.float() for codebook in codebooks], 4)
    assert torch.equal(search(x, codebooks, 4), wide)


def test_no_tokens(search):
    assert search(torch.zeros(2, 0, 3), [torch.zeros(2, 4, 3)] * 3, 4).shape == (2, 0, 3)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (dict(beam=0), ValueError, "beam to be at least 1"),
        (dict(codebooks=[]), ValueError, "at least 1 level"),
        (dict(codebooks=[torch.zeros(1, 0, 6)]), ValueError, "at least 1 code"),
        (dict(codebooks=[torch.zeros(1, 4, 5)]), ValueError, "features of x"),
        (dict(codebooks=[torch.zeros(2, 4, 6)]), ValueError, "heads of x"),
        (dict(x=torch.zeros(3, 6)), ValueError, "3 dimensions"),
        (dict(x=torch.zeros(1, 3, 6, dtype=torch.long)), TypeError, "floating point"),
        (dict(mask=torch.ones(1, 30)), TypeError, "mask"),
        (dict(mask=torch.ones(1, 29, dtype=torch.bool)), ValueError, "mask"),
        (dict(depth=torch.tensor([4])), ValueError, r"depth to be in \[1, 3\]"),
        (dict(depth=torch.tensor([1.0])), TypeError, "depth"),
        (dict(weights=[1.0]), ValueError, "one for each of 3 levels"),
        (dict(weights=[1.0, -1.0, 1.0]), ValueError, "non-negative"),
        (dict(weights=[1.0, float("nan"), 1.0]), ValueError, "finite"),
    ],
)
def test_bad_arguments_are_named(search, change, kind, message, generator):
    x, codebooks = make(generator)
    arguments = dict(x=x, codebooks=codebooks, beam=2) | change
    first = [arguments.pop(name) for name in ("x", "codebooks", "beam")]
    with pytest.raises(kind, match=message):
        search(*first, **arguments)


def test_opcheck_gradient_and_compile(generator):
    x, codebooks = make(generator)
    torch.library.opcheck(op.default, (x, codebooks, 3))
    assert not op(x.requires_grad_(), codebooks, 3).requires_grad
    compiled = torch.compile(lambda x: op(x, codebooks, 3), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x.detach()), op(x.detach(), codebooks, 3))
