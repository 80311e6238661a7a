"""nearest_code: the search and its exactness (include/torchvq/ops/nearest_code.h, docs/design/search.md)."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from pathlib import Path

import nearest_code_oracle as oracle
import nearest_code_rows
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support import any_path, op_packet
from torchvq.ops import nearest_code

METRICS = ["euclidean", "cosine"]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
PATHS = {"dispatched": torch.ops.torchvq.nearest_code, "any": any_path("nearest_code")}
# N, K, D: one row, few rows (no packing), one more, odd sizes around every vector length, several blocks of rows.
SIZES = [
    (0, 3, 2),
    (1, 1, 1),
    (1, 40, 17),
    (8, 33, 5),
    (9, 65, 4),
    (97, 130, 33),
    (200, 7, 16),
    (131, 700, 8),
    (400, 150, 37),
]


def name_of(value):
    return str(value).removeprefix("torch.").replace(", ", "x")


@pytest.fixture(params=PATHS.values(), ids=PATHS.keys())
def search(request):
    return request.param


def assert_nearest(search, x, codebook, metric="euclidean", bias=None, topk=None):
    indices = search(x, codebook, metric=metric, bias=bias, topk=topk)[0]
    assert indices.dtype == torch.int64
    expected = oracle.nearest(x, codebook, metric, bias, topk or 1)
    np.testing.assert_array_equal(indices.numpy(), expected if topk else expected[:, 0])


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("topk", [None, 1, 3])
@pytest.mark.parametrize("size", SIZES, ids=name_of)
def test_nearest_code_equals_the_sequential_float64_sums(search, size, topk, metric, generator):
    n, k, d = size
    topk = min(topk, k) if topk else None
    assert_nearest(search, *nearest_code_rows.normal(n, k, d, generator), metric, topk=topk)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("with_bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("topk", [None, 4])
@pytest.mark.parametrize("rows", [3, 120])
@pytest.mark.parametrize("kind", nearest_code_rows.KINDS)
def test_nearest_code_is_exact_on_adversarial_rows(
    search, kind, rows, topk, with_bias, metric, generator
):
    x, codebook = nearest_code_rows.KINDS[kind](rows, 150, 12, generator)
    bias = torch.randn(150, generator=generator) if with_bias else None
    assert_nearest(search, x, codebook, metric, bias, topk)


@pytest.mark.parametrize("dtypes", list(itertools.product(DTYPES, DTYPES)), ids=name_of)
@pytest.mark.parametrize("metric", METRICS)
def test_nearest_code_takes_any_mix_of_dtypes(search, dtypes, metric, generator):
    x, codebook = nearest_code_rows.near_codes(50, 40, 9, generator)
    x, codebook = x.to(dtypes[0]), codebook.to(dtypes[1])
    _, codes, distances = search(
        x, codebook, metric=metric, return_codes=True, return_distances=True
    )
    dtype = torch.float64 if torch.float64 in dtypes else torch.float32
    assert codes.dtype == distances.dtype == dtype
    assert_nearest(search, x, codebook, metric)
    assert_nearest(search, x, codebook, metric, topk=5)


@pytest.mark.parametrize("metric", METRICS)
def test_nearest_code_is_exact_in_float64(search, metric, generator):
    for kind in ("normal", "offset_1e6", "lattice", "midpoints", "collapsed", "not_finite"):
        x, codebook = nearest_code_rows.KINDS[kind](60, 70, 11, generator)
        x, codebook = x.double() * math.pi, codebook.double() * math.pi
        assert_nearest(search, x, codebook, metric, torch.randn(70, generator=generator), 3)
        assert_nearest(search, x, codebook, metric)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_nearest_code_is_exact_on_whatever_hypothesis_finds(data):
    number = st.floats(width=32) | st.sampled_from(
        [0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 3e38, float("nan")]
    )
    n, k, d = (data.draw(st.integers(1, most)) for most in (12, 9, 5))
    rows, codes = (
        torch.tensor(data.draw(st.lists(number, min_size=m * d, max_size=m * d))).view(m, d)
        for m in (n, k)
    )
    topk = data.draw(st.none() | st.integers(1, k))
    metric = data.draw(st.sampled_from(METRICS))
    for search in PATHS.values():
        assert_nearest(search, rows, codes, metric, None, topk)


def test_nearest_code_ties_pick_the_lowest_index(search):
    x = torch.zeros(40, 3)
    codebook = torch.tensor([[2.0, 0, 0], [0, 1, 0], [0, 0, -1], [0, 1, 0], [-0.0, -1, 0.0]])
    assert search(x, codebook)[0].tolist() == [1] * 40
    assert search(x, codebook, topk=5)[0].tolist() == [[1, 2, 3, 4, 0]] * 40


@pytest.mark.parametrize("rows", [1, 40])
def test_nearest_code_never_chooses_what_is_not_finite(search, rows):
    nan, inf = float("nan"), float("inf")
    codebook = torch.tensor([[nan, 0.0], [inf, 0.0], [5.0, 5.0], [0.0, 0.0]])
    x = torch.zeros(rows, 2)
    assert search(x, codebook)[0].tolist() == [3] * rows
    assert search(x, codebook, topk=4)[0].tolist() == [[3, 2, 0, 1]] * rows
    assert search(x, codebook[:2])[0].tolist() == [0] * rows
    for bad in (nan, inf, -inf):
        bias = torch.tensor([0, 0, 0, bad], dtype=torch.float64)
        assert search(x.double(), codebook.double(), bias=bias)[0].tolist() == [2] * rows
        assert search(x, codebook, bias=bias.float())[0].tolist() == [2] * rows
        assert not bias[3].isfinite()


@pytest.mark.parametrize("topk", [None, 2])
def test_nearest_code_of_a_row_that_is_not_finite_is_nan(search, topk, generator):
    x, codebook = nearest_code_rows.normal(20, 6, 4, generator)
    x[3, 1], x[7, 0], x[11, 3] = float("nan"), float("inf"), float("-inf")
    indices, codes, distances = search(
        x, codebook, topk=topk, return_codes=True, return_distances=True
    )
    for row in range(20):
        bad = row in (3, 7, 11)
        assert codes[row].isnan().all().item() is bad and distances[row].isnan().all().item() is bad
        if bad:
            assert indices[row].tolist() == ([0, 1] if topk else 0)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("topk", [None, 2])
def test_nearest_code_returns_codes_and_distances_of_its_indices(search, metric, topk, generator):
    x, codebook = nearest_code_rows.offset(1e4)(30, 20, 6, generator)
    x[4], codebook[2] = 0, 0
    bias = torch.randn(20, generator=generator)
    indices, codes, distances = search(
        x, codebook, metric=metric, bias=bias, topk=topk, return_codes=True, return_distances=True
    )
    assert torch.equal(codes, codebook[indices])
    rows = x.repeat_interleave(topk or 1, 0)
    expected = oracle.distances(rows, codes.view(-1, 6), metric) + bias[indices].flatten().numpy()
    # The oracle sums in another order and does not round to float32.
    np.testing.assert_allclose(distances.flatten().numpy(), expected, rtol=1e-6, atol=1e-6)


def test_nearest_code_returns_nothing_it_was_not_asked_for(search, generator):
    indices, codes, distances = search(*nearest_code_rows.normal(5, 4, 3, generator))
    assert indices.shape == (5,) and codes.numel() == 0 and distances.numel() == 0


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "separate"])
@pytest.mark.parametrize("bias_shape", [None, (7,), (1, 7), (3, 7)], ids=str)
@pytest.mark.parametrize("tokens", [0, 1, 20])
def test_nearest_code_searches_each_head(search, shared, bias_shape, tokens, generator):
    x = torch.randn(3, tokens, 5, generator=generator)
    codebook = torch.randn(1 if shared else 3, 7, 5, generator=generator)
    bias = None if bias_shape is None else torch.randn(bias_shape, generator=generator)
    indices, codes, distances = search(
        x, codebook, bias=bias, topk=2, return_codes=True, return_distances=True
    )
    assert indices.shape == distances.shape == (3, tokens, 2) and codes.shape == (3, tokens, 2, 5)
    for head in range(3):
        own = codebook[0 if shared else head]
        own_bias = None if bias is None else bias.expand(3, 7)[head]
        np.testing.assert_array_equal(
            indices[head].numpy(), oracle.nearest(x[head], own, "euclidean", own_bias, 2)
        )
        assert torch.equal(codes[head], own[indices[head]])
    if shared:
        assert torch.equal(search(x, codebook[0], bias=bias, topk=2)[0], indices)


def test_nearest_code_ignores_strides(search, generator):
    x = torch.randn(4, 50, 6, generator=generator)
    codebook = torch.randn(4, 9, 6, generator=generator)
    expected = search(x, codebook)[0]
    strided_x = x.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    strided_codebook = torch.stack([codebook, codebook], -1)[..., 1]
    assert torch.equal(search(strided_x, strided_codebook)[0], expected)
    assert torch.equal(
        search(x[:1].expand(4, -1, -1), codebook[:1])[0], search(x[0], codebook[0])[0].expand(4, -1)
    )


@pytest.mark.parametrize("threads", [1, 2])
def test_nearest_code_does_not_depend_on_threads_or_batch(threads, generator):
    x, codebook = nearest_code_rows.midpoints(700, 500, 24, generator)
    torch.set_num_threads(threads)
    try:
        whole = nearest_code(x, codebook).indices
    finally:
        torch.set_num_threads(1)
    np.testing.assert_array_equal(whole.numpy(), oracle.nearest(x, codebook)[:, 0])
    for step in (1, 7, 64):
        parts = [nearest_code(part, codebook).indices for part in x[:130].split(step)]
        assert torch.equal(torch.cat(parts), whole[:130])


def test_nearest_code_many_close_codes_stay_exact_in_large_dimensions(search, generator):
    x, codebook = nearest_code_rows.near_codes(20, 90, 1500, generator)
    assert_nearest(search, x, codebook)
    assert_nearest(search, x, codebook, "cosine", topk=3)


def test_nearest_code_any_path_heeds_reduced_precision(generator):
    x, codebook = nearest_code_rows.offset(1e2)(200, 100, 32, generator)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        assert_nearest(any_path("nearest_code"), x, codebook)
    finally:
        torch.set_float32_matmul_precision(before)


LEVELS = ["default", "avx2", "avx512", "amx"]
PROGRAM = """
import hashlib, sys, torch
from torchvq.ops import nearest_code
digest = hashlib.sha256()
for x, c in torch.load(sys.argv[1]):
    for metric in ("euclidean", "cosine"):
        for topk in (None, 3):
            for dtype in (torch.float32, torch.float64):
                out = nearest_code(x.to(dtype), c, metric=metric, topk=topk)
                digest.update(out.indices.numpy().tobytes())
