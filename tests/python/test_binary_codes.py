"""binary_sample, binary_one_hot, binary_kl_loss (include/torchvq/ops/binary_codes.h)."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest
import torch

import torchvq  # noqa: F401
from support import any_path

ops = torch.ops.torchvq
RNG = torch.tensor([123456789, 7])
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def bits_of(count):
    return torch.arange(2**count)[:, None] >> torch.arange(count) & 1


def soft(logits, temperature=1.0):
    """Oracle: the probability of every code, in float64."""
    p = (logits.double() / temperature).sigmoid().unsqueeze(-2)
    return torch.where(bits_of(logits.shape[-1]) == 1, p, 1 - p).prod(-1)


def uniform(rng, shape):
    return ops.random_numbers(rng, 4, shape, dtype=torch.float64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("temperature", [1.0, 0.3, 4.0])
def test_binary_sample_compares_uniform_numbers_with_probabilities(dtype, temperature, generator):
    logits = (torch.randn(7, 301, 5, generator=generator) * 2).to(dtype)
    found = ops.binary_sample(logits, RNG, temperature=temperature)
    p = (logits.double() / temperature).sigmoid()
    expected = ((uniform(RNG, logits.shape) < p) << torch.arange(5)).sum(-1)
    assert found.dtype == torch.int64 and torch.equal(found, expected)


def test_binary_sample_paths_agree_where_the_quick_decision_is_close(generator):
    """Logits are chosen so that the uniform number equals the probability up to float64 rounding."""
    u = uniform(RNG, (4000, 3))
    logits = u.log() - (1 - u).log()
    logits += torch.randn(logits.shape, generator=generator).double() * 1e-15
    found = ops.binary_sample(logits, RNG)
    assert torch.equal(found, any_path("binary_sample")(logits, RNG))
    assert 0.2 < (found & 1).double().mean() < 0.8


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_binary_sample_without_noise_takes_the_likelier_bits(temperature, generator):
    logits = torch.randn(50, 6, generator=generator)
    logits[0, 0] = 0.0  # a tie gives 0
    expected = ((logits > 0) << torch.arange(6)).sum(-1)
    rng = RNG if temperature == 0 else None
    assert torch.equal(ops.binary_sample(logits, rng, temperature=temperature), expected)


def test_binary_sample_masked_equals_the_real_tokens_alone(generator):
    logits = torch.randn(4, 9, 3, generator=generator)
    mask = torch.rand(4, 9, generator=generator) < 0.6
    alone = ops.binary_sample(logits[mask], RNG)
    for other in (logits, logits.masked_fill(~mask[..., None], math.nan)):
        for call in (ops.binary_sample, any_path("binary_sample")):
            found = call(other, RNG, mask=mask)
            assert torch.equal(found[mask], alone) and (found[~mask] == -1).all()


@pytest.mark.parametrize("bits", [1, 2, 3, 7, 10])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_binary_one_hot_value_and_gradient(bits, dtype, generator):
    logits = torch.randn(2, 23, bits, generator=generator).to(dtype).requires_grad_()
    indices = ops.binary_sample(logits, RNG)
    weight = torch.randn(2, 23, 2**bits, generator=generator).to(dtype)
    output = ops.binary_one_hot(logits, indices, temperature=0.7)
    assert output.dtype == dtype
    assert torch.equal(output, torch.nn.functional.one_hot(indices, 2**bits).to(dtype))
    (output * weight).sum().backward()
    twin = logits.detach().double().requires_grad_()
    (soft(twin, 0.7) * weight).sum().backward()
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5}.get(dtype, 1e-2)
    torch.testing.assert_close(logits.grad.double(), twin.grad, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("op", [ops.binary_one_hot, any_path("binary_one_hot")])
def test_binary_one_hot_of_numbers_beyond_float32(op):
    logits = torch.tensor([[1e39], [math.inf]], dtype=torch.float64)
    first, second = op(logits, torch.tensor([1, 1]))
    assert first.tolist() == [0, 1] and second.isnan().all()


def test_binary_one_hot_paths_agree(generator):
    logits = torch.randn(30, 6, generator=generator)
    logits[3, 2] = math.nan
    indices = ops.binary_sample(logits, RNG)
    indices[4] = -1
    found = ops.binary_one_hot(logits, indices)
    other = any_path("binary_one_hot")(logits, indices)
    torch.testing.assert_close(found, other, rtol=0, atol=0, equal_nan=True)
    assert indices[3] == 0 and found[3].isnan().all() and (found[4] == 0).all()
    logits[3, 2] = 1.0
    grad = torch.randn(30, 64, generator=generator)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        args = (grad.to(dtype), logits.to(dtype), indices, 0.8)
        slopes = ops.binary_one_hot_backward(*args)
        torch.testing.assert_close(
            slopes, any_path("binary_one_hot_backward")(*args), rtol=tolerance, atol=tolerance
        )
        assert (slopes[4] == 0).all()


def test_binary_one_hot_gradient_does_not_depend_on_threads(generator):
    logits = torch.randn(500, 9, generator=generator)
    grad = torch.randn(500, 512, generator=generator)
    indices = ops.binary_sample(logits, RNG)
    whole = ops.binary_one_hot_backward(grad, logits, indices, 1.0)
    parts = [
        ops.binary_one_hot_backward(g, x, i, 1.0)
        for g, x, i in zip(grad.split(7), logits.split(7), indices.split(7), strict=True)
    ]
    assert torch.equal(whole, torch.cat(parts))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("reduce", [False, True])
def test_binary_kl_loss_is_the_divergence_from_uniform(masked, reduce, generator):
    logits = (torch.randn(6, 11, 5, generator=generator) * 2).double()
    mask = torch.rand(6, 11, generator=generator) < 0.5 if masked else None
    q = soft(logits)
    each = ((q * (q * 32).log()).sum(-1) - 0.9).clamp_min(0)
    expected = each if mask is None else each * mask
    if reduce:
        expected = each.mean() if mask is None else each[mask].mean()
    if masked:
        logits[~mask] = math.nan
    found = ops.binary_kl_loss(logits, threshold=0.9, mask=mask, reduce=reduce)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        ops.binary_kl_loss(logits.float(), threshold=0.9, mask=mask, reduce=reduce),
        expected.float(),
    )


def test_binary_kl_loss_gradient_by_finite_differences(generator):
    logits = torch.randn(3, 4, generator=generator).double().requires_grad_()
    mask = torch.tensor([True, False, True])
    for reduce in (True, False):
        call = lambda x: ops.binary_kl_loss(x, threshold=0.2, mask=mask, reduce=reduce)  # noqa: E731, B023
        assert torch.autograd.gradcheck(call, (logits,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("reduce", [False, True])
def test_binary_kl_loss_paths_agree(reduce, dtype, generator):
    logits = (torch.randn(3, 701, 7, generator=generator) * 3).to(dtype)
    mask = torch.rand(3, 701, generator=generator) < 0.7
    logits[0, 3] = 0.0
    logits[1, 5, 2] = math.nan
    mask[1, 5] = reduce is False
    grad = torch.randn(() if reduce else (3, 701), generator=generator)
    loss = dict(threshold=0.9, mask=mask, reduce=reduce)
    torch.testing.assert_close(
        ops.binary_kl_loss(logits, **loss),
        any_path("binary_kl_loss")(logits, **loss),
        rtol=1e-6,
        atol=1e-7,
        equal_nan=True,
    )
    call = (grad, logits, 0.9, mask, reduce)
    found = ops.binary_kl_loss_backward(*call)
    right = any_path("binary_kl_loss_backward")(*call)
    torch.testing.assert_close(found, right, equal_nan=True)
    assert found[~mask].eq(0).all()


DIGESTS = """
import hashlib, torch, torchvq
ops, rng = torch.ops.torchvq, torch.tensor([5, 2])
for threads in (1, 3):
    torch.set_num_threads(threads)
    digest = hashlib.sha256()
    for bits in (1, 3, 8, 11):
        logits = torch.randn(333, bits, generator=torch.Generator().manual_seed(bits)) * 4
        grad = torch.randn(333, 2**bits, generator=torch.Generator().manual_seed(bits))
        values = [
            ops.binary_kl_loss(logits),
            ops.binary_kl_loss_backward(torch.tensor(0.3), logits, 0.0, None, True),
        ]
        for temperature in (0.7, 1.0):
            indices = ops.binary_sample(logits, rng, temperature=temperature)
            values += [
                indices,
                ops.binary_one_hot_backward(grad, logits, indices, temperature),
                ops.binary_one_hot_backward(grad.double(), logits.double(), indices, temperature),
            ]
        for value in values:
            digest.update(value.numpy().tobytes())
    print(digest.hexdigest())
