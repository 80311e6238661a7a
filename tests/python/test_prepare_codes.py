"""prepare_codes, and residual_encode with prepared codes (include/torchvq/ops/prepare_codes.h)."""

from __future__ import annotations

import nearest_code_oracle as oracle
import nearest_code_rows
import numpy as np
import pytest
import torch

from support import any_path

prepare = torch.ops.torchvq.prepare_codes
encode = torch.ops.torchvq.residual_encode
PANEL = 16
# Codes and dimensions that fill no panel and no block of four; the last size has more rows than copies serve.
SIZES = [(1, 300, 16), (2, 37, 19), (3, 1, 24), (7, 200, 64), (17, 130, 130), (32, 1030, 33),
         (191, 300, 70), (200, 70, 33)]  # fmt: skip


def found(x, *codebooks, **options):
    prepared = [prepare(codebook) for codebook in codebooks]
    return encode(x[None], list(codebooks), prepared=prepared, **options)


def assert_nearest(x, codes):
    indices = found(x, codes)[1][0, :, 0]
    np.testing.assert_array_equal(indices.numpy(), oracle.nearest(x, codes)[:, 0])


def fields(prepared, size, dim):
    """Fields of a copy, as in the kernel's header: centre (dim,), integers (size, dim), four numbers per code."""
    blocks, padded, panels = -(-dim // 4), -(-dim // PANEL) * PANEL, -(-size // PANEL)
    raw = prepared.numpy()
    center = raw[64 : 64 + 4 * padded].view(np.float32)
    body = raw[64 + 4 * padded :].reshape(panels, 256 + 64 * blocks)
    numbers = body[:, :256].view(np.float32).reshape(panels, 4, PANEL)
    integers = body[:, 256:].reshape(panels, blocks, PANEL, 4).astype(int) - 128
    integers = integers.transpose(0, 2, 1, 3).reshape(panels * PANEL, blocks * 4)[:size, :dim]
    per_code = dict(
        zip(("scale", "slope", "offset", "intercept"), numbers.swapaxes(0, 1), strict=True)
    )
    return center[:dim], integers, per_code


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", nearest_code_rows.KINDS)
def test_adversarial_rows_find_the_nearest_code(kind, size, generator):
    assert_nearest(*nearest_code_rows.KINDS[kind](*size, generator))


@pytest.mark.parametrize("dim", [16, 31, 130])
@pytest.mark.parametrize("distance", [0.0, 1e-7, 1e-5, 1e-3, 1e-2, 0.1])
@pytest.mark.parametrize("shift", [0.0, 30.0])
def test_rows_between_two_codes_find_the_nearer(shift, distance, dim, generator):
    """At distances below and above the rounding of 8 bits, 16 bits and float32; tiny and huge rows are among them."""
    for _ in range(4):
        x, codes = nearest_code_rows.normal(32, 300, dim, generator)
        close = nearest_code_rows.middles(x, codes, distance, generator)
        close[3], close[7] = close[3] * 1e-14, close[7] * 1e9
        assert_nearest(close + shift, codes + shift)
        for row in close[:4]:
            assert_nearest(row[None] + shift, codes + shift)


@pytest.mark.parametrize("dim", [16, 33])
def test_rows_between_codes_that_bytes_hold_exactly(dim, generator):
    """These codes round without error, so only the rounding of the rows matters."""
    half = torch.randint(-126, 127, (150, dim), generator=generator).float()
    half[:, 0] = 127
    codes = torch.cat([half, -half]) / 64  # their mean is zero
    per_code = fields(prepare(codes), *codes.shape)[2]
    assert (per_code["scale"].reshape(-1)[:300] == 1 / 64).all()
    for _ in range(20):
        x = nearest_code_rows.middles(
            torch.randn(32, dim, generator=generator), codes, 1e-6, generator
        )
        assert_nearest(x, codes)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e13, 1e30, 3e38, 1e-30, 1e-44, 0.0])
def test_numbers_that_bytes_cannot_hold_are_searched_all_the_same(value, generator):
    x, codes = nearest_code_rows.normal(20, 200, 32, generator)
    for rows in (x.clone(), x.clone().mul_(0).add_(value)):
        rows[7] = value
        assert_nearest(rows, codes)
    codes[11] = value
    assert_nearest(x, codes)
    codes[:] = value
    codes[50] = 1.0
    assert_nearest(x, codes)
    codes[:] = value
    assert_nearest(x, codes)


