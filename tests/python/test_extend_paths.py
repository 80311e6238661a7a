"""extend_paths: one level of a beam search (include/torchvq/ops/extend_paths.h)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from support import any_path

op = torch.ops.torchvq.extend_paths
PATHS = {"cpu": op, "any": any_path("extend_paths")}
HEADS, TOKENS, WIDTH, CODES, DIM, LEVELS = 2, 7, 3, 5, 4, 2
NAMES = ("residual", "decoded", "score", "indices", "codes")


@pytest.fixture(params=PATHS.values(), ids=PATHS.keys())
def extend(request):
    return request.param


def make(
    generator, dtype=torch.float32, heads=HEADS, tokens=TOKENS, width=WIDTH, codes=CODES, dim=DIM,
    levels=LEVELS, draw=None,
):  # fmt: skip
    """The tensors of paths, the codes, and candidates that are no codes' places."""
    draw = draw or (lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64))
    paths = (heads, tokens, width)
    tensors = [
        draw(*paths, dim).to(dtype),
        draw(*paths, dim).to(dtype),
        draw(*paths).abs().double(),
        torch.randint(50, (*paths, levels), generator=generator),
        draw(*paths, codes, dim).to(dtype),
    ]
    return tensors, torch.randint(100, 200, (*paths, codes), generator=generator)


def extended(paths, codes, beam, candidates, weight):
    """One token; paths are (residual, decoded, score, indices), each of one path."""
    ranked = []
    for place, (residual, _, before, _) in enumerate(paths):
        for number, code in enumerate(codes[place]):
            total = 0.0
            for left, value in zip(residual.tolist(), code.tolist(), strict=True):
                total += (left - value) * (left - value)
            if weight is not None:
                total = float(before) + weight * total
            ranked.append((total if math.isfinite(total) else math.inf, place, number))
    kept = sorted(sorted(ranked)[:beam], key=lambda entry: entry[1:])
    for total, place, number in kept:
        residual, decoded, _, indices = paths[place]
        code = codes[place][number]
        index = number if candidates is None else candidates[place][number]
        yield residual - code, decoded + code, np.float64(total), np.append(indices, index)


def expected(tensors, beam, candidates=None, weight=None):
    *state, codes = (tensor.numpy() for tensor in tensors)
    found = []
    with np.errstate(all="ignore"):
        for h in range(codes.shape[0]):
            for t in range(codes.shape[1]):
                paths = list(zip(*(part[h, t] for part in state), strict=True))
                own = None if candidates is None else candidates[h, t].tolist()
                found.append(zip(*extended(paths, codes[h, t], beam, own, weight), strict=True))
    parts = [torch.from_numpy(np.array(part)) for part in zip(*found, strict=True)]
    return [part.unflatten(0, codes.shape[:2]) for part in parts]


def assert_same(found, wanted):
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("weight", [None, 0.0, 0.3, 7.0])
@pytest.mark.parametrize("given", [False, True], ids=["all codes", "candidates"])
@pytest.mark.parametrize("beam", [1, 4, 14, 15, 2**40])
def test_paths_are_those_of_the_contract(extend, beam, given, weight, dtype, generator):
    tensors, drawn = make(generator, dtype)
    candidates = drawn if given else None
    found = extend(*tensors, beam, candidates=candidates, weight=weight)
    assert [part.dtype for part in found] == [dtype, dtype, torch.float64, torch.int64]
    assert found[2].shape == (HEADS, TOKENS, min(beam, WIDTH * CODES))
    assert_same(found, expected(tensors, beam, candidates, weight))


@pytest.mark.parametrize(
    "sizes",
    [
        dict(width=1, codes=1, dim=1, levels=0),
        dict(width=1, codes=9, dim=33, levels=0),
        dict(width=17, codes=1, dim=5, levels=1),
        dict(width=8, codes=70, dim=3, levels=5),
        dict(heads=1, tokens=1, width=40, codes=40, dim=2),
    ],
    ids=str,
)
@pytest.mark.parametrize("beam", [1, 6, 64])
def test_sizes(extend, beam, sizes, generator):
    tensors, candidates = make(generator, **sizes)
    assert_same(extend(*tensors, beam), expected(tensors, beam))
    assert_same(
        extend(*tensors, beam, candidates=candidates, weight=0.5),
        expected(tensors, beam, candidates, 0.5),
    )