"""


def test_binary_ops_give_the_same_bits_for_all_instruction_sets_and_threads():
    found = set()
    for level in ("default", "avx2", "avx512"):
        environment = dict(os.environ, TORCHVQ_SIMD_LEVEL=level)
        out = subprocess.run(
            [sys.executable, "-c", DIGESTS],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        found |= set(out.stdout.split())
    assert len(found) == 1


def test_binary_kl_loss_extremes():
    far = torch.tensor([[1e4, -1e4, 3e38]], requires_grad=True)
    loss = ops.binary_kl_loss(far)
    loss.backward()
    assert abs(loss.item() - 3 * math.log(2)) < 1e-6 and (far.grad == 0).all()
    assert ops.binary_kl_loss(torch.zeros(0, 3)) == 0
    assert ops.binary_kl_loss(torch.ones(4, 3), mask=torch.zeros(4, dtype=torch.bool)) == 0


def test_binary_log_prob_and_entropy(generator):
    logits = torch.randn(16, 4, generator=generator).double()
    indices = torch.arange(16)
    q = soft(logits)
    torch.testing.assert_close(
        ops.binary_log_prob(logits, indices), q.gather(-1, indices[:, None])[:, 0].log()
    )
    torch.testing.assert_close(ops.binary_entropy(logits), -(q * q.log()).sum(-1))
    with pytest.raises(ValueError, match="exactly one"):
        ops.binary_log_prob(logits, None)


@pytest.mark.parametrize("dynamic", [False, True])
def test_binary_ops_check(dynamic, generator):
    logits = torch.randn(3, 4, 5, generator=generator, requires_grad=True)
    indices = ops.binary_sample(logits, RNG)
    mask = torch.rand(3, 4, generator=generator) < 0.5
    torch.library.opcheck(ops.binary_sample.default, (logits, RNG), dict(mask=mask))
    torch.library.opcheck(ops.binary_one_hot.default, (logits, indices), dict(temperature=0.5))
    torch.library.opcheck(ops.binary_kl_loss.default, (logits,), dict(mask=mask, reduce=dynamic))

    def step(x):
        code = ops.binary_one_hot(x, ops.binary_sample(x, RNG))
        return code.square().sum() + ops.binary_kl_loss(x)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    torch.testing.assert_close(compiled(logits), step(logits))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: ops.binary_sample(x.long(), None), TypeError, "floating"),
        (lambda x: ops.binary_sample(x[0, 0], None), ValueError, "scalar"),
        (lambda x: ops.binary_sample(x, None, temperature=-1.0), ValueError, "temperature"),
        (lambda x: ops.binary_sample(x, None, temperature=math.nan), ValueError, "temperature"),
        (lambda x: ops.binary_sample(x, RNG.int()), TypeError, "rng"),
        (lambda x: ops.binary_sample(x, None, mask=torch.ones(4)), TypeError, "mask"),
        (lambda x: ops.binary_sample(torch.zeros(2, 31), None), ValueError, "30"),
        (lambda x: ops.binary_sample(torch.zeros(2, 0), None), ValueError, "bits"),
        (lambda x: ops.binary_one_hot(x, torch.full((4,), 8)), IndexError, "indices"),
        (lambda x: ops.binary_one_hot(x, torch.full((4,), -2)), IndexError, "indices"),
        (
            lambda x: any_path("binary_one_hot")(x, torch.full((4,), 8)),
            IndexError,
            r"binary_one_hot: expected indices to be in \[-1, 8\), but got 8",
        ),
        (
            lambda x: any_path("binary_one_hot")(x, torch.full((4,), -2)),
            IndexError,
            r"binary_one_hot: expected indices to be in \[-1, 8\), but got -2",
        ),
        (lambda x: ops.binary_one_hot(x, torch.zeros(5).long()), ValueError, "indices"),
        (lambda x: ops.binary_kl_loss(x, threshold=math.nan), ValueError, "threshold"),
    ],
)
def test_binary_ops_refuse(call, error, words):
    with pytest.raises(error, match=words):
        call(torch.zeros(4, 3))


@pytest.mark.parametrize("shape", [(0, 8, 16), (1, 7, 16), (1, 8, 15), (8, 16)], ids=str)
def test_a_gradient_of_other_tokens_is_refused(shape):
    logits, indices = torch.randn(1, 8, 4), torch.zeros(1, 8, dtype=torch.long)
    with pytest.raises(ValueError, match="binary_one_hot_backward: expected grad to have"):
        ops.binary_one_hot_backward(torch.empty(shape), logits, indices, 1.0)