print(digest.hexdigest())
"""


def run_program(program, *arguments, **environment):
    paths = [str(Path(__file__).parent), *sys.path]
    environment = (
        os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"} | environment
    )
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_nearest_code_is_the_same_on_every_instruction_set(tmp_path, generator):
    # Drawn once, here: torch.randn gives other numbers under another ATEN_CPU_CAPABILITY.
    sizes = ((5, 50, 9), (200, 300, 20), (250, 130, 37), (230, 90, 65), (300, 70, 130),
             (7, 600, 37), (100, 300, 64))  # fmt: skip
    cases = [
        tuple(kind(*size, generator)) for kind in nearest_code_rows.KINDS.values() for size in sizes
    ]
    torch.save(cases, tmp_path / "cases.pt")
    digests = {
        f"{name}={level}": run_program(
            PROGRAM, tmp_path / "cases.pt", **{name: level}
        ).stdout.strip()
        for name, level in (
            *(("TORCHVQ_SIMD_LEVEL", level) for level in LEVELS),
            ("ATEN_CPU_CAPABILITY", "default"),
        )
    }
    assert len(digests["TORCHVQ_SIMD_LEVEL=default"]) == 64
    assert len(set(digests.values())) == 1, digests


def test_nearest_code_rejects_an_unknown_level():
    program = (
        "import torch, torchvq; torch.ops.torchvq.nearest_code(torch.ones(1, 1), torch.ones(1, 1))"
    )
    result = run_program(program, TORCHVQ_SIMD_LEVEL="sse9")
    assert result.returncode == 1
    assert (
        "ValueError: torchvq: expected TORCHVQ_SIMD_LEVEL to be default, avx2, avx512 or amx, but got sse9"
        in result.stderr
    )


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("topk", [None, 2])
def test_nearest_code_gradients_pass_finite_differences(metric, topk, generator):
    x, codebook = (torch.randn(3, n, 4, dtype=torch.float64, generator=generator) for n in (10, 6))
    bias = torch.randn(3, 6, dtype=torch.float64, generator=generator)
    shared = codebook[0].clone(), bias[0].clone()
    for c, b in ((codebook, bias), shared, (codebook[:1].clone(), bias)):
        inputs = [tensor.clone().requires_grad_() for tensor in (x, c, b)]

        def outputs(x, c, b, codes=True):
            options = dict(metric=metric, topk=topk, return_codes=codes, return_distances=True)
            out = nearest_code(x, c, bias=b, **options)
            return (out.codes, out.distances) if codes else out.distances

        assert torch.autograd.gradcheck(outputs, inputs)
        assert torch.autograd.gradgradcheck(outputs, inputs)
        assert torch.autograd.gradgradcheck(lambda *args: outputs(*args, codes=False), inputs)


def test_nearest_code_sums_the_gradients_of_each_code(generator):
    x, codebook = nearest_code_rows.normal(30, 5, 3, generator)
    x[4, 1] = float("nan")
    codebook.requires_grad_()
    out = nearest_code(x, codebook, return_codes=True)
    weights = torch.randn(30, 3, generator=generator)
    (grad,) = torch.autograd.grad(out.codes, codebook, weights)
    weights[4] = 0  # a non-finite row belongs to no code
    expected = torch.zeros(5, 3, dtype=torch.float64)
    for row, index in enumerate(out.indices.tolist()):
        expected[index] += weights[row].double()
    torch.testing.assert_close(grad.double(), expected, rtol=1e-6, atol=1e-6)
    assert not out.indices.requires_grad and not out.distances.requires_grad


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_nearest_code_gradients_have_the_dtype_of_their_argument(dtype, generator):
    x, codebook = (
        tensor.to(dtype).requires_grad_() for tensor in nearest_code_rows.normal(9, 4, 3, generator)
    )
    bias = torch.zeros(4, dtype=dtype, requires_grad=True)
    out = nearest_code(x, codebook, bias=bias, return_distances=True)
    arguments = (x, codebook, bias)
    grads = torch.autograd.grad(out.distances.sum(), arguments)
    for argument, grad in zip(arguments, grads, strict=True):
        assert grad.dtype == dtype and grad.shape == argument.shape


def test_nearest_code_backward_uses_the_codes_of_its_forward(generator):
    x, codebook = nearest_code_rows.normal(30, 5, 3, generator)
    x.requires_grad_()
    buffer = codebook.clone()

    def gradient(update):
        out = nearest_code(x, buffer, return_distances=True)
        if update:
            buffer.mul_(3)
        return torch.autograd.grad(out.distances.sum(), x)[0]

    assert torch.equal(gradient(update=False), gradient(update=True))


def test_nearest_code_compiles_with_the_same_gradients(generator):
    x, codebook = nearest_code_rows.normal(30, 5, 3, generator)

    def loss(x, codebook):
        out = nearest_code(x, codebook, return_codes=True, return_distances=True)
        value = (out.codes * out.distances.unsqueeze(-1)).sum()
        codebook.data.mul_(2)
        return value

    results = []
    for function in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        inputs = x.clone().requires_grad_(), codebook.clone()
        value = function(*inputs)
        results.append((value, torch.autograd.grad(value, inputs[0])[0]))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)


@pytest.mark.parametrize("topk", [None, 2])
@pytest.mark.parametrize("with_gradient", [False, True], ids=["plain", "gradient"])
def test_nearest_code_passes_opcheck(topk, with_gradient, generator):
    x, codebook = nearest_code_rows.normal(6, 5, 3, generator)
    bias = torch.randn(5, generator=generator)
    for tensor in (x, codebook, bias):
        tensor.requires_grad_(with_gradient)
    options = {"bias": bias, "topk": topk, "return_codes": True, "return_distances": True}
    utilities = ["test_schema", "test_autograd_registration", "test_faketensor"]
    if (
        not with_gradient
    ):  # with gradients, opcheck itself fails: it adds float outputs into the first, integer one
        utilities.append("test_aot_dispatch_dynamic")
    torch.library.opcheck(op_packet("nearest_code"), (x, codebook), options, test_utils=utilities)


BAD_ARGUMENTS = {
    "integer x": (
        (torch.ones(2, 3, dtype=torch.int64), torch.ones(4, 3)),
        {},
        TypeError,
        "expected x to be floating",
    ),
    "integer codebook": (
        (torch.ones(2, 3), torch.ones(4, 3).int()),
        {},
        TypeError,
        "expected codebook to be floating",
    ),
    "vector x": (
        (torch.ones(3), torch.ones(4, 3)),
        {},
        ValueError,
        "expected x to have 2 or 3 dimensions",
    ),
    "vector codebook": (
        (torch.ones(2, 3), torch.ones(3)),
        {},
        ValueError,
        "expected codebook to have 2 or 3",
    ),
    "other dim": (
        (torch.ones(2, 3), torch.ones(4, 2)),
        {},
        ValueError,
        "expected codebook to have size 3",
    ),
    "no dim": (
        (torch.ones(2, 0), torch.ones(4, 0)),
        {},
        ValueError,
        "expected x to have at least 1 dim",
    ),
    "no codes": (
        (torch.ones(2, 3), torch.ones(0, 3)),
        {},
        ValueError,
        "expected codebook to have at least 1 code",
    ),
    "heads": (
        (torch.ones(2, 5, 3), torch.ones(3, 4, 3)),
        {},
        ValueError,
        "expected codebook to have 1 or 2 heads",
    ),
    "metric": (
        (torch.ones(2, 3), torch.ones(4, 3)),
        {"metric": "dot"},
        ValueError,
        "but got 'dot'",
    ),
    "topk 0": (
        (torch.ones(2, 3), torch.ones(4, 3)),
        {"topk": 0},
        ValueError,
        r"expected topk to be in \[1, 4\]",
    ),
    "topk 5": ((torch.ones(2, 3), torch.ones(4, 3)), {"topk": 5}, ValueError, "but got 5"),
    "bias size": (
        (torch.ones(2, 3), torch.ones(4, 3)),
        {"bias": torch.ones(3)},
        ValueError,
        "expected bias to have size",
    ),
    "bias heads": (
        (torch.ones(2, 3), torch.ones(4, 3)),
        {"bias": torch.ones(2, 4)},
        ValueError,
        "1 or 1 heads",
    ),
    "bias rank": (
        (torch.ones(2, 3), torch.ones(4, 3)),
        {"bias": torch.ones(1, 1, 4)},
        ValueError,
        "expected bias to have",
    ),
    "bias dtype": (
        (torch.ones(2, 3), torch.ones(4, 3)),
        {"bias": torch.ones(4).int()},
        TypeError,
        "expected bias to be",
    ),
}


@pytest.mark.parametrize("case", BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS.keys())
@pytest.mark.parametrize("on", ["cpu", "meta"])
def test_nearest_code_reports_bad_arguments(case, on, search):
    arguments, options, error, message = case
    arguments = tuple(tensor.to(on) for tensor in arguments)
    options = {
        name: value.to(on) if isinstance(value, torch.Tensor) else value
        for name, value in options.items()
    }
    with pytest.raises(error, match="nearest_code: .*" + message):
        search(*arguments, **options)


@pytest.mark.parametrize("topk", [None, 2])
def test_nearest_code_meta_agrees_with_the_kernel(topk):
    x, codebook = torch.ones(2, 7, 3, dtype=torch.float16), torch.ones(5, 3)
    options = {"topk": topk, "return_codes": True, "return_distances": True}
    real = nearest_code(x, codebook, **options)
    meta = nearest_code(x.to("meta"), codebook.to("meta"), **options)
    assert [(t.shape, t.dtype, t.stride()) for t in real] == [
        (t.shape, t.dtype, t.stride()) for t in meta
    ]