@pytest.mark.parametrize("weight", [None, 0.0, 0.5])
@pytest.mark.parametrize("beam", [1, 3, 8, 20])
def test_ties_go_to_the_lower_path_and_then_to_the_lower_place(extend, beam, weight, generator):
    """Small integers, so most scores are equal and most of the others exact."""

    def draw(*shape):
        return torch.randint(-1, 2, shape, generator=generator)

    tensors, candidates = make(generator, tokens=40, codes=7, dim=2, draw=draw)
    found = extend(*tensors, beam, candidates=candidates, weight=weight)
    assert_same(found, expected(tensors, beam, candidates, weight))
    # All of these score 0: the first places win, and stay in order.
    flat = [torch.zeros_like(tensor) for tensor in tensors]
    indices = extend(*flat, beam, weight=weight)[3]
    places = torch.arange(min(beam, WIDTH * 7)).expand(*indices.shape[:3])
    assert torch.equal(indices[..., -1], places % 7)


def test_paths_keep_their_order_and_their_history(extend, generator):
    """The best extension may come last: paths are sorted by what they extend, not by score."""
    tensors, _ = make(generator, tokens=100)
    tensors[3] = torch.arange(WIDTH).view(1, 1, WIDTH, 1) * torch.tensor([1, 10, 100])
    tensors[3] = tensors[3].repeat(HEADS, 100, 1, 1)
    _, _, score, indices = extend(*tensors, 6)
    place = indices[..., 0] * CODES + indices[..., 3]
    assert place.diff(dim=-1).gt(0).all()
    assert torch.equal(indices[..., 1], indices[..., 0] * 10)
    assert torch.equal(indices[..., 2], indices[..., 0] * 100)
    assert score.argmin(-1).unique().tolist() == list(range(6))


@pytest.mark.parametrize("weight", [None, 0.0, 2.0])
@pytest.mark.parametrize("beam", [1, 3, 9, 100])
def test_scores_that_are_not_finite_come_last(extend, beam, weight, generator):
    tensors, candidates = make(generator)
    residual, decoded, score, _, codes = tensors
    residual[0, 1, 0, 2], residual[0, 2, :, 1], residual[1, 3, 1, 0] = math.nan, math.inf, -math.inf
    codes[0, 3, 1, 2, 0], codes[0, 4, :, 0, 3], codes[1, 5] = math.nan, math.inf, math.nan
    score[1, 0, 2], score[1, 1, 0], decoded[1, 2, 0, 0] = math.inf, math.nan, math.nan
    found = extend(*tensors, beam, candidates=candidates, weight=weight)
    assert_same(found, expected(tensors, beam, candidates, weight))
    assert not found[2].isnan().any()
    kept = min(beam, WIDTH * CODES)
    # Of the first path nothing is finite, so it is kept only if all others are.
    assert found[2][0, 1].isfinite().sum() == min(kept, (WIDTH - 1) * CODES)
    assert found[2][0, 2].isinf().all() and found[2][1, 5].isinf().all()
    assert torch.equal(found[3][1, 5, 0], torch.cat([tensors[3][1, 5, 0], candidates[1, 5, 0, :1]]))


def test_sums_are_those_of_float64(extend, generator):
    """Squares beyond the range of float32, and differences that float32 would round to nothing."""
    tensors, _ = make(generator, tokens=50)
    for scale in (1e-30, 1e30):
        large = [tensor * scale if n in (0, 1, 4) else tensor for n, tensor in enumerate(tensors)]
        found = extend(*large, 4)
        assert_same(found, expected(large, 4))
        assert found[2].isfinite().all() and found[2].gt(0).all()
    tensors[0], tensors[4] = tensors[0] * 1e-5 + 1, tensors[4] * 1e-5 + 1
    assert_same(extend(*tensors, 4), expected(tensors, 4))


