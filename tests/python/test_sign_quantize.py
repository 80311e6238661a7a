"""sign_quantize, sign_decode, sample_token_mask (include/torchvq/ops/sign_quantize.h, sample_token_mask.h)."""

from __future__ import annotations

import pytest
import torch

from support import any_path

ops = torch.ops.torchvq
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bits", [1, 7, 40, 62])
def test_index_is_the_binary_number_of_the_signs(bits, dtype, generator):
    x = torch.randn(5, 3, bits, generator=generator).to(dtype)
    codes, indices = ops.sign_quantize(x, scale=0.25)
    for token, code, index in zip(
        x.reshape(-1, bits), codes.reshape(-1, bits), indices.flatten(), strict=True
    ):
        text = "".join("1" if value > 0 else "0" for value in token.tolist())
        assert int(index) == int(text, 2)
        assert code.tolist() == [0.25 if digit == "1" else -0.25 for digit in text]
    assert codes.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.equal(indices, ops.sign_quantize(x.float())[1])


def test_zero_is_not_set():
    _, indices = ops.sign_quantize(torch.tensor([[0.0, -0.0, 1e-45]]))
    assert indices.tolist() == [1]


@pytest.mark.parametrize("bits", [1, 40, 62])
def test_indices_round_trip_exactly(bits, generator):
    count = 1_000_000 if bits == 40 else 1000
    indices = torch.randint(0, 2**bits, (count,), generator=generator)
    indices[:2] = torch.tensor([0, 2**bits - 1])
    codes = ops.sign_decode(indices, bits, scale=0.5)
    assert codes.abs().eq(0.5).all()
    again, found = ops.sign_quantize(codes, scale=0.5)
    assert torch.equal(found, indices) and torch.equal(again, codes)


@pytest.mark.parametrize("dtype", FLOATS)
def test_any_device_path_agrees_to_the_bit(dtype, generator):
    x = torch.randn(4, 6, 11, generator=generator).to(dtype).transpose(0, 1)
    x[0, 0, 3], x[1, 2, 0] = float("nan"), float("inf")
    for found, right in zip(any_path("sign_quantize")(x), ops.sign_quantize(x), strict=True):
        assert (
            torch.equal(found.nan_to_num(7.0), right.nan_to_num(7.0)) and found.dtype == right.dtype
        )
    indices = torch.randint(-1, 2**11, (3, 4), generator=generator)
    assert torch.equal(any_path("sign_decode")(indices, 11), ops.sign_decode(indices, 11))


def test_rows_that_are_not_finite_have_no_code():
    x = torch.ones(4, 3)
    x[0, 1], x[1, 2], x[2, 0] = float("nan"), float("inf"), float("-inf")
    codes, indices = ops.sign_quantize(x)
    assert codes[:3].isnan().all() and indices.tolist() == [0, 0, 0, 7]