@pytest.mark.parametrize("rows", [1, 3, 32])
def test_the_bound_is_what_makes_it_exact(rows, generator):
    """Without the error bound, the same rows get other codes: 8 bits alone cannot decide these rows.

    The rows are integers, which round without error, and lie between two codes; the mean of all codes is zero.
    """
    differ = 0
    for _ in range(40 // rows + 4):
        x = torch.randint(-126, 127, (rows, 64), generator=generator).float()
        x[:, 0] = 127
        away = torch.randn(rows, 64, generator=generator) * 16
        codes = torch.cat([x + away, x - 1.01 * away, -x - away, -x + 1.01 * away])
        prepared = prepare(codes)
        exact = encode(x[None], [codes])[1]
        assert torch.equal(encode(x[None], [codes], prepared=[prepared])[1], exact)
        bound = fields(prepared, *codes.shape)[2]
        bound["offset"] += bound["intercept"]
        bound["slope"][:] = 0
        bound["intercept"][:] = 0
        differ += int((encode(x[None], [codes], prepared=[prepared])[1] != exact).sum())
    assert differ > 0


@pytest.mark.parametrize("tokens", [1, 32, 191])
def test_the_copy_is_what_is_read(tokens, generator):
    x, codes = nearest_code_rows.near_codes(tokens, 300, 32, generator)
    turned = encode(x[None], [codes], prepared=[prepare(-codes)])[1]
    assert turned.ne(encode(x[None], [codes])[1]).all()


@pytest.mark.parametrize("case", ["metric", "rows", "float64"])
def test_where_copies_serve_nothing_they_change_nothing(case, generator):
    x, codes = nearest_code_rows.near_codes(200 if case == "rows" else 5, 300, 32, generator)
    if case == "float64":
        x, codes = x.double(), codes.double()
    options = dict(metric="cosine") if case == "metric" else {}
    wrong = encode(x[None], [codes], prepared=[prepare(-codes)], **options)
    assert all(map(torch.equal, wrong, encode(x[None], [codes], **options)))


@pytest.mark.parametrize("kind", ["normal", "offset_1e2", "spread", "lattice", "tiny"])
def test_the_numbers_of_a_copy_bound_what_rounding_has_changed(kind, generator):
    _, codes = nearest_code_rows.KINDS[kind](1, 100, 37, generator)
    if kind == "spread":
        codes = codes.clamp(-1e5, 1e5)
    center, integers, per_code = fields(prepare(codes), 100, 37)
    scale, slope, offset, intercept = (
        per_code[name].reshape(-1)[:100].astype(np.float64)
        for name in ("scale", "slope", "offset", "intercept")
    )
    centred = codes.numpy().astype(np.float64) - center
    norms = np.linalg.norm(centred, axis=1)
    lost = np.linalg.norm(centred - integers * scale[:, None], axis=1)
    assert (slope >= lost).all() and (slope <= 1.1 * lost + 1e-2 * norms + 1e-30).all()
    assert (offset <= norms**2 / 2).all() and (intercept >= 0).all()
    if kind != "tiny":
        assert (np.abs(integers).max(1) == 127).all() and (lost < 0.02 * norms).all()


def test_levels_heads_masks_and_depth(generator):
    x = torch.randn(2, 9, 24, generator=generator)
    books = [torch.randn(2, 90, 24, generator=generator), torch.randn(40, 24, generator=generator),
             torch.randn(1, 33, 24, generator=generator), torch.randn(2, 20, 24, generator=generator)]  # fmt: skip
    mask = torch.rand(2, 9, generator=generator) > 0.4
    for used in (books, books[1:3]):
        prepared = list(map(prepare, used))
        for options in ({}, dict(mask=mask), dict(depth=torch.tensor([2]))):
            ours = encode(x, used, prepared=prepared, **options)
            assert all(map(torch.equal, ours, encode(x, used, **options)))


def test_rows_that_are_not_finite_leave_the_others_theirs(generator):
    x, codes = nearest_code_rows.normal(6, 100, 32, generator)
    x[2, 3], x[4, 0] = float("nan"), float("inf")
    for ours, theirs in zip(
        found(x, codes, codes * 0.3), encode(x[None], [codes, codes * 0.3]), strict=True
    ):
        assert torch.equal(ours.nan_to_num(), theirs.nan_to_num())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_prepared_as_float32(dtype, generator):
    x, codes = (part.to(dtype) for part in nearest_code_rows.normal(8, 100, 32, generator))
    assert torch.equal(prepare(codes), prepare(codes.float()))
    assert all(map(torch.equal, found(x, codes), encode(x[None], [codes])))


def test_threads_do_not_matter(generator):
    x, codes = nearest_code_rows.normal(9, 3000, 100, generator)
    x = nearest_code_rows.middles(x, codes, 0.01, generator)
    whole, copy, before = found(x, codes), prepare(codes), torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            assert torch.equal(prepare(codes), copy)
            assert all(map(torch.equal, found(x, codes), whole))
    finally:
        torch.set_num_threads(before)


def test_copies_may_lie_anywhere(generator):
    """Strided copies, and copies at unaligned addresses."""
    x, codes = nearest_code_rows.normal(3, 100, 32, generator)
    prepared, wanted = prepare(codes), encode(x[None], [codes])
    shifted = torch.cat([torch.zeros(1, dtype=torch.uint8), prepared])[1:]
    spread = torch.stack([prepared, prepared], 1)[:, 0]
    for copy in (shifted, spread):
        assert all(map(torch.equal, encode(x[None], [codes], prepared=[copy]), wanted))


def test_bytes_that_are_no_copy_give_codes_that_there_are(generator):
    x, codes = nearest_code_rows.normal(3, 100, 32, generator)
    copy = prepare(codes)
    others = [torch.zeros_like(copy), torch.full_like(copy, 255), ~copy, -copy, copy.flip(0)]
    for _ in range(50):
        noise = torch.randint(256, copy.shape, generator=generator, dtype=torch.uint8)
        spared = torch.rand(copy.shape, generator=generator) < torch.rand((), generator=generator)
        others += [noise, torch.where(spared, copy, noise)]
    for other in others:
        indices = encode(x[None], [codes], prepared=[other])[1]
        assert indices.ge(0).all() and indices.lt(100).all()


def test_sparse_codes_are_refused():
    with pytest.raises(TypeError, match="prepare_codes: expected codebook to be a dense tensor"):
        prepare(torch.eye(16).to_sparse())


@pytest.mark.parametrize(
    "shape", [(40, 17), (3, 40, 17), (0, 40, 17), (1, 16), (40, 15), (40, 16385)]
)
@pytest.mark.parametrize("path", [prepare, any_path("prepare_codes")], ids=["cpu", "any"])
def test_a_copy_is_a_quarter_of_the_memory_and_16_bytes_a_code(path, shape, generator):
    codes = torch.randn(shape, generator=generator)
    copy, dim = path(codes), shape[-1]
    panels, blocks, padded = -(-shape[-2] // PANEL), -(-dim // 4), -(-dim // PANEL) * PANEL
    wanted = 64 + 4 * padded + panels * (256 + 64 * blocks) if 16 <= dim <= 16384 else 0
    assert copy.dtype == torch.uint8 and copy.shape == (*shape[:-2], wanted)
    turned = codes.transpose(-1, -2).contiguous().transpose(-1, -2)
    assert torch.equal(prepare(turned), copy)
    if len(shape) == 3 and shape[0]:
        assert torch.equal(torch.stack([prepare(head) for head in codes]), copy)


@pytest.mark.parametrize(
    ("codebook", "kind", "message"),
    [
        (torch.zeros(16), ValueError, r"2 or 3 dimensions \(K, D\) or \(H, K, D\)"),
        (torch.zeros(0, 16), ValueError, "at least 1 code"),
        (torch.zeros(4, 0), ValueError, "at least 1 feature"),
        (torch.zeros(4, 16).long(), TypeError, "floating point"),
    ],
)
@pytest.mark.parametrize("path", [prepare, any_path("prepare_codes")], ids=["cpu", "any"])
def test_bad_codebooks_are_named(path, codebook, kind, message):
    with pytest.raises(kind, match=f"prepare_codes: .*{message}"):
        path(codebook)


@pytest.mark.parametrize(
    ("prepared", "kind", "message"),
    [
        ([], ValueError, "prepared to have 1 levels, but got 0"),
        ([prepare(torch.zeros(17, 16))], ValueError, "prepared to have shape"),
        ([prepare(torch.zeros(1, 40, 16))], ValueError, "prepared to have shape"),
        ([prepare(torch.zeros(40, 16)).float()], TypeError, "prepared to be"),
        ([prepare(torch.zeros(40, 16, device="meta"))], RuntimeError, "on the same device"),
    ],
)
@pytest.mark.parametrize("path", [encode, any_path("residual_encode")], ids=["cpu", "any"])
def test_bad_copies_are_named(path, prepared, kind, message):
    with pytest.raises(kind, match=f"residual_encode: .*{message}"):
        path(torch.zeros(1, 3, 16), [torch.zeros(40, 16)], prepared=prepared)


def test_opcheck_gradient_and_compile(generator):
    x, codes = nearest_code_rows.normal(8, 100, 32, generator)
    torch.library.opcheck(prepare.default, (codes,))
    torch.library.opcheck(prepare.default, (codes.expand(3, -1, -1),))
    torch.library.opcheck(encode.default, (x[None], [codes]), dict(prepared=[prepare(codes)]))
    assert not prepare(codes.clone().requires_grad_()).requires_grad
    compiled = torch.compile(found, fullgraph=True, backend="aot_eager")
    assert all(map(torch.equal, compiled(x, codes), encode(x[None], [codes])))