@pytest.mark.parametrize("given", [False, True], ids=["all codes", "candidates"])
@pytest.mark.parametrize(("heads", "tokens"), [(2, 0), (0, 3)])
def test_no_tokens(extend, heads, tokens, given, generator):
    tensors, candidates = make(generator, heads=heads, tokens=tokens)
    found = extend(*tensors, 4, candidates=candidates if given else None, weight=0.5)
    shape = (heads, tokens, 4)
    assert [part.shape for part in found] == [(*shape, DIM), (*shape, DIM), shape, (*shape, 3)]


def test_strides_do_not_matter(extend, generator):
    tensors, candidates = make(generator)
    wanted = expected(tensors, 6, candidates, 0.5)

    def turned(tensor):
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)

    turned_all = [turned(tensor) for tensor in tensors]
    assert_same(extend(*turned_all, 6, candidates=turned(candidates), weight=0.5), wanted)
    sliced = [torch.stack([tensor, tensor + 1], 2)[:, :, 0] for tensor in tensors]
    assert not any(tensor.is_contiguous() for tensor in (*turned_all, *sliced))
    assert_same(extend(*sliced, 6, candidates=candidates, weight=0.5), wanted)
    same = tensors[4][:1, :1, :1].expand_as(tensors[4])
    wide = expected([*tensors[:4], same.contiguous()], 6)
    assert_same(extend(*tensors[:4], same, 6), wide)


def test_split_and_threads_do_not_matter(generator):
    tensors, candidates = make(generator, tokens=700, width=6, codes=16, dim=24)
    whole = op(*tensors, 6, candidates=candidates, weight=0.5)
    assert_same(PATHS["any"](*tensors, 6, candidates=candidates, weight=0.5), whole)
    splits = zip(*(part.split([1, 7, 300, 392], 1) for part in (*tensors, candidates)), strict=True)
    parts = [op(*split[:5], 6, candidates=split[5], weight=0.5) for split in splits]
    assert_same([torch.cat(part, 1) for part in zip(*parts, strict=True)], whole)
    torch.set_num_threads(2)
    try:
        assert_same(op(*tensors, 6, candidates=candidates, weight=0.5), whole)
    finally:
        torch.set_num_threads(1)


def test_arguments_stay_as_they_are_and_results_are_new(extend, generator):
    tensors, candidates = make(generator)
    before = [tensor.clone() for tensor in (*tensors, candidates)]
    found = extend(*tensors, 4, candidates=candidates)
    assert_same((*tensors, candidates), before)
    own = [tensor.untyped_storage().data_ptr() for tensor in (*tensors, candidates, *found)]
    assert len(set(own)) == len(own)


def test_a_walk_of_levels_is_residual_beam_search(extend, generator):
    x = torch.randn(HEADS, 20, 6, generator=generator)
    codebooks = [torch.randn(HEADS, size, 6, generator=generator) for size in (5, 7, 4)]
    first = x.unsqueeze(2)
    paths = [first, first * 0, first[..., 0].double() * 0, torch.empty(HEADS, 20, 1, 0).long()]
    for level, codebook in enumerate(codebooks):
        width = paths[2].shape[2]
        codes = codebook[:, None, None].expand(HEADS, 20, width, *codebook.shape[1:])
        paths = extend(*paths, codes, 1 if level == 2 else 4, weight=0.5**level)
    found = torch.ops.torchvq.residual_beam_search(x, codebooks, 4, weights=[1.0, 0.5, 0.25])
    assert torch.equal(paths[3].squeeze(2), found)
    sums = torch.stack(
        [codebooks[n].take_along_dim(found[..., n, None], 1) for n in range(3)]
    ).double()
    torch.testing.assert_close(paths[1].squeeze(2).double(), sums.sum(0), rtol=1e-5, atol=1e-5)


