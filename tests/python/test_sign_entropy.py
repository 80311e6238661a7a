"""sign_entropy: entropies of soft sign codes without listing them (include/torchvq/ops/sign_entropy.h)."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest
import torch
from lookup_free_oracle import assert_near, entropies, with_gradients

from support import any_path

ops = torch.ops.torchvq
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
PATHS = {"cpu": ops.sign_entropy_forward, "any": any_path("sign_entropy_forward")}


def tokens(generator, shape=(2, 301, 6), spread=0.02, dtype=torch.float32):
    return (torch.randn(shape, generator=generator) * spread).to(dtype)


# Values and gradients --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("dim", [1, 2, 3, 7, 10])
def test_brute_force_over_all_codes(dim, dtype, path, generator):
    x = tokens(generator, (2, 301, dim), dtype=dtype)
    mask = torch.rand(2, 301, generator=generator) > 0.3
    tolerance = 1e-12 if dtype == torch.float64 else 2e-5
    for m in (None, mask):
        found = PATHS[path](x, sharpness=400.0, mask=m, wanted=True)
        for value, right in zip(found, with_gradients(x, 400.0, m), strict=True):
            assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
            assert_near(value, right, tolerance)
    assert found[2][~mask].eq(0).all() and found[3][~mask].eq(0).all()


def test_gradients_pass_finite_differences(generator):
    x = tokens(generator, (2, 5, 4), dtype=torch.float64).requires_grad_()
    mask = torch.rand(2, 5, generator=generator) > 0.3
    assert torch.autograd.gradcheck(
        lambda x: ops.sign_entropy(x, sharpness=100.0, mask=mask), (x,), eps=1e-6, atol=1e-8
    )


@pytest.mark.parametrize("path", PATHS)
def test_gradient_lives_where_a_clamped_logarithm_has_none(path, generator):
    """2^18 codes in nearly uniform use: every mean probability is below 1e-5, at which the reference clamps."""
    x = tokens(generator, (1, 64, 18), 0.001)
    _, batch, _, grad = PATHS[path](x, sharpness=400.0, mask=None, wanted=True)
    wide = any_path("sign_entropy_forward")(x.double(), sharpness=400.0, mask=None, wanted=True)
    assert batch > math.log(1e5) + 0.5
    assert_near(batch, wide[1], 1e-6)
    assert grad.abs().max() > 1e-4
    assert_near(grad, wide[3], 2e-5)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4, 1e30])
def test_extreme_latents_stay_finite(scale, path, generator):
    x = torch.randn(1, 50, 9, generator=generator) * scale
    found = PATHS[path](x, sharpness=400.0, mask=None, wanted=True)
    assert all(value.isfinite().all() for value in found)
    if scale == 0:
        assert found[0].item() == pytest.approx(9 * math.log(2), rel=1e-6)
        assert found[1].item() == pytest.approx(9 * math.log(2), rel=1e-6)


def test_identical_sure_tokens_have_no_entropy():
    per_sample, batch = ops.sign_entropy(torch.full((1, 20, 6), 5.0), sharpness=400.0)
    assert per_sample.abs() < 1e-6 and batch.abs() < 1e-6


def test_more_bits_than_joint_are_the_sum_of_groups(generator):
    x = tokens(generator, (1, 40, 26))
    per_sample, batch = ops.sign_entropy(x, sharpness=400.0)
    parts = [ops.sign_entropy(part, sharpness=400.0) for part in x.split(13, 2)]
    assert_near(per_sample, parts[0][0] + parts[1][0], 1e-6)
    assert_near(batch, parts[0][1] + parts[1][1], 1e-6)


def test_many_tokens_in_any_layout(generator):
    x = tokens(generator, (1500, 3, 5)).transpose(0, 1)
    for value, right in zip(
        ops.sign_entropy_forward(x, sharpness=300.0, mask=None, wanted=True),
        with_gradients(x, 300.0),
        strict=True,
    ):
        assert_near(value, right, 5e-6)


# Masks, empties, what is not finite ------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
def test_padding_may_hold_anything(path, generator):
    x = tokens(generator)
    mask = torch.rand(301, generator=generator) > 0.4
    right = PATHS[path](x[:, mask], sharpness=400.0, mask=None, wanted=True)
    x[:, ~mask] = float("nan")
    found = PATHS[path](x, sharpness=400.0, mask=mask, wanted=True)
    assert torch.equal(found[0], right[0]) and torch.equal(found[1], right[1])
    assert torch.equal(found[2][:, mask], right[2]) and torch.equal(found[3][:, mask], right[3])


@pytest.mark.parametrize("path", PATHS)
def test_no_tokens(path):
    nothing = torch.zeros(1, 4, dtype=torch.bool)
    for x, mask in ((torch.empty(2, 0, 5), None), (torch.randn(1, 4, 5), nothing)):
        found = PATHS[path](x, sharpness=400.0, mask=mask, wanted=True)
        assert found[0] == 0 and found[1] == 0 and not found[2].any() and not found[3].any()


@pytest.mark.parametrize("path", PATHS)
def test_nan_is_seen_and_infinity_is_a_sure_bit(path, generator):
    x = tokens(generator, (1, 10, 4))
    x[0, 3, 1] = float("nan")
    assert all(v.isnan() for v in PATHS[path](x, sharpness=400.0, mask=None, wanted=False)[:2])
    x[0, 3, 1] = float("inf")
    found = PATHS[path](x, sharpness=400.0, mask=None, wanted=True)
    x[0, 3, 1] = 1e6
    right = PATHS[path](x, sharpness=400.0, mask=None, wanted=True)
    assert torch.equal(found[0], right[0]) and torch.equal(found[1], right[1])


# Bits of the result ----------------------------------------------------------------------------------------------

DIGESTS = """
import hashlib, torch, torchvq
for threads in (1, 2, 5):
    torch.set_num_threads(threads)
    digest = hashlib.sha256()
    for dim, count in ((1, 9), (5, 300), (11, 1000), (14, 70), (30, 20)):
        x = torch.randn(2, count, dim, generator=torch.Generator().manual_seed(dim)) * 0.02
        for value in torch.ops.torchvq.sign_entropy_forward(x, sharpness=400.0, mask=None, wanted=True):
            digest.update(value.numpy().tobytes())
    print(digest.hexdigest())