def test_absent_and_empty():
    assert ops.sign_decode(torch.tensor([-1, 3]), 2).tolist() == [[0.0, 0.0], [1.0, 1.0]]
    codes, indices = ops.sign_quantize(torch.empty(2, 0, 5))
    assert codes.shape == (2, 0, 5) and indices.shape == (2, 0)
    assert ops.sign_decode(torch.empty(0, dtype=torch.long), 5).shape == (0, 5)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ops.sign_quantize(torch.ones(2, dtype=torch.long)), TypeError, "floating point"),
        (lambda: ops.sign_quantize(torch.ones(2, 63)), ValueError, "1 to 62 features"),
        (lambda: ops.sign_quantize(torch.ones(2, 0)), ValueError, "1 to 62 features"),
        (lambda: ops.sign_quantize(torch.ones(())), ValueError, "1 to 62 features"),
        (lambda: ops.sign_quantize(torch.ones(2), scale=0.0), ValueError, "finite and positive"),
        (lambda: ops.sign_quantize(torch.ones(2), scale=float("nan")), ValueError, "finite"),
        (lambda: ops.sign_quantize(torch.ones(2), scale=1e300), ValueError, "scale to be at most"),
        (lambda: ops.sign_decode(torch.tensor([1]), 3, scale=1e39), ValueError, "scale to be at"),
        (lambda: ops.sign_decode(torch.ones(2), 3), TypeError, "indices to be Long"),
        (lambda: ops.sign_decode(torch.tensor([8]), 3), IndexError, r"\[-1, 8\), but got 8"),
        (lambda: ops.sign_decode(torch.tensor([-2]), 3), IndexError, "but got -2"),
        (lambda: ops.sign_decode(torch.tensor([1]), 63), ValueError, "bits to be in"),
        (lambda: ops.sign_decode(torch.tensor([1]), 3, dtype=torch.half), TypeError, "dtype"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_opcheck_and_compile(generator, compiler):
    x = torch.randn(3, 5, 4, generator=generator)
    torch.library.opcheck(ops.sign_quantize.default, (x,), {"scale": 0.5})
    torch.library.opcheck(ops.sign_decode.default, (torch.arange(16), 4))
    rng = torch.tensor([3, 4])
    torch.library.opcheck(ops.sample_token_mask.default, (rng, 5, 0.5))
    torch.library.opcheck(ops.sample_token_mask.default, (rng, 5, 0.5), {"mask": x[..., 0] > 0})

    def step(x):
        codes, indices = ops.sign_quantize(x)
        return codes, ops.sign_decode(indices, 4)

    codes, decoded = torch.compile(step, fullgraph=True, backend=compiler)(x)
    assert torch.equal(codes, decoded) and torch.equal(codes, step(x)[0])


# Token subsets ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "fraction", "count"),
    [(10, 0.5, 5), (5, 0.1, 1), (7, 1.0, 7), (900, 0.13, 117), (300, 0.21, 63), (100, 0.29, 28)],
)
def test_subset_has_the_size_asked_for(tokens, fraction, count):
    chosen = ops.sample_token_mask(torch.tensor([1, 2]), tokens, fraction)
    assert chosen.dtype == torch.bool and chosen.shape == (tokens,) and chosen.sum() == count


def test_subset_is_uniform_and_new_in_each_step():
    steps = torch.stack(
        [ops.sample_token_mask(torch.tensor([9, step]), 20, 0.25) for step in range(2000)]
    )
    assert steps.sum(1).eq(5).all()
    assert (steps.double().mean(0) - 0.25).abs().max() < 0.05
    assert len(set(map(tuple, steps[:50].tolist()))) > 45


def test_subset_of_masked_tokens_is_that_of_the_rest(generator):
    rng = torch.tensor([5, 6])
    mask = torch.rand(40, generator=generator) < 0.6
    chosen = ops.sample_token_mask(rng, 40, 0.3, mask=mask)
    assert not chosen[~mask].any()
    assert torch.equal(chosen[mask], ops.sample_token_mask(rng, int(mask.sum()), 0.3))
    twice = ops.sample_token_mask(rng, 40, 0.3, mask=mask.expand(2, 40))
    assert torch.equal(twice, chosen.expand(2, 40))
    assert not ops.sample_token_mask(rng, 4, 0.3, mask=torch.zeros(4, dtype=torch.bool)).any()
    assert ops.sample_token_mask(rng, 0, 0.3).shape == (0,)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda r: ops.sample_token_mask(r, 3, 0.0), ValueError, r"fraction to be in \(0, 1\]"),
        (lambda r: ops.sample_token_mask(r, 3, 1.5), ValueError, "fraction"),
        (lambda r: ops.sample_token_mask(r, -1, 0.5), ValueError, "tokens"),
        (lambda r: ops.sample_token_mask(r, 3, 0.5, mask=torch.ones(3)), TypeError, "mask"),
        (lambda r: ops.sample_token_mask(r, 3, 0.5, mask=torch.ones(4) > 0), ValueError, "mask"),
        (lambda r: ops.sample_token_mask(r[:1], 3, 0.5), ValueError, "rng"),
    ],
)
def test_subset_errors(call, error, message):
    with pytest.raises(error, match=message):
        call(torch.tensor([1, 2]))