def test_nothing_has_a_gradient(generator):
    tensors, _ = make(generator)
    for number in (0, 1, 2, 4):
        tensors[number].requires_grad_()
    assert not any(part.requires_grad for part in op(*tensors, 3, weight=1.0))


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (dict(residual=lambda t: t.half()), TypeError, "residual to be float32 or float64"),
        (dict(residual=lambda t: t.long()), TypeError, "residual to be float32 or float64"),
        (dict(residual=lambda t: t[0]), ValueError, r"residual to have 4 dimensions"),
        (dict(decoded=lambda t: t.double()), TypeError, "decoded to be Float"),
        (dict(decoded=lambda t: t[0]), ValueError, "decoded to have 4 dimensions"),
        (dict(decoded=lambda t: t[..., :3]), ValueError, "decoded to have size 4"),
        (dict(score=lambda t: t.float()), TypeError, "score to be Double"),
        (dict(score=lambda t: t[0]), ValueError, "score to have 3 dimensions"),
        (dict(score=lambda t: t[:, :, :2]), ValueError, "score to have size 3"),
        (dict(indices=lambda t: t.int()), TypeError, "indices to be Long"),
        (dict(indices=lambda t: t[..., 0]), ValueError, "indices to have 4 dimensions"),
        (dict(indices=lambda t: t[:, :6]), ValueError, "indices to have size 7"),
        (dict(codes=lambda t: t.long()), TypeError, "codes to be floating"),
        (dict(codes=lambda t: t[0]), ValueError, "codes to have 5 dimensions"),
        (dict(codes=lambda t: t[:1]), ValueError, "codes to have size 2"),
        (dict(codes=lambda t: t[:, :6]), ValueError, "codes to have size 7"),
        (dict(codes=lambda t: t[:, :, :2]), ValueError, "codes to have size 3"),
        (dict(codes=lambda t: t[..., :3]), ValueError, "codes to have size 4"),
        (dict(codes=lambda t: t[:, :, :, :0]), ValueError, "one path and one candidate"),
        (
            dict.fromkeys(NAMES, lambda t: t[:, :, :0]),
            ValueError,
            "one path and one candidate",
        ),
        (dict(beam=0), ValueError, "beam to be at least 1, but got 0"),
        (dict(beam=-3), ValueError, "beam to be at least 1, but got -3"),
        (dict(candidates=lambda t: t.int()), TypeError, "candidates to be Long"),
        (dict(candidates=lambda t: t[0]), ValueError, "candidates to have 4 dimensions"),
        (dict(candidates=lambda t: t[..., :4]), ValueError, "candidates to have size 5"),
        (dict(candidates=lambda t: t[:, :, :2]), ValueError, "candidates to have size 3"),
        (dict(weight=-1.0), ValueError, "weight to be finite and non-negative"),
        (dict(weight=math.nan), ValueError, "weight to be finite and non-negative"),
        (dict(weight=math.inf), ValueError, "weight to be finite and non-negative"),
    ],
)
def test_bad_arguments_are_named(extend, change, kind, message, generator):
    tensors, candidates = make(generator)
    given = dict(zip(NAMES, tensors, strict=True), beam=3, candidates=candidates, weight=1.0)
    for name, new in change.items():
        given[name] = new(given[name]) if callable(new) else new
    first = [given.pop(name) for name in (*NAMES, "beam")]
    with pytest.raises(kind, match=f"extend_paths: expected .*{message}"):
        extend(*first, **given)


def test_opcheck_and_compile(generator):
    tensors, candidates = make(generator)
    for options in ({}, dict(candidates=candidates, weight=0.5)):
        torch.library.opcheck(op.default, (*tensors, 4), options)
        torch.library.opcheck(op.default, (*tensors, 100), options)

        def call(*tensors, options=options):
            return op(*tensors, 4, **options)

        torch._dynamo.reset()
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
        assert_same(compiled(*tensors), call(*tensors))


@pytest.mark.parametrize("beam", [2, 30])
def test_one_graph_serves_all_numbers_of_tokens(beam, generator):
    compiled = torch.compile(
        lambda *tensors: op(*tensors, beam), fullgraph=True, backend="aot_eager", dynamic=True
    )
    for tokens in (7, 11):
        tensors, _ = make(generator, tokens=tokens)
        with torch._dynamo.config.patch(error_on_recompile=tokens == 11):
            assert_same(compiled(*tensors), op(*tensors, beam))