"""


def test_same_bits_for_every_instruction_set_and_number_of_threads():
    digests = []
    for level in ("default", "avx2", "avx512"):
        found = subprocess.run(
            [sys.executable, "-c", DIGESTS],
            env=os.environ | {"TORCHVQ_SIMD_LEVEL": level},
            capture_output=True,
            text=True,
        )
        assert found.returncode == 0, found.stderr
        digests += found.stdout.split()
    assert len(digests) == 9 and len(set(digests)) == 1


# Totals ----------------------------------------------------------------------------------------------------------


def test_totals_of_parts_add_up_to_the_whole(generator):
    x = tokens(generator, (2, 90, 6), dtype=torch.float64)
    mask = torch.rand(2, 90, generator=generator) > 0.3
    parts = list(zip(x.split((50, 0, 40), 1), mask.split((50, 0, 40), 1), strict=True))
    totals = sum(ops.sign_entropy_totals(a, sharpness=400.0, mask=m) for a, m in parts)
    assert totals.shape == (2, 2**6 + 3)
    assert totals[:, -2].tolist() == mask.sum(1).tolist() and totals[:, -1].tolist() == [3, 3]
    right = with_gradients(x, 400.0, mask)
    grads = []
    for a, m in parts:
        found = ops.sign_entropy_forward(a, sharpness=400.0, mask=m, totals=totals, wanted=True)
        assert_near(found[0], right[0], 1e-12)
        assert_near(found[1], right[1], 1e-12)
        grads.append(found[3] / 3)
    assert_near(torch.cat(grads, 1), right[3], 1e-11)


# Contracts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"x": torch.ones(2, 3)}, ValueError, "3 dimensions"),
        ({"x": torch.ones(1, 2, 3, dtype=torch.int32)}, TypeError, "floating point"),
        ({"x": torch.ones(1, 2, 63)}, ValueError, "1 to 62 features"),
        ({"sharpness": -1.0}, ValueError, "sharpness"),
        ({"sharpness": float("nan")}, ValueError, "sharpness"),
        ({"sharpness": 1e39}, ValueError, "sharpness to be at most"),
        ({"mask": torch.ones(1, 2)}, TypeError, "mask"),
        ({"mask": torch.ones(1, 3) > 0}, ValueError, "mask"),
        ({"totals": torch.ones(1, 10)}, ValueError, "totals to have size 11"),
        ({"totals": torch.ones(2, 11)}, ValueError, "totals to have size 1"),
        ({"totals": torch.ones(1, 11).double()}, TypeError, "totals"),
    ],
)
@pytest.mark.parametrize("path", PATHS)
def test_errors(change, error, message, path):
    arguments = {"x": torch.zeros(1, 2, 3), "sharpness": 1.0, "mask": None, **change}
    with pytest.raises(error, match=message):
        PATHS[path](arguments.pop("x"), **arguments, wanted=False)


def test_opcheck_and_compile(generator, compiler):
    x = tokens(generator, (2, 20, 5)).requires_grad_()
    mask = torch.rand(2, 20, generator=generator) > 0.3
    torch.library.opcheck(ops.sign_entropy.default, (x,), {"sharpness": 400.0, "mask": mask})
    torch.library.opcheck(
        ops.sign_entropy_totals.default, (x.detach(),), {"sharpness": 400.0, "mask": mask}
    )

    def loss(x):
        per_sample, batch = ops.sign_entropy(x, sharpness=400.0)
        return per_sample - 2 * batch

    expected = torch.autograd.grad(loss(x), x)[0]
    found = torch.autograd.grad(torch.compile(loss, fullgraph=True, backend=compiler)(x), x)[0]
    assert torch.equal(expected, found)


def test_second_derivative_is_refused(generator):
    x = tokens(generator).requires_grad_()
    with pytest.raises(NotImplementedError, match="create_graph"):
        torch.autograd.grad(ops.sign_entropy(x, sharpness=1.0)[1], x, create_graph=True)


def test_autocast_changes_nothing(generator):
    x = tokens(generator)
    with torch.autocast("cpu", torch.bfloat16):
        found = ops.sign_entropy(x, sharpness=400.0)
    assert all(map(torch.equal, found, ops.sign_entropy(x, sharpness=400.0)))
    assert_near(found[1], entropies(x, 400.0)[1], 1e-6)
